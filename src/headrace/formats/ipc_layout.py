"""Where the record batches of Arrow IPC files are, found out once for each version of a file."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from headrace.formats.cache import BoundedCache
from headrace.formats.ipc_footer import FILE_MAGIC, Batch, Blocks, file_batches, file_blocks
from headrace.formats.ipc_rows import FixedColumns, Share
from headrace.model import DataFileInfo, Int64Array
from headrace.storage import Store

__all__ = [
    "Layout",
    "batch_rows",
    "has_footer",
    "layout_of",
    "other_rows",
    "places_of",
    "seen",
    "stands_alone",
]

_FEATHER_V1_MAGIC = b"FEA1"
_KNOWN_BYTES = 32 << 20
_MOST_PLACES = 200_000


@dataclass(frozen=True, slots=True)
class Layout:
    """What the footer of a file tells."""

    schema: pa.Schema
    blocks: Blocks
    fixed: FixedColumns | None
    """in a file of this machine that has no other columns, and can be read by us"""
    rows: Int64Array | None = None
    """of each batch, where all were looked at"""
    places: Int64Array | None = None
    """of each batch, if none has more to it than values, and they are not too many to be kept"""

    @property
    def nbytes(self) -> int:
        known = 0 if self.places is None else self.places.nbytes
        return 1000 + 300 * len(self.schema) + 208 * len(self.blocks.batches) + known


def stands_alone(blocks: Blocks) -> bool:
    """Whether a batch needs no reader, who knows dictionaries and swaps bytes."""
    return blocks.little_endian == (sys.byteorder == "little") and not blocks.dictionaries


def layout_of(store: Store, file: DataFileInfo, source: pa.NativeFile) -> Layout | None:
    """That of a file, read once if it is known which version of it this is; None for a stream."""
    known = None if file.etag is None else _known.get(_key(store, file))
    if known is None and has_footer(source):
        known = seen(store, file, source, file_blocks(source), None)
    return known


def seen(
    store: Store,
    file: DataFileInfo,
    source: pa.NativeFile,
    blocks: Blocks,
    batches: list[Batch] | None,
) -> Layout:
    """The layout of a file, of which all batches may have been looked at; it is kept."""
    schema = ipc.open_file(source).schema
    fixed = None
    if _descriptor(source) is not None and stands_alone(blocks):
        fixed = FixedColumns.of(schema)
    layout = Layout(schema, blocks, fixed)
    if batches is not None:
        layout = _with_places(layout, batches)
    if file.etag is not None:
        _known.add(_key(store, file), layout, limit_bytes=_KNOWN_BYTES)
    return layout


def _with_places(layout: Layout, batches: list[Batch]) -> Layout:
    rows = np.array([batch.rows for batch in batches], np.int64)
    if layout.fixed is None:
        return replace(layout, rows=rows)
    found = [layout.fixed.places(batch) for batch in batches]
    if None in found:
        return replace(layout, rows=rows)
    few = len(found) * len(layout.schema) <= _MOST_PLACES
    places = np.array(found, np.int64).reshape(-1, len(layout.schema)) if few else None
    return replace(layout, rows=rows, places=places)


def _descriptor(source: pa.NativeFile) -> int | None:
    """By which the system knows a file of this machine, if it has a call to read parts of it."""
    if not (isinstance(source, pa.OSFile) and hasattr(os, "preadv")):
        return None
    try:
        return int(source.fileno())
    except AttributeError:  # of pyarrow itself, in some versions
        return None


def _key(store: Store, file: DataFileInfo) -> tuple[object, ...]:
    return store.identity, file.path, file.file_size, file.etag


_known: BoundedCache[Layout] = BoundedCache(lambda layout: layout.nbytes)


def has_footer(source: pa.NativeFile) -> bool:
    """Whether it is a file and not a stream."""
    magic = source.read_at(6, 0)
    if magic[:4] == _FEATHER_V1_MAGIC:
        raise ValueError(
            "it is a Feather V1 file, which is not read; write it again as Feather V2, "
            "with pyarrow.feather.write_feather(table, path, version=2)"
        )
    return bool(magic == FILE_MAGIC)


def places_of(
    source: pa.NativeFile, layout: Layout, shares: list[Share], counts: Int64Array
) -> dict[int, list[int]] | None:
    """Where the values of some batches are; None if there is more to one of them."""
    if layout.fixed is None:
        return None
    numbers = [number for number, _, _ in shares]
    if layout.places is not None:
        return dict(zip(numbers, layout.places[numbers].tolist(), strict=True))
    found: dict[int, list[int]] = {}
    batches = file_batches(source, [layout.blocks.batches[number] for number in numbers])
    for number, batch in zip(numbers, batches, strict=True):
        places = layout.fixed.places(batch)
        if batch.rows != counts[number]:
            raise other_rows(number, batch.rows, int(counts[number]))
        if places is None:
            return None
        found[number] = places
    return found


def batch_rows(source: pa.NativeFile, file: DataFileInfo, layout: Layout) -> Int64Array:
    """Rows of each batch: as inspected, if that was all of the file, else as each says."""
    groups, batches, rows = file.row_groups, layout.blocks.batches, layout.rows
    if groups is None or len(groups) != len(batches) or groups.rows.sum() != file.record_count:
        if rows is not None:
            return rows
        return np.array([batch.rows for batch in file_batches(source, batches)], np.int64)
    if rows is not None and not np.array_equal(rows, groups.rows):
        index = int(np.argmax(rows != groups.rows))
        raise other_rows(index, int(rows[index]), int(groups.rows[index]))
    return groups.rows


def other_rows(index: int, found: int, expected: int) -> ValueError:
    return ValueError(f"record batch {index} has {found} rows and not {expected}")
