"""A Lance dataset at one version: its location, its options, and its rows."""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from headrace.errors import MissingExtraError, NothingFoundError, OptionError, ReadError
from headrace.model import Int64Array
from headrace.process import PerProcess
from headrace.sources.files.blocks import rows_only
from headrace.sources.lance._native import Failed, Handle
from headrace.sources.tables._catalog import shown
from headrace.storage import (
    Access,
    Options,
    Redaction,
    ResolvedOptions,
    has_secret,
    of_environment,
    protocol_of,
    resolve,
    store_options,
    without_secrets,
)

__all__ = ["LanceVersion", "lance_options", "located"]

T = TypeVar("T")

_STORES = {
    **dict.fromkeys(("s3", "s3a"), ("s3", "aws_")),
    **dict.fromkeys(("gs", "gcs"), ("gcs", "google_")),
    **dict.fromkeys(("az", "abfs", "abfss"), ("azure", "azure_")),
}
"""kinds of stores, and the prefix of names that Lance knows as they are, by protocol"""
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


def lance_options(
    uri: str, options: Mapping[str, Any]
) -> tuple[dict[str, str] | None, datetime | None]:
    """Return options, of any dataset's names or of Lance's own, as Lance is given them.

    Returns:
        The options, and the time when keys expire that a profile of the AWS tools gives.
    """
    kind, prefix = _STORES.get(protocol_of(uri), ("", ""))
    if not kind:
        return _as_text(options), None
    own = {k: v for k, v in options.items() if k in _CLIENT_NAMES or str(k).startswith(prefix)}
    found = store_options(kind, {name: v for name, v in options.items() if name not in own})
    config, client, expires_at = dict(found.config), found.client, None
    if kind == "s3":
        config = {f"aws_{name}": value for name, value in config.items()}
        if found.keys is not None and "aws_access_key_id" not in own:
            keys = found.keys()
            config |= {f"aws_{name}": keys[name] for name in ("access_key_id", "secret_access_key")}
            config["aws_session_token"] = keys["token"]
            expires_at = keys["expires_at"]
    elif kind == "gcs" and found.keys is not None:
        config["google_storage_token"] = found.keys()["token"]
    config.pop("credential_type", None)
    if "root_certificate" in client:
        raise OptionError(
            "storage option 'verify' cannot name a file for Lance, which trusts what the system "
            "trusts; set SSL_CERT_FILE"
        )
    return _as_text({**config, **client, **own}), expires_at


def _as_text(options: Mapping[str, Any]) -> dict[str, str] | None:
    texts = {}
    for name, value in options.items():
        if isinstance(value, bool):
            texts[name] = str(value).lower()
        elif isinstance(value, str | int | float):
            texts[name] = str(value)
        elif value is not None:
            raise OptionError(
                f"storage option {name!r} for Lance must be a str, a number or a flag, not a "
                f"{type(value).__name__}"
            )
    return texts or None


class _Opened(NamedTuple):
    """A version as it was opened, and the options that were good then.

    Attributes:
        handle: The open version.
        resolved: The options of the user, and for how long they hold.
        given: The options as Lance was given them.
    """

    handle: Handle
    resolved: ResolvedOptions
    given: dict[str, str] | None


@dataclass(slots=True)
class _Own:
    """The handle of a version that one process has open."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    opened: _Opened | None = None


class LanceVersion:
    """Rows of one version of a dataset. Opened by the process that reads; serves many threads.

    Args:
        uri: The location of the dataset.
        options: Credentials and options of the store.
        version: A number, a tag, or None for the newest one. It is looked up now, and kept.
        batch_readahead: Batches that Lance reads ahead within a run of rows.
    """

    def __init__(
        self,
        uri: str | os.PathLike[str],
        options: Options,
        version: int | str | None,
        batch_readahead: int,
    ) -> None:
        self.uri = located(uri)
        self._access = Access(storage_options=options)  # which does not show them
        self._version = version
        self._batch_readahead = batch_readahead
        self._own = PerProcess(_Own)
        self.found = self._ask(Handle.found)
        self._version = self.found.version

    def take(self, rows: Int64Array, schema: pa.Schema) -> pa.Table:
        """Return rows by index among those that are not deleted; order and repetitions are kept."""
        return self._read(
            len(rows), schema, lambda handle: handle.take(rows.tolist(), schema.names)
        )

    def slice(self, start: int, length: int, schema: pa.Schema) -> pa.Table:
        """Return rows that follow each other."""
        ahead = self._batch_readahead
        return self._read(
            length, schema, lambda handle: handle.slice(start, length, schema.names, ahead)
        )

    def _read(self, rows: int, schema: pa.Schema, ask: Callable[[Handle], pa.Table]) -> pa.Table:
        if not len(schema):
            return rows_only(rows)  # Lance does not read rows without columns
        table = self._ask(ask)
        same = table.schema.equals(schema, check_metadata=True)
        return table if same else pa.Table.from_arrays(table.columns, schema=schema)

    def _ask(self, ask: Callable[[Handle], T]) -> T:
        opened = self.open()
        try:
            return ask(opened.handle)
        except Failed as error:
            reason = _redacted(error, opened.resolved, opened.given)
        self._check_version(opened.given)
        raise ReadError(f"{self.uri} (version {self._version}) cannot be read: {reason}")

    def open(self) -> _Opened:
        """Open it in this process, if it is not yet, or no longer."""
        own = self._own.get()
        with own.lock:
            if own.opened is None or own.opened.resolved.stale:
                own.opened = self._open()
            return own.opened

    def _open(self) -> _Opened:
        if importlib.util.find_spec("lance") is None:
            raise MissingExtraError.for_extra("lance", "pylance")
        if protocol_of(self.uri) == "" and not os.path.isdir(f"{self.uri}/_versions"):
            raise NothingFoundError(
                f"{self.uri} is no Lance dataset: it has no directory _versions"
            )
        resolved = resolve(self._access.storage_options)
        given, expires_at = lance_options(self.uri, resolved.options)
        if expires_at is not None:
            resolved = replace(resolved, expires_at=expires_at.timestamp(), renewable=True)
        try:
            return _Opened(Handle(self.uri, self._version, given), resolved, given)
        except Failed as error:
            reason = _redacted(error, resolved, given)
        self._check_version(given)
        raise ReadError(f"{self.uri} cannot be opened as a Lance dataset: {reason}")

    def _check_version(self, given: dict[str, str] | None) -> None:
        """Raise a NothingFoundError if there is no such version, or no longer."""
        version = self._version
        if version is None:
            return
        try:
            numbers, tags = Handle(self.uri, None, given).versions()
        except Failed:
            return
        if isinstance(version, str) and version not in tags:
            raise NothingFoundError(f"{self.uri} has no tag {version!r}; there are {shown(tags)}")
        if not isinstance(version, str) and version not in numbers:
            raise NothingFoundError(
                f"{self.uri} has no version {version}: it never had, or it was cleaned up; there "
                f"are {shown(numbers)}"
            )


def _redacted(error: Failed, resolved: ResolvedOptions, given: dict[str, str] | None) -> str:
    return Redaction({**of_environment(), **resolved.options, **(given or {})})(str(error))
