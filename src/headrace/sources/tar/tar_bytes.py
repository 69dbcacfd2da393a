"""How a walk over the headers of a tar gets at its bytes: in windows, each from a header on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from typing import Protocol

import pyarrow as pa

from headrace.errors import FileChangedError, ReadError
from headrace.model import DataFileInfo
from headrace.storage import Store, will_read
from headrace.storage.store import changed, vanished

__all__ = [
    "HashedBytes",
    "LocalBytes",
    "Read",
    "RemoteBytes",
    "TarBytes",
    "opened_tar",
    "reading",
]

Span = tuple[int, int]
Read = Callable[[int, int], bytes]
"""the bytes of a tar from one place to another; fewer where it ends"""

_FIRST_REMOTE_BYTES = 16 << 10
_MOST_REMOTE_BYTES = 8 << 20
_AHEAD_BYTES = 32 << 20
_FEW = 4
_WORTH_A_REQUEST = 256 << 10
"""bytes that are fetched with others rather than asking once more"""


def reading(opened: pa.NativeFile) -> Read:
    """Return a function that reads the bytes of an opened tar."""

    def read(start: int, stop: int) -> bytes:
        opened.seek(start)
        data: bytes = opened.read(stop - start)
        return data

    return read


class TarBytes(Protocol):
    """The bytes of a tar."""

    size: int
    shown: str
    """what it is called"""

    @property
    def window(self) -> Callable[[int, int], bytes]:
        """Bytes from a place on: ``least`` or more, unless the tar ends; behind its end, none."""
        ...

    def read(self, spans: Sequence[Span]) -> list[bytes]:
        """Bytes from anywhere."""
        ...

    def digest(self, start: int, stop: int) -> str | None:
        """The SHA-256 of a member, where members are hashed; they are asked for in order."""
        ...

    def tar_digest(self) -> str | None:
        """That of the tar, when there is no more to walk over."""
        ...


@contextmanager
def opened_tar(store: Store, file: DataFileInfo, *, hashed: bool = False) -> Iterator[TarBytes]:
    """A tar as it was discovered; FileChangedError if it is another, or becomes another."""
    with store.open(file) as opened:
        size = int(opened.size())
        if hashed:
            yield HashedBytes(opened, size, file.path)
        elif store.local:
            handle = _opened(file.path)
            try:
                yield LocalBytes(handle, size, file.path)
            finally:
                os.close(handle)
        else:
            yield RemoteBytes(opened, size, file.path)
        if store.local:
            _check(store, file)


def _opened(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise FileChangedError(vanished(path)) from None
    except OSError as error:
        raise ReadError(f"{path} cannot be opened: {error.strerror}") from error


def _check(store: Store, file: DataFileInfo) -> None:
    now = store.status(file.path)
    if now is None:
        raise FileChangedError(vanished(file.path))
    if file.file_size not in (None, now.size) or file.etag not in (None, now.etag):
        raise FileChangedError(changed(file.path, file.file_size, now.size))


class LocalBytes:
    """A file of this machine, read by ``pread``: what is seeked over is never looked at."""

    def __init__(self, handle: int, size: int, shown: str) -> None:
        self._handle, self.size, self.shown = handle, size, shown
        self.window = partial(os.pread, handle)

    def read(self, spans: Sequence[Span]) -> list[bytes]:
        return [_whole(self._pread(start, stop), start, stop, self.shown) for start, stop in spans]

    def _pread(self, start: int, stop: int) -> bytes:
        return os.pread(self._handle, stop - start, start)

    def digest(self, start: int, stop: int) -> str | None:
        return None

    def tar_digest(self) -> str | None:
        return None


class RemoteBytes:
    """A file elsewhere. Small members are streamed over, large ones are skipped.

    As long as windows lie close to each other they grow, and what follows is fetched ahead.
    """

    def __init__(self, opened: pa.NativeFile, size: int, shown: str) -> None:
        self._opened, self.size, self.shown = opened, size, shown
        self._end = 0
        self._bytes = _FIRST_REMOTE_BYTES
        self._ahead = 0

    def window(self, least: int, at: int) -> bytes:
        grows = self._end > 0 and at - self._end <= _WORTH_A_REQUEST
        self._bytes = min(2 * self._bytes, _MOST_REMOTE_BYTES) if grows else _FIRST_REMOTE_BYTES
        stop = min(at + max(self._bytes, least), self.size)
        if stop <= at:
            return b""
        if self._bytes == _MOST_REMOTE_BYTES:
            stop = self._fetched_ahead(at, least, stop)
        self._end = stop
        return self._at(at, stop)

    def _fetched_ahead(self, at: int, least: int, stop: int) -> int:
        """Have the next windows fetched side by side; where this one has to end for it."""
        if self._ahead - at < least and self._ahead < self.size:
            self._ahead = min(at + _AHEAD_BYTES, self.size)
            will_read(self._opened, [(at, self._ahead)])
        return min(stop, self._ahead)

    def read(self, spans: Sequence[Span]) -> list[bytes]:
        if len(spans) > _FEW:  # what was announced before is given up for it
            self._ahead = 0
            will_read(self._opened, spans)
        return [self._at(start, stop) for start, stop in spans]

    def _at(self, start: int, stop: int) -> bytes:
        self._opened.seek(start)
        return _whole(self._opened.read(stop - start), start, stop, self.shown)

    def digest(self, start: int, stop: int) -> str | None:
        return None

    def tar_digest(self) -> str | None:
        return None


class HashedBytes:
    """All bytes of a file in order, each piece hashed as it comes by."""

    def __init__(self, opened: pa.NativeFile, size: int, shown: str) -> None:
        self._opened, self.size, self.shown = opened, size, shown
        self._first = 0
        self._piece = b""
        self._tar = sha256()
        self._ahead = 0

    @property
    def _end(self) -> int:
        return self._first + len(self._piece)

    def window(self, least: int, at: int) -> bytes:
        while self._end < min(at + least, self.size):
            self._next(keep_from=at)
        return self._piece[at - self._first :]

    def _next(self, keep_from: int) -> None:
        """Read on, and let go what lies before a place."""
        end = self._end
        if end >= self._ahead:
            self._ahead = min(end + _AHEAD_BYTES, self.size)
            will_read(self._opened, [(end, self._ahead)])
        stop = min(end + _MOST_REMOTE_BYTES, self._ahead)
        self._opened.seek(end)
        fresh = _whole(self._opened.read(stop - end), end, stop, self.shown)
        self._tar.update(fresh)
        kept = self._piece[max(keep_from - self._first, 0) :]
        self._first, self._piece = end - len(kept), kept + fresh

    def read(self, spans: Sequence[Span]) -> list[bytes]:
        found = []
        for start, stop in spans:
            self._opened.seek(start)
            found.append(_whole(self._opened.read(stop - start), start, stop, self.shown))
        return found

    def digest(self, start: int, stop: int) -> str | None:
        """Of what lies at or behind the last place that was asked for."""
        found = sha256()
        stop = min(stop, self.size)
        while start < stop:
            if start >= self._end:
                self._next(keep_from=start)
                continue
            part = memoryview(self._piece)[start - self._first : stop - self._first]
            found.update(part)
            start += len(part)
        return found.hexdigest()

    def tar_digest(self) -> str | None:
        while self._end < self.size:
            self._next(keep_from=self.size)
        return self._tar.hexdigest()


def _whole(data: bytes, start: int, stop: int, shown: str) -> bytes:
    if len(data) != stop - start:
        raise ReadError(f"{shown}: only {len(data)} of bytes {start}-{stop} came; try again")
    return data
