"""Deletion vectors: which rows of a data file are deleted, and where its other rows are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.formats.cache import BoundedCache
from headrace.formats.failures import naming
from headrace.model import DataFileInfo, Int64Array, RowRange
from headrace.storage import Store
from headrace.tables.vectors import FRAME_BYTES, VectorBitmap, decode_vector, deleted_positions

__all__ = ["DeletionVector", "deleted_rows", "read_vector", "stored_range"]

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
        lambda: deleted_positions(
            read_vector(store, vector),
            vector=vector.path,
            file=file,
            rows=rows,
            cardinality=vector.cardinality,
        ),
        limit_bytes=_KEPT_BYTES,
    )


def stored_range(deleted: Int64Array, live: RowRange) -> RowRange:
    """Where live rows are in a file: the shortest run of stored rows that has all of them."""
    before = deleted - np.arange(len(deleted))  # live rows before each deleted one
    first, last = live.offset, live.stop - 1
    start = first + int(np.searchsorted(before, first, side="right"))
    stop = last + int(np.searchsorted(before, last, side="right")) + 1
    return RowRange(start, stop - start)


def read_vector(store: Store, vector: DeletionVector) -> VectorBitmap:
    """Read and decode a vector. Only its own bytes are read."""
    where = f"{vector.path}, bytes from {vector.offset}"
    with naming(where), store.open(DataFileInfo(vector.path)) as source:
        blob = bytes(source.read_at(vector.length, vector.offset))
        if int.from_bytes(blob[:4], "big") == vector.length:
            # The length in the metadata counts length and checksum of 64-bit vectors alone.
            blob += bytes(source.read_at(FRAME_BYTES, vector.offset + vector.length))
    return decode_vector(blob, where)


_positions: BoundedCache[Int64Array] = BoundedCache(lambda found: 300 + found.nbytes)
