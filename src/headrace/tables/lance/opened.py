"""A Lance dataset at one version: what is in it, and its rows."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.errors import HeadraceError, MissingExtraError, NothingFoundError, ReadError
from headrace.model import Int64Array
from headrace.storage import Options, Redaction
from headrace.storage.access import protocol_of
from headrace.storage.credentials import Resolved, resolve
from headrace.storage.redaction import of_environment
from headrace.tables.lance import forks
from headrace.tables.lance.native import Failed, Found, Handle
from headrace.tables.lance.options import keys_expire_at, lance_options
from headrace.tables.lance.process import LanceProcess, Where, own_process

__all__ = ["LanceLocation", "LanceVersion"]

Ask = Callable[..., Any]
"""what a method of ``Handle`` gives, wherever there is one"""

Look = Callable[[Where, str], Any]
"""the same, of a method that needs no more than to be asked for"""

_SHOWN = 10


@dataclass(frozen=True, slots=True)
class LanceLocation:
    """Where a dataset is, and what it takes to get there. Pickles."""

    uri: str
    options: Options = field(default_factory=dict, repr=False)

    def found(self, version: int | str | None) -> Found:
        """What there is in a version: a number, a tag, or the newest one.

        As long as Lance does not run in this process it is another one that looks, where workers
        may be forked off this one: they could not use Lance any more.
        """
        self.check()
        resolved = self.resolved()
        with _looking() as look:
            try:
                return Found(*look(self.where(version, resolved), "found"))
            except Failed as error:
                failed = self.unopened(version, resolved, str(error), look)
        raise failed

    def resolved(self) -> Resolved:
        """Options as they are now, and for how long."""
        resolved = resolve(self.options)
        expires_at = keys_expire_at(self.uri, resolved.options)
        if expires_at is None:
            return resolved
        return replace(resolved, expires_at=expires_at.timestamp(), renewable=True)

    def where(self, version: int | str | None, resolved: Resolved) -> Where:
        """As Lance is told it."""
        return self.uri, version, lance_options(self.uri, resolved.options)

    def unopened(
        self, version: int | str | None, resolved: Resolved, told: str, look: Look
    ) -> HeadraceError:
        """Why a version cannot be opened."""
        if version is not None:
            try:
                numbers, tags = look(self.where(None, resolved), "versions")
            except Failed:
                pass
            else:
                if version not in (*numbers, *tags):
                    return NothingFoundError(_no_such_version(self.uri, version, numbers, tags))
        shown = self._without_secrets(told, resolved)
        return ReadError(f"{self.uri} cannot be opened as a Lance dataset: {shown}")

    def unread(self, version: int, resolved: Resolved, told: str) -> ReadError:
        """Why rows cannot be read."""
        shown = self._without_secrets(told, resolved)
        return ReadError(f"{self.uri} (version {version}) cannot be read: {shown}")

    def _without_secrets(self, told: str, resolved: Resolved) -> str:
        known = self.where(None, resolved)[2] or {}
        return Redaction({**of_environment(), **resolved.options, **known})(told)

    def check(self) -> None:
        """What can be found out without importing Lance, which would warn of forks from then on."""
        if importlib.util.find_spec("lance") is None:
            raise MissingExtraError.for_extra("lance", "pylance")
        if protocol_of(self.uri) == "" and not os.path.isdir(f"{self.uri}/_versions"):
            raise NothingFoundError(
                f"{self.uri} is no Lance dataset: it has no directory _versions"
            )


class Opened(NamedTuple):
    """How a version is read in one process."""

    pid: int
    resolved: Resolved
    ask: Ask


_inherited: list[Opened] = []
"""of the process that forked this one: their end may wait for threads that only that one has"""


class LanceVersion:
    """Rows of one version of a dataset. Opened by the process that reads; serves many threads."""

    def __init__(self, location: LanceLocation, version: int, batch_readahead: int) -> None:
        self.location = location
        self.version = version
        self.batch_readahead = batch_readahead
        self._last: Opened | None = None

    def take(self, rows: Int64Array, schema: pa.Schema) -> pa.Table:
        """Rows by index among those that are not deleted; order and repetitions are kept."""
        if not len(schema):
            return _without_columns(len(rows))
        return self._read(schema, "take", rows.tolist(), schema.names)

    def slice(self, start: int, length: int, schema: pa.Schema) -> pa.Table:
        """Rows that follow each other."""
        if not len(schema):
            return _without_columns(length)
        return self._read(schema, "slice", start, length, schema.names, self.batch_readahead)

    def _read(self, schema: pa.Schema, method: str, *arguments: Any) -> pa.Table:
        opened = self.open()
        try:
            table = opened.ask(method, *arguments)
        except Failed as error:
            failed = self.location.unread(self.version, opened.resolved, str(error))
        else:
            same = table.schema.equals(schema, check_metadata=True)
            return table if same else pa.Table.from_arrays(table.columns, schema=schema)
        raise failed

    def open(self) -> Opened:
        """Open it in this process, if it is not yet, or no longer."""
        with forks.lock:
            last = self._last
            if last is not None and last.pid != os.getpid():
                _inherited.append(last)
                last = None
            if last is None or last.resolved.stale:
                last = self._last = self._open()
            return last

    def _open(self) -> Opened:
        self.location.check()
        resolved = self.location.resolved()
        where = self.location.where(self.version, resolved)
        try:
            if forks.is_spoiled():
                ask: Ask = partial(_ask_elsewhere, where)
                ask("found")  # or it would be opened by the first read, and fail as one
            else:
                ask = partial(_call, _handle(where))
            return Opened(os.getpid(), resolved, ask)
        except Failed as error:
            with _looking() as look:
                failed = self.location.unopened(self.version, resolved, str(error), look)
        raise failed

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}


@contextmanager
def _looking() -> Iterator[Look]:
    if forks.is_spoiled():
        yield own_process().ask
    elif forks.runs_here() or not forks.may_be_forked():
        yield lambda where, method: _call(_handle(where), method)
    else:
        with LanceProcess() as process:
            yield process.ask


def _handle(where: Where) -> Handle:
    forks.note_use()
    return Handle(*where)


def _ask_elsewhere(where: Where, method: str, *arguments: Any) -> Any:
    """Of the process that runs Lance for this one now: it may have been interrupted, and ended."""
    return own_process().ask(where, method, *arguments)


def _call(handle: Handle, method: str, *arguments: Any) -> Any:
    return getattr(handle, method)(*arguments)


def _without_columns(rows: int) -> pa.Table:
    """What has rows and no columns; Lance reads none of these."""
    return pa.table({"": pa.nulls(rows)}).select([])


def _no_such_version(
    uri: str, version: int | str, numbers: Sequence[int], tags: Sequence[str]
) -> str:
    if isinstance(version, str):
        return f"{uri} has no tag {version!r}; there are {_some(tags)}"
    return (
        f"{uri} has no version {version}: it never had, or it was cleaned up; there are "
        f"{_some(numbers)}"
    )


def _some(names: Iterable[object]) -> str:
    listed = [str(name) for name in names]
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return (", ".join(listed[-_SHOWN:]) or "none") + more
