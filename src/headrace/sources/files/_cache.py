"""Recently used values, up to a number of bytes: one cache in each process, for all threads.

One cache holds decoded row groups, for both streams and takes. A row group is decoded as a whole
even if only a smaller part of it is wanted, and kept while there is room.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from headrace.matrices import rows_at
from headrace.model import DataFileInfo, FileSplit, RowRange
from headrace.process import PerProcess
from headrace.sources.files._versions import FileVersion
from headrace.storage import Store

T = TypeVar("T")

_VERSIONS_BYTES = 1 << 20


@dataclass(slots=True)
class _Kept:
    """The values that one process keeps."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    making: dict[Hashable, threading.Lock] = field(default_factory=dict)
    entries: OrderedDict[Hashable, tuple[Any, int]] = field(default_factory=OrderedDict)
    size: int = 0


class BoundedCache(Generic[T]):
    """Keeps the values used last. A forked child starts with an empty cache."""

    def __init__(self, size_of: Callable[[T], int]) -> None:
        self._size_of = size_of
        self._kept = PerProcess(_Kept)

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
"""Decoded row groups of this process, by `group_key`."""
_versions: BoundedCache[FileVersion] = BoundedCache(lambda _: 500)


def group_key(
    identity: tuple[Hashable, ...], file: DataFileInfo, first_row: int, columns: bytes
) -> tuple[Hashable, ...]:
    """Return the key of a row group.

    Args:
        identity: The store, and the options that change how a file is read.
        file: The file.
        first_row: The first row of the group in the file.
        columns: The wanted columns: a serialized schema.
    """
    return (*identity, file.path, file.file_size, file.etag, first_row, columns)


def file_version(store: Store, file: DataFileInfo) -> FileVersion | None:
    """Return the version of a local file from which groups are decoded; None if it is remote."""
    if not store.local:
        return None
    key = file.path, file.file_size, file.etag
    return _versions.get_or_make(key, lambda: FileVersion(file.path), limit_bytes=_VERSIONS_BYTES)


def read_groups(
    chunk: FileSplit,
    decode: Callable[[FileSplit], Iterator[pa.Table]],
    schema: pa.Schema,
    *,
    store: Store,
    identity: tuple[Hashable, ...],
    cache_bytes: int,
) -> Iterator[pa.Table]:
    """Yield the rows of a chunk, keeping the groups of which it is the smaller part.

    Args:
        chunk: The chunk, of a file with row groups.
        decode: Reads chunks.
        schema: The columns that ``decode`` reads.
        store: The store of the file.
        identity: The store, and the options that change how a file is read.
        cache_bytes: Bytes of decoded groups to keep.

    Raises:
        FileChangedError: The file was rewritten since a kept group was decoded.
    """
    if chunk.row_range is None or chunk.file.row_groups is None or not len(schema):
        yield from decode(chunk)
        return
    columns = schema.serialize().to_pybytes()
    for rows, group in runs_of_rows(chunk.file, chunk.row_range):
        if group is None:
            yield from decode(FileSplit(chunk.file, rows))
            continue
        whole = FileSplit(chunk.file, group)

        def decode_whole(whole: FileSplit = whole) -> DecodedGroup:
            version = file_version(store, whole.file)
            return DecodedGroup(pa.concat_tables(decode(whole)), version)

        key = group_key(identity, chunk.file, group.offset, columns)
        found = decoded_groups.get_or_make(key, decode_whole, limit_bytes=cache_bytes)
        found.check()
        # Copied, because the user may write into a batch, but not into the cache. Sliced first,
        # because pyarrow would copy all of a table in many pieces to take some.
        part = found.table.slice(rows.offset - group.offset, rows.length)
        yield rows_at(part, np.arange(rows.length))


def runs_of_rows(
    file: DataFileInfo, wanted: RowRange
) -> Iterator[tuple[RowRange, RowRange | None]]:
    """Yield rows in runs, each with the row group of which it is the smaller part, if it is."""
    groups = file.row_groups
    assert groups is not None
    ends = groups.start + groups.rows
    at = wanted.offset
    for index in np.flatnonzero((ends > wanted.offset) & (groups.start < wanted.stop)).tolist():
        group = RowRange(int(groups.start[index]), int(groups.rows[index]))
        start, stop = max(group.offset, wanted.offset), min(group.stop, wanted.stop)
        if 2 * (stop - start) < group.length:
            if at < start:
                yield RowRange(at, start - at), None
            yield RowRange(start, stop - start), group
            at = stop
    if at < wanted.stop:
        yield RowRange(at, wanted.stop - at), None
