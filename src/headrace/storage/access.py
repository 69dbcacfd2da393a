"""Access: the options of a user for all stores that a dataset reads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import OptionError
from headrace.storage._disk_cache import DiskCache
from headrace.storage._ranges import Requests
from headrace.storage._remote import RemoteStore, RetryPolicy
from headrace.storage.options import Options, is_url
from headrace.storage.redaction import has_secret, public_url, unsigned_url, without_secrets
from headrace.storage.store import LocalStore, Meter, Store

__all__ = ["Access", "protocol_of", "shown_location", "store_for"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Credentials and other options of stores, retries, requests and the cache.

    Attributes:
        storage_options: Options of the store, or a function that returns them.
        filesystem: A filesystem that the user gives, which is used as it is.
        retry: The effort that a request is worth.
        requests: How wanted byte ranges become requests.
        cache: Keeps fetched bytes on a local disk.
        meter: Counts requests while files are found.
    """

    storage_options: Options = field(default_factory=dict, repr=False)
    filesystem: Any = field(default=None, repr=False)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    requests: Requests = field(default_factory=Requests)
    cache: DiskCache | None = None
    meter: Meter = field(default_factory=Meter, repr=False)

    def __post_init__(self) -> None:
        given = self.storage_options
        if not (isinstance(given, Mapping) or callable(given)):
            raise OptionError(
                "storage_options must be a mapping, or a function that returns one, not a "
                f"{type(given).__name__}"
            )
        if self.filesystem is not None and given:
            raise OptionError(
                "storage_options have no effect beside filesystem, which is used as it is"
            )

    def store_for(self, locations: list[str]) -> tuple[Store, list[str]]:
        """Return the store that holds some locations, and the locations without secrets in them."""
        protocols = {""} if self.filesystem is not None else set(map(protocol_of, locations))
        if protocols == {""} and self.filesystem is None:
            return LocalStore(), locations
        shown = [shown_location(one) for one in locations]
        if len(protocols) > 1:
            raise OptionError(f"paths lie in different stores: {', '.join(sorted(shown))}")
        [protocol] = protocols
        is_web = protocol in ("http", "https")
        if is_web:
            shown = _shown_urls(locations, shown)
        signed = {new: old for new, old in zip(shown, locations, strict=True) if new != old}
        if signed and not is_web:
            raise OptionError(
                f"{min(signed)}: credentials do not belong into a URL of "
                f"{'a filesystem that is given' if protocol == '' else f'{protocol}://'}; "
                "give them as storage_options"
            )
        store = RemoteStore(
            protocol=protocol,
            options=self.storage_options,
            filesystem=self.filesystem,
            signed_urls=signed,
            retry=self.retry,
            requests=self.requests,
            cache=self.cache,
            meter=self.meter,
        )
        store.check()
        return store, shown


def _shown_urls(locations: list[str], shown: list[str]) -> list[str]:
    """Return what is shown of URLs, numbered where several look alike: ``https://host/get#2``.

    They differ in parameters that may name files or be secrets, which are not shown. The numbers
    follow from the URLs alone, in whatever order these are given.

    Raises:
        OptionError: A location is no URL, or two differ only in what signs them.
    """
    alike: dict[str, set[str]] = {}
    for location, public in zip(locations, shown, strict=True):
        if not is_url(location):
            raise OptionError(f"{without_secrets(public)} is no URL of a web server")
        alike.setdefault(public, set()).add(location)
    numbers = {}
    for public, group in alike.items():
        if len({unsigned_url(one) for one in group}) < len(group):
            raise OptionError(
                "two URLs differ only in what signs them, so that their files could not be "
                f"distinguished: {public}"
            )
        if len(group) > 1:
            for number, location in enumerate(sorted(group), 1):
                numbers[location] = f"{public}#{number}"
    return [numbers.get(one, public) for one, public in zip(locations, shown, strict=True)]


def shown_location(location: str) -> str:
    """Return a location without secrets, which only URLs hold."""
    if protocol_of(location) == "" or not has_secret(location):
        return location
    try:
        return public_url(location)
    except ValueError:  # it is no URL
        return without_secrets(location)


def protocol_of(location: str | os.PathLike[str]) -> str:
    """Return the part of a URL before ``://``; nothing for paths of this machine."""
    protocol, separator, _ = os.fspath(location).partition("://")
    return protocol if separator and protocol not in ("file", "local") else ""


def store_for(url: str, storage_options: Options | None = None) -> Store:
    """Return the store that holds one location."""
    return Access(storage_options=storage_options or {}).store_for([url])[0]
