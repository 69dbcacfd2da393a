"""Whole files from elsewhere on a local disk, for readers that know paths only.

A copy is made once for all processes of a machine that name the same folder, written aside and then
renamed; those not used for longest go when there is no room for another. Whoever opens or makes a
copy holds its lock, so that nobody takes it away in between; what is open stays readable anyway.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256

import pyarrow as pa

from headrace.errors import FileChangedError, OptionError, ReadError
from headrace.model import DataFileInfo
from headrace.storage import DiskCache, Store, will_read
from headrace.storage.file_locks import locked

__all__ = ["FileCopies"]

_PIECE_BYTES = 8 << 20
_LOCK, _PARTIAL = ".lock", ".partial"
_SECONDS_BETWEEN = 0.05


@dataclass(frozen=True, slots=True)
class FileCopies:
    """A folder of copies, which all together have no more than ``limit_bytes``."""

    folder: str
    limit_bytes: int

    @classmethod
    def beside(cls, cache: DiskCache | None) -> FileCopies:
        """Within a cache that the user named, or where caches of users are."""
        if cache is None:
            home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
            cache = DiskCache.at(os.path.join(home, "headrace"), None)
        folder = os.path.join(cache.folder, "files")
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
        except OSError as error:
            raise OptionError(f"cache_dir cannot be used: {error}") from error
        return cls(folder, cache.limit_bytes)

    @contextmanager
    def copy(self, store: Store, file: DataFileInfo) -> Iterator[str]:
        """The path of a copy, made if there is none, which stays there until it has been opened."""
        path = self._path(store, file)
        with open(path + _LOCK, "ab") as lock, locked(lock):
            if not os.path.exists(path):
                self._make(store, file, path)
            fcntl.flock(lock, fcntl.LOCK_SH)
            os.utime(path)
            yield path

    @contextmanager
    def end_of(self, store: Store, file: DataFileInfo, length: int) -> Iterator[str]:
        """A file as long as the whole, of which only the last bytes are there, or all if known."""
        if os.path.exists(self._path(store, file)):
            with self.copy(store, file) as path:
                yield path
            return
        size = _size(file)
        with (
            tempfile.NamedTemporaryFile(dir=self.folder, suffix=_LOCK) as lock,
            locked(lock.file, fcntl.LOCK_SH),
        ):
            path = lock.name.removesuffix(_LOCK) + _PARTIAL
            try:
                with open(path, "xb") as sparse, store.open(file) as opened:
                    sparse.truncate(size)
                    sparse.seek(max(0, size - length))
                    for piece in _pieces(opened, max(0, size - length), size):
                        sparse.write(piece)
                yield path
            finally:
                _remove(path)

    def _path(self, store: Store, file: DataFileInfo) -> str:
        key = (store.identity, file.path, file.file_size, file.etag)
        return os.path.join(self.folder, sha256("\0".join(map(str, key)).encode()).hexdigest())

    def _make(self, store: Store, file: DataFileInfo, path: str) -> None:
        size = _size(file)
        if size > self.limit_bytes:
            raise OptionError(
                f"{file.path} has {size} bytes and has to be copied to a disk to be read, but "
                f"the cache in {self.folder} may hold {self.limit_bytes}; give cache_dir, and "
                "more cache_bytes"
            )
        partial = path + _PARTIAL
        self._reserve(partial, size)
        try:
            with open(partial, "r+b") as aside, store.open(file) as opened:
                for piece in _pieces(opened, 0, size):
                    aside.write(piece)
        except BaseException:
            _remove(partial)
            raise
        os.replace(partial, path)

    def _reserve(self, partial: str, size: int) -> None:
        """Make a file of a size, once there is room: others may have to finish their copies."""
        while True:
            with open(os.path.join(self.folder, "room" + _LOCK), "ab") as lock, locked(lock):
                if self._held_after_cleaning(size) + size <= self.limit_bytes:
                    with open(partial, "wb") as aside:
                        aside.truncate(size)
                    return
            time.sleep(_SECONDS_BETWEEN)

    def _held_after_cleaning(self, more: int) -> int:
        found = sorted(self._copies())
        total = sum(size for _, size, _ in found)
        for _, size, path in found:
            if total + more <= self.limit_bytes:
                break
            if _removed_if_unused(path):
                total -= size
        return total

    def _copies(self) -> Iterator[tuple[float, int, str]]:
        """Copies and those being made: when they were used, how large, where."""
        for entry in os.scandir(self.folder):
            if entry.name.endswith(_LOCK):
                continue
            try:
                status = entry.stat()
            except FileNotFoundError:
                continue
            held = min(status.st_size, status.st_blocks * 512) if _is_end(entry.name) else None
            yield status.st_mtime, status.st_size if held is None else held, entry.path


def _is_end(name: str) -> bool:
    """Whether it is only the end of a file, which has holes."""
    return name.endswith(_PARTIAL) and name.startswith(tempfile.gettempprefix())


def _removed_if_unused(path: str) -> bool:
    """Take away a copy that nobody is opening or making, or what was left of making one."""
    lock_path = path.removesuffix(_PARTIAL) + _LOCK
    try:
        with open(lock_path, "ab") as lock, locked(lock, fcntl.LOCK_EX | fcntl.LOCK_NB):
            _remove(path)
            if _is_end(os.path.basename(path)):
                _remove(lock_path)  # which nobody else will ever open
            return True
    except BlockingIOError:
        return False


def _size(file: DataFileInfo) -> int:
    if file.file_size is None:
        raise ReadError(f"{file.path}: the store does not say how large it is")
    return file.file_size


def _pieces(opened: pa.NativeFile, start: int, stop: int) -> Iterator[bytes]:
    """Bytes of a file, fetched side by side and ahead."""
    will_read(opened, [(start, stop)])
    opened.seek(start)
    while start < stop:
        piece = opened.read(min(_PIECE_BYTES, stop - start))
        if not piece:
            raise FileChangedError(f"a file ended {stop - start} bytes before its end")
        yield piece
        start += len(piece)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
