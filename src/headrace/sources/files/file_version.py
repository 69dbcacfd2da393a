"""Which version of a local file is being read, so that a file that was rewritten is noticed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.errors import FileChangedError
from headrace.model import DataFileInfo
from headrace.storage import Store
from headrace.storage.store import changed, vanished

__all__ = ["FileVersion", "checked_after", "content_tag"]

_TAIL_BYTES = 64 << 10
_SAMPLES, _SAMPLE_BYTES = 16, 4 << 10


@contextmanager
def checked_after(store: Store, file: DataFileInfo) -> Iterator[None]:
    """Raise FileChangedError if a local file was rewritten while it was read, rightly or not."""
    try:
        yield
    finally:
        if store.local:
            now = store.status(file.path)
            if now is None:
                raise FileChangedError(vanished(file.path))
            if now.size != (file.file_size or now.size) or now.etag != (file.etag or now.etag):
                raise FileChangedError(changed(file.path, file.file_size or now.size, now.size))


def content_tag(path: str) -> str:
    """Return a hash of the end of a file, where formats have their footers, and of 16 samples."""
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.blake2b(str(size).encode(), digest_size=16)
        tail = max(size - _TAIL_BYTES, 0)
        for sample in range(_SAMPLES if tail else 0):
            digest.update(os.pread(file.fileno(), _SAMPLE_BYTES, tail * sample // _SAMPLES))
        digest.update(os.pread(file.fileno(), _TAIL_BYTES, tail))
    return digest.hexdigest()


@dataclass(slots=True)
class FileVersion:
    """A version of a local file: its inode, size and time of change, and a tag of its content.

    Looking at the first three takes microseconds. Only where the inode or the time differ and the
    size does not, as after ``touch`` or a new copy of the same bytes, the content decides.
    """

    path: str
    status: tuple[int, int, int]
    tag: str

    @classmethod
    def of(cls, path: str) -> FileVersion:
        """Return the version that is there now."""
        found = os.stat(path)
        return cls(path, (found.st_ino, found.st_size, found.st_mtime_ns), content_tag(path))

    def check(self) -> None:
        """Check that the file is still this version.

        Raises:
            FileChangedError: It was rewritten, or is gone.
        """
        try:
            found = os.stat(self.path)
            now = found.st_ino, found.st_size, found.st_mtime_ns
            if now == self.status:
                return
            if now[1] == self.status[1] and content_tag(self.path) == self.tag:
                self.status = now
                return
        except FileNotFoundError as error:
            raise FileChangedError(vanished(self.path)) from error
        raise FileChangedError(changed(self.path, self.status[1], now[1]))
