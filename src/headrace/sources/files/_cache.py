"""Recently used values, up to a number of bytes: one cache in each process, for all threads.

One of the caches holds decoded row groups, for both streams and takes. A group is only used while
its local file has the version from which it was decoded.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import pyarrow as pa

from headrace.errors import FileChangedError
from headrace.model import DataFileInfo
from headrace.process import PerProcess
from headrace.storage import Store, changed, vanished

T = TypeVar("T")

_VERSIONS_BYTES = 1 << 20
_TAIL_BYTES = 64 << 10
_TAG_SAMPLES, _TAG_SAMPLE_BYTES = 16, 4 << 10


@dataclass(slots=True)
class _ProcessCache:
    """The values that one process keeps."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    making: dict[Hashable, threading.Lock] = field(default_factory=dict)
    entries: OrderedDict[Hashable, tuple[Any, int]] = field(default_factory=OrderedDict)
    size: int = 0


class BoundedCache(Generic[T]):
    """Keeps the values used last. A forked child starts with an empty cache."""

    def __init__(self, size_of: Callable[[T], int]) -> None:
        self._size_of = size_of
        self._kept = PerProcess(_ProcessCache)

    def get(self, key: Hashable) -> T | None:
        """Return a value, or None if it is not kept."""
        kept = self._kept.get()
        with kept.lock:
            found = kept.entries.get(key)
            if found is not None:
                kept.entries.move_to_end(key)
            return None if found is None else found[0]

    def add(self, key: Hashable, value: T, *, limit_bytes: int) -> None:
        """Keep a value, and drop the oldest beyond the limit; a larger value is not kept."""
        size = self._size_of(value)
        if size > limit_bytes:
            return
        kept = self._kept.get()
        with kept.lock:
            replaced = kept.entries.pop(key, None)
            kept.size += size - (0 if replaced is None else replaced[1])
            kept.entries[key] = value, size
            while kept.size > limit_bytes and kept.entries:
                kept.size -= kept.entries.popitem(last=False)[1][1]

    def get_or_make(self, key: Hashable, make: Callable[[], T], *, limit_bytes: int) -> T:
        """Return a value; one thread makes it, while others that need it wait."""
        kept = self._kept.get()
        with kept.lock:
            making = kept.making.setdefault(key, threading.Lock())
        try:
            with making:
                value = self.get(key)
                if value is None:
                    value = make()
                    self.add(key, value, limit_bytes=limit_bytes)
                return value
        finally:
            with kept.lock:
                kept.making.pop(key, None)


# --- versions of local files, and row groups that were decoded from them


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


@dataclass(frozen=True, slots=True)
class DecodedGroup:
    """A row group, and the version of the local file from which it was decoded."""

    table: pa.Table
    version: FileVersion | None

    def check(self) -> None:
        """Raise a FileChangedError if the file was rewritten since then."""
        if self.version is not None:
            self.version.check()


decoded_groups: BoundedCache[DecodedGroup] = BoundedCache(lambda group: int(group.table.nbytes))
"""Decoded row groups of this process, by `StoredFiles.group_key`."""
_versions: BoundedCache[FileVersion] = BoundedCache(lambda _: 500)


def file_version(store: Store, file: DataFileInfo) -> FileVersion | None:
    """Return the version of a local file from which groups are decoded; None if it is remote."""
    if not store.local:
        return None
    return _versions.get_or_make(
        file.identity, lambda: FileVersion(file.path), limit_bytes=_VERSIONS_BYTES
    )
