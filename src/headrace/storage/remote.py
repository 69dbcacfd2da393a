"""Files that are reached by requests: in object stores, on web servers, by fsspec and others."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, TypeVar, cast

import pyarrow as pa

from headrace.errors import FileChangedError, ReadError
from headrace.model import DataFileInfo
from headrace.process import PerProcess
from headrace.storage.connection import Connection
from headrace.storage.disk_cache import DiskCache
from headrace.storage.engine import Engine, Failure, PinningEngine, RequestError
from headrace.storage.ranges import RangeReader, RemoteFile, Requests
from headrace.storage.store import (
    UNKNOWN_SIZE,
    FileStatus,
    Meter,
    changed,
    check_version,
    matching,
    vanished,
)
from headrace.storage.threads import Patience, in_background, interruptibly

__all__ = ["Parts", "RemoteStore"]

T = TypeVar("T")

_PAGE = 1000
_LISTED_IN_ONE = 4000
"""Objects after which a directory is listed by its directories, side by side."""
_MAGIC = "*?["
_KEPT_BYTES = 256 << 20

Entries = list[FileStatus | str]
"""Files, and the paths of directories."""
Listed = tuple[list[FileStatus], list[str]]
"""Files, and directories that are still to be listed."""


@dataclass(slots=True)
class _Kept:
    # A garbage collection may ask for the lock again.
    lock: threading.RLock = field(default_factory=threading.RLock)
    parts: OrderedDict[tuple[Any, ...], dict[int, bytes]] = field(default_factory=OrderedDict)
    size: int = 0


class Parts:
    """Beginnings and ends of files, which every reader needs first.

    They go with their store to worker processes, so that a footer is fetched once.
    """

    def __init__(self) -> None:
        self._kept = PerProcess(_Kept)

    def of(self, file: DataFileInfo) -> list[tuple[int, memoryview]]:
        """Return the known parts of a file, as (first byte, bytes)."""
        kept = self._kept.get()
        with kept.lock:
            found = kept.parts.get(_key(file), {})
            return [(start, memoryview(data)) for start, data in found.items()]

    def add(self, file: DataFileInfo, start: int, data: bytes) -> None:
        """Keep a part of a file; the oldest ones go when there are too many."""
        kept = self._kept.get()
        with kept.lock:
            known = kept.parts.setdefault(_key(file), {})
            before = known.get(start, b"")
            if len(before) >= len(data):
                return
            known[start] = data
            kept.size += len(data) - len(before)
            while kept.size > _KEPT_BYTES:
                _, dropped = kept.parts.popitem(last=False)
                kept.size -= sum(map(len, dropped.values()))

    def __getstate__(self) -> dict[str, Any]:
        kept = self._kept.get()
        with kept.lock:
            copies = OrderedDict((key, dict(parts)) for key, parts in kept.parts.items())
            return {"parts": copies, "size": kept.size}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._kept = PerProcess(_Kept)
        kept = self._kept.get()
        kept.parts, kept.size = state["parts"], state["size"]


def _key(file: DataFileInfo) -> tuple[Any, ...]:
    return file.path, file.file_size, file.etag


@dataclass(frozen=True, slots=True, eq=False)
class RemoteStore:
    """A store behind a connection. Reads are tied to the version that was discovered.

    Attributes:
        connection: Makes the requests.
        requests: How wanted byte ranges become requests.
        cache: Keeps fetched bytes on a local disk.
        meter: Counts requests and bytes.
        patience: Ends the waiting of a reader that gives up.
        parts: Beginnings and ends of files.
        immutable: True if files are never written again, as those of tables: then path and size
            are enough to cache them.
    """

    connection: Connection
    requests: Requests = field(default_factory=Requests)
    cache: DiskCache | None = None
    meter: Meter = field(default_factory=Meter, repr=False)
    patience: Patience = field(default_factory=Patience, repr=False)
    parts: Parts = field(default_factory=Parts, repr=False)
    immutable: bool = False

    @property
    def fork_safe(self) -> bool:
        return self.connection.protocol == "memory"

    @property
    def local(self) -> bool:
        return False

    @property
    def given(self) -> Mapping[str, Any]:
        return self.connection.given

    @property
    def identity(self) -> str:
        return self.connection.identity

    @property
    def _is_web(self) -> bool:
        """True where a directory is a page, with an address that ends in a slash."""
        return self.connection.protocol in ("http", "https")

    def during(self, meter: Meter, patience: Patience) -> RemoteStore:
        return replace(self, meter=meter, patience=patience)

    def _ask(self, what: str, ask: Callable[[Engine], T]) -> T:
        return self.connection.request(what, ask, self.meter, self.patience)

    # --- finding files

    def resolved(self, location: str) -> str:
        if self.connection.protocol != "hf":
            return location

        def ask(engine: Engine) -> str:
            return cast(PinningEngine, engine).resolved(location)

        try:
            return interruptibly(lambda: self._ask(location, ask))
        except RequestError:
            return location  # it is missing, which listing it will say

    def list(self, directory: str) -> Iterator[FileStatus]:
        """Yield all files below a directory; a large one is listed by its directories at once."""
        pending: set[Future[Listed]] = {in_background(partial(self._listed, directory))}
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for listed in done:
                files, directories = listed.result()
                pending.update(in_background(partial(self._listed, one)) for one in directories)
                # An index page shows names only.
                asked = [
                    in_background(partial(self._status, status.path))
                    for status in files
                    if status.size == UNKNOWN_SIZE
                ]
                yield from (status for status in files if status.size != UNKNOWN_SIZE)
                yield from (found for one in asked if (found := one.result()) is not None)

    def _listed(self, directory: str) -> Listed:
        """Return all files below a directory; if these are many, its own files and directories."""
        entries = self._entries(directory, recursive=not self._is_web)
        files = [entry for entry in entries if isinstance(entry, FileStatus)]
        directories = [entry for entry in entries if isinstance(entry, str)]
        return _without_markers(files, directory, directories), directories

    def _entries(self, directory: str, *, recursive: bool) -> Entries:
        """Return what is in a directory, page by page; a page that fails is asked for again."""
        found: dict[FileStatus | str, None] = {}
        rest: Iterator[FileStatus | str] | None = None

        def next_page(engine: Engine) -> int:
            nonlocal rest
            pages, rest = rest, None
            if pages is None:
                last = _path(next(reversed(found), "")) if recursive else ""
                pages = engine.entries(directory, recursive, last)
            page = list(islice(pages, _PAGE))
            found.update(dict.fromkeys(page))
            rest = pages
            return len(page)

        try:
            while self._ask(f"listing {directory}", next_page) == _PAGE:
                is_large = len(found) > _LISTED_IN_ONE >= len(found) - _PAGE
                start = len(directory.rstrip("/")) + 1
                if recursive and is_large and any("/" in _path(one)[start:] for one in found):
                    return self._entries(directory, recursive=False)
        except RequestError as error:
            if error.failure is not Failure.MISSING:
                raise ReadError(f"listing {directory}: {error.detail}") from None
        return list(found)

    def glob(self, pattern: str) -> Iterator[tuple[str, FileStatus]]:
        parts = pattern.split("/")
        fixed = next(i for i, part in enumerate(parts) if any(c in part for c in _MAGIC))
        root = "/".join(parts[:fixed])
        yield from matching(self.list(root), root, parts[fixed:])

    def status(self, path: str) -> FileStatus | None:
        if path.endswith("/") and not self._is_web:
            return None  # clients drop the slash, and there may be an object of the folder's name
        return interruptibly(lambda: self._status(path))

    def _status(self, path: str) -> FileStatus | None:
        try:
            return self._ask(path, lambda engine: engine.status(path))
        except RequestError as error:
            if error.failure is Failure.MISSING:
                return None
            raise ReadError(f"{path}: {error.detail}") from None

    # --- reading them

    def open(self, file: DataFileInfo) -> pa.NativeFile:
        """Return a file for reading; nothing is asked for yet, and each read names the version."""
        if file.file_size is None:
            found = self.status(file.path)
            if found is None:
                raise FileChangedError(vanished(file.path))
            file = replace(file, file_size=found.size, etag=found.etag)
        pinned = file
        assert pinned.file_size is not None
        reader = RangeReader(
            pinned.file_size,
            lambda start, stop: self._bytes(pinned, start, stop),
            self.requests,
            self.parts.of(pinned),
            lambda start, data: self.parts.add(pinned, start, bytes(data)),
            self.patience,
        )
        return RemoteFile(reader, "r")

    def _bytes(self, file: DataFileInfo, start: int, stop: int) -> memoryview:
        if self.cache is None or (file.etag is None and not self.immutable):
            return self._fetched(file, start, stop)
        return self.cache.get(
            (self.identity, file.path, file.file_size, file.etag),
            start,
            stop,
            lambda first, last: self._fetched(file, first, last),
            self.meter,
        )

    def _fetched(self, file: DataFileInfo, start: int, stop: int) -> memoryview:
        def ask(engine: Engine) -> Any:
            try:
                return engine.fetch(file.path, start, stop, file.etag, file.file_size)
            except RequestError as error:
                if engine.conditional or error.failure is not Failure.TRANSIENT:
                    raise
                # A filesystem that fails on a file that is another by now did not fail.
                now = engine.status(file.path)
                if now is not None and now.size == file.file_size and file.etag in (None, now.etag):
                    raise
            raise RequestError(Failure.CHANGED, "it is another by now")

        try:
            data = self._ask(f"{file.path}, bytes {start}-{stop}", ask)
        except RequestError as error:
            missing = error.failure is Failure.MISSING
            message = vanished(file.path) if missing else changed(file.path)
            raise FileChangedError(message) from None
        if not self.connection.conditional:
            check_version(file, self._status(file.path))
        self.meter.add(fetched_bytes=stop - start)
        return memoryview(data)


def _path(entry: FileStatus | str) -> str:
    return entry if isinstance(entry, str) else entry.path


def _without_markers(
    files: list[FileStatus], directory: str, directories: list[str]
) -> list[FileStatus]:
    """Return files without the empty objects that some tools put where a directory is to be."""
    if all(status.size for status in files):
        return files
    above = {directory.rstrip("/"), *directories}
    for status in files:
        path = status.path.rpartition("/")[0]
        while path not in above and "/" in path:
            above.add(path)
            path = path.rpartition("/")[0]
    return [status for status in files if status.size or status.path not in above]
