"""Gather rows from mapped files with numpy, with one copy for each column.

To find the rows of an array, a few of its numbers are needed: the places of its buffers in their
file, including the offset of the array. They come from pyarrow, which has compared them with the
size of the file. The rows of many arrays are found by arithmetic on the places of the array of each
row. Offsets read from a file are checked first.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from headrace.matrices import width_of
from headrace.model import Int64Array, computed_once
from headrace.sources.backend import ColumnValues

_ROWS_A_FILE, _LONG_BYTES = 8, 1 << 14
"""Rows are copied one by one if a file has fewer than the first number of them, or if they are
longer than the second and in several files: numpy would copy them twice."""
_MOST_WIDTHS = 64
"""Number of widths for which a file keeps its windows."""


class _Windows(dict[int, npt.NDArray[Any]]):
    """Views of all runs of some bytes in a file, by the number of bytes, made when asked for."""

    def __init__(self, data: npt.NDArray[np.uint8]) -> None:
        super().__init__()
        self._data = data

    def __missing__(self, width: int) -> npt.NDArray[Any]:
        if len(self) >= _MOST_WIDTHS:
            self.clear()
        count = max(self._data.size - width + 1, 0)
        self[width] = found = np.ndarray((count,), f"V{width}", self._data, strides=(1,))
        return found


class FileBytes:
    """The bytes of a mapped file.

    Attributes:
        address: The address of the first byte.
        size: Number of bytes.
        view: The bytes.
        windows: All runs of some bytes, by the number of bytes.
    """

    def __init__(self, memory: pa.Buffer) -> None:
        self.address, self.size = int(memory.address), int(memory.size)
        data: npt.NDArray[np.uint8] = np.frombuffer(memory, np.uint8)
        self.view: memoryview = data.data
        self.windows = _Windows(data)


class MappedRows:
    """Copies bytes of rows, each of which is in one of several mapped files.

    Every place is compared with the size of its file, by numpy or by Python.

    Args:
        files: The files.
        counts: Number of rows in each file.
        order: The rows of each file, one file after the other.
    """

    def __init__(
        self, files: Sequence[FileBytes], counts: Sequence[int], order: Int64Array
    ) -> None:
        self._order = order
        self._runs: list[tuple[FileBytes, slice, Int64Array]] = []
        """Each file, and its rows: where they are in ``order``, and which they are."""
        stop = 0
        for file, count in zip(files, counts, strict=True):
            run = slice(stop, stop + count)
            self._runs.append((file, run, order[run]))
            stop += count
        self._few = stop < _ROWS_A_FILE * len(files)

    def records(self, places: Int64Array, width: int) -> npt.NDArray[Any]:
        """Copy ``width`` bytes of each row from its place on."""
        if len(self._runs) == 1:
            only: npt.NDArray[Any] = self._runs[0][0].windows[width][places]
            return only
        if self._few or width >= _LONG_BYTES:
            return np.frombuffer(self.joined(places, places + width), f"V{width}")
        found = np.empty(len(places), f"V{width}")
        in_files = places.take(self._order)
        for file, run, rows in self._runs:
            found[rows] = file.windows[width][in_files[run]]
        return found

    def joined(self, starts: Int64Array, stops: Int64Array) -> bytearray:
        """Copy the bytes of each row from its start to its stop, one row after the other."""
        spans = zip(self._views, starts.tolist(), stops.tolist(), strict=True)
        return bytearray().join([view[start:stop] for view, start, stop in spans])

    def bits(self, places: Int64Array) -> npt.NDArray[np.uint8]:
        """Return a single bit of each row; places are counted in bits."""
        holding = self.records(places >> 3, 1).view(np.uint8)
        return (holding >> (places & 7).astype(np.uint8)) & np.uint8(1)

    @computed_once
    def _views(self) -> list[memoryview]:
        """File of each row."""
        views: list[Any] = [None] * len(self._order)
        for file, _, rows in self._runs:
            for row in rows.tolist():
                views[row] = file.view
        return views


Cells: TypeAlias = Callable[[int], memoryview]
"""Function that returns the bytes of a row of an array, by its number, or raises a NoCellError."""

_NO_BITMAP = -1
_BOOLEANS = memoryview(b"\0"), memoryview(b"\1")
_least = np.minimum.reduce
_OFFSETS = {4: struct.Struct("=2i"), 8: struct.Struct("=2q")}
"""Two offsets that follow each other, by the size of one."""


class DamagedRowError(Exception):
    """A row is damaged; the only argument is its index among the gathered rows."""


class NoCellError(Exception):
    """A row is null or damaged, or does not consist of plain bytes."""


def no_cells(row: int) -> memoryview:
    raise NoCellError


def _of_valid(cells: Cells, data: memoryview, bitmap: int) -> Cells:
    """Return the function, with a check of the bitmap if there is one."""
    if bitmap == _NO_BITMAP:
        return cells

    def cell(row: int) -> memoryview:
        if not _bit(data, bitmap + row):
            raise NoCellError
        return cells(row)

    return cell


def _bit(data: memoryview, place: int) -> int:
    return data[place >> 3] >> (place & 7) & 1


class Gather(ABC):
    """Gathers rows of one type."""

    count: int
    """Number of places of an array; the first is that of its bitmap, or negative."""

    @abstractmethod
    def places(self, array: pa.Array, base: int) -> list[int] | None:
        """Return where the rows of an array are in a file that is mapped at the address ``base``.

        Returns None if they cannot be gathered by copying bytes.
        """

    def cells(self, data: memoryview, places: Sequence[int]) -> Cells:
        """Return a function that finds the bytes of a row of an array."""
        return no_cells

    @abstractmethod
    def rows(
        self, maps: MappedRows, places: Int64Array, rows: Int64Array, *, nulls: bool, as_cells: bool
    ) -> ColumnValues:
        """Copy rows; ``places`` has a column for each row, with the places of its array.

        Args:
            maps: The files of the arrays.
            places: The places of the array of each row.
            rows: The number of each row in its array.
            nulls: True if an array has nulls.
            as_cells: True to return the bytes of rows if their values are plain bytes.

        Raises:
            OverflowError: The rows have too many bytes for one array.
            DamagedRowError: The offsets of a row leave its array, or its text is not UTF-8.
        """


def gather_for(type_: pa.DataType) -> Gather | None:
    """Return an object that gathers rows of a type; None if they are left to Arrow."""
    if pt.is_boolean(type_):
        return _Bits(type_)
    if (width := _width(type_)) is not None:
        return _Fixed(type_, width)
    if pt.is_string(type_) or pt.is_binary(type_):
        return _Spans(type_, np.dtype(np.int32), 1)
    if pt.is_large_string(type_) or pt.is_large_binary(type_):
        return _Spans(type_, np.dtype(np.int64), 1)
    if pt.is_list(type_) or pt.is_large_list(type_):
        width = _width(type_.value_type)
        offset = np.dtype(np.int32 if pt.is_list(type_) else np.int64)
        return None if width is None else _Spans(type_, offset, width)
    return None


def _width(type_: pa.DataType) -> int | None:
    """Return the width of a value if all are plain bytes of the same width, else None."""
    leaf = type_
    while pt.is_fixed_size_list(leaf):
        leaf = leaf.value_type
    is_fixed = pt.is_primitive(leaf) or pt.is_decimal(leaf) or pt.is_fixed_size_binary(leaf)
    if not is_fixed or pt.is_boolean(leaf) or not leaf.byte_width:
        return None
    return width_of(type_) or None


@dataclass(frozen=True, slots=True)
class _Fixed(Gather):
    """Numbers, times, decimals, bytes of one length, and lists of one length of these."""

    type_: pa.DataType
    width: int
    count = 2

    def places(self, array: pa.Array, base: int) -> list[int] | None:
        values = _values(array)
        return None if values is None else [_bitmap(array, base), values - base]

    def rows(
        self, maps: MappedRows, places: Int64Array, rows: Int64Array, *, nulls: bool, as_cells: bool
    ) -> ColumnValues:
        values = maps.records(places[1] + rows * self.width, self.width)
        validity, count = _validity(maps, places[0], rows) if nulls else (None, 0)
        if as_cells and validity is None:
            return values
        return _filled(self.type_, len(rows), validity, count, pa.py_buffer(values))

    def cells(self, data: memoryview, places: Sequence[int]) -> Cells:
        bitmap, first = places
        width = self.width

        def cell(row: int) -> memoryview:
            start = first + row * width
            return data[start : start + width]

        return _of_valid(cell, data, bitmap)


@dataclass(frozen=True, slots=True)
class _Bits(Gather):
    """Booleans, eight in a byte."""

    type_: pa.DataType
    count = 2

    def places(self, array: pa.Array, base: int) -> list[int] | None:
        return [_bitmap(array, base), 8 * (array.buffers()[1].address - base) + array.offset]

    def rows(
        self, maps: MappedRows, places: Int64Array, rows: Int64Array, *, nulls: bool, as_cells: bool
    ) -> ColumnValues:
        values = np.packbits(maps.bits(places[1] + rows), bitorder="little")
        validity, count = _validity(maps, places[0], rows) if nulls else (None, 0)
        buffers = [validity, pa.py_buffer(values)]
        return pa.Array.from_buffers(self.type_, len(rows), buffers, count)

    def cells(self, data: memoryview, places: Sequence[int]) -> Cells:
        bitmap, first = places
        return _of_valid(lambda row: _BOOLEANS[_bit(data, first + row)], data, bitmap)


@dataclass(frozen=True, slots=True)
class _Spans(Gather):
    """Strings, bytes, and lists of values of one width, whose lengths follow from offsets."""

    type_: pa.DataType
    offset: np.dtype[Any]
    item_bytes: int
    """Number of bytes that an offset counts as one."""
    count = 4

    def places(self, array: pa.Array, base: int) -> list[int] | None:
        _, offsets, *data = array.buffers()
        start: int | None
        if self._is_list:
            start, held = _values(array.values), len(array.values)
            if array.values.null_count:
                return None
        elif data[0] is None or not data[0].size:
            start, held = base, 0
        else:
            start, held = data[0].address, data[0].size
        if start is None:
            return None
        first = offsets.address - base + array.offset * self.offset.itemsize
        return [_bitmap(array, base), first, start - base, held]

    def rows(
        self, maps: MappedRows, places: Int64Array, rows: Int64Array, *, nulls: bool, as_cells: bool
    ) -> ColumnValues:
        size = self.offset.itemsize
        pairs = maps.records(places[1] + rows * size, 2 * size).view(self.offset)
        starts, stops = pairs.reshape(-1, 2).T.astype(np.int64)
        lengths = stops - starts
        shortest = _least(lengths)
        if shortest < 0 or _least(starts) < 0 or _least(places[3] - stops) < 0:
            wrong = (lengths < 0) | (starts < 0) | (stops > places[3])
            raise DamagedRowError(int(wrong.argmax()))
        first = places[2] + starts * self.item_bytes
        validity, count = _validity(maps, places[0], rows) if nulls else (None, 0)
        if as_cells and validity is None and 0 < shortest == np.maximum.reduce(lengths):
            return maps.records(first, int(shortest))
        if int(lengths.sum()) > np.iinfo(self.offset).max:
            raise OverflowError
        values = maps.joined(first, first + lengths * self.item_bytes)
        ends = np.zeros(len(rows) + 1, self.offset)
        lengths.cumsum(out=ends[1:], dtype=self.offset)
        buffers, data = [validity, pa.py_buffer(ends)], pa.py_buffer(values)
        if not self._is_list:
            found = pa.Array.from_buffers(self.type_, len(rows), [*buffers, data], count)
            if pt.is_string(self.type_) or pt.is_large_string(self.type_):
                _check_text(found)
            return found
        inside = _filled(self.type_.value_type, data.size // self.item_bytes, None, 0, data)
        return pa.Array.from_buffers(self.type_, len(rows), buffers, count, children=[inside])

    def cells(self, data: memoryview, places: Sequence[int]) -> Cells:
        bitmap, offsets, values, held = places
        size, item_bytes = self.offset.itemsize, self.item_bytes
        offsets_from = _OFFSETS[size].unpack_from

        def cell(row: int) -> memoryview:
            start, stop = offsets_from(data, offsets + row * size)
            if not 0 <= start <= stop <= held:
                raise NoCellError
            return data[values + start * item_bytes : values + stop * item_bytes]

        return _of_valid(cell, data, bitmap)

    @property
    def _is_list(self) -> bool:
        return bool(pt.is_list(self.type_) or pt.is_large_list(self.type_))


def _check_text(array: pa.Array) -> None:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        raise DamagedRowError(
            next(filter(partial(_is_damaged, array), range(len(array))))
        ) from None


def _is_damaged(array: pa.Array, row: int) -> bool:
    try:
        array.slice(row, 1).validate(full=True)
    except pa.ArrowInvalid:
        return True
    return False


def _values(array: pa.Array) -> int | None:
    """Return the address of the first value below fixed-size lists; None if some are null."""
    buffer, first, below = array.buffers()[-1], array.offset, array
    while pt.is_fixed_size_list(below.type):
        size, below = below.type.list_size, below.values
        if below.null_count:
            return None
        first = first * size + below.offset
    return None if buffer is None else int(buffer.address + first * below.type.byte_width)


def _bitmap(array: pa.Array, base: int) -> int:
    if not array.null_count:
        return _NO_BITMAP
    return int(8 * (array.buffers()[0].address - base) + array.offset)


def _validity(
    maps: MappedRows, bitmaps: Int64Array, rows: Int64Array
) -> tuple[pa.Buffer | None, int]:
    """Return the bitmap and the number of nulls of some rows, each in a bitmap or in none."""
    if int(bitmaps.max()) == _NO_BITMAP:
        return None, 0
    held = bitmaps != _NO_BITMAP
    valid = np.where(held, maps.bits(np.where(held, bitmaps + rows, 0)), np.uint8(1))
    nulls = len(rows) - int(valid.sum())
    return (pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None), nulls


def _filled(
    type_: pa.DataType, length: int, validity: pa.Buffer | None, nulls: int, values: pa.Buffer
) -> pa.Array:
    """Return an array of values of one width, or of lists of one length of such values."""
    if not pt.is_fixed_size_list(type_):
        return pa.Array.from_buffers(type_, length, [validity, values], nulls)
    inside = _filled(type_.value_type, length * type_.list_size, None, 0, values)
    return pa.Array.from_buffers(type_, length, [validity], nulls, children=[inside])
