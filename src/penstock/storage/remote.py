"""Files that are reached by requests: in object stores, on web servers, by fsspec and others."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from penstock.errors import FileChangedError, ReadError
from penstock.model import DataFileInfo
from penstock.storage.connection import Connection
from penstock.storage.disk_cache import DiskCache
from penstock.storage.engines import Failure, RequestError
from penstock.storage.fetching import in_background
from penstock.storage.meter import Meter
from penstock.storage.parts import Parts
from penstock.storage.ranges import Requests
from penstock.storage.remote_file import RangeReader, RemoteFile
from penstock.storage.store import FileStatus, changed, matching, vanished

__all__ = ["RemoteStore"]

logger = logging.getLogger(__name__)

_LISTED_IN_ONE = 4000
"""objects after which a directory is listed by its directories, side by side"""
_MAGIC = "*?["
_INHERITED_BY_FORK = {"memory"}

Entries = list[FileStatus | str]
Listed = tuple[list[FileStatus], list[str]]
"""files, and directories that are still to be listed"""


@dataclass(frozen=True, slots=True, eq=False)
class RemoteStore:
    """A store behind a connection. Reads are tied to the version that was discovered."""

    connection: Connection
    requests: Requests = field(default_factory=Requests)
    cache: DiskCache | None = None
    meter: Meter = field(default_factory=Meter, repr=False)
    parts: Parts = field(default_factory=Parts, repr=False)

    @property
    def fork_safe(self) -> bool:
        return self.connection.protocol in _INHERITED_BY_FORK

    @property
    def local(self) -> bool:
        return False

    def metered(self, meter: Meter) -> RemoteStore:
        """The same store, whose requests are counted by somebody else."""
        return replace(self, meter=meter)

    # --- what there is

    def list(self, directory: str) -> Iterator[FileStatus]:
        """A large directory is listed by the directories in it, side by side."""
        pending: set[Future[Listed]] = {self._list(directory)}
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for listed in done:
                files, directories = listed.result()
                yield from files
                pending.update(map(self._list, directories))

    def _list(self, directory: str) -> Future[Listed]:
        return in_background(lambda: self._listed(directory))

    def _listed(self, directory: str) -> Listed:
        first = self._entries(directory, recursive=True, most=_LISTED_IN_ONE + 1)
        if len(first) <= _LISTED_IN_ONE:
            return [entry for entry in first if isinstance(entry, FileStatus)], []
        entries = self._entries(directory, recursive=False)
        files = [entry for entry in entries if isinstance(entry, FileStatus)]
        return files, [entry for entry in entries if isinstance(entry, str)]

    def _entries(self, directory: str, *, recursive: bool, most: int | None = None) -> Entries:
        try:
            return self.connection.request(
                f"listing {directory}",
                lambda engine: [*itertools.islice(engine.entries(directory, recursive), most)],
                self.meter,
            )
        except RequestError as error:
            if error.failure is Failure.MISSING:
                return []
            raise ReadError(f"listing {directory}: {error.detail}") from None

    def glob(self, pattern: str) -> Iterator[str]:
        parts = pattern.split("/")
        fixed = next(i for i, part in enumerate(parts) if any(c in part for c in _MAGIC))
        root = "/".join(parts[:fixed])
        paths = (status.path for status in self.list(root))
        yield from matching(paths, root, parts[fixed:])

    def status(self, path: str) -> FileStatus | None:
        return in_background(lambda: self._status(path)).result()

    def _status(self, path: str) -> FileStatus | None:
        try:
            return self.connection.request(path, lambda engine: engine.status(path), self.meter)
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
        )
        return RemoteFile(reader, "r")

    def _bytes(self, file: DataFileInfo, start: int, stop: int) -> memoryview:
        if self.cache is None or file.etag is None:
            return self._fetched(file, start, stop)
        return self.cache.get(
            (file.path, file.file_size, file.etag),
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
                lambda engine: engine.fetch(file.path, start, stop, file.etag),
                self.meter,
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
