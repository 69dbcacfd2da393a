"""Cutting a file into chunks, and comparing what is read of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import pyarrow as pa

from headrace.model import ByteRange, DataFileInfo, FileSplit, RowRange

__all__ = ["assert_same_rows", "cut_chunks", "joined"]


def cut_chunks(file: DataFileInfo, cuts: Sequence[float]) -> list[FileSplit]:
    """Chunks that follow each other and cover the file, cut by rows if they are counted."""
    if file.record_count is not None:
        rows = pairwise(_bounds(0, file.record_count, cuts))
        return [FileSplit(file, RowRange(a, b - a)) for a, b in rows]
    if not file.splittable:
        return [FileSplit(file)]
    assert file.file_size is not None
    spans = pairwise(_bounds(file.body_offset, file.file_size, cuts))
    return [FileSplit(file, byte_range=ByteRange(a, b - a)) for a, b in spans]


def assert_same_rows(got: pa.Table, expected: pa.Table) -> None:
    """Same rows in the same order; columns may be in another order, types that cast safely."""
    assert sorted(got.column_names) == sorted(expected.column_names)
    ordered = got.select(expected.column_names).cast(expected.schema)
    assert ordered.to_pylist() == expected.to_pylist()


def _bounds(start: int, stop: int, cuts: Iterable[float]) -> list[int]:
    return [start, *sorted(start + int(cut * (stop - start)) for cut in cuts), stop]


def joined(tables: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
    """One table; of no tables, one without rows."""
    parts = list(tables)
    return pa.concat_tables(parts) if parts else schema.empty_table()
