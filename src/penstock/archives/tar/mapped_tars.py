"""Tars of this machine as memory: a payload is a slice of a map, copied once."""

from __future__ import annotations

import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from resource import RUSAGE_SELF, getrusage
from time import perf_counter

from penstock.errors import FileChangedError, ReadError
from penstock.model import DataFileInfo
from penstock.storage.store import changed, vanished

__all__ = ["MappedTar", "MappedTars"]

_OPEN_AT_ONCE = 128
_SLOW_S, _SLOW_BYTES_PER_S = 1e-3, 1e9
_READS_WHILE_SLOW = 256


class MappedTar:
    """A tar that is open. What changes it in place is noticed before its bytes are handed out.

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
            raise ReadError(f"{file.path} cannot be opened: {error.strerror}") from error
        found = os.fstat(self._descriptor)
        self._size, self._modified = found.st_size, found.st_mtime_ns
        if file.file_size is not None and self._size != file.file_size:
            raise FileChangedError(changed(file.path, file.file_size, self._size))
        if file.etag is not None and f"{self._modified:x}" != file.etag:
            raise FileChangedError(changed(file.path))
        self._map = self._mapped() if self._size else b""

    def _mapped(self) -> mmap.mmap | bytes:
        try:
            return mmap.mmap(self._descriptor, 0, prot=mmap.PROT_READ)
        except OSError as error:
            raise ReadError(f"{self._path} cannot be mapped: {error.strerror}") from error

    def read(self, offsets: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        """Copies of parts; one that ends before its size is shorter."""
        self._check()
        if self._reads:
            return self._read(offsets, sizes)
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
        """Parts of the map itself, to be copied at once, before somebody cuts the tar."""
        self._check()
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

    def _check(self) -> None:
        """A map of what is no longer there must not be touched."""
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


class MappedTars:
    """The tars that are open in this process; those not used for longest are closed."""

    def __init__(self, files: Sequence[DataFileInfo]) -> None:
        self._files = files
        self._open: OrderedDict[int, MappedTar] = OrderedDict()
        self._locks: dict[int, threading.Lock] = {}

    def get(self, shard: int) -> MappedTar:
        """A tar that may be used for as long as it is held, by any thread."""
        try:
            self._open.move_to_end(shard)
            return self._open[shard]
        except KeyError:  # it is not open, or another thread has just let go of it
            pass
        with self._locks.setdefault(os.getpid(), threading.Lock()):
            tar = self._open.get(shard) or MappedTar(self._files[shard])
            self._open[shard] = tar
            if len(self._open) > _OPEN_AT_ONCE:
                self._open.popitem(last=False)
        return tar


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
