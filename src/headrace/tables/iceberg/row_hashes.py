"""A number for each row of some columns: the same for equal rows, and rarely for others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["Hashes", "hashes_of_rows"]

Hashes = npt.NDArray[np.uint64]

_ODD = np.uint64(0x9E3779B97F4A7C15)
_OF_NULL = np.uint64(0xD1B54A32D192ED03)
_BYTES_AT_ONCE = 1 << 21
"""of strings, which take many times as much while they are hashed"""


def hashes_of_rows(columns: Sequence[pa.ChunkedArray]) -> Hashes:
    """By the bytes of values: numbers, decimals, strings and binary; not floating-point ones."""
    rows = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        parts = [_of_array(chunk) for chunk in column.chunks if len(chunk)]
        rows = _mixed(rows * _ODD + (np.concatenate(parts) if parts else rows))
    return rows


def _mixed(numbers: Hashes) -> Hashes:
    """Every bit depends on every other."""
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
    """Weights of the bytes of a value by their places."""
    return np.cumprod(np.full(count, _ODD, np.uint64), dtype=np.uint64)
