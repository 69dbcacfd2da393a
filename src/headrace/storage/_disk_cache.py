"""A cache of fetched bytes on a local disk, shared by the processes that name the same folder.

A segment is a file of bytes of one version of one object; its name holds the byte range and a
checksum. It is written under another name and then renamed, so that a process that is killed leaves
no half segment. A segment that does not match its checksum is removed.

A full cache keeps the segments that the current run has used and admits no others. Evicting the
least recently used would remove each segment just before the next epoch reads it again. Only
segments that were last used before the run began make room for new ones. A disk that
is full is left alone for a minute at a time.
"""

from __future__ import annotations

import errno
import glob
import logging
import math
import os
import re
import shutil
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import IO, Any

from headrace.errors import HeadraceError, OptionError
from headrace.process import PerProcess
from headrace.storage._store import Meter, file_lock

logger = logging.getLogger(__name__)

_LEFT_AFTER_CLEANING = 0.9
_ABANDONED_S = 3600.0
_SECONDS_BETWEEN = 0.05
_FULL_FOR_S = 60.0
"""Seconds after which a full cache or disk is tried again: others may have made room."""
_DISK_IS_FULL = {errno.ENOSPC, errno.EDQUOT}
_OBJECTS_KNOWN = 1024
_LISTED_FOR_S = 1.0
"""Seconds for which the list of the segments of an object is not read again."""
_OF_OBJECT = "[0-9a-f]" * 2 + "/" + "[0-9a-f]" * 64
"""The folder of an object: the SHA-256 of its identity, below a folder of the first two digits."""
_SEGMENT = re.compile(r"(\d+)-(\d+)-([0-9a-f]{8})")
"""The name of a file of the cache: first byte, byte after the last, and checksum."""
_BEING_WRITTEN = re.compile(r"\d+-\d+")
"""The name of a file that is not complete: the process that writes it, and a number."""


@dataclass(frozen=True, slots=True)
class _CachedRange:
    """A range of the bytes of an object, which is one file of the cache."""

    start: int
    stop: int
    checksum: int

    @property
    def name(self) -> str:
        return f"{self.start}-{self.stop}-{self.checksum:08x}"


@dataclass(frozen=True, slots=True)
class DiskCache:
    """A folder of segments of limited size.

    Attributes:
        folder: The path of the folder.
        limit_bytes: Largest number of bytes that the folder may hold.
        opened_ns: The time when the run began, in nanoseconds since 1970. It goes with the cache to
            worker processes: what one of them has used, another does not evict.
    """

    folder: str
    limit_bytes: int
    opened_ns: int = field(default_factory=time.time_ns, compare=False)

    @classmethod
    def at(cls, folder: str | os.PathLike[str], limit_bytes: int | None) -> DiskCache:
        """Return a cache in a folder, which is created; by default it fills half the free space."""
        path = os.path.abspath(os.path.expanduser(os.fspath(folder)))
        try:
            os.makedirs(os.path.join(path, "new"), mode=0o700, exist_ok=True)
        except OSError as error:
            raise OptionError(f"cache_dir cannot be used: {error}") from error
        if limit_bytes is None:
            limit_bytes = shutil.disk_usage(path).free // 2
        return cls(path, limit_bytes)

    def get(
        self,
        key: tuple[Any, ...],
        start: int,
        stop: int,
        fetch: Callable[[int, int], memoryview],
        meter: Meter,
    ) -> memoryview:
        """Return bytes of an object, from segments or, where there are none, fetched.

        Args:
            key: Identity of a version of an object.
            start: The first byte.
            stop: The byte after the last.
            fetch: Returns bytes of the object.
            meter: Counts the bytes that came from the cache.
        """
        folder = self._folder(key)
        segments, listed_at = _notes.get().listed.get(folder, ([], -math.inf))
        pieces: list[memoryview] = []
        while start < stop:
            around = [one for one in segments if one.start <= start < one.stop]
            # Another process may have fetched the bytes since.
            if not around and time.monotonic() - listed_at > _LISTED_FOR_S:
                segments, listed_at = _list_segments(folder)
                continue
            if around:
                held = max(around, key=lambda one: one.stop)
                data = _load(folder, held)
                if data is None:  # damaged, or removed by another process
                    segments = [one for one in segments if one != held]
                    continue
                piece = data[start - held.start : min(stop, held.stop) - held.start]
                meter.add(cached_bytes=len(piece))
            else:
                last = min([stop, *(one.start for one in segments if one.start > start)])
                piece = fetch(start, last)
                self._keep(folder, start, piece)
            pieces.append(piece)
            start += len(piece)
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def open_copy(
        self, name: str, key: tuple[Any, ...], size: int, pieces: Iterable[bytes]
    ) -> IO[bytes]:
        """Open a copy of a whole object on the disk, made of ``pieces`` if there is none.

        It is for readers that need a file, which can open ``/dev/fd/N``: the bytes stay readable
        while the copy is open, whatever the cache removes. All processes of a machine share one
        copy. Making it waits for room that others need for copies which they are making.

        Raises:
            OptionError: The copy exceeds the limit of the cache, or the room on the disk.
        """
        if size > self.limit_bytes:
            raise OptionError(
                f"{name} has {size} bytes and has to be copied to a disk to be read, but the cache "
                f"in {self.folder} may hold {self.limit_bytes}; give cache_dir, and more "
                "cache_bytes"
            )
        folder = self._folder(("copy", *key))
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            with file_lock(os.path.join(folder, "lock")):
                for segment in _list_segments(folder)[0]:
                    path = os.path.join(folder, segment.name)
                    with suppress(FileNotFoundError):
                        _note_use(path)
                        return open(path, "rb")
                copy = self._written(folder, 0, size, pieces, needed=True)
                assert copy is not None
                return copy
        except HeadraceError:
            raise
        except OSError as error:
            raise OptionError(f"cache_dir cannot hold a copy of {name}: {error}") from error

    def _written(
        self,
        folder: str,
        start: int,
        size: int,
        pieces: Iterable[bytes | memoryview],
        *,
        needed: bool,
    ) -> IO[bytes] | None:
        """Write a segment and return it open for reading; None if there is no room for it.

        Args:
            folder: The folder of its object, which is created.
            start: The first byte of the segment in its object.
            size: The number of its bytes.
            pieces: Its bytes.
            needed: True to wait for room, and to evict segments that this run has used.
        """
        os.makedirs(folder, mode=0o700, exist_ok=True)
        aside = self._aside()
        with ExitStack() as undoing:
            undoing.callback(_remove, aside)
            while not self._reserve(aside, size, needed=needed):
                if not needed:
                    return None
                time.sleep(_SECONDS_BETWEEN)
            file = open(aside, "r+b")  # noqa: SIM115 (the caller closes it)
            undoing.callback(file.close)
            checksum = 0
            for piece in pieces:
                file.write(piece)
                checksum = zlib.crc32(piece, checksum)
            file.flush()
            _note_use(aside)
            segment = _CachedRange(start, start + size, checksum)
            os.replace(aside, os.path.join(folder, segment.name))
            _notes.get().listed.get(folder, ([], 0.0))[0].append(segment)
            undoing.pop_all()
        return file

    def _folder(self, key: tuple[Any, ...]) -> str:
        name = sha256("\0".join(map(str, key)).encode()).hexdigest()
        return os.path.join(self.folder, name[:2], name)

    def _aside(self) -> str:
        """Return a path for a file that is being written."""
        folder = os.path.join(self.folder, "new")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        return os.path.join(folder, f"{os.getpid()}-{next(_notes.get().numbers)}")

    def _keep(self, folder: str, start: int, data: memoryview) -> None:
        """Store a segment if there is room; an error of the disk is only logged."""
        full_until = _notes.get().full_until.get((self.folder, self.opened_ns), 0.0)
        if len(data) > self.limit_bytes or time.monotonic() < full_until:
            return
        try:
            written = self._written(folder, start, len(data), [data], needed=False)
            if written is not None:
                written.close()
        except OSError as error:
            if error.errno in _DISK_IS_FULL:
                self._leave_alone()
            if self.folder not in _notes.get().warned_of:
                _notes.get().warned_of.add(self.folder)
                logger.warning("%s: what is read is not cached: %s", self.folder, error)

    def _leave_alone(self) -> None:
        """Admit nothing for a while."""
        _notes.get().full_until[self.folder, self.opened_ns] = time.monotonic() + _FULL_FOR_S

    def _reserve(self, aside: str, more: int, *, needed: bool = False) -> bool:
        """Make a file of ``more`` bytes; return False if there is no room for it.

        The bytes in use are counted in a file that all processes share.

        Args:
            aside: The path of the file.
            more: The size of the file.
            needed: True to evict also segments that this run has used.
        """
        counter = os.path.join(self.folder, "used")
        with file_lock(f"{counter}.lock"):
            used = _count_in(counter)
            if used is None or used + more > self.limit_bytes:
                used = self._clean(more, needed)
            fits = used + more <= self.limit_bytes
            if fits:
                with open(aside, "xb") as file:
                    file.truncate(more)
            elif not needed:
                self._leave_alone()
            Path(counter).write_text(str(used + more if fits else used))
        return fits

    def _clean(self, more: int, needed: bool) -> int:
        """Evict segments, least recently used first, to make room; return the bytes left."""
        found = sorted(self._all())
        total = sum(size for _, size, _ in found)
        allowed = self.limit_bytes
        if total + more > allowed:
            allowed = int(allowed * _LEFT_AFTER_CLEANING)
        for last_used_ns, size, path in found:
            in_use = last_used_ns == math.inf or (last_used_ns >= self.opened_ns and not needed)
            if total + more <= allowed or in_use:
                break
            _remove(path)
            total -= size
        return total

    def _all(self) -> Iterable[tuple[float, int, str]]:
        """Return the times of last use, sizes and paths of all segments.

        The time of a segment that is being written is infinite. These are looked for first: one
        that is renamed meanwhile is then found twice and counted once, and never missed. Files that
        a killed process left half written are removed.
        """
        found = {}
        for path, file in _files(os.path.join(self.folder, "new"), _BEING_WRITTEN):
            if time.time() - file.st_mtime > _ABANDONED_S:
                _remove(path)
            else:
                found[file.st_ino] = math.inf, file.st_size, path
        for folder in glob.iglob(os.path.join(glob.escape(self.folder), _OF_OBJECT)):
            for path, file in _files(folder, _SEGMENT):
                found[file.st_ino] = file.st_mtime_ns, file.st_size, path
        return found.values()


@dataclass(slots=True)
class _Notes:
    """The notes of a process on its caches.

    Attributes:
        full_until: Time until which a full cache admits nothing, by folder and beginning of the
            run.
        warned_of: Folders that could not be written: one warning each is enough.
        listed: Segments of objects and the time when they were listed, by folder; some may be
            gone. Listing thousands of files for each read takes too long.
        numbers: Numbers of the files that are being written.
    """

    full_until: dict[tuple[str, int], float] = field(default_factory=dict)
    warned_of: set[str] = field(default_factory=set)
    listed: OrderedDict[str, tuple[list[_CachedRange], float]] = field(default_factory=OrderedDict)
    numbers: Iterator[int] = field(default_factory=count)


_notes = PerProcess(_Notes)


def _list_segments(folder: str) -> tuple[list[_CachedRange], float]:
    """Return the segments of an object, and the time; none if the folder does not exist."""
    segments = [
        _CachedRange(int(one[1]), int(one[2]), int(one[3], 16)) for one in _named(folder, _SEGMENT)
    ]
    listed = _notes.get().listed
    found = listed[folder] = segments, time.monotonic()
    if len(listed) > _OBJECTS_KNOWN:
        with suppress(KeyError):  # another thread was faster
            listed.popitem(last=False)
    return found


def _named(folder: str, pattern: re.Pattern[str]) -> list[re.Match[str]]:
    """Return the names in a folder that match; others do not belong to the cache."""
    try:
        return list(filter(None, map(pattern.fullmatch, os.listdir(folder))))
    except OSError:
        return []


def _files(folder: str, pattern: re.Pattern[str]) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files of a folder whose names match."""
    for name in _named(folder, pattern):
        path = os.path.join(folder, name[0])
        with suppress(FileNotFoundError):
            yield path, os.stat(path)


def _count_in(path: str) -> int | None:
    with suppress(FileNotFoundError, ValueError):
        return int(Path(path).read_bytes())
    return None


def _load(folder: str, segment: _CachedRange) -> memoryview | None:
    """Return the bytes of a segment; None if it is gone or damaged."""
    path = os.path.join(folder, segment.name)
    try:
        with open(path, "rb") as file:
            data = file.read()
        if len(data) == segment.stop - segment.start and zlib.crc32(data) == segment.checksum:
            _note_use(path)
            return memoryview(data)
    except OSError:
        return None
    _remove(path)
    return None


def _note_use(path: str) -> None:
    """Set the time of last use, on the clock of ``opened_ns``."""
    now = time.time_ns()
    with suppress(OSError):  # a folder that may only be read
        os.utime(path, ns=(now, now))


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)
