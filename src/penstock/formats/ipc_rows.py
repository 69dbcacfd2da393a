"""Rows of Arrow IPC files whose columns lie there as they do in memory: one read for many batches.

A record batch has the values of a column in one piece, and the next batch its own. Read into the
places where they belong, the values of all batches follow each other, and nothing is joined later.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter

import numpy as np
import pyarrow as pa

from penstock.formats.ipc_footer import Batch
from penstock.model import Int64Array

__all__ = ["FixedColumns", "Share"]

Share = tuple[int, int, int]
"""a batch, and the first and last of its rows"""

_ALIGNED_BYTES = 64
_GAP_BYTES = 16 << 10
"""that are read and left, rather than asked for what is behind them by a call of its own"""
_VIEWS_A_CALL = 1024


@dataclass(frozen=True, slots=True, eq=False)
class FixedColumns:
    """Columns of one width each, of which no batch of a file has a null."""

    schema: pa.Schema
    widths: tuple[int, ...]
    """bytes of a row in each column"""
    rows: Int64Array
    """of each batch"""
    places: Int64Array
    """where in the file the first value of each column is, a line for each batch"""

    @property
    def nbytes(self) -> int:
        return self.places.nbytes + self.rows.nbytes

    @classmethod
    def of(cls, schema: pa.Schema, batches: Sequence[Batch]) -> FixedColumns | None:
        """Those of a file; None if some column is of another kind, or more than its values."""
        shapes = [shape for field in schema if (shape := _shape(field.type)) is not None]
        if len(shapes) < len(schema):
            return None
        places = [found for batch in batches if (found := _places(batch, shapes)) is not None]
        if len(places) < len(batches):
            return None
        widths = tuple(width for _, width in shapes)
        rows = np.array([batch.rows for batch in batches], np.int64)
        return cls(schema, widths, rows, np.array(places, np.int64).reshape(-1, len(widths)))

    def tables(
        self, descriptor: int, shares: Iterable[Share], columns: Sequence[int], most_bytes: int
    ) -> Iterator[pa.Table]:
        """Some columns of the rows, in tables of up to so many bytes."""
        most_rows = max(most_bytes // sum(self.widths[column] for column in columns), 1)
        rows, together = 0, []
        for index, first, last in shares:
            while first < last:
                some = min(last - first, most_rows - rows)
                together.append((index, first, first + some))
                first += some
                rows += some
                if rows == most_rows:
                    yield self._read(descriptor, together, columns, rows)
                    rows, together = 0, []
        if together:
            yield self._read(descriptor, together, columns, rows)

    def _read(
        self, descriptor: int, shares: list[Share], columns: Sequence[int], rows: int
    ) -> pa.Table:
        sizes = [rows * self.widths[column] for column in columns]
        ends = list(accumulate(-(-size // _ALIGNED_BYTES) * _ALIGNED_BYTES for size in sizes))
        begins = [0, *ends[:-1]]
        memory = pa.allocate_buffer(ends[-1])
        self._fill(descriptor, shares, columns, memoryview(memory), list(begins))
        fields = [self.schema.field(column) for column in columns]
        arrays = [
            _array(field.type, rows, memory.slice(begin, size))
            for field, begin, size in zip(fields, begins, sizes, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))

    def _fill(
        self,
        descriptor: int,
        shares: list[Share],
        columns: Sequence[int],
        memory: memoryview,
        at: list[int],
    ) -> None:
        """Read the values of each column to where it is at, those of a batch after another's."""
        wanted: list[tuple[int, memoryview]] = []
        for index, first, last in shares:
            places = self.places[index].tolist()
            for number, column in enumerate(columns):
                width, begin = self.widths[column], at[number]
                at[number] = end = begin + (last - first) * width
                wanted.append((places[column] + first * width, memory[begin:end]))
        wanted.sort(key=itemgetter(0))
        unwanted = memoryview(bytearray(_GAP_BYTES))
        views: list[memoryview] = []
        start = end = wanted[0][0]
        for place, view in wanted:
            gap = place - end
            if not 0 <= gap <= _GAP_BYTES or len(views) > _VIEWS_A_CALL - 2:
                _read_all(descriptor, views, start)
                views, start = [], place
            elif gap:
                views.append(unwanted[:gap])
            views.append(view)
            end = place + len(view)
        _read_all(descriptor, views, start)


def _read_all(descriptor: int, views: list[memoryview], offset: int) -> None:
    """Fill all of them with what follows an offset."""
    missing = sum(map(len, views))
    while missing:
        got = os.preadv(descriptor, views, offset)
        if not got:
            raise ValueError(f"it ends at byte {offset}, {missing} bytes too early")
        missing -= got
        offset += got
        while missing and got >= len(views[0]):
            got -= len(views.pop(0))
        if missing:
            views[0] = views[0][got:]


def _shape(type_: pa.DataType) -> tuple[int, int] | None:
    """How many buffers a column has, of which the last has its values, and how wide a row is."""
    if isinstance(type_, pa.BaseExtensionType):
        return _shape(type_.storage_type)
    if pa.types.is_fixed_size_list(type_):
        inner = _shape(type_.value_type)
        if inner is None or not type_.list_size:
            return None
        return inner[0] + 1, inner[1] * type_.list_size
    if any(is_kind(type_) for is_kind in _OF_ONE_WIDTH):
        width, bits = divmod(type_.bit_width, 8)
        return (2, width) if width and not bits else None
    return None


_OF_ONE_WIDTH = (pa.types.is_primitive, pa.types.is_decimal, pa.types.is_fixed_size_binary)


def _places(batch: Batch, shapes: Sequence[tuple[int, int]]) -> list[int] | None:
    """Where the values of each column of a batch are, if there is nothing else to it."""
    places, number = [], 0
    if batch.compressed:
        return None
    for count, width in shapes:
        *validity, (offset, length) = batch.buffers[number : number + count]
        if any(bitmap[1] for bitmap in validity):
            return None
        needed = batch.rows * width
        if length < needed or not 0 <= offset <= offset + length <= batch.body_length:
            raise ValueError(
                f"a record batch of {batch.rows} rows has {length} bytes of values at byte "
                f"{offset} of {batch.body_length}, and needs {needed}"
            )
        places.append(batch.body_offset + offset)
        number += count
    return places


def _array(type_: pa.DataType, rows: int, values: pa.Buffer) -> pa.Array:
    if isinstance(type_, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type_, _array(type_.storage_type, rows, values))
    if pa.types.is_fixed_size_list(type_):
        items = _array(type_.value_type, rows * type_.list_size, values)
        return pa.FixedSizeListArray.from_arrays(items, type=type_)
    return pa.Array.from_buffers(type_, rows, [None, values])
