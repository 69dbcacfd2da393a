"""Deletion vectors: which rows of a data file are deleted."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.formats.cache import BoundedCache
from headrace.formats.failures import naming
from headrace.model import DataFileInfo, Int64Array
from headrace.storage import Store
from headrace.tables.vectors import FRAME_BYTES, VectorBitmap, decode_vector, deleted_positions

__all__ = ["DeletionVector", "deleted_rows", "read_vector"]

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
