"""Find ArrayRecord files by the names that a user gives, open them, and read their records.

A name is a file, a directory, a glob or a URL, and may end in ``[start:stop]``. Objects with
``filename``, ``skip`` and ``take``, as in TFDS and Grain, name a part of a file, too.

The array-record package reads local files. A remote file is copied to the disk cache when its first
record is read; to count its records only its end is fetched.

Records are read one after the other, in the calling thread. The package's own ways to read many
records use a pool of threads, and cost more: ``read([i])`` reads every group of the file. ``seek``
and ``read`` without parallelism cost the same for every record.

A child of a process that has used the package refuses to use it. With any reader options, the
package keeps threads once it has opened a compressed file, and one of them waits with a condition
on its stack. The stacks of threads that a forked child starts take that place, and the child
crashes when it decompresses. With ``readahead_buffer_size:0,max_parallelism:0``, 69 of 80 children
with eight threads crashed, and 382 of 400 where the parent had opened the file and read nothing.
Children without threads survived (300 of 300), but every worker of a ``DataLoader`` has threads.
"""

from __future__ import annotations

import importlib.util
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

from headrace.errors import FileChangedError, MissingExtraError, OptionError, ReadError
from headrace.model import DataFileInfo
from headrace.process import PerProcess
from headrace.storage import (
    Access,
    DiskCache,
    Listing,
    LocalStore,
    NativeLibrary,
    Store,
    changed,
    find_files,
    side_by_side,
    vanished,
    will_read,
)

ReaderOptions = str | Mapping[str, Any]
MaySkip = Callable[[ReadError], bool]
"""Function that returns True if data with this error is left out."""

_LIBRARY = NativeLibrary("array-record")
_DEFAULTS = {"readahead_buffer_size": "0", "max_parallelism": "0"}
_BUFFER_BYTES = 16 << 10
_MOST_IDLE = 64
_PART = re.compile(r"(.+)\[(\d+):(\d+)\]", re.DOTALL)
_IN_DIRECTORIES = re.compile(r"\.array_?record(-\d+-of-\d+)?$|\.arecord$")
_COUNTING_THREADS = 16
_END_BYTES = 1 << 20
_END_GROWTH = 16
"""Factor by which the fetched end of a file grows until it holds the index of records."""
_PIECE_BYTES = 8 << 20
_RECORDS_TRIED = 1000
"""Number of records tried in each file to find one that can be read and shows the columns."""


# --- the package


def native() -> ModuleType:
    """Return the reader and writer of the array-record package, for use in this process.

    Raises:
        MissingExtraError: The package is not installed.
        WorkerError: The process was forked from one that has used the package.
    """
    if importlib.util.find_spec("array_record") is None:
        raise MissingExtraError.for_extra("array-record", "array-record")
    from array_record.python import array_record_module

    _LIBRARY.use()
    module: ModuleType = array_record_module
    return module


def _open_reader(path: str, name: str, options: str) -> Any:
    """Open a file on this machine.

    The package opens missing and damaged files without an error, so the reader is asked.

    Args:
        path: The file.
        name: The name of the file in errors: its URL if ``path`` is a copy.
        options: Options of the package's reader.

    Raises:
        OptionError: The package does not know an option.
        ReadError: The file is missing, cut off or damaged.
    """
    try:
        reader = native().ArrayRecordReader(path, options, file_reader_buffer_size=_BUFFER_BYTES)
    except ValueError as error:
        raise OptionError(f"reader_options: {error}") from error
    if reader.ok():
        return reader
    reason = ""
    try:
        reader.close()
    except RuntimeError as error:
        reason = f" ({str(error).replace(path, name)})" if str(error) else ""
    if not os.path.exists(path):
        raise ReadError(f"{name} does not exist")
    raise ReadError(
        f"{name} is not a complete ArrayRecord file{reason}; it may be truncated or damaged: write "
        "or copy it again"
    )


def _count_records(path: str, name: str, options: str) -> tuple[int, int]:
    """Return the number of records of a file, and the number compressed together."""
    reader = _open_reader(path, name, options)
    group = re.search(r"\bgroup_size:(\d+)", reader.writer_options_string() or "")
    counts = reader.num_records(), int(group[1]) if group else 1
    reader.close()
    return counts


def _option_string(given: ReaderOptions | None) -> str:
    if isinstance(given, str):
        parts = [part.partition(":") for part in given.split(",") if part.strip()]
        given = {name.strip(): value.strip() for name, _, value in parts}
    if not isinstance(given, Mapping | None):
        raise OptionError(
            'reader_options must be a mapping such as {"max_parallelism": 0}, or a str such as '
            f'"max_parallelism:0", not {given!r}'
        )
    chosen = {**_DEFAULTS, **{str(name): str(value) for name, value in (given or {}).items()}}
    return ",".join(f"{name}:{value}" for name, value in chosen.items())


# --- open files


@dataclass(frozen=True, slots=True)
class OpenedReader:
    """A reader of the package, and the version of the file that it has opened.

    Attributes:
        path: The path or URL of the file.
        native: The reader. It cannot be used again after an error.
        version: The inode, size and time of change of a file on this machine; None for a copy in
            the cache.
    """

    path: str
    native: Any
    version: tuple[int, int, int] | None

    def read(self, numbers: Sequence[int], *, at_once: bool = False) -> list[bytes]:
        """Return the records of these numbers, in order.

        The reader would return other records if the file was rewritten, so the version of the file
        is compared afterwards.

        Args:
            numbers: Numbers of records; ascending ones are fastest, and may be repeated.
            at_once: True to read all numbers from the first to the last in one call, which decodes
                groups in threads of the package.

        Raises:
            ReadError: A record cannot be read.
            FileChangedError: The file was rewritten since it was opened.
        """
        records: list[bytes] = []
        following = -1
        try:
            if at_once:
                records = self.native.read(numbers[0], numbers[-1] + 1)
                return records
            for number in numbers:
                if number == following - 1:
                    records.append(records[-1])
                    continue
                if number != following:
                    self.native.seek(number)
                records.append(self.native.read())
                following = number + 1
            return records
        except (RuntimeError, IndexError) as error:
            first = numbers[len(records)]
            which = f"records {first} to {numbers[-1] + 1}" if at_once else f"record {first}"
            raise ReadError(f"{self.path}: {which} cannot be read: {error}") from error
        finally:
            if self.version is not None and self.version != _version(self.path):
                raise FileChangedError(changed(self.path))


def _version(path: str) -> tuple[int, int, int]:
    """Return the inode, size and time of change of a file.

    Raises:
        FileChangedError: The file does not exist any more.
    """
    try:
        found = os.stat(path)
    except FileNotFoundError as error:
        raise FileChangedError(vanished(path)) from error
    return found.st_ino, found.st_size, found.st_mtime_ns


@dataclass(slots=True)
class _Idle:
    """Readers that no thread uses, in the order of their last use."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    readers: list[OpenedReader] = field(default_factory=list)


class RecordFiles:
    """Files of one store, opened in the process that reads.

    A reader is used by one thread at a time; a bounded number stays open.

    Attributes:
        store: The store of the files.
        locations: The locations given by the user.

    Args:
        cache: The cache that holds copies of them; None for files on this machine.
        options: Options of the package's reader.
    """

    def __init__(
        self,
        store: Store,
        cache: DiskCache | None,
        options: ReaderOptions | None,
        locations: Sequence[str] = (),
    ) -> None:
        self.store, self.locations = store, locations
        self._cache = cache
        self._options = _option_string(options)
        self._idle = PerProcess(_Idle)

    def borrow(self, file: DataFileInfo) -> OpenedReader:
        """Return a reader of a file that no other thread uses, for ``give_back``.

        Raises:
            FileChangedError: The file was rewritten since it was found.
        """
        idle = self._idle.get()
        with idle.lock:
            for place in range(len(idle.readers) - 1, -1, -1):
                if idle.readers[place].path == file.path:
                    return idle.readers.pop(place)
        version = None if self._cache is not None else _version(file.path)
        return OpenedReader(file.path, self._open(file), version)

    def give_back(self, reader: OpenedReader) -> None:
        """Keep a reader for the next use. Drop a reader that failed, because all its reads fail."""
        idle = self._idle.get()
        with idle.lock:
            idle.readers.append(reader)
            unused = idle.readers.pop(0) if len(idle.readers) > _MOST_IDLE else None
        if unused is not None:
            unused.native.close()

    def read(self, file: DataFileInfo, numbers: Sequence[int]) -> list[bytes]:
        """Return the records of these numbers, in order."""
        reader = self.borrow(file)
        records = reader.read(numbers)
        self.give_back(reader)
        return records

    def first_record(
        self, shards: Sequence[RecordShard], may_skip: MaySkip
    ) -> tuple[bytes, str] | None:
        """Return the first record that can be read and its name; None if there is no record."""
        broken = None
        for shard in shards:
            for number in range(shard.start, min(shard.stop, shard.start + _RECORDS_TRIED)):
                try:
                    (record,) = self.read(shard.file, (number,))
                except ReadError as error:
                    if not may_skip(error):
                        raise
                    broken = broken or error
                else:
                    return record, shard.record_name(number)
        if broken is not None:
            raise broken
        return None

    def counts(self, files: Sequence[DataFileInfo]) -> list[tuple[int, int] | ReadError]:
        """Return the number of records and the size of groups of each file, or its error."""
        return list(side_by_side(self._count, files, threads=_COUNTING_THREADS))

    def _open(self, file: DataFileInfo) -> Any:
        """Open a file if it has not changed since it was found."""
        if self._cache is None:
            self.store.open(file).close()
            return _open_reader(file.path, file.path, self._options)
        size = _size(file)
        key = (self.store.identity, file.path, size, file.etag)
        with self._cache.open_copy(file.path, key, size, self._bytes(file, 0, size)) as copy:
            return _open_reader(f"/dev/fd/{copy.fileno()}", file.path, self._options)

    def _count(self, file: DataFileInfo) -> tuple[int, int] | ReadError:
        try:
            if self._cache is None:
                return _count_records(file.path, file.path, self._options)
            return self._count_by_end(file, self._cache.folder)
        except ReadError as error:
            return error

    def _count_by_end(self, file: DataFileInfo, folder: str) -> tuple[int, int]:
        """Count records by the end of a file, which is written at its place in an empty file."""
        size, length = _size(file), _END_BYTES
        while True:
            start = max(0, size - length)
            with tempfile.TemporaryFile(dir=folder) as sparse:
                sparse.truncate(size)
                sparse.seek(start)
                for piece in self._bytes(file, start, size):
                    sparse.write(piece)
                sparse.flush()
                try:
                    return _count_records(f"/dev/fd/{sparse.fileno()}", file.path, self._options)
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


def _size(file: DataFileInfo) -> int:
    if file.file_size is None:
        raise ReadError(f"{file.path}: the store does not say how large it is")
    return file.file_size


# --- from names to shards


@runtime_checkable
class FileInstruction(Protocol):
    """A part of a file, as TFDS and Grain describe it."""

    @property
    def filename(self) -> Any:
        """The file."""

    @property
    def skip(self) -> int:
        """Number of records to leave out at its beginning."""

    @property
    def take(self) -> int:
        """Number of records to read; -1 for all that follow."""


Path = str | os.PathLike[str] | FileInstruction
RecordPaths = Path | Sequence[Path]


@dataclass(frozen=True, slots=True)
class Part:
    """The records of a file that a user wants.

    Attributes:
        location: A file, directory, glob or URL.
        start: The first record.
        stop: The record after the last one; None for all that follow.
        count: Number of records that the file must have; None for any number.
    """

    location: Any
    start: int = 0
    stop: int | None = None
    count: int | None = None

    def __str__(self) -> str:
        return f"{self.location}[{self.start}:{'' if self.stop is None else self.stop}]"


@dataclass(frozen=True, slots=True)
class RecordShard:
    """Consecutive records of one file.

    Attributes:
        file: The file.
        start: The first record.
        stop: The record after the last one.
        group_size: Number of records that are decoded together.
    """

    file: DataFileInfo
    start: int
    stop: int
    group_size: int

    @property
    def rows(self) -> int:
        """Number of records."""
        return self.stop - self.start

    @property
    def name(self) -> str:
        """Path of the file, with the range of records if it is not the whole file."""
        if (self.start, self.stop) == (0, self.file.record_count):
            return self.file.path
        return f"{self.file.path}[{self.start}:{self.stop}]"

    @property
    def size_bytes(self) -> int | None:
        """Size of the records, assuming that all records of the file have the same length."""
        if self.file.file_size is None or not self.file.record_count:
            return self.file.file_size
        return self.file.file_size * self.rows // self.file.record_count

    def record_name(self, number: int) -> str:
        """Return the name of a record in messages, given its number in the file."""
        return f"{self.file.path}: record {number}"


def wanted_parts(paths: Any) -> list[Part]:
    """Return the parts of files that the user names.

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
        return Part(path.filename, start, stop, getattr(path, "examples_in_shard", None))
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    found = _PART.fullmatch(text) if isinstance(text, str) and not os.path.exists(text) else None
    return Part(found[1], int(found[2]), int(found[3])) if found else Part(text)


def find_shards(
    parts: Sequence[Part], access: Access, options: ReaderOptions | None, may_skip: MaySkip
) -> tuple[RecordFiles, list[RecordShard], list[str]]:
    """Find the records of some parts, in the order in which they are named.

    Returns:
        The files, the shards, and the errors of files that are left out.
    """
    locations = list(dict.fromkeys(part.location for part in parts))
    listing = find_files(locations, replace(access, cache=None))
    infos = {file.path: file for file in listing.files}
    cache = None
    if not isinstance(listing.store, LocalStore):
        cache = access.cache or _users_cache()
    files = RecordFiles(listing.store, cache, options, listing.locations)
    covered = [_covered(listing, paths) for paths in listing.paths]
    by_location = dict(zip(locations, covered, strict=True))
    wanted: list[tuple[str, Part]] = []
    for part in parts:
        found = by_location[part.location]
        if len(found) > 1 and (part.start or part.stop is not None):
            raise OptionError(f"{part} names records of more than one file")
        wanted += [(path, part) for path in found]
    read = list(dict.fromkeys(path for path, _ in wanted))
    counts = dict(zip(read, files.counts([infos[path] for path in read]), strict=True))
    broken = _broken(list(counts.values()), may_skip)
    shards = {}
    for path, part in wanted:
        count = counts[path]
        if not isinstance(count, ReadError):
            shard = _shard(infos[path], *count, part)
            shards[shard.name] = shard
    return files, list(shards.values()), broken


def _users_cache() -> DiskCache:
    """Return the cache that is used by default."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return DiskCache.at(os.path.join(home, "headrace"), None)


def _broken(counts: Sequence[object], may_skip: MaySkip) -> list[str]:
    """Return the errors of files; raise one that may not be skipped, or any if no file is left."""
    errors = [count for count in counts if isinstance(count, ReadError)]
    for error in errors:
        if not may_skip(error):
            raise error
    if errors and len(errors) == len(counts):
        raise ReadError(f"no file can be read; the first: {errors[0]}")
    return [str(error) for error in errors]


def _covered(listing: Listing, found: Sequence[str]) -> Sequence[str]:
    """Return the files of a location; in directories, those named like ArrayRecord files."""
    called = [path for path in found if path in listing.named or _IN_DIRECTORIES.search(path)]
    return called or found


def _shard(info: DataFileInfo, count: int, group_size: int, part: Part) -> RecordShard:
    stop = count if part.stop is None else part.stop
    if part.count not in (None, count):
        raise OptionError(f"{info.path} has {count} records, but its instruction says {part.count}")
    if not 0 <= part.start <= stop <= count:
        part = replace(part, location="", stop=stop)
        raise OptionError(f"{info.path} has {count} records, so {part} is out of range")
    return RecordShard(replace(info, record_count=count), part.start, stop, group_size)
