"""Deletion vectors: which rows of a data file are deleted, and where its other rows are."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
from pyroaring import BitMap

from headrace.errors import ReadError
from headrace.formats.cache import BoundedCache
from headrace.formats.failures import naming
from headrace.model import DataFileInfo, Int64Array, RowRange
from headrace.storage import Store

__all__ = ["DeletionVector", "deleted_rows", "stored_range", "vector_positions"]

_MAGIC = 1581511376
_MAGIC_64 = bytes.fromhex("d1d33964")
_KEPT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class DeletionVector:
    """Where the rows are listed that are deleted in a file."""

    path: str
    offset: int
    length: int
    cardinality: int | None
    """how many they are; None where the table does not say"""


def deleted_rows(store: Store, vector: DeletionVector, file: str, rows: int) -> Int64Array:
    """Positions of the deleted ones among the ``rows`` of a file, ascending."""
    return _positions.get_or_make(
        (store.identity, vector, file, rows),
        lambda: _checked(vector_positions(store, vector), vector, file, rows),
        limit_bytes=_KEPT_BYTES,
    )


def stored_range(deleted: Int64Array, live: RowRange) -> RowRange:
    """Where live rows are in a file: the shortest run of stored rows that has all of them."""
    before = deleted - np.arange(len(deleted))  # live rows before each deleted one
    first, last = live.offset, live.stop - 1
    start = first + int(np.searchsorted(before, first, side="right"))
    stop = last + int(np.searchsorted(before, last, side="right")) + 1
    return RowRange(start, stop - start)


def vector_positions(store: Store, vector: DeletionVector) -> Int64Array:
    """What a vector says. Only its own bytes are read."""
    where = f"{vector.path}, bytes {vector.offset}-{vector.offset + vector.length + 8}"
    with naming(where), store.open(DataFileInfo(vector.path)) as source:
        content = bytes(source.read_at(vector.length + 8, vector.offset))
    try:
        return _decoded(content, vector.length)
    except ValueError as error:
        raise ReadError(f"{where}: no readable deletion vector: {error}") from error


def _decoded(content: bytes, length: int) -> Int64Array:
    said = int.from_bytes(content[:4], "big")
    body = content[4:-4]
    if said != length or len(body) != length or length < 4:
        raise ValueError(f"it has {len(body)} bytes, says {said}, and should have {length}")
    if zlib.crc32(body) != int.from_bytes(content[-4:], "big"):
        raise ValueError("its checksum is wrong")
    if body[:4] == _MAGIC_64:
        raise ValueError(
            "it is one of 64 bits, which is not read here; write the table without "
            "deletion-vectors.bitmap64, or let an engine compact it"
        )
    if int.from_bytes(body[:4], "big") != _MAGIC:
        raise ValueError(f"it begins with {body[:4].hex(' ')}")
    return np.array(BitMap.deserialize(body[4:]).to_array(), np.int64)


def _checked(found: Int64Array, vector: DeletionVector, file: str, rows: int) -> Int64Array:
    if vector.cardinality is not None and len(found) != vector.cardinality:
        raise ReadError(
            f"the deletion vector of {file} in {vector.path} has {len(found)} rows, and the table "
            f"says {vector.cardinality}: the table is damaged"
        )
    if len(found) and found[-1] >= rows:
        raise ReadError(
            f"the deletion vector in {vector.path} names row {found[-1]} of {file}, which has "
            f"{rows} rows: the table is damaged"
        )
    return found


_positions: BoundedCache[Int64Array] = BoundedCache(lambda found: 300 + found.nbytes)
