"""Files that are reached by requests: in object stores, on web servers, by fsspec and others."""

from __future__ import annotations

import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, cast

import pyarrow as pa

from headrace.errors import FileChangedError, ReadError
from headrace.model import DataFileInfo
from headrace.process import PerProcess
from headrace.storage.connection import Connection
from headrace.storage.disk_cache import DiskCache
from headrace.storage.engine import Engine, Failure, PinningEngine, RequestError
from headrace.storage.ranges import RangeReader, RemoteFile, Requests
from headrace.storage.store import UNKNOWN_SIZE, FileStatus, Meter, changed, matching, vanished
from headrace.storage.threads import Patience, in_background, interruptibly

__all__ = ["Parts", "RemoteStore"]

logger = logging.getLogger(__name__)

_LISTED_IN_ONE = 4000
"""objects after which a directory is listed by its directories, side by side"""
_MAGIC = "*?["
_INHERITED_BY_FORK = {"memory"}
_MOVING = {"hf"}
"""where a location may mean something else tomorrow"""
_A_REQUEST_EACH = {"http", "https"}
"""where each directory is a request, so that one that fails must not fail the others"""

Listed = tuple[list[FileStatus], list[str]]
"""files, and directories that are still to be listed"""


_KEPT_BYTES = 256 << 20


@dataclass(slots=True)
class _Kept:
    """The parts that one process has. A garbage collection may ask for the lock again."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    parts: OrderedDict[tuple[Any, ...], dict[int, bytes]] = field(default_factory=OrderedDict)
    size: int = 0


class Parts:
    """What readers look at first, and would fetch each time. Goes with its store to workers."""

    def __init__(self) -> None:
        self._kept = PerProcess(_Kept)

    def of(self, file: DataFileInfo) -> list[tuple[int, memoryview]]:
        """What is known of a file, as (first byte, bytes)."""
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


Entry = FileStatus | str
"""a file, or the path of a directory"""

_PAGE = 1000


class Pages:
    """The entries of a directory so far, in the order in which they came."""

    def __init__(self, directory: str, *, recursive: bool) -> None:
        self._directory = directory
        self._recursive = recursive
        self._found: dict[Entry, None] = {}
        self._rest: Iterator[Entry] | None = None
        self.complete = False

    @property
    def entries(self) -> list[Entry]:
        return list(self._found)

    def __len__(self) -> int:
        return len(self._found)

    @property
    def nested(self) -> bool:
        """Whether there are directories in it, as far as can be seen."""
        start = len(self._directory.rstrip("/")) + 1
        return any("/" in _path(entry)[start:] for entry in self._found)

    def more(self, engine: Engine) -> None:
        """Ask for the next page; after an error, for what comes behind the last entry."""
        rest, self._rest = self._rest, None
        if rest is None:
            last = _path(next(reversed(self._found), "")) if self._recursive else ""
            rest = engine.entries(self._directory, self._recursive, last)
        page = list(islice(rest, _PAGE))
        self._found.update(dict.fromkeys(page))
        self._rest = rest
        self.complete = len(page) < _PAGE


def _path(entry: Entry) -> str:
    return entry if isinstance(entry, str) else entry.path


@dataclass(frozen=True, slots=True, eq=False)
class RemoteStore:
    """A store behind a connection. Reads are tied to the version that was discovered."""

    connection: Connection
    requests: Requests = field(default_factory=Requests)
    cache: DiskCache | None = None
    meter: Meter = field(default_factory=Meter, repr=False)
    patience: Patience = field(default_factory=Patience, repr=False)
    parts: Parts = field(default_factory=Parts, repr=False)
    immutable: bool = False
    """whether files are never written again, as those of tables: then size and path tell them"""

    @property
    def fork_safe(self) -> bool:
        return self.connection.protocol in _INHERITED_BY_FORK

    @property
    def local(self) -> bool:
        return False

    @property
    def given(self) -> Mapping[str, Any]:
        return self.connection.given

    @property
    def identity(self) -> str:
        return self.connection.identity

    def during(self, meter: Meter, patience: Patience) -> RemoteStore:
        """The same store for somebody else, who counts requests and may give up waiting."""
        return replace(self, meter=meter, patience=patience)

    # --- what there is

    def resolved(self, location: str) -> str:
        """A location with the commit in it, where it names what may be moved."""
        if self.connection.protocol not in _MOVING:
            return location
        return interruptibly(lambda: self._resolved(location))

    def _resolved(self, location: str) -> str:
        try:
            return self.connection.request(
                location,
                lambda engine: cast(PinningEngine, engine).resolved(location),
                self.meter,
                self.patience,
            )
        except RequestError:
            return location  # it is missing, and that is found out again

    def list(self, directory: str) -> Iterator[FileStatus]:
        """A large directory is listed by the directories in it, side by side."""
        pending: set[Future[Listed]] = {self._list(directory)}
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for listed in done:
                files, directories = listed.result()
                pending.update(map(self._list, directories))
                yield from self._looked_at(files)

    def _looked_at(self, files: Sequence[FileStatus]) -> Iterator[FileStatus]:
        """The files; those that are known by name only are asked for one by one, side by side."""
        asked = [
            in_background(partial(self._status, status.path))
            for status in files
            if status.size == UNKNOWN_SIZE
        ]
        yield from (status for status in files if status.size != UNKNOWN_SIZE)
        yield from (found for one in asked if (found := one.result()) is not None)

    def _list(self, directory: str) -> Future[Listed]:
        return in_background(lambda: self._listed(directory))

    def _listed(self, directory: str) -> Listed:
        """All below a directory; if that is much, the files in it and the directories."""
        pages = Pages(directory, recursive=self.connection.protocol not in _A_REQUEST_EACH)
        self._fill(pages, directory, _LISTED_IN_ONE)
        if not pages.complete and pages.nested:
            pages = Pages(directory, recursive=False)
        self._fill(pages, directory)
        files = [entry for entry in pages.entries if isinstance(entry, FileStatus)]
        directories = [entry for entry in pages.entries if isinstance(entry, str)]
        return _without_markers(files, directory, directories), directories

    def _fill(self, pages: Pages, directory: str, most: float = math.inf) -> None:
        """Ask for pages until there are no more, or more entries than ``most``."""
        try:
            while not pages.complete and len(pages) <= most:
                self.connection.request(
                    f"listing {directory}", pages.more, self.meter, self.patience
                )
        except RequestError as error:
            if error.failure is not Failure.MISSING:
                raise ReadError(f"listing {directory}: {error.detail}") from None

    def glob(self, pattern: str) -> Iterator[tuple[str, FileStatus]]:
        parts = pattern.split("/")
        fixed = next(i for i, part in enumerate(parts) if any(c in part for c in _MAGIC))
        root = "/".join(parts[:fixed])
        yield from matching(self.list(root), root, parts[fixed:])

    def status(self, path: str) -> FileStatus | None:
        if path.endswith("/") and self.connection.protocol not in _A_REQUEST_EACH:
            return None  # clients drop the slash, and there may be an object of the folder's name
        return interruptibly(lambda: self._status(path))

    def _status(self, path: str) -> FileStatus | None:
        try:
            return self.connection.request(
                path, lambda engine: engine.status(path), self.meter, self.patience
            )
        except RequestError as error:
            if error.failure is Failure.MISSING:
                return None
            raise ReadError(f"{path}: {error.detail}") from None

    # --- what is in it

    def open(self, file: DataFileInfo) -> pa.NativeFile:
        """Nothing is asked for yet: each read says which version it wants."""
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
        what = f"{file.path}, bytes {start}-{stop}"
        try:
            data: Any = self.connection.request(
                what,
                lambda engine: _fetch(engine, file, start, stop),
                self.meter,
                self.patience,
            )
            if not self.connection.conditional:
                self._check(file)
        except RequestError as error:
            if error.failure is Failure.MISSING:
                raise FileChangedError(vanished(file.path)) from None
            raise FileChangedError(changed(file.path)) from None
        self.meter.add(fetched_bytes=stop - start)
        return memoryview(data)

    def _check(self, file: DataFileInfo) -> None:
        """Whether what was read is what was discovered, where a request cannot say so itself."""
        now = self._status(file.path)
        if now is None:
            raise FileChangedError(vanished(file.path))
        if now.size != file.file_size:
            raise FileChangedError(changed(file.path, file.file_size, now.size))
        if file.etag is not None and now.etag != file.etag:
            raise FileChangedError(changed(file.path))


def _fetch(engine: Engine, file: DataFileInfo, start: int, stop: int) -> Any:
    """Bytes of a file. What an engine cannot tell from a fault is no fault if the file is new."""
    try:
        return engine.fetch(file.path, start, stop, file.etag, file.file_size)
    except RequestError as error:
        if engine.conditional or error.failure is not Failure.TRANSIENT:
            raise
        now = engine.status(file.path)
        if now is not None and now.size == file.file_size and file.etag in (None, now.etag):
            raise
    raise RequestError(Failure.CHANGED, "it is another by now")


def _without_markers(
    files: list[FileStatus], directory: str, directories: list[str]
) -> list[FileStatus]:
    """Files without the empty objects that some tools put where a directory is to be."""
    if all(status.size for status in files):
        return files
    above = {directory.rstrip("/"), *directories}
    for status in files:
        path = status.path.rpartition("/")[0]
        while path not in above and "/" in path:
            above.add(path)
            path = path.rpartition("/")[0]
    return [status for status in files if status.size or status.path not in above]
