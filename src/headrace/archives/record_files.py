"""From what a user calls paths to shards of records, and from shards to records."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from headrace.archives.array_record import Readers, look, open_reader, read_records
from headrace.archives.file_copies import FileCopies
from headrace.errors import OptionError, ReadError
from headrace.model import DataFileInfo
from headrace.storage import (
    Access,
    FileStatus,
    Listing,
    LocalStore,
    Store,
    find_files,
    side_by_side,
)
from headrace.storage.store import UNKNOWN_SIZE, matches

__all__ = ["Paths", "RecordFiles", "Shard", "find_shards"]

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Part = tuple[int, int]
"""the first record that is wanted of a file, and the one behind the last"""
Placed = tuple[bytes, str]
"""a record, and what to call it"""
Counted = tuple[DataFileInfo, int]
"""a file with the number of its records, and how many of them are decoded together"""
MaySkip = Callable[[ReadError], bool]
"""whether what cannot be read is left out"""

_INSTRUCTION = re.compile(r"(.+)\[(\d+):(\d+)\]", re.DOTALL)
_IN_DIRECTORIES = re.compile(r"\.array_?record(-\d+-of-\d+)?$|\.arecord$")
_LOOKING_THREADS = 16
_END_BYTES = 1 << 20
_LOOKING_FURTHER = 16
_RECORDS_TRIED = 1000
"""of a file, for one that can be read and says which columns there are"""


@dataclass(frozen=True, slots=True)
class Shard:
    """Records of one file that follow each other."""

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
        """Of the records, as if all of the file were of one length."""
        if self.file.file_size is None or not self.file.record_count:
            return self.file.file_size
        return self.file.file_size * self.rows // self.file.record_count

    def named(self, number: int) -> str:
        """What to call a record, of which the number is that in the file."""
        return f"{self.file.path}: record {number}"


@dataclass(frozen=True, slots=True)
class RecordFiles:
    """Where files are and how they are opened, in the process that reads."""

    store: Store
    copies: FileCopies | None
    """of files that are not on this machine"""
    readers: Readers

    @contextmanager
    def reader(self, file: DataFileInfo) -> Iterator[Any]:
        """A reader of a file, for one thread."""
        reader = self.taken(file)
        yield reader
        self.readers.give_back(file.path, reader)

    def taken(self, file: DataFileInfo) -> Any:
        """A reader of a file, to be given back to ``readers`` unless it has failed."""
        reader = self.readers.taken(file.path)
        return self._opened(file) if reader is None else reader

    def record(self, file: DataFileInfo, number: int) -> bytes:
        """One record, by as few calls as can be."""
        readers, path = self.readers, file.path
        reader = readers.taken(path)
        if reader is None:
            reader = self._opened(file)
        record = read_records(reader, (number,), path)[0]
        readers.give_back(path, reader)
        return record

    def _opened(self, file: DataFileInfo) -> Any:
        with self._path(file) as path:
            return open_reader(path, file.path, self.readers.options)

    @contextmanager
    def _path(self, file: DataFileInfo) -> Iterator[str]:
        """Where a file is on this machine, if it still is the one that was found."""
        if self.copies is None:
            self.store.open(file).close()
            yield file.path
        else:
            with self.copies.copy(self.store, file) as path:
                yield path

    def first_record(self, shards: Sequence[Shard], may_skip: MaySkip) -> Placed | None:
        """Return the first record of all that can be read, and what to call it."""
        broken = None
        for shard in shards:
            for number in range(shard.start, min(shard.stop, shard.start + _RECORDS_TRIED)):
                try:
                    return self._one_record(shard.file, number), shard.named(number)
                except ReadError as error:
                    if not may_skip(error):
                        raise
                    broken = broken or error
        if broken is not None:
            raise broken
        return None

    def _one_record(self, file: DataFileInfo, number: int) -> bytes:
        """Read one record; nothing stays open, so that a later read notices another file."""
        reader = self._opened(file)
        record = read_records(reader, (number,), file.path)[0]
        reader.close()
        return record

    def counted(self, files: Sequence[DataFileInfo]) -> list[Counted | ReadError]:
        """Files with the number of their records, and the size of the groups of each."""
        looked = side_by_side(self._looked_at, files, threads=_LOOKING_THREADS)
        return [
            found
            if isinstance(found, ReadError)
            else (replace(file, record_count=found[0]), found[1])
            for file, found in zip(files, looked, strict=True)
        ]

    def _looked_at(self, file: DataFileInfo) -> tuple[int, int] | ReadError:
        """The end of a file says how many records it has: more is fetched if that is long."""
        if self.copies is None:
            return look(file.path, file.path, self.readers.options)
        length = _END_BYTES
        while True:
            with self.copies.end_of(self.store, file, length) as path:
                found = look(path, file.path, self.readers.options)
            if not isinstance(found, ReadError) or length >= (file.file_size or 0):
                return found
            length *= _LOOKING_FURTHER


def find_shards(
    paths: Paths, access: Access, readers: Readers, may_skip: MaySkip
) -> tuple[RecordFiles, list[Shard], list[str]]:
    """The records of files, directories and globs, in the order in which they are named.

    Each of them may end in ``[start:stop]``, if it is one file. Records are counted side by side.
    What is wrong with files that may be left out comes last.
    """
    wanted = _wanted(paths)
    bases = list(dict.fromkeys(base for base, _ in wanted))
    listing = find_files(bases, replace(access, cache=None))
    local = isinstance(listing.store, LocalStore)
    copies = None if local else FileCopies.beside(access.cache)
    files = RecordFiles(listing.store, copies, readers)
    of_base = dict(zip(bases, (_covered(listing, one) for one in listing.locations), strict=True))
    parts: dict[tuple[str, Part | None], FileStatus] = {}
    for base, part in wanted:
        if part is not None and len(of_base[base]) > 1:
            raise OptionError(f"{base}[{part[0]}:{part[1]}] names records of more than one file")
        parts.update({(status.path, part): status for status in of_base[base]})
    statuses = {status.path: status for status in parts.values()}
    infos = [_info(listing.store, status) for status in statuses.values()]
    looked = dict(zip(statuses, files.counted(infos), strict=True))
    counted, broken = _whole(looked, may_skip)
    shards = [_shard(*counted[path], part) for path, part in parts if path in counted]
    return files, list({shard.name: shard for shard in shards}.values()), broken


def _whole(
    looked: Mapping[str, Counted | ReadError], may_skip: MaySkip
) -> tuple[dict[str, Counted], list[str]]:
    """The files that can be read, and what is wrong with the others; the first, if none can."""
    errors = [found for found in looked.values() if isinstance(found, ReadError)]
    for error in errors:
        if not may_skip(error):
            raise error
    if errors and len(errors) == len(looked):
        raise ReadError(f"no file can be read; the first: {errors[0]}")
    counted = {path: one for path, one in looked.items() if not isinstance(one, ReadError)}
    return counted, [str(error) for error in errors]


def _wanted(paths: Any) -> list[tuple[Any, Part | None]]:
    """Paths, and which records of each: ``data.array_record[100:200]``."""
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    if not isinstance(paths, Iterable) or isinstance(paths, bytes):
        raise OptionError(f"paths must be a str, a Path or a list of them, not {paths!r}")
    wanted: list[tuple[Any, Part | None]] = []
    for path in paths:
        text = os.fspath(path) if isinstance(path, str | os.PathLike) else path
        found = _INSTRUCTION.fullmatch(text) if isinstance(text, str) else None
        if found and os.path.exists(text):
            found = None
        wanted.append((found[1], (int(found[2]), int(found[3]))) if found else (text, None))
    return wanted


def _covered(listing: Listing, location: str) -> list[FileStatus]:
    """The files that a location names; in directories, those that are called ArrayRecord files."""
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


def _shard(file: DataFileInfo, group: int, part: Part | None) -> Shard:
    count = file.record_count or 0
    start, stop = (0, count) if part is None else part
    if not start <= stop <= count:
        raise OptionError(f"{file.path} has {count} records, of which [{start}:{stop}] is no part")
    return Shard(file, start, stop, group)
