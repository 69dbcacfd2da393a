"""Fetched bytes on a local disk, shared by all processes of a machine that name the same folder.

A segment is a file of bytes of one version of one object; its name says which bytes, and their
checksum. It is written aside and then renamed, so that there are whole segments only, whatever
is killed; one that does not match its checksum is as good as none.
"""

from __future__ import annotations

import logging
import math
import os
import re
import shutil
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from typing import IO, Any

from headrace.errors import HeadraceError, OptionError
from headrace.storage.file_locks import locked
from headrace.storage.segments import Segment, segments_in
from headrace.storage.store import Meter

__all__ = ["DiskCache"]

logger = logging.getLogger(__name__)

_LEFT_AFTER_CLEANING = 0.9
_ABANDONED_S = 3600.0
_SECONDS_BETWEEN = 0.05
_OF_OBJECT = re.compile(r"[0-9a-f]{2}/[0-9a-f]{64}")
_SEGMENT = re.compile(r"\d+-\d+-[0-9a-f]{8}")
_BEING_WRITTEN = re.compile(r"\d+-\d+")
_numbers = count()


@dataclass(frozen=True, slots=True)
class DiskCache:
    """A folder of segments, of which the ones not used for longest go when it is full."""

    folder: str
    limit_bytes: int

    @classmethod
    def at(cls, folder: str | os.PathLike[str], limit_bytes: int | None) -> DiskCache:
        """A cache in a folder, which is made; without a limit, of half of what is free."""
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
        """Bytes of an object: from segments, and fetched where there are none."""
        folder = self._folder(key)
        segments = segments_in(folder)
        pieces: list[memoryview] = []
        while start < stop:
            held = segments.at(start)
            if held is None:
                after = segments.next_start(start)
                last = stop if after is None else min(after, stop)
                piece = fetch(start, last)
                self._keep(folder, start, piece)
            else:
                data = _loaded(folder, held)
                if data is None:
                    segments = segments.without(held)
                    continue
                piece = data[start - held.start : min(stop, held.stop) - held.start]
                meter.add(cached_bytes=len(piece))
            pieces.append(piece)
            start += len(piece)
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def open_copy(
        self, name: str, key: tuple[Any, ...], size: int, pieces: Iterator[bytes]
    ) -> IO[bytes]:
        """Open a copy of a whole object on the disk, made of ``pieces`` if there is none.

        It is for readers that need a file, which can open ``/dev/fd/N``: the bytes stay readable
        while the copy is open, whatever the cache removes. All processes of a machine share one
        copy. Making it waits for room that others need for copies which they are making.

        Raises:
            OptionError: The cache may not hold as much, or the disk cannot.
        """
        if size > self.limit_bytes:
            raise OptionError(
                f"{name} has {size} bytes and has to be copied to a disk to be read, but the cache "
                f"in {self.folder} may hold {self.limit_bytes}; give cache_dir, and more "
                "cache_bytes"
            )
        folder = self._folder(("copy", *key))
        for needed in (folder, os.path.join(self.folder, "new")):
            os.makedirs(needed, mode=0o700, exist_ok=True)
        with open(os.path.join(folder, "lock"), "ab") as lock, locked(lock):
            for found in filter(_SEGMENT.fullmatch, os.listdir(folder)):
                path = os.path.join(folder, found)
                with suppress(FileNotFoundError):
                    os.utime(path)
                    return open(path, "rb")
            try:
                return self._copied(folder, size, pieces)
            except HeadraceError:
                raise
            except OSError as error:
                raise OptionError(f"cache_dir cannot hold a copy of {name}: {error}") from error

    def _copied(self, folder: str, size: int, pieces: Iterator[bytes]) -> IO[bytes]:
        aside = os.path.join(self.folder, "new", f"{os.getpid()}-{next(_numbers)}")
        try:
            while not self._reserve(aside, size):
                time.sleep(_SECONDS_BETWEEN)
            copy = open(aside, "r+b")  # noqa: SIM115 (the caller closes it)
            try:
                checksum = 0
                for piece in pieces:
                    copy.write(piece)
                    checksum = zlib.crc32(piece, checksum)
                copy.flush()
                os.replace(aside, os.path.join(folder, Segment(0, size, checksum).name))
            except BaseException:
                copy.close()
                raise
        except BaseException:
            _remove(aside)
            raise
        return copy

    def _folder(self, key: tuple[Any, ...]) -> str:
        name = sha256("\0".join(map(str, key)).encode()).hexdigest()
        return os.path.join(self.folder, name[:2], name)

    def _keep(self, folder: str, start: int, data: memoryview) -> None:
        """Store a segment; a disk that is full or read-only is no reason to fail."""
        if len(data) > self.limit_bytes:
            return
        segment = Segment(start, start + len(data), zlib.crc32(data))
        aside = os.path.join(self.folder, "new", f"{os.getpid()}-{next(_numbers)}")
        try:
            for needed in (folder, os.path.dirname(aside)):
                os.makedirs(needed, mode=0o700, exist_ok=True)
            if self._reserve(aside, len(data)):
                with open(aside, "r+b") as file:
                    file.write(data)
                os.replace(aside, os.path.join(folder, segment.name))
        except OSError as error:
            logger.warning("a part of %d bytes is not cached: %s", len(data), error)
            _remove(aside)

    def _reserve(self, aside: str, more: int) -> bool:
        """Make a file of so many bytes, cleaning up if need be; False if there is no room for it.

        What is used is counted in a file that all processes share.
        """
        with self._locked() as used:
            total = used.read()
            now = int(total) if total.isdigit() else self._clean(0)
            if now + more > self.limit_bytes:
                now = self._clean(more)
            fits = now + more <= self.limit_bytes
            if fits:
                with open(aside, "xb") as file:
                    file.truncate(more)
            used.seek(0)
            used.truncate()
            used.write(b"%d" % (now + more if fits else now))
        return fits

    @contextmanager
    def _locked(self) -> Iterator[Any]:
        descriptor = os.open(os.path.join(self.folder, "used"), os.O_RDWR | os.O_CREAT, 0o600)
        with open(descriptor, "r+b", buffering=0) as file, locked(file):
            yield file

    def _clean(self, more: int) -> int:
        """Remove what was not used for longest, until there is room; what is left, in bytes."""
        found = sorted(self._all())
        total = sum(size for _, size, _ in found)
        allowed = self.limit_bytes
        if total + more > allowed:
            allowed = int(allowed * _LEFT_AFTER_CLEANING)
        for last_used, size, path in found:
            if total + more <= allowed or last_used == math.inf:
                break
            _remove(path)
            total -= size
        return total

    def _all(self) -> Iterable[tuple[float, int, str]]:
        """All segments with when they were last used, and those being written as used after all.

        The latter are looked for first: one that is put in its place meanwhile is then found
        twice, and counted once, and never missed. What somebody left half written goes.
        """
        found = {}
        for path, file in _files(os.path.join(self.folder, "new"), _BEING_WRITTEN):
            if time.time() - file.st_mtime > _ABANDONED_S:
                _remove(path)
            else:
                found[file.st_ino] = math.inf, file.st_size, path
        for folder, _, _ in os.walk(self.folder):
            if _OF_OBJECT.fullmatch(os.path.relpath(folder, self.folder)):
                for path, file in _files(folder, _SEGMENT):
                    found[file.st_ino] = file.st_mtime, file.st_size, path
        return found.values()


def _files(folder: str, named: re.Pattern[str]) -> Iterator[tuple[str, os.stat_result]]:
    """The files in a folder that are so named; there may be others, which are not ours."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in filter(named.fullmatch, names):
        path = os.path.join(folder, name)
        try:
            yield path, os.stat(path)
        except FileNotFoundError:
            continue


def _loaded(folder: str, segment: Segment) -> memoryview | None:
    path = os.path.join(folder, segment.name)
    try:
        with open(path, "rb") as file:
            data = file.read()
        if len(data) == segment.stop - segment.start and zlib.crc32(data) == segment.checksum:
            os.utime(path)
            return memoryview(data)
    except OSError:
        return None
    _remove(path)
    return None


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return
