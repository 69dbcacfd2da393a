"""The values by which equality deletes delete, and which rows have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model import Int64Array

__all__ = ["EqualityKeys", "hashes_of_rows", "stored_type", "without_extension"]

_SLOTS_A_KEY = 8
Hashes = npt.NDArray[np.uint64]

_ODD = np.uint64(0x9E3779B97F4A7C15)
_OF_NULL = np.uint64(0xD1B54A32D192ED03)
_BYTES_AT_ONCE = 1 << 21
"""of strings, which take many times as much while they are hashed"""


@dataclass(frozen=True, slots=True, eq=False)
class EqualityKeys:
    """Rows of values, in the order of their hashes.

    Few rows of a table have the hash of a key, and only those are compared, with the keys that
    they may be equal to: a million keys cost little more than a few.

    Null is equal to null. Of floating-point numbers, which the specification does not allow here,
    what the Java implementation makes of them: all NaN are equal, and the two zeros are not.
    """

    columns: tuple[pa.ChunkedArray, ...]
    hashes: Hashes
    """of the keys, ascending"""
    slots: npt.NDArray[np.bool_]
    """by the first bits of a hash, whether a key has them; a power of two"""

    @classmethod
    def of(cls, columns: Sequence[pa.ChunkedArray]) -> EqualityKeys:
        """Make keys of columns of the types that ``stored_type`` returns."""
        compared = [_comparable(column) for column in columns]
        hashes = hashes_of_rows(compared)
        order = np.argsort(hashes, kind="stable")
        places = pa.array(order)
        slots = np.zeros(1 << (_SLOTS_A_KEY * len(hashes) + 1).bit_length(), bool)
        slots[_slots_of(hashes, slots)] = True
        return cls(tuple(column.take(places) for column in compared), hashes[order], slots)

    @property
    def nbytes(self) -> int:
        """Their size in memory."""
        values = sum(int(column.nbytes) for column in self.columns)
        return values + self.hashes.nbytes + self.slots.nbytes

    def matches(self, columns: Sequence[pa.ChunkedArray]) -> npt.NDArray[np.bool_]:
        """Return which rows have the values of a key. Columns are in the order of the keys'."""
        compared = [_comparable(column) for column in columns]
        hashes = hashes_of_rows(compared)
        rows = np.flatnonzero(self.slots[_slots_of(hashes, self.slots)])
        first = np.searchsorted(self.hashes, hashes[rows], side="left")
        last = np.searchsorted(self.hashes, hashes[rows], side="right")
        rows, keys = rows[first < last], _ranges(first, last)
        matching = np.zeros(len(hashes), bool)
        if len(rows):
            own = [column.take(pa.array(rows)) for column in compared]
            named = [column.take(pa.array(keys)) for column in self.columns]
            matching[rows[_equal(own, named)]] = True
        return matching


def stored_type(type_: pa.DataType) -> pa.DataType:
    """Return the type in which keys are compared with a column of a table."""
    if isinstance(type_, pa.BaseExtensionType):
        return stored_type(type_.storage_type)
    return stored_type(type_.value_type) if pa.types.is_dictionary(type_) else type_


def without_extension(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column as it is stored: a UUID is sixteen bytes."""
    if not isinstance(column.type, pa.BaseExtensionType):
        return column
    return pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column whose values are equal where their bytes are: of floats, their bits."""
    column = without_extension(column).cast(stored_type(column.type))
    if not pa.types.is_floating(column.type):
        return column
    one_nan = pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), column)
    bits = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[column.type.bit_width]
    return pa.chunked_array([chunk.view(bits) for chunk in one_nan.chunks], bits)


def _slots_of(hashes: Hashes, slots: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint64]:
    return hashes >> np.uint64(65 - len(slots).bit_length())


def _ranges(first: Int64Array, last: Int64Array) -> Int64Array:
    """Return all numbers that lie in some ranges, of which the same one may come often."""
    starts, once = np.unique(first[first < last], return_index=True)
    lengths = (last - first)[first < last][once]
    before: Int64Array = np.cumsum(lengths) - lengths
    total = int(lengths.sum())
    return np.arange(total, dtype=np.int64) + np.repeat(starts - before, lengths)


def _equal(rows: list[pa.ChunkedArray], keys: list[pa.ChunkedArray]) -> npt.NDArray[np.bool_]:
    """Return which rows are equal to a key, by the places of their values among the keys'.

    Places in two columns make a number, and numbers have places among those that the keys have.
    """
    found, wanted = _places(rows[0], keys[0])
    for row, key in zip(rows[1:], keys[1:], strict=True):
        own, named = _places(row, key)
        count = np.int64(len(key))
        both = np.where((found < 0) | (own < 0), -1, found * count + own)
        found, wanted = _places(pa.array(both), pa.array(wanted * count + named))
    return found >= 0


def _places(
    rows: pa.ChunkedArray | pa.Array, keys: pa.ChunkedArray | pa.Array
) -> tuple[Int64Array, Int64Array]:
    """Return where the values of rows and of keys stand among those of keys; -1: nowhere."""
    values = pc.unique(keys)
    rows, keys = (
        np.asarray(pc.fill_null(pc.index_in(some, value_set=values), -1).to_numpy(), np.int64)
        for some in (rows, keys)
    )
    return rows, keys


# --- hashes of rows


def hashes_of_rows(columns: Sequence[pa.ChunkedArray]) -> Hashes:
    """Return a number for each row of some columns: the same for equal rows, and rarely for others.

    Values are hashed by their bytes: numbers, decimals, strings and binary. Floating-point numbers
    are not.
    """
    rows = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        parts = [_of_array(chunk) for chunk in column.chunks if len(chunk)]
        rows = _mixed(rows * _ODD + (np.concatenate(parts) if parts else rows))
    return rows


def _mixed(numbers: Hashes) -> Hashes:
    """Return numbers in which every bit depends on every other."""
    numbers = (numbers ^ (numbers >> np.uint64(31))) * np.uint64(0x7FB5D329728EA185)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x81DADEF4BC2DD44D)
    return numbers ^ (numbers >> np.uint64(33))


def _of_array(array: pa.Array) -> Hashes:
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    if pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type):
        numbers = _of_strings(array, np.dtype(np.int64))
    elif pa.types.is_string(array.type) or pa.types.is_binary(array.type):
        numbers = _of_strings(array, np.dtype(np.int32))
    else:
        numbers = _of_fixed_width(array)
    if array.null_count:
        numbers[array.is_null().to_numpy(zero_copy_only=False)] = _OF_NULL
    return numbers


def _of_fixed_width(array: pa.Array) -> Hashes:
    width = array.type.byte_width
    content = np.frombuffer(array.buffers()[1], np.uint8)
    content = content[array.offset * width : (array.offset + len(array)) * width]
    if width in (1, 2, 4, 8):
        return _mixed(content.view(f"u{width}").astype(np.uint64) + _ODD)
    return _mixed((content.reshape(-1, width) * _powers(width)).sum(axis=1, dtype=np.uint64))


def _of_strings(array: pa.Array, offset_type: np.dtype[np.signedinteger]) -> Hashes:
    bounds = np.frombuffer(array.buffers()[1], offset_type)
    bounds = bounds[array.offset : array.offset + len(array) + 1].astype(np.int64)
    if bounds[-1] - bounds[0] > _BYTES_AT_ONCE and len(array) > 1:
        half = len(array) // 2
        halves = [_of_strings(part, offset_type) for part in (array[:half], array[half:])]
        return np.concatenate(halves)
    raw = array.buffers()[2]
    content = np.frombuffer(b"" if raw is None else raw, np.uint8)[bounds[0] : bounds[-1]]
    bounds = bounds - bounds[0]
    lengths = np.diff(bounds)
    within = np.arange(len(content)) - np.repeat(bounds[:-1], lengths)
    weighed = (content.astype(np.uint64) + np.uint64(1)) * _powers(lengths.max(initial=0))[within]
    sums = np.zeros(len(content) + 1, np.uint64)
    np.cumsum(weighed, out=sums[1:])
    return _mixed(sums[bounds[1:]] - sums[bounds[:-1]] + lengths.astype(np.uint64))


def _powers(count: int) -> Hashes:
    """Return weights of the bytes of a value by their places."""
    return np.cumprod(np.full(count, _ODD, np.uint64), dtype=np.uint64)
