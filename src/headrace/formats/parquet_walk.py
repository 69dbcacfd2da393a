"""Finding the pages of a column chunk without an index, from one page header to the next."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from headrace.formats.parquet_layout import ChunkPages, StoredChunk
from headrace.formats.thrift import Struct, parse_struct

__all__ = ["walk_pages"]

_HEADER_BYTES = 256
_LONGEST_HEADER = 1 << 20
_DATA, _DATA_V2 = 0, 3


def walk_pages(source: pa.NativeFile, chunk: StoredChunk, *, repeated: bool) -> ChunkPages:
    """The data pages of a chunk; ValueError if they are none.

    Of values that are ``repeated``, as those of lists, only newer pages tell how many rows they
    hold; older ones are taken together as if they were one.
    """
    pages = list(_headers(source, chunk))
    counts = [_row_count(header, repeated) for _, _, header in pages]
    values = [_about(header)[1][1] for _, _, header in pages]
    offsets = [start for start, _, _ in pages]
    stop = pages[-1][1]
    rows = [count for count in counts if count is not None]
    if len(rows) < len(pages):
        return _columns([offsets[0]], [stop - offsets[0]], [0], [sum(values)])
    sizes = [stop - start for start, stop, _ in pages]
    return _columns(offsets, sizes, (np.cumsum(rows) - rows).tolist(), values)


def _headers(source: pa.NativeFile, chunk: StoredChunk) -> Iterator[tuple[int, int, Struct]]:
    """Where each data page begins and ends, and its header, until all values were seen."""
    at, left = chunk.start, chunk.values
    while left > 0:
        header, length = _header(source, at)
        if not {1, 3} <= header.keys():
            raise ValueError("what should be a page is none")
        stop = at + length + header[3][1]
        if header[1][1] in (_DATA, _DATA_V2):
            left -= _about(header)[1][1]
            yield at, stop, header
        if stop <= at:
            raise ValueError("a page ends before it begins")
        at = stop


def _header(source: pa.NativeFile, at: int) -> tuple[Struct, int]:
    size = _HEADER_BYTES
    while True:
        data = source.read_at(size, at)
        try:
            return parse_struct(data)
        except ValueError:
            if len(data) < size or size >= _LONGEST_HEADER:
                raise
            size *= 16


def _about(header: Struct) -> Struct:
    about: tuple[int, Struct] | None = header.get(5) or header.get(8)
    if about is None or 1 not in about[1]:
        raise ValueError("a data page does not say how many values it has")
    return about[1]


def _row_count(header: Struct, repeated: bool) -> int | None:
    about = _about(header)
    if not repeated:
        return int(about[1][1])
    return int(about[3][1]) if header[1][1] == _DATA_V2 else None


def _columns(*columns: list[int]) -> ChunkPages:
    return ChunkPages(*(np.array(column, np.int64) for column in columns))
