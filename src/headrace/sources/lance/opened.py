"""A Lance dataset at one version: its location, its options, and its rows."""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.errors import (
    HeadraceError,
    MissingExtraError,
    NothingFoundError,
    OptionError,
    ReadError,
)
from headrace.model import Int64Array
from headrace.process import PerProcess
from headrace.sources.lance.native import Failed, Found, Handle
from headrace.sources.tables.table import shown
from headrace.storage import Options, Redaction
from headrace.storage.access import protocol_of
from headrace.storage.options import Resolved, resolve, s3_options, store_options
from headrace.storage.redaction import has_secret, of_environment, without_secrets

__all__ = ["LanceLocation", "LanceVersion", "keys_expire_at", "lance_options", "located"]

_STORES = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "gcs": "gs",
    "az": "az",
    "abfs": "az",
    "abfss": "az",
}
_KINDS = {"s3": "s3", "gs": "gcs", "az": "azure"}
"""The names by which the room of storage knows these stores."""
_OWN_PREFIXES = {"s3": "aws_", "gs": "google_", "az": "azure_"}
"""of names that Lance knows as they are"""
_CLIENT_NAMES = frozenset(
    (
        "allow_http",
        "allow_invalid_certificates",
        "client_max_retries",
        "client_retry_timeout",
        "connect_timeout",
        "download_retry_count",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "request_timeout",
        "timeout",
        "user_agent",
        "virtual_hosted_style_request",
    )
)
"""of Lance and of the client that it uses, whatever the store"""


def located(uri: str | os.PathLike[str]) -> str:
    """Return a location that means the same in every process."""
    if not isinstance(uri, str | os.PathLike):
        raise OptionError(f"uri must be a path or a URL, not {uri!r}")
    text = os.fspath(uri)
    if protocol_of(text) == "":
        return os.path.abspath(os.path.expanduser(text.removeprefix("file://")))
    if has_secret(text):
        raise OptionError(
            f"{without_secrets(text)}: credentials do not belong into the URL; give them as "
            "storage_options"
        )
    return text.rstrip("/")


def lance_options(uri: str, options: Mapping[str, Any]) -> dict[str, str] | None:
    """Return options, of any dataset's names or of Lance's own, as Lance is given them."""
    store, own = _own_options(uri, options)
    found = dict(options)
    if store in _OWN_PREFIXES:
        found = {**_translated(store, options, own), **own}
    return {k: _text(k, value) for k, value in found.items() if value is not None} or None


def keys_expire_at(uri: str, options: Mapping[str, Any]) -> datetime | None:
    """Return when keys expire that a profile of the AWS tools gives."""
    store, own = _own_options(uri, options)
    if store != "s3" or "aws_access_key_id" in own:
        return None
    keys = s3_options({name: value for name, value in options.items() if name not in own}).keys
    expires_at: datetime | None = None if keys is None else keys()["expires_at"]
    return expires_at


def _own_options(uri: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the kind of store, and the options that Lance knows by these names."""
    protocol = protocol_of(uri)
    store = _STORES.get(protocol, protocol)
    return store, {k: v for k, v in options.items() if _is_own(store, str(k))}


def _is_own(store: str, name: str) -> bool:
    prefix = _OWN_PREFIXES.get(store)
    return name in _CLIENT_NAMES or (prefix is not None and name.startswith(prefix))


def _translated(store: str, options: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is not given by Lance's own names."""
    given = {name: value for name, value in options.items() if name not in own}
    found = store_options(_KINDS[store], given)
    config, client = dict(found.config), found.client
    if store == "s3":
        config = {f"aws_{name}": value for name, value in config.items()}
        if found.keys is not None and "aws_access_key_id" not in own:
            keys = found.keys()
            config |= {f"aws_{name}": keys[name] for name in ("access_key_id", "secret_access_key")}
            config["aws_session_token"] = keys["token"]
    elif store == "gs" and found.keys is not None:
        config["google_storage_token"] = found.keys()["token"]
    config.pop("credential_type", None)
    if "root_certificate" in client:
        raise OptionError(
            "storage option 'verify' cannot name a file for Lance, which trusts what the system "
            "trusts; set SSL_CERT_FILE"
        )
    return {**config, **client}


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise OptionError(
        f"storage option {name!r} for Lance must be a str, a number or a flag, not a "
        f"{type(value).__name__}"
    )


Where = tuple[str, int | str | None, dict[str, str] | None]
"""uri, version and options of a dataset, as Lance is given them"""


@dataclass(frozen=True, slots=True)
class LanceLocation:
    """Where a dataset is, and what it takes to get there. Pickles."""

    uri: str
    options: Options = field(default_factory=dict, repr=False)

    def found(self, version: int | str | None) -> Found:
        """Return what there is in a version: a number, a tag, or the newest one."""
        self.check()
        resolved = self.resolved()
        try:
            return Handle(*self.where(version, resolved)).found()
        except Failed as error:
            failed = self.unopened(version, resolved, str(error))
        raise failed

    def resolved(self) -> Resolved:
        """Return options as they are now, and for how long."""
        resolved = resolve(self.options)
        expires_at = keys_expire_at(self.uri, resolved.options)
        if expires_at is None:
            return resolved
        return replace(resolved, expires_at=expires_at.timestamp(), renewable=True)

    def where(self, version: int | str | None, resolved: Resolved) -> Where:
        """Return location, version and options as Lance is given them."""
        return self.uri, version, lance_options(self.uri, resolved.options)

    def unopened(self, version: int | str | None, resolved: Resolved, told: str) -> HeadraceError:
        """Return the error that says why a version cannot be opened."""
        if version is not None:
            try:
                numbers, tags = Handle(*self.where(None, resolved)).versions()
            except Failed:
                pass
            else:
                if isinstance(version, str) and version not in tags:
                    return NothingFoundError(
                        f"{self.uri} has no tag {version!r}; there are {shown(tags)}"
                    )
                if not isinstance(version, str) and version not in numbers:
                    return NothingFoundError(
                        f"{self.uri} has no version {version}: it never had, or it was cleaned "
                        f"up; there are {shown(numbers)}"
                    )
        said = self._without_secrets(told, resolved)
        return ReadError(f"{self.uri} cannot be opened as a Lance dataset: {said}")

    def unread(self, version: int, resolved: Resolved, told: str) -> ReadError:
        """Return the error that says why rows cannot be read."""
        said = self._without_secrets(told, resolved)
        return ReadError(f"{self.uri} (version {version}) cannot be read: {said}")

    def _without_secrets(self, told: str, resolved: Resolved) -> str:
        known = self.where(None, resolved)[2] or {}
        return Redaction({**of_environment(), **resolved.options, **known})(told)

    def check(self) -> None:
        """Refuse what can be found out without importing Lance."""
        if importlib.util.find_spec("lance") is None:
            raise MissingExtraError.for_extra("lance", "pylance")
        if protocol_of(self.uri) == "" and not os.path.isdir(f"{self.uri}/_versions"):
            raise NothingFoundError(
                f"{self.uri} is no Lance dataset: it has no directory _versions"
            )


class Opened(NamedTuple):
    """A version as it was opened, and the options that were good then."""

    handle: Handle
    resolved: Resolved


@dataclass(slots=True)
class _Own:
    """The handle of a version that one process has open."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    opened: Opened | None = None


class LanceVersion:
    """Rows of one version of a dataset. Opened by the process that reads; serves many threads."""

    def __init__(self, location: LanceLocation, version: int, batch_readahead: int) -> None:
        self.location = location
        self.version = version
        self.batch_readahead = batch_readahead
        self._own = PerProcess(_Own)

    def take(self, rows: Int64Array, schema: pa.Schema) -> pa.Table:
        """Return rows by index among those that are not deleted; order and repetitions are kept."""
        if not len(schema):
            return _without_columns(len(rows))
        return self._read(schema, lambda handle: handle.take(rows.tolist(), schema.names))

    def slice(self, start: int, length: int, schema: pa.Schema) -> pa.Table:
        """Return rows that follow each other."""
        if not len(schema):
            return _without_columns(length)
        ahead = self.batch_readahead
        return self._read(schema, lambda handle: handle.slice(start, length, schema.names, ahead))

    def _read(self, schema: pa.Schema, ask: Callable[[Handle], pa.Table]) -> pa.Table:
        opened = self.open()
        try:
            table = ask(opened.handle)
        except Failed as error:
            failed = self.location.unread(self.version, opened.resolved, str(error))
        else:
            same = table.schema.equals(schema, check_metadata=True)
            return table if same else pa.Table.from_arrays(table.columns, schema=schema)
        raise failed

    def open(self) -> Opened:
        """Open it in this process, if it is not yet, or no longer."""
        own = self._own.get()
        with own.lock:
            if own.opened is None or own.opened.resolved.stale:
                own.opened = self._open()
            return own.opened

    def _open(self) -> Opened:
        self.location.check()
        resolved = self.location.resolved()
        try:
            return Opened(Handle(*self.location.where(self.version, resolved)), resolved)
        except Failed as error:
            failed = self.location.unopened(self.version, resolved, str(error))
        raise failed


def _without_columns(rows: int) -> pa.Table:
    """Return a table of rows without columns, which Lance does not read."""
    return pa.table({"": pa.nulls(rows)}).select([])
