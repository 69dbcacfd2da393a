"""Rows of Arrow IPC files whose columns lie there as they do in memory: one read for many batches.

A record batch has the values of a column in one piece, and the next batch its own. Read into the
places where they belong, the values of all batches follow each other, and nothing is joined later.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter

import pyarrow as pa

from headrace.formats.ipc_footer import Batch

__all__ = ["FixedColumns", "Share"]

Share = tuple[int, int, int]
"""a batch, and the first and last of its rows"""

_Located = tuple[Sequence[int], int, int]
"""the same, with the places of the batch"""

_BUFFERS_ALIGNED_BYTES = 8
_GAP_BYTES = 16 << 10
"""that are read and left, rather than asked for what is behind them by a call of its own"""
_VIEWS_A_CALL = 1024


@dataclass(frozen=True, slots=True)
class _Shape:
    """How a column of one width is stored."""

    buffers: int
    """of which the last has its values"""
    width: int
    """bytes of a row"""
    items: tuple[int, ...]
    """for each row, in the column and in each array inside of it"""


@dataclass(frozen=True, slots=True)
class FixedColumns:
    """Columns of one width each."""

    schema: pa.Schema
    types: tuple[pa.DataType, ...]
    shapes: tuple[_Shape, ...]
    items: tuple[int, ...]
    """for each row, in all columns and in the arrays inside of them"""
    values: tuple[int, ...]
    """which buffer of a batch has those of each column"""

    @classmethod
    def of(cls, schema: pa.Schema) -> FixedColumns | None:
        """Those of a schema that has no others."""
        types = tuple(schema.types)
        shapes = [shape for type_ in types if (shape := _shape(type_)) is not None]
        if not shapes or len(shapes) < len(types):
            return None
        items = tuple(items for shape in shapes for items in shape.items)
        values = tuple(end - 1 for end in accumulate(shape.buffers for shape in shapes))
        return cls(schema, types, tuple(shapes), items, values)

    def places(self, batch: Batch) -> list[int] | None:
        """Where in the file the values of each column of a batch begin.

        None if there is more to it than values, or something wrong with it: pyarrow says what.
        """
        rows, body, buffers = batch.rows, batch.body_offset, batch.buffers
        if batch.compressed or batch.annotated or len(buffers) <= self.values[-1]:
            return None
        if body % _BUFFERS_ALIGNED_BYTES:
            return None
        if batch.nodes != tuple([(rows * items, 0) for items in self.items]):
            return None
        places = []
        for shape, number in zip(self.shapes, self.values, strict=True):
            offset, length = buffers[number]
            if offset < 0 or offset % _BUFFERS_ALIGNED_BYTES or length < rows * shape.width:
                return None
            if offset + length > batch.body_length:
                return None
            places.append(body + offset)
        return places

    def row_bytes(self, columns: Sequence[int], schema: pa.Schema) -> int:
        """What a row of some columns takes, here or in the types that they are to have."""
        if schema.equals(self.schema):
            return sum(shape.width for shape in self.shapes)
        size, names = 0, self.schema.names
        for column in columns:
            wanted = _shape(schema.field(names[column]).type)
            width = _OF_UNKNOWN_WIDTH_BYTES if wanted is None else wanted.width
            size += max(self.shapes[column].width, width)
        return size

    def tables(
        self,
        descriptor: int,
        shares: Iterable[Share],
        places: Mapping[int, Sequence[int]],
        columns: Sequence[int],
        most_rows: int,
    ) -> Iterator[pa.Table]:
        """Some columns of the rows of batches with known places, in tables of up to so many.

        Batches stay whole if they are not longer.
        """
        together: list[_Located] = []
        rows = 0
        for index, first, last in shares:
            if together and rows + last - first > most_rows:
                yield self._read(descriptor, together, columns, rows)
                rows, together = 0, []
            while last - first > most_rows:
                part = (places[index], first, first + most_rows)
                yield self._read(descriptor, [part], columns, most_rows)
                first += most_rows
            together.append((places[index], first, last))
            rows += last - first
        if together:
            yield self._read(descriptor, together, columns, rows)

    def _read(
        self, descriptor: int, shares: list[_Located], columns: Sequence[int], rows: int
    ) -> pa.Table:
        # Memory for each column: who keeps one would keep them all, and for one large piece the
        # allocator would ask the system each time.
        memory = [pa.allocate_buffer(rows * self.shapes[column].width) for column in columns]
        self._fill(descriptor, shares, columns, [memoryview(one) for one in memory])
        schema, types = self.schema, self.types
        arrays = [
            _array(types[at], rows, values) for at, values in zip(columns, memory, strict=True)
        ]
        if len(columns) < len(types):
            schema = pa.schema([schema.field(column) for column in columns])
        return pa.Table.from_arrays(arrays, schema=schema)

    def _fill(
        self,
        descriptor: int,
        shares: list[_Located],
        columns: Sequence[int],
        memory: Sequence[memoryview],
    ) -> None:
        """Read the values of each column, those of a batch after another's."""
        wanted: list[tuple[int, memoryview]] = []
        filled = 0
        for places, first, last in shares:
            for column, view in zip(columns, memory, strict=True):
                width = self.shapes[column].width
                part = view[filled * width : (filled + last - first) * width]
                wanted.append((places[column] + first * width, part))
            filled += last - first
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
            raise ValueError(f"it ends before byte {offset + missing}")
        missing -= got
        offset += got
        while missing and got >= len(views[0]):
            got -= len(views.pop(0))
        if missing:
            views[0] = views[0][got:]


def _shape(type_: pa.DataType) -> _Shape | None:
    if isinstance(type_, pa.BaseExtensionType):
        return _shape(type_.storage_type)
    if pa.types.is_fixed_size_list(type_):
        inner, size = _shape(type_.value_type), type_.list_size
        if inner is None or not size:
            return None
        items = tuple(size * items for items in inner.items)
        return _Shape(inner.buffers + 1, inner.width * size, (1, *items))
    if any(is_kind(type_) for is_kind in _OF_ONE_WIDTH):
        width, bits = divmod(type_.bit_width, 8)
        return _Shape(2, width, (1,)) if width and not bits else None
    return None


_OF_ONE_WIDTH = (pa.types.is_primitive, pa.types.is_decimal, pa.types.is_fixed_size_binary)
_OF_UNKNOWN_WIDTH_BYTES = 32


def _array(type_: pa.DataType, rows: int, values: pa.Buffer) -> pa.Array:
    if isinstance(type_, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type_, _array(type_.storage_type, rows, values))
    if isinstance(type_, pa.FixedSizeListType):
        items = _array(type_.value_type, rows * type_.list_size, values)
        return pa.FixedSizeListArray.from_arrays(items, type=type_)
    return pa.Array.from_buffers(type_, rows, [None, values])
