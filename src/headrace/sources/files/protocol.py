"""The protocol of a file format, and how formats cut and join the tables that they decode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from headrace.matrices import rows_at
from headrace.model import LARGEST_BLOCKS, DataFileInfo, FileSplit, Int64Array, RowGroups, RowRange
from headrace.storage import Store


@dataclass(frozen=True, slots=True)
class FileFacts:
    """The result of inspecting one file.

    Attributes:
        schema: The file's own columns, without metadata of the schema.
        record_count: See `DataFileInfo`.
        row_groups: All row groups; None if the format has none.
        matching: The row groups that may hold rows for the filter, by the file's own statistics;
            None for all.
        body_offset: See `DataFileInfo`.
        splittable: See `DataFileInfo`.
    """

    schema: pa.Schema
    record_count: int | None = None
    row_groups: RowGroups | None = None
    matching: RowGroups | None = None
    body_offset: int = 0
    splittable: bool = True

    def added_to(self, file: DataFileInfo) -> DataFileInfo:
        """Return a file with these facts, and all row groups."""
        return replace(
            file,
            record_count=self.record_count,
            row_groups=self.row_groups,
            body_offset=self.body_offset,
            splittable=self.splittable,
        )


class Format(Protocol):
    """A file format. Its instances hold only options: they pickle, and any thread may use them."""

    @property
    def name(self) -> str:
        """Name of the format, as users call it."""
        ...

    @property
    def extensions(self) -> tuple[str, ...]:
        """Extensions of its files, with the dot."""
        ...

    def inspect(
        self, store: Store, file: DataFileInfo, keep: ds.Expression | None = None
    ) -> FileFacts:
        """Read metadata: a footer, or a first block.

        ``keep`` is a filter over the file's own columns, with which statistics are compared.
        """
        ...

    def read(
        self, store: Store, chunk: FileSplit, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        """Yield exactly the rows of ``chunk``, in order, in tables of about ``block_bytes`` each.

        ``schema`` names the wanted columns with the types of the data set. Tables hold the wanted
        columns that the file has, in any order, in the file's own types if it has types.
        """
        ...


# --- decoded tables


def in_blocks(tables: Iterable[pa.Table], block_bytes: int) -> Iterator[pa.Table]:
    """Yield the same rows in tables of about ``block_bytes``: small ones joined, large ones cut.

    Joining is only worth its copy for tables that are much smaller than a block.
    """
    enough_bytes = block_bytes // 16
    pending: list[pa.Table] = []
    pending_bytes = 0
    for table in tables:
        if not table.num_rows:
            continue
        size = table.nbytes
        if pending and pending_bytes + size > block_bytes:
            yield _concatenated(pending)
            pending, pending_bytes = [], 0
        if size > LARGEST_BLOCKS * block_bytes:
            yield from _sliced(table, size, block_bytes)
        else:
            pending.append(table)
            pending_bytes += size
            if pending_bytes >= enough_bytes:
                yield _concatenated(pending)
                pending, pending_bytes = [], 0
    if pending:
        yield _concatenated(pending)


def shares_of(wanted: RowRange | None, counts: Int64Array) -> list[tuple[int, int, int]]:
    """Return the groups that hold wanted rows, each with the first and last of these rows in it.

    Args:
        wanted: The rows; None for all.
        counts: The number of rows of each group.

    Raises:
        ValueError: There are fewer rows.
    """
    ends = np.cumsum(counts)
    starts, total = ends - counts, int(counts.sum())
    if wanted is None:
        wanted = RowRange(0, total)
    if wanted.stop > total:
        raise ValueError(f"the file has {total} rows only")
    first, last = np.maximum(starts, wanted.offset), np.minimum(ends, wanted.stop)
    held = np.flatnonzero(first < last)
    begins, stops = first[held] - starts[held], last[held] - starts[held]
    return list(zip(held.tolist(), begins.tolist(), stops.tolist(), strict=True))


def cut_rows(table: pa.Table, first: int, last: int) -> pa.Table:
    """Return rows ``first`` to ``last``; few rows are copied, so that the others can be freed."""
    rows = last - first
    if rows * 2 >= table.num_rows:
        return table.slice(first, rows)
    return rows_at(table, np.arange(first, last))


def rows_only(rows: int) -> pa.Table:
    """Return a table of ``rows`` rows and no column."""
    return pa.table({"": pa.nulls(rows)}).select([])


def _sliced(table: pa.Table, size: int, block_bytes: int) -> Iterator[pa.Table]:
    rows = max(1, table.num_rows * block_bytes // size)
    for start in range(0, table.num_rows, rows):
        yield table.slice(start, rows)


def _concatenated(tables: list[pa.Table]) -> pa.Table:
    """Return all rows without copying them: each table stays a chunk of its own."""
    if len(tables) == 1:
        return tables[0]
    if not tables[0].num_columns:
        return rows_only(sum(table.num_rows for table in tables))
    return pa.concat_tables(tables)
