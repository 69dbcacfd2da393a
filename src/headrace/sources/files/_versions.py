"""Versions of local files: what was decoded from a file is used only until the file changes."""

from __future__ import annotations

import hashlib
import os

from headrace.errors import FileChangedError
from headrace.storage import changed, vanished

_TAIL_BYTES = 64 << 10
_TAG_SAMPLES, _TAG_SAMPLE_BYTES = 16, 4 << 10


def content_tag(path: str) -> str:
    """Return a hash of the end of a file, which holds most footers, and of 16 samples."""
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.blake2b(str(size).encode(), digest_size=16)
        tail = max(size - _TAIL_BYTES, 0)
        for sample in range(_TAG_SAMPLES if tail else 0):
            digest.update(os.pread(file.fileno(), _TAG_SAMPLE_BYTES, tail * sample // _TAG_SAMPLES))
        digest.update(os.pread(file.fileno(), _TAIL_BYTES, tail))
    return digest.hexdigest()


class FileVersion:
    """The current version of a local file.

    It consists of inode, size and time of change, and of a tag of the content. Reading the first
    three takes microseconds. The content decides only if the inode or the time differ and the size
    does not, as after ``touch`` or a new copy of the same bytes.

    Raises:
        FileChangedError: The file does not exist any more.
    """

    def __init__(self, path: str) -> None:
        try:
            found = os.stat(path)
            self._path, self._size, self._tag = path, found.st_size, content_tag(path)
            self._encoded = os.fsencode(path)  # which stat would do each time
        except FileNotFoundError as error:
            raise FileChangedError(vanished(path)) from error
        self._inode, self._time = found.st_ino, found.st_mtime_ns

    def check(self) -> None:
        """Check that the file is still this version.

        Raises:
            FileChangedError: The file was rewritten or removed.
        """
        try:
            now = os.stat(self._encoded)
            if now.st_size == self._size:
                if now.st_mtime_ns == self._time and now.st_ino == self._inode:
                    return
                if content_tag(self._path) == self._tag:
                    self._inode, self._time = now.st_ino, now.st_mtime_ns
                    return
        except FileNotFoundError as error:
            raise FileChangedError(vanished(self._path)) from error
        raise FileChangedError(changed(self._path, self._size, now.st_size))
