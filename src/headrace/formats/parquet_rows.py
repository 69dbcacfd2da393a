"""Rows of a Parquet file, decoded in blocks of a bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.formats.cache import BoundedCache
from headrace.model import Int64Array, RowGroups, RowRange
from headrace.storage import will_read

__all__ = ["GroupDecoder", "Opened", "footer_alone", "row_groups"]

_WORTH_THREADS_BYTES = 1 << 20
"""below this, waking threads to decode columns side by side costs more than it saves"""
_SAMPLE_ROWS = 1024
_STREAM_BUFFER_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Opened:
    """A Parquet file, and what it is read from."""

    parquet: pq.ParquetFile
    source: pa.NativeFile
    again: Callable[..., pq.ParquetFile]
    """opens it once more, with arguments of ParquetFile: pyarrow decides when a file is opened
    whether column chunks are read whole or page by page"""


def footer_alone(source: pa.NativeFile) -> pa.BufferReader:
    """The end of a file, which is a file without rows: so no more than the footer is read."""
    size = source.size()
    end = source.read_at(8, max(size - 8, 0))
    if len(end) < 8 or end[4:] not in (b"PAR1", b"PARE"):
        raise pa.ArrowInvalid("Parquet magic bytes not found in footer; it may be cut short")
    length = min(int.from_bytes(end[:4], "little") + 8, size)
    return pa.BufferReader(source.read_at(length, size - length))


def row_groups(footer: pq.FileMetaData) -> RowGroups:
    """The row groups that a footer lists."""
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    return RowGroups.of((g.num_rows for g in groups), (g.total_byte_size for g in groups))


@dataclass(frozen=True, slots=True)
class GroupDecoder:
    """Decodes the wanted columns of one file."""

    opened: Opened
    wanted: pa.Schema
    key: tuple[Any, ...]
    """identity of the file"""

    def tables(self, rows: RowRange | None, block_bytes: int) -> Iterator[pa.Table]:
        """Exactly these rows (None: all), in tables of about ``block_bytes``."""
        parquet = self.opened.parquet
        groups = row_groups(parquet.metadata)
        rows = rows or RowRange(0, parquet.metadata.num_rows)
        leaves = _leaf_columns(parquet.schema_arrow, self.wanted)
        columns = [leaf for leaf, _ in leaves]
        will_read(self.opened.source, self._byte_ranges(_overlapping(groups, rows), columns))
        row_bytes = self._row_bytes(leaves, groups, rows)
        for first, last in _runs_of_groups(groups, rows, row_bytes, block_bytes // 8):
            run = RowRange(int(groups.start[first]), int(groups.rows[first:last].sum()))
            start = max(rows.offset, run.offset) - run.offset
            length = min(rows.stop, run.stop) - run.offset - start
            size = row_bytes * run.length
            if length < run.length or size > 2 * block_bytes:
                batch_rows = int(block_bytes / row_bytes) if row_bytes else run.length
                yield from self._streamed(first, columns, start, length, max(batch_rows, 1))
            else:
                yield parquet.reader.read_row_groups(
                    list(range(first, last)),
                    column_indices=columns,
                    use_threads=size > _WORTH_THREADS_BYTES,
                )

    def _byte_ranges(self, groups: list[int], columns: list[int]) -> Iterator[tuple[int, int]]:
        """Where the column chunks are that will be read."""
        for group in groups:
            stored = self.opened.parquet.metadata.row_group(group)
            for column in columns:
                yield _extent(stored.column(column))

    def _row_bytes(
        self, leaves: list[tuple[int, int | None]], groups: RowGroups, rows: RowRange
    ) -> float:
        """What a row holds once decoded; strings in dictionaries are often far smaller on disk."""
        fixed = sum(width for _, width in leaves if width is not None)
        variable = [leaf for leaf, width in leaves if width is None]
        if not variable:
            return float(fixed)
        if rows.length <= _SAMPLE_ROWS:  # not worth a look
            return fixed + float(groups.size_bytes.sum()) / max(int(groups.rows.sum()), 1)
        key = (*self.key, *variable)
        sampled = _sampled_widths.get(key)
        if sampled is None:
            group = int(np.searchsorted(groups.start, rows.offset, side="right")) - 1
            sampled = self._sample(variable, group)
            _sampled_widths.add(key, sampled, limit_bytes=1 << 20)
        return fixed + sampled

    def _sample(self, columns: list[int], group: int) -> float:
        batches = self._page_by_page().reader.iter_batches(
            _SAMPLE_ROWS, row_groups=[group], column_indices=columns, use_threads=False
        )
        first = next(batches, None)
        return 0.0 if first is None or not first.num_rows else first.nbytes / first.num_rows

    def _streamed(
        self, group: int, columns: list[int], start: int, length: int, batch_rows: int
    ) -> Iterator[pa.Table]:
        """Some rows of one group, piece by piece: a group may be larger than memory."""
        at = 0
        for batch in self._page_by_page().reader.iter_batches(
            batch_rows, row_groups=[group], column_indices=columns, use_threads=True
        ):
            low, high = max(start - at, 0), min(start + length - at, batch.num_rows)
            at += batch.num_rows
            if low < high:
                yield pa.Table.from_batches([batch.slice(low, high - low)])
            if at >= start + length:
                return

    def _page_by_page(self) -> pq.ParquetFile:
        """From the same source: what was announced there is fetched once."""
        return self.opened.again(buffer_size=_STREAM_BUFFER_BYTES)


_sampled_widths: BoundedCache[float] = BoundedCache(lambda width: 100)


def _runs_of_groups(
    groups: RowGroups, wanted: RowRange, row_bytes: float, limit_bytes: int
) -> Iterator[tuple[int, int]]:
    """Runs of row groups to decode together: those wanted whole, while they are small.

    What is decoded together has to be copied together afterwards.
    """
    stop: Int64Array = groups.start + groups.rows
    overlapping = _overlapping(groups, wanted)
    whole = (groups.start >= wanted.offset) & (stop <= wanted.stop)
    first: int | None = None
    size = 0.0
    for group in overlapping:
        own = row_bytes * int(groups.rows[group])
        if first is not None and (not whole[group] or size + own > limit_bytes):
            yield first, group
            first, size = None, 0.0
        if not whole[group]:
            yield group, group + 1
        else:
            first = group if first is None else first
            size += own
    if first is not None:
        yield first, overlapping[-1] + 1


def _overlapping(groups: RowGroups, wanted: RowRange) -> list[int]:
    stop: Int64Array = groups.start + groups.rows
    found: list[int] = np.flatnonzero(
        (stop > wanted.offset) & (groups.start < wanted.stop)
    ).tolist()
    return found


def _extent(column: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """First and last byte of a column chunk; its dictionary comes first, if it has one."""
    start = column.data_page_offset
    if column.has_dictionary_page and 0 < column.dictionary_page_offset < start:
        start = column.dictionary_page_offset
    return start, start + column.total_compressed_size


def _leaf_columns(stored: pa.Schema, wanted: pa.Schema) -> list[tuple[int, int | None]]:
    """The leaves of the wanted columns: their place, for a name may contain dots, and width."""
    leaves: list[tuple[int, int | None]] = []
    names = set(wanted.names)
    place = 0
    for column in stored:
        widths = list(_leaf_widths(column.type, 1))
        if column.name in names:
            leaves.extend(enumerate(widths, start=place))
        place += len(widths)
    return leaves


def _leaf_widths(type_: pa.DataType, times: int | None) -> Iterator[int | None]:
    """Bytes of a row in each leaf of a type; None where that depends on the row."""
    if isinstance(type_, pa.BaseExtensionType):
        yield from _leaf_widths(type_.storage_type, times)
    elif pa.types.is_fixed_size_list(type_):
        inside = None if times is None else times * type_.list_size
        yield from _leaf_widths(type_.value_type, inside)
    elif type_.num_fields and not pa.types.is_dictionary(type_):
        inside = times if pa.types.is_struct(type_) else None
        for i in range(type_.num_fields):
            yield from _leaf_widths(type_.field(i).type, inside)
    elif pa.types.is_primitive(type_) or pa.types.is_fixed_size_binary(type_):
        yield None if times is None else times * max(int(type_.bit_width) // 8, 1)
    else:
        yield None
