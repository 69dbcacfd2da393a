"""Recently used values, up to a number of bytes: one cache in each process, for all threads.

One of the caches holds decoded row groups, for both streams and takes. A group is only used while
its file has the version from which it was decoded.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import pyarrow as pa

from headrace.model import DataFileInfo
from headrace.process import PerProcess
from headrace.sources.files._versions import FileVersion
from headrace.storage import Store

T = TypeVar("T")

_VERSIONS_BYTES = 1 << 20


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
