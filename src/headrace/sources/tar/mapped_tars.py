"""Tars of this machine as memory: a payload is a slice of a map, copied once."""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from resource import RLIM_INFINITY, RLIMIT_NOFILE, RUSAGE_SELF, getrlimit, getrusage
from time import perf_counter
from weakref import finalize

from headrace.errors import FileChangedError, ReadError
from headrace.model import DataFileInfo
from headrace.process import PerProcess
from headrace.storage.store import changed, vanished

__all__ = ["MappedTar", "MappedTars"]

_OPEN_AT_ONCE = 1024
_SHARE_OF_DESCRIPTORS = 8
"""one of so many of those that the process may have is for tars; each takes two, one by its map"""
_SLOW_S, _SLOW_BYTES_PER_S = 1e-3, 1e9
_READS_WHILE_SLOW = 256


class MappedTar:
    """A tar that is open. What changes it in place is noticed before its bytes are handed out:
    it is looked at before they are copied, since a map of what was cut off must not be touched,
    and once more when they are.

    Copying from a map is twice as fast as reading, but holds the GIL also while the disk is waited
    for. So once a copy takes long, what comes next is read, without the GIL, for a while.
    """

    def __init__(self, file: DataFileInfo) -> None:
        self._path = file.path
        self._descriptor = -1
        self._reads = 0
        self._faults = getrusage(RUSAGE_SELF).ru_majflt
        try:
            self._descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise FileChangedError(vanished(file.path)) from None
        except OSError as error:
            raise _NotOpened(file.path, error) from error
        found = os.fstat(self._descriptor)
        self._size, self._modified = found.st_size, found.st_mtime_ns
        if file.file_size is not None and self._size != file.file_size:
            raise FileChangedError(changed(file.path, file.file_size, self._size))
        if file.etag is not None and f"{self._modified:x}" != file.etag:
            raise FileChangedError(changed(file.path))
        self._map: mmap.mmap | bytes = b""
        self._size_now: Callable[[], int] = int
        if self._size:
            self._map = mapped = self._mapped()
            self._size_now = mapped.size

    def _mapped(self) -> mmap.mmap:
        try:
            return mmap.mmap(self._descriptor, 0, prot=mmap.PROT_READ)
        except OSError as error:
            raise _NotOpened(self._path, error) from error

    def read(self, offsets: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        """Copies of parts; one that ends before its size is shorter."""
        if self._reads:
            found = self._read(offsets, sizes)
        else:
            if self._size_now() < self._size:
                self.check()
            found = self._copied(offsets, sizes)
        self.check()
        return found

    def _copied(self, offsets: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        mapped, found, then = self._map, list[bytes](), perf_counter()
        for offset, size in zip(offsets, sizes, strict=True):
            found.append(mapped[offset : offset + size])
            now = perf_counter()
            if now - then > _SLOW_S + size / _SLOW_BYTES_PER_S and self._waited_for_disk():
                self._reads = _READS_WHILE_SLOW
                done = len(found)
                return found + self._read(offsets[done:], sizes[done:])
            then = now
        return found

    def views(self, offsets: Iterable[int], sizes: Iterable[int]) -> list[memoryview]:
        """Parts of the map itself, to be copied at once; then ``check`` says if they are right."""
        self.check()
        whole = memoryview(self._map)
        return [whole[offset : offset + size] for offset, size in zip(offsets, sizes, strict=True)]

    def _waited_for_disk(self) -> bool:
        """Whether it was the disk that took long, and not somebody else who had the processor."""
        before, self._faults = self._faults, getrusage(RUSAGE_SELF).ru_majflt
        return self._faults > before

    def will_read(self, offset: int, size: int) -> None:
        """Have the system fetch a part from the disk, without waiting for it."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, offset, size, os.POSIX_FADV_WILLNEED)

    def check(self) -> None:
        """Refuse a tar that is no longer what was opened."""
        now = os.fstat(self._descriptor)
        if now.st_size != self._size or now.st_mtime_ns != self._modified:
            raise FileChangedError(changed(self._path, self._size, now.st_size))

    def _read(self, offsets: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        """By system calls; of several parts the disk is told all before the first is read."""
        descriptor, parts = self._descriptor, list(zip(offsets, sizes, strict=True))
        self._reads = max(0, self._reads - len(parts))
        if len(parts) > 1 and hasattr(os, "posix_fadvise"):
            for offset, size in parts:
                os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_WILLNEED)
        return [_read_all(descriptor, offset, size) for offset, size in parts]

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


class _NotOpened(ReadError):
    """A tar that the system does not open or map."""

    def __init__(self, path: str, error: OSError) -> None:
        self.too_many = error.errno in (errno.EMFILE, errno.ENFILE)
        cure = "; raise the limit of open files (ulimit -n)" if self.too_many else ""
        super().__init__(f"{path} cannot be opened: {error.strerror}{cure}")


_open: OrderedDict[tuple[int, int], MappedTar] = OrderedDict()
"""all tars that are open in this process, for descriptors are counted by process: by the
identity of the list that they are of, and their place there"""
_lock = PerProcess(threading.Lock)


class MappedTars:
    """Tars that are opened when they are needed. Who has the same list of files shares them.

    Those not used for longest are closed, whoever they belong to; when it goes, so do its own.
    """

    def __init__(self, files: Sequence[DataFileInfo]) -> None:
        self._files = files
        self._list = id(files)
        finalize(self, _close, self._list).atexit = False

    def get(self, shard: int) -> MappedTar:
        """A tar that may be used for as long as it is held, by any thread."""
        key = self._list, shard
        try:
            _open.move_to_end(key)
            return _open[key]
        except KeyError:  # it is not open, or another thread has just let go of it
            pass
        with _lock.get():
            tar = _open.get(key) or _opened(self._files[shard])
            _open[key] = tar
            _close_oldest(_most_open())
        return tar


def _opened(file: DataFileInfo) -> MappedTar:
    """A tar, for which others are closed if there is no descriptor left."""
    while True:
        try:
            return MappedTar(file)
        except _NotOpened as error:
            if not (error.too_many and _open):
                raise ReadError(str(error)) from error.__cause__
        _close_oldest(len(_open) // 2)


def _most_open() -> int:
    descriptors = getrlimit(RLIMIT_NOFILE)[0]
    if descriptors == RLIM_INFINITY:
        return _OPEN_AT_ONCE
    return max(1, min(_OPEN_AT_ONCE, descriptors // _SHARE_OF_DESCRIPTORS))


def _close_oldest(left: int) -> None:
    """Close tars until no more than so many are open."""
    with suppress(KeyError):  # where the collector closes others meanwhile
        while len(_open) > left:
            _open.popitem(last=False)


def _close(files: int) -> None:
    """Also those that somebody else uses: they are opened again."""
    for key in [key for key in list(_open) if key[0] == files]:
        _open.pop(key, None)


def _read_all(descriptor: int, offset: int, size: int) -> bytes:
    """A system call reads 2 GiB at most."""
    data = os.pread(descriptor, size, offset)
    if len(data) == size or not data:
        return data
    pieces = [data]
    while size > (done := sum(map(len, pieces))):
        more = os.pread(descriptor, size - done, offset + done)
        if not more:
            break
        pieces.append(more)
    return b"".join(pieces)
