"""Names of options: many in use, one that is meant."""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any
from urllib.parse import urlsplit

from headrace.errors import OptionError

__all__ = ["Names", "certificates", "flag", "is_url", "server_url"]

_OF_LINES = {"service_account_key"}
"""options whose values are texts of several lines"""


class Names:
    """The options that a kind of store knows, by the names that people give them."""

    def __init__(self, store: str, **names: str) -> None:
        self._store = store
        self._meant = {alias: name for name, text in names.items() for alias in text.split()}

    def meant(self, options: Mapping[str, Any], inside: str = "") -> dict[str, Any]:
        """Options by the name that is meant; None counts as not given, an unknown one is an error.

        Values are not shown: they may be secret.
        """
        found: dict[str, Any] = {}
        for name, value in options.items():
            meant = self._meant.get(name)
            if meant is None:
                raise self._unknown(name, inside)
            if value is None:
                continue
            if isinstance(value, str) and not value.isprintable() and meant not in _OF_LINES:
                raise OptionError(
                    f"storage option {name!r} for {self._store} holds characters that cannot be "
                    "sent, such as a line break"
                )
            if meant in found and found[meant] != value:
                raise OptionError(
                    f"storage_options for {self._store} names {meant} twice, by different values"
                )
            found[meant] = value
        return found

    def _unknown(self, name: str, inside: str) -> OptionError:
        where = f"storage_options{inside}"
        near = get_close_matches(str(name), self._meant, 1)
        guess = f" (did you mean {near[0]!r}?)" if near else ""
        known = ", ".join(sorted(self._meant))
        return OptionError(
            f"{where} for {self._store} has {name!r}, which is not known{guess}; known are {known}"
        )


def is_url(text: object) -> bool:
    """Whether something is the URL of a web server; clients fail in odd ways if it is not."""
    if not isinstance(text, str) or " " in text.partition("://")[2].partition("/")[0]:
        return False
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def server_url(name: str, url: object) -> str:
    """The value of an option that is the URL of a server, in the same form always."""
    if not is_url(url):
        raise OptionError(f"storage option {name!r} must be a URL such as https://host:port")
    return str(url).rstrip("/")


def certificates(verify: Any) -> dict[str, Any]:
    """What obstore's client is told of an option ``verify``: a flag, or the path of a bundle."""
    if verify is None or verify is True:
        return {}
    if verify is False:
        return {"allow_invalid_certificates": True}
    if not isinstance(verify, str | os.PathLike):
        raise OptionError(
            "storage option 'verify' must be True, False, or the path of a file of certificates"
        )
    try:
        with open(verify, "rb") as file:
            return {"root_certificate": file.read()}
    except OSError as error:
        raise OptionError(f"storage option 'verify' names no readable file: {error}") from None


def flag(options: dict[str, Any], name: str) -> bool | None:
    """An option that is True or False; None when it was not given."""
    value = options.pop(name, None)
    if value is not None and not isinstance(value, bool):
        raise OptionError(f"storage option {name!r} must be True or False")
    return value
