"""Deletion vectors: the blob of a Puffin file, and the 64-bit Roaring bitmap in it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import ReadError
from headrace.formats.failures import naming
from headrace.model import DataFileInfo, Int64Array
from headrace.storage import Store
from headrace.tables.iceberg.deletes import DeletionVector, store_path

__all__ = ["decoded_vector", "vector_positions"]

_MAGIC = bytes.fromhex("d1d33964")
_NO_RUNS, _WITH_RUNS = 12346, 12347
"""first 16 bits of a 32-bit bitmap: whether it may hold runs"""
_NO_OFFSETS_BELOW = 4
"""bitmaps with runs and fewer containers than this have no table of offsets"""
_MOST_CONTAINERS = 1 << 16
_LARGEST_ARRAY = 4096
_BITMAP_BYTES = 8192


def vector_positions(store: Store, vector: DeletionVector) -> Int64Array:
    """The rows that a vector deletes, ascending. Only its own bytes are read."""
    where = f"{vector.path}, bytes {vector.offset}-{vector.offset + vector.length}"
    file = DataFileInfo(store_path(vector.path), vector.size)
    with naming(where), store.open(file) as source:
        blob = source.read_at(vector.length, vector.offset)
    try:
        positions = decoded_vector(bytes(blob))
    except ValueError as error:
        raise ReadError(f"{where}: no readable deletion vector: {error}") from error
    if len(positions) != vector.cardinality:
        raise ReadError(
            f"{where}: a deletion vector of {len(positions)} rows, where the manifest says "
            f"{vector.cardinality}: the table is damaged"
        )
    return positions


def decoded_vector(blob: bytes) -> Int64Array:
    """The positions in a ``deletion-vector-v1`` blob, ascending; ValueError if it is none."""
    length = int.from_bytes(blob[:4], "big")
    if len(blob) < 12 or length + 8 != len(blob):
        raise ValueError(f"it says to have {length + 8} bytes, and has {len(blob)}")
    body = blob[4:-4]
    if body[:4] != _MAGIC:
        raise ValueError(f"it begins with {body[:4].hex(' ')}, not {_MAGIC.hex(' ')}")
    if zlib.crc32(body) != int.from_bytes(blob[-4:], "big"):
        raise ValueError("its checksum is wrong")
    bytes_ = _Bytes(body[4:])
    parts = list(_positions(bytes_))
    bytes_.expect_end()
    found = np.concatenate(parts) if parts else np.empty(0, np.int64)
    if len(found) and (found[0] < 0 or not (np.diff(found) > 0).all()):
        raise ValueError("its positions are not ascending")
    return found


class _Bytes:
    """Bytes that are taken from the front."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def take(self, count: int, type_: str) -> npt.NDArray[Any]:
        """So many numbers of a little-endian type."""
        dtype = np.dtype(type_)
        if count * dtype.itemsize > len(self._content) - self._at:
            raise ValueError("it ends in the middle of a bitmap")
        numbers = np.frombuffer(self._content, dtype, count, self._at)
        self._at += numbers.nbytes
        return numbers

    def number(self, type_: str) -> int:
        """One number."""
        return int(self.take(1, type_)[0])

    def expect_end(self) -> None:
        """ValueError if something is left."""
        if self._at < len(self._content):
            raise ValueError(f"{len(self._content) - self._at} bytes follow its bitmaps")


def _positions(bytes_: _Bytes) -> Iterator[Int64Array]:
    """Positions by their upper 32 bits, then by the next 16."""
    for _ in range(bytes_.number("<u8")):
        upper = bytes_.number("<u4")
        for key, values in _containers(bytes_):
            yield values.astype(np.int64) + ((upper << 32) | (key << 16))


def _containers(bytes_: _Bytes) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """The containers of one 32-bit bitmap, which follow each other: their keys and values."""
    cookie = bytes_.number("<u4")
    if cookie == _NO_RUNS:
        count = bytes_.number("<u4")
        in_runs = [0] * min(count, _MOST_CONTAINERS)
    elif cookie & 0xFFFF == _WITH_RUNS:
        count = (cookie >> 16) + 1
        flags = bytes_.take((count + 7) // 8, "u1")
        in_runs = np.unpackbits(flags, bitorder="little")[:count].tolist()
    else:
        raise ValueError(f"{cookie:#x} begins no Roaring bitmap")
    if count > _MOST_CONTAINERS:
        raise ValueError(f"a bitmap of {count} containers")
    heads = bytes_.take(2 * count, "<u2").reshape(-1, 2).tolist()
    if cookie == _NO_RUNS or count >= _NO_OFFSETS_BELOW:
        bytes_.take(count, "<u4")
    for (key, last), by_runs in zip(heads, in_runs, strict=True):
        yield key, _values(bytes_, last + 1, bool(by_runs))


def _values(bytes_: _Bytes, cardinality: int, by_runs: bool) -> npt.NDArray[Any]:
    """The lower 16 bits of the positions in a container: runs, a list, or bits."""
    if by_runs:
        pairs = bytes_.take(2 * bytes_.number("<u2"), "<u2").reshape(-1, 2).astype(np.int64)
        values = _unrolled(pairs[:, 0], pairs[:, 1] + 1)
    elif cardinality <= _LARGEST_ARRAY:
        values = bytes_.take(cardinality, "<u2")
    else:
        values = np.flatnonzero(np.unpackbits(bytes_.take(_BITMAP_BYTES, "u1"), bitorder="little"))
    if len(values) != cardinality:
        raise ValueError(f"{len(values)} positions where {cardinality} are said to be")
    return values


def _unrolled(starts: Int64Array, lengths: Int64Array) -> Int64Array:
    """The numbers of runs, end to end."""
    before: Int64Array = np.cumsum(lengths) - lengths
    total = int(lengths.sum())
    return np.arange(total, dtype=np.int64) + np.repeat(starts - before, lengths)
