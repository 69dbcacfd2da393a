"""A Lance dataset at one version: what is in it, and its rows."""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pyarrow as pa

from headrace.errors import HeadraceError, MissingExtraError, NothingFoundError, ReadError
from headrace.model import Int64Array
from headrace.process import PerProcess
from headrace.sources.lance.native import Failed, Found, Handle
from headrace.sources.lance.options import keys_expire_at, lance_options
from headrace.sources.tables.table import shown
from headrace.storage import Options, Redaction
from headrace.storage.access import protocol_of
from headrace.storage.options import Resolved, resolve
from headrace.storage.redaction import of_environment

__all__ = ["LanceLocation", "LanceVersion"]

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
    """What one process has open of a version."""

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
