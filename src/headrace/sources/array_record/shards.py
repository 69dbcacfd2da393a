"""From what a user calls paths to shards of records, and from shards to readers.

A path is a file, a directory, a glob or a URL, and may end in ``[start:stop]``. Objects with
``filename``, ``skip`` and ``take``, as TFDS and Grain have, name a part of a file too.

The package reads local files. A file elsewhere is copied to the disk cache when its first record
is read; to count its records only its end is fetched.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from headrace.errors import FileChangedError, OptionError, ReadError
from headrace.model import DataFileInfo
from headrace.sources.array_record.reader import (
    Readers,
    open_reader,
    read_records,
    record_counts,
)
from headrace.storage import (
    Access,
    DiskCache,
    FileStatus,
    Listing,
    LocalStore,
    Store,
    find_files,
    side_by_side,
    will_read,
)
from headrace.storage.store import UNKNOWN_SIZE, matches

__all__ = ["FileInstruction", "Paths", "RecordFiles", "Shard", "find_shards", "wanted_parts"]

MaySkip = Callable[[ReadError], bool]
"""whether what cannot be read is left out"""

_PART = re.compile(r"(.+)\[(\d+):(\d+)\]", re.DOTALL)
_IN_DIRECTORIES = re.compile(r"\.array_?record(-\d+-of-\d+)?$|\.arecord$")
_COUNTING_THREADS = 16
_END_BYTES = 1 << 20
_END_GROWTH = 16
"""how much more of a file is fetched when its end does not hold the index of its records"""
_PIECE_BYTES = 8 << 20
_RECORDS_TRIED = 1000
"""of each file, to find one that can be read and says which columns there are"""


@runtime_checkable
class FileInstruction(Protocol):
    """A part of a file, as TFDS and Grain describe it."""

    @property
    def filename(self) -> Any:
        """The file."""

    @property
    def skip(self) -> int:
        """How many records to leave out at its beginning."""

    @property
    def take(self) -> int:
        """How many records to read; -1: all that follow."""


Path = str | os.PathLike[str] | FileInstruction
Paths = Path | Sequence[Path]


@dataclass(frozen=True, slots=True)
class Part:
    """The records of a file that a user wants.

    Attributes:
        location: A file, directory, glob or URL.
        start: The first record.
        stop: The record behind the last one; None: all that follow.
        count: How many records the file has to have, where the user says so.
    """

    location: Any
    start: int = 0
    stop: int | None = None
    count: int | None = None

    @property
    def whole(self) -> bool:
        return not self.start and self.stop is None

    def __str__(self) -> str:
        return f"{self.location}[{self.start}:{'' if self.stop is None else self.stop}]"


@dataclass(frozen=True, slots=True)
class Shard:
    """Consecutive records of one file."""

    file: DataFileInfo
    start: int
    stop: int
    group_size: int
    """how many records are decoded together"""

    @property
    def rows(self) -> int:
        return self.stop - self.start

    @property
    def name(self) -> str:
        """The path, with the records if they are not all of the file."""
        if (self.start, self.stop) == (0, self.file.record_count):
            return self.file.path
        return f"{self.file.path}[{self.start}:{self.stop}]"

    @property
    def size_bytes(self) -> int | None:
        """The size of the records, as if all of the file were of one length."""
        if self.file.file_size is None or not self.file.record_count:
            return self.file.file_size
        return self.file.file_size * self.rows // self.file.record_count

    def record_name(self, number: int) -> str:
        """Return what a record is called in messages, given its number in the file."""
        return f"{self.file.path}: record {number}"


@dataclass(frozen=True, slots=True)
class RecordFiles:
    """Where files are, and how they are opened in the process that reads.

    Attributes:
        store: Where the files are.
        cache: Where copies of them are kept; None: they are on this machine.
        readers: The readers that are open.
    """

    store: Store
    cache: DiskCache | None
    readers: Readers

    def borrow(self, file: DataFileInfo) -> Any:
        """Return a reader of a file, to be given back to ``readers`` unless it has failed."""
        reader = self.readers.borrow(file.path)
        return self._open(file) if reader is None else reader

    def record(self, file: DataFileInfo, number: int) -> bytes:
        """Return one record, by as few calls as can be."""
        reader = self.borrow(file)
        record = read_records(reader, (number,), file.path)[0]
        self.readers.give_back(file.path, reader)
        return record

    def first_record(self, shards: Sequence[Shard], may_skip: MaySkip) -> tuple[bytes, str] | None:
        """Return the first record that can be read and its name; None if there is no record."""
        broken = None
        for shard in shards:
            for number in range(shard.start, min(shard.stop, shard.start + _RECORDS_TRIED)):
                reader = self._open(shard.file)
                try:
                    record = read_records(reader, (number,), shard.file.path)[0]
                except ReadError as error:
                    if not may_skip(error):
                        raise
                    broken = broken or error
                else:
                    reader.close()  # so that a later read notices if the file is another
                    return record, shard.record_name(number)
        if broken is not None:
            raise broken
        return None

    def counts(self, files: Sequence[DataFileInfo]) -> list[tuple[int, int] | ReadError]:
        """Return for each file the number of records and the size of groups, or why it has none."""
        return list(side_by_side(self._count, files, threads=_COUNTING_THREADS))

    def _open(self, file: DataFileInfo) -> Any:
        """Open a file, if it still is the one that was found."""
        if self.cache is None:
            self.store.open(file).close()
            return open_reader(file.path, file.path, self.readers.options)
        size = _size(file)
        key = (self.store.identity, file.path, size, file.etag)
        with self.cache.open_copy(file.path, key, size, self._bytes(file, 0, size)) as copy:
            return open_reader(f"/dev/fd/{copy.fileno()}", file.path, self.readers.options)

    def _count(self, file: DataFileInfo) -> tuple[int, int] | ReadError:
        try:
            if self.cache is None:
                return record_counts(file.path, file.path, self.readers.options)
            return self._count_by_end(file, self.cache.folder)
        except ReadError as error:
            return error

    def _count_by_end(self, file: DataFileInfo, folder: str) -> tuple[int, int]:
        """Count records by the end of a file, put where it belongs into an empty one."""
        size, length = _size(file), _END_BYTES
        while True:
            start = max(0, size - length)
            with tempfile.TemporaryFile(dir=folder) as sparse:
                sparse.truncate(size)
                sparse.seek(start)
                for piece in self._bytes(file, start, size):
                    sparse.write(piece)
                sparse.flush()
                path = f"/dev/fd/{sparse.fileno()}"
                try:
                    return record_counts(path, file.path, self.readers.options)
                except ReadError:
                    if not start:
                        raise
            length *= _END_GROWTH

    def _bytes(self, file: DataFileInfo, start: int, stop: int) -> Iterator[bytes]:
        """Return bytes of a file, fetched side by side and ahead."""
        with self.store.open(file) as opened:
            will_read(opened, [(start, stop)])
            opened.seek(start)
            while start < stop:
                piece = opened.read(min(_PIECE_BYTES, stop - start))
                if not piece:
                    raise FileChangedError(f"{file.path} ended {stop - start} bytes before its end")
                yield piece
                start += len(piece)


def wanted_parts(paths: Any) -> list[Part]:
    """Return what a user names as parts of files.

    >>> [str(part) for part in wanted_parts("a.array_record[5:7]")]
    ['a.array_record[5:7]']
    """
    if isinstance(paths, str | os.PathLike | FileInstruction):
        paths = [paths]
    if not isinstance(paths, Iterable) or isinstance(paths, bytes):
        raise OptionError(f"paths must be a str, a Path or a list of them, not {paths!r}")
    return [_part(path) for path in paths]


def _part(path: Any) -> Part:
    if isinstance(path, FileInstruction):
        start, take = int(path.skip), int(path.take)
        stop = None if take == -1 else start + take
        count = getattr(path, "examples_in_shard", None)
        return Part(path.filename, start, stop, count)
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    found = _PART.fullmatch(text) if isinstance(text, str) and not os.path.exists(text) else None
    return Part(found[1], int(found[2]), int(found[3])) if found else Part(text)


def find_shards(
    parts: Sequence[Part], access: Access, readers: Readers, may_skip: MaySkip
) -> tuple[RecordFiles, list[Shard], list[str]]:
    """Find the records of some parts, in the order in which they are named.

    Returns:
        The files, the shards, and what is wrong with files that are left out.
    """
    locations = list(dict.fromkeys(part.location for part in parts))
    listing = find_files(locations, replace(access, cache=None))
    cache = None
    if not isinstance(listing.store, LocalStore):
        cache = access.cache or _users_cache()
    files = RecordFiles(listing.store, cache, readers)
    covered = [_covered(listing, location) for location in listing.locations]
    by_location = dict(zip(locations, covered, strict=True))
    wanted: dict[tuple[str, Part], FileStatus] = {}
    for part in parts:
        found = by_location[part.location]
        if not part.whole and len(found) > 1:
            raise OptionError(f"{part} names records of more than one file")
        wanted.update({(status.path, replace(part, location=None)): status for status in found})
    statuses = {status.path: status for status in wanted.values()}
    infos = [_info(listing.store, status) for status in statuses.values()]
    counts = dict(zip(statuses, zip(infos, files.counts(infos), strict=True), strict=True))
    broken = _broken(counts, may_skip)
    shards = {}
    for path, part in wanted:
        info, count = counts[path]
        if not isinstance(count, ReadError):
            shard = _shard(info, *count, part)
            shards[shard.name] = shard
    return files, list(shards.values()), broken


def _users_cache() -> DiskCache:
    """Return the cache that is used where the user names none."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return DiskCache.at(os.path.join(home, "headrace"), None)


def _broken(counts: Mapping[str, tuple[Any, object]], may_skip: MaySkip) -> list[str]:
    """Return what is wrong with files; raise if that may not be, or if no file is left."""
    errors = [count for _, count in counts.values() if isinstance(count, ReadError)]
    for error in errors:
        if not may_skip(error):
            raise error
    if errors and len(errors) == len(counts):
        raise ReadError(f"no file can be read; the first: {errors[0]}")
    return [str(error) for error in errors]


def _covered(listing: Listing, location: str) -> list[FileStatus]:
    """Return the files at a location; in directories, those that are called ArrayRecord files."""
    place = listing.store.resolved(location).rstrip("/")
    patterns = place.split("/")
    found = [status for status in listing.files if _names(place, patterns, status.path)]
    called = [s for s in found if s.path in listing.named or _IN_DIRECTORIES.search(s.path)]
    return called or found


def _names(place: str, patterns: list[str], path: str) -> bool:
    if path == place or path.startswith(place + "/"):
        return True
    parts = path.split("/")
    return any(matches(parts[:stop], patterns) for stop in range(len(parts), 0, -1))


def _info(store: Store, status: FileStatus) -> DataFileInfo:
    if status.size == UNKNOWN_SIZE:
        status = store.status(status.path) or status
    size = None if status.size == UNKNOWN_SIZE else status.size
    return DataFileInfo(status.path, file_size=size, etag=status.etag)


def _shard(info: DataFileInfo, count: int, group_size: int, part: Part) -> Shard:
    stop = count if part.stop is None else part.stop
    if part.count not in (None, count):
        raise OptionError(f"{info.path} has {count} records, and not {part.count} as is said of it")
    if not 0 <= part.start <= stop <= count:
        named = replace(part, location="", stop=stop)
        raise OptionError(f"{info.path} has {count} records, of which {named} is no part")
    return Shard(replace(info, record_count=count), part.start, stop, group_size)


def _size(file: DataFileInfo) -> int:
    if file.file_size is None:
        raise ReadError(f"{file.path}: the store does not say how large it is")
    return file.file_size
