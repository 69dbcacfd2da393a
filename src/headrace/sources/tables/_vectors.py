"""Deletion vectors: bitmaps of the deleted rows of a data file, as Iceberg and Paimon store them.

Both formats store the length of the rest (4 bytes, big-endian), a magic number, a Roaring bitmap in
the portable format, and a CRC-32 of magic number and bitmap. The magic number distinguishes 32-bit
bitmaps, which only Paimon writes, from 64-bit ones.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyroaring import BitMap, BitMap64

from headrace.errors import ReadError, naming
from headrace.matrices import rows_kept
from headrace.model import DataFileInfo, Int64Array, RowGroups, RowRange
from headrace.sources.tables._catalog import store_path
from headrace.storage import Store

VectorBitmap = BitMap | BitMap64

_FRAME_BYTES = 8
"""Number of bytes of the length and the checksum."""
_BITMAPS: dict[bytes, type[BitMap] | type[BitMap64]] = {
    (1581511376).to_bytes(4, "big"): BitMap,
    (1681511377).to_bytes(4, "little"): BitMap64,
}


@dataclass(frozen=True, slots=True)
class DeletionVector:
    """The place of the bitmap of the deleted rows of a data file.

    Attributes:
        path: The file that holds the vector, as the table's metadata names it.
        offset: Where the vector begins in the file.
        length: Number of bytes of the vector.
        cardinality: Number of deleted rows, if the table stores it.
        size: Size of the file in bytes, if the table stores it.
    """

    path: str
    offset: int
    length: int
    cardinality: int | None
    size: int | None = None


def live_count(
    store: Store, vector: DeletionVector | None, file: str, rows: int | None
) -> int | None:
    """Return the number of live rows of a file with ``rows`` rows; read the vector if needed."""
    if vector is None or rows is None:
        return rows
    deleted = vector.cardinality
    if deleted is None:
        deleted = len(read_vector(store, vector))
    if deleted > rows:
        raise ReadError(
            f"{vector.path} deletes {deleted} rows of {file}, which has {rows}: the table "
            "is damaged"
        )
    return rows - deleted


def read_vector(store: Store, vector: DeletionVector) -> VectorBitmap:
    """Read and decode a vector. Only its own bytes are read."""
    where = f"{vector.path}, bytes {vector.offset}-{vector.offset + vector.length}"
    holder = DataFileInfo(store_path(vector.path), vector.size)
    with naming(where), store.open(holder) as source:
        blob = bytes(source.read_at(vector.length, vector.offset))
        if int.from_bytes(blob[:4], "big") == vector.length:
            # Paimon does not count length and checksum of 32-bit vectors.
            blob += bytes(source.read_at(_FRAME_BYTES, vector.offset + vector.length))
    return decode_vector(blob, where)


def decode_vector(blob: bytes, where: str) -> VectorBitmap:
    """Return the bitmap of a deletion vector.

    Raises:
        ReadError: The bytes are not a deletion vector; the message begins with ``where``.
    """
    with naming(f"{where}: no readable deletion vector", ValueError):
        length = int.from_bytes(blob[:4], "big")
        body = blob[4:-4]
        if len(blob) < _FRAME_BYTES + 5 or length != len(body):
            raise ValueError(
                f"its length field says {length + _FRAME_BYTES} bytes, but it has {len(blob)}"
            )
        bitmap = _BITMAPS.get(body[:4])
        if bitmap is None:
            raise ValueError(f"it begins with {body[:4].hex(' ')}")
        if zlib.crc32(body) != int.from_bytes(blob[-4:], "big"):
            raise ValueError("its checksum is wrong")
        return bitmap.deserialize(body[4:])


def deleted_positions(
    bitmap: VectorBitmap, vector: DeletionVector, file: str, rows: int | None
) -> Int64Array:
    """Return the positions in a bitmap, ascending, after checking that they fit the data file.

    A bitmap of a few bytes can stand for billions of rows: it is compared with the numbers in the
    table before it is unpacked.

    Args:
        bitmap: The bitmap.
        vector: The vector from which it was read.
        file: Path of the data file, for messages.
        rows: Number of rows of the data file, if known.
    """
    if vector.cardinality is not None and len(bitmap) != vector.cardinality:
        raise ReadError(
            f"the deletion vector of {file} in {vector.path} has {len(bitmap)} rows, but the "
            f"manifest says {vector.cardinality}: the table is damaged"
        )
    limit = 1 << 63 if rows is None else rows
    if len(bitmap) and bitmap.max() >= limit:
        raise ReadError(
            f"the deletion vector in {vector.path} names row {bitmap.max()} of {file}, which has "
            f"no more than {limit} rows: the table is damaged"
        )
    return np.array(bitmap.to_array(), np.int64)


def stored_range(deleted: Int64Array, live: RowRange) -> RowRange:
    """Return the shortest run of stored rows that holds all of some live rows."""
    before = deleted - np.arange(len(deleted))  # live rows before each deleted one
    first, last = live.offset, live.stop - 1
    start = first + int(np.searchsorted(before, first, side="right"))
    stop = last + int(np.searchsorted(before, last, side="right")) + 1
    return RowRange(start, stop - start)


def live_groups(groups: RowGroups, deleted: Int64Array) -> RowGroups:
    """Return row groups by their live rows, without groups that have none."""
    if not len(deleted):
        return groups
    before = np.searchsorted(deleted, groups.start)
    after = np.searchsorted(deleted, groups.start + groups.rows)
    live = replace(groups, start=groups.start - before, rows=groups.rows - (after - before))
    return live.keep(np.flatnonzero(live.rows).tolist())


def live_rows(table: pa.Table, first_row: int, deleted: Int64Array) -> pa.Table:
    """Return the rows of a table that are not deleted; it begins at ``first_row`` of the file."""
    first, last = np.searchsorted(deleted, [first_row, first_row + table.num_rows])
    if first == last:
        return table
    keep = np.ones(table.num_rows, bool)
    keep[deleted[first:last] - first_row] = False
    return rows_kept(table, keep)
