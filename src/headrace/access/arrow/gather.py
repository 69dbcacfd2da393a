"""Rows gathered from wherever their buffers are in memory, with one copy a column.

What of an array has to be known to find its rows is a few numbers, its *places*: addresses of its
buffers, with the offset of the array already added. Rows of many arrays are found by arithmetic on
the places of the array that each of them is in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from headrace.access.arrow.gather_memory import address_of, bits_at, joined, records
from headrace.model import Int64Array

__all__ = ["DamagedRowError", "Gather", "gather_for"]

_NO_BITMAP = 0
_FIXED = (pt.is_primitive, pt.is_decimal, pt.is_fixed_size_binary)


class DamagedRowError(Exception):
    """What a row points at is not there; the only argument is its number among those gathered."""


class Gather(ABC):
    """How the rows of one type are gathered."""

    count: int
    """of the places of an array"""

    @abstractmethod
    def places(self, array: pa.Array) -> list[int] | None:
        """Where the rows of an array are; None where they cannot be had by copying them."""

    def stride(self, array: pa.Array) -> tuple[int, int] | None:
        """Where the first row is, and the bytes of each, if they lie one behind the other.

        None if some are null or of another length, or if they do not consist of bytes alone.
        """
        return None

    def array(self, cells: npt.NDArray[Any]) -> pa.Array:
        """Rows that were found by their stride, from the bytes of each; else as ``rows``."""
        raise TypeError("rows of this type have no stride")

    @abstractmethod
    def rows(self, places: Int64Array, rows: Int64Array) -> pa.Array:
        """Rows, each of an array of its own: ``places`` has a column for each of them.

        OverflowError if they are too many bytes for one array.
        """


def gather_for(type_: pa.DataType) -> Gather | None:
    """How rows of a type are gathered; None where that is left to Arrow."""
    if isinstance(type_, pa.BaseExtensionType):
        inner = gather_for(type_.storage_type)
        return None if inner is None else _Extension(type_, inner)
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
    if pt.is_struct(type_):
        inside = [gather_for(field.type) for field in type_]
        fields = tuple(each for each in inside if each is not None)
        return _Struct(type_, fields) if len(fields) == len(inside) else None
    return None


def _width(type_: pa.DataType) -> int | None:
    """Bytes of a value, where all values have as many and these are all that there is to them."""
    if pt.is_fixed_size_list(type_):
        inner = _width(type_.value_type)
        return inner * type_.list_size if inner and type_.list_size else None
    if pt.is_boolean(type_) or not any(is_fixed(type_) for is_fixed in _FIXED):
        return None
    return type_.byte_width or None


@dataclass(frozen=True, slots=True)
class _Fixed(Gather):
    """Numbers, times, decimals, bytes of one length, and lists of one length of these."""

    type_: pa.DataType
    width: int
    count = 2

    def places(self, array: pa.Array) -> list[int] | None:
        values = _values(array)
        return None if values is None else [_bitmap(array), values]

    def stride(self, array: pa.Array) -> tuple[int, int] | None:
        values = None if array.null_count else _values(array)
        return None if values is None else (values, self.width)

    def array(self, cells: npt.NDArray[Any]) -> pa.Array:
        return _filled(self.type_, len(cells), None, 0, pa.py_buffer(cells))

    def rows(self, places: Int64Array, rows: Int64Array) -> pa.Array:
        values = records(places[1] + rows * self.width, self.width)
        validity, nulls = _validity(places[0], rows)
        return _filled(self.type_, len(rows), validity, nulls, pa.py_buffer(values))


@dataclass(frozen=True, slots=True)
class _Bits(Gather):
    """Booleans, eight of them to a byte."""

    type_: pa.DataType
    count = 2

    def places(self, array: pa.Array) -> list[int]:
        return [_bitmap(array), _bits(array.buffers()[1], array.offset)]

    def rows(self, places: Int64Array, rows: Int64Array) -> pa.Array:
        values = np.packbits(bits_at(places[1] + rows), bitorder="little")
        validity, nulls = _validity(places[0], rows)
        buffers = [validity, pa.py_buffer(values)]
        return pa.Array.from_buffers(self.type_, len(rows), buffers, nulls)


@dataclass(frozen=True, slots=True)
class _Spans(Gather):
    """Strings, bytes, and lists of values of one width: as long as two offsets say."""

    type_: pa.DataType
    offset: np.dtype[Any]
    width: int
    """bytes that an offset counts as one"""
    count = 4

    def places(self, array: pa.Array) -> list[int] | None:
        _, offsets, *data = array.buffers()
        if pt.is_list(self.type_) or pt.is_large_list(self.type_):
            start, held = _values(array.values), len(array.values)
            if array.values.null_count:
                return None
        else:
            start, held = address_of(data[0]), 0 if data[0] is None else data[0].size
        if start is None:
            return None
        first = address_of(offsets) + array.offset * self.offset.itemsize
        return [_bitmap(array), first, start, held]

    def stride(self, array: pa.Array) -> tuple[int, int] | None:
        places = None if array.null_count else self.places(array)
        if places is None:
            return None
        at = array.offset * self.offset.itemsize
        edges = np.frombuffer(array.buffers()[1], self.offset, len(array) + 1, at)
        first, second, last = edges[[0, 1, -1]].tolist()
        length = second - first
        # the ends alone tell most columns apart, of which no more is then read
        if length <= 0 or last - first != length * len(array) or first < 0 or last > places[3]:
            return None
        is_even = bool((edges[1:] - edges[:-1] == length).all())
        return (places[2] + first * self.width, length * self.width) if is_even else None

    def rows(self, places: Int64Array, rows: Int64Array) -> pa.Array:
        size = self.offset.itemsize
        bounds = records(places[1] + rows * size, 2 * size).view(self.offset).reshape(-1, 2)
        starts, stops = bounds[:, 0], bounds[:, 1]
        lengths = stops - starts
        shortest, longest = int(lengths.min()), int(lengths.max())
        if shortest < 0 or (starts | (places[3] - stops)).min() < 0:
            wrong = (lengths < 0) | (starts < 0) | (stops > places[3])
            raise DamagedRowError(int(wrong.argmax()))
        last = np.iinfo(self.offset).max
        if longest * len(rows) > last and int(lengths.sum(dtype=np.int64)) > last:
            raise OverflowError
        ends = np.zeros(len(rows) + 1, self.offset)
        lengths.cumsum(out=ends[1:], dtype=self.offset)
        values = joined(places[2], starts, lengths, self.width, shortest == longest)
        validity, nulls = _validity(places[0], rows)
        return self._array(len(rows), validity, nulls, pa.py_buffer(ends), pa.py_buffer(values))

    def array(self, cells: npt.NDArray[Any]) -> pa.Array:
        length, rows = cells.itemsize // self.width, len(cells)
        if length * rows > np.iinfo(self.offset).max:
            raise OverflowError
        ends = np.arange(0, length * rows + 1, length, dtype=self.offset)
        return self._array(rows, None, 0, pa.py_buffer(ends), pa.py_buffer(cells))

    def _array(
        self, rows: int, validity: pa.Buffer | None, nulls: int, ends: pa.Buffer, data: pa.Buffer
    ) -> pa.Array:
        if not (pt.is_list(self.type_) or pt.is_large_list(self.type_)):
            return pa.Array.from_buffers(self.type_, rows, [validity, ends, data], nulls)
        values = _filled(self.type_.value_type, data.size // self.width, None, 0, data)
        buffers = [validity, ends]
        return pa.Array.from_buffers(self.type_, rows, buffers, nulls, children=[values])


@dataclass(frozen=True, slots=True)
class _Struct(Gather):
    type_: pa.DataType
    fields: tuple[Gather, ...]

    @property
    def count(self) -> int:  # type: ignore[override]
        return 1 + sum(field.count for field in self.fields)

    def places(self, array: pa.Array) -> list[int] | None:
        places = [_bitmap(array)]
        for number, field in enumerate(self.fields):
            inside = field.places(array.field(number))
            if inside is None:
                return None
            places += inside
        return places

    def rows(self, places: Int64Array, rows: Int64Array) -> pa.Array:
        children, first = [], 1
        for field in self.fields:
            children.append(field.rows(places[first : first + field.count], rows))
            first += field.count
        validity, nulls = _validity(places[0], rows)
        return pa.Array.from_buffers(self.type_, len(rows), [validity], nulls, children=children)


@dataclass(frozen=True, slots=True)
class _Extension(Gather):
    type_: pa.DataType
    storage: Gather

    @property
    def count(self) -> int:  # type: ignore[override]
        return self.storage.count

    def places(self, array: pa.Array) -> list[int] | None:
        return self.storage.places(array.storage)

    def stride(self, array: pa.Array) -> tuple[int, int] | None:
        return self.storage.stride(array.storage)

    def array(self, cells: npt.NDArray[Any]) -> pa.Array:
        return pa.ExtensionArray.from_storage(self.type_, self.storage.array(cells))

    def rows(self, places: Int64Array, rows: Int64Array) -> pa.Array:
        return pa.ExtensionArray.from_storage(self.type_, self.storage.rows(places, rows))


# --- where things are


def _values(array: pa.Array) -> int | None:
    """The address of the first value below fixed-size lists; None if some of these are null."""
    buffer, first, below = array.buffers()[-1], array.offset, array
    while pt.is_fixed_size_list(below.type):
        size, below = below.type.list_size, below.values
        if below.null_count:
            return None
        first = first * size + below.offset
    return int(address_of(buffer) + first * below.type.byte_width)


def _bitmap(array: pa.Array) -> int:
    return _bits(array.buffers()[0], array.offset) if array.null_count else _NO_BITMAP


def _bits(buffer: pa.Buffer | None, offset: int) -> int:
    """The address of a bit, counted in bits."""
    return 8 * address_of(buffer) + offset


def _validity(bitmaps: Int64Array, rows: Int64Array) -> tuple[pa.Buffer | None, int]:
    """The bitmap of some rows, each of which has a place in another or in none; and its nulls."""
    if not bitmaps.any():
        return None, 0
    held = bitmaps != _NO_BITMAP
    valid = np.ones(len(rows), np.uint8)
    valid[held] = bits_at(bitmaps[held] + rows[held])
    nulls = len(rows) - int(valid.sum())
    return (pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None), nulls


def _filled(
    type_: pa.DataType, length: int, validity: pa.Buffer | None, nulls: int, values: pa.Buffer
) -> pa.Array:
    """An array of values of one width that lie in a buffer, in lists of one length or not."""
    if not pt.is_fixed_size_list(type_):
        return pa.Array.from_buffers(type_, length, [validity, values], nulls)
    inside = _filled(type_.value_type, length * type_.list_size, None, 0, values)
    return pa.Array.from_buffers(type_, length, [validity], nulls, children=[inside])
