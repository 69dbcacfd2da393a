"""Pieces: the parts of a lane that one job reads each, with their cost in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from headrace.model import (
    ByteRange,
    Cursor,
    DataFileInfo,
    FileList,
    FileSplit,
    Int64Array,
    RowGroups,
    RowRange,
)
from headrace.plan._chunks import ROWS
from headrace.plan._lanes import Lane, Span

__all__ = ["Piece", "Reading", "RowCost", "lane_pieces", "no_groups", "window_pieces"]


@dataclass(frozen=True, slots=True)
class RowCost:
    """The memory that rows take once decoded.

    Attributes:
        fixed_bytes: Bytes of a row in columns of fixed width.
        variable: Whether there are other columns.
    """

    fixed_bytes: int
    variable: bool

    def of(self, rows: int, size_bytes: int) -> int:
        """Return an estimate for rows that take ``size_bytes`` uncompressed in their file."""
        return rows * self.fixed_bytes + (size_bytes if self.variable else 0)


@dataclass(frozen=True, slots=True)
class Piece:
    """Chunks of one window, which one job reads together.

    Attributes:
        lane: The lane, by its number.
        window: The window, by its number in the lane.
        span: The part of the window that belongs to the lane.
        row: Number of rows of the window before the piece; None if only reading tells.
        chunks: What to read.
        cost_bytes: Estimate of what it holds in memory.
        exact: Whether that is known, and not guessed from the size on disk.
        position: Where in its lane it begins, from 0 to 1, to read lanes side by side.
    """

    lane: int
    window: int
    span: Span
    row: int | None
    chunks: tuple[FileSplit, ...]
    cost_bytes: int
    exact: bool
    position: float


def no_groups(file: DataFileInfo) -> RowGroups | None:
    """Return None: nothing more is known of a file than its description says."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The way in which windows are read.

    Attributes:
        together: Whether a window is one piece; if not, it is one chunk, which may be several.
        counted: Whether the rows that come out of a chunk are known.
        block_bytes: Size of a piece where a window may be several.
        cost: What rows hold in memory.
        by_columns: Whether ``block_bytes`` counts the columns that are read, and not all of them.
        groups_of: Looks into a file whose row groups the plan does not know, if that is cheap.
    """

    together: bool
    counted: bool
    block_bytes: int
    cost: RowCost
    by_columns: bool = False
    groups_of: Callable[[DataFileInfo], RowGroups | None] = no_groups

    def size_of(self, rows: int, size_bytes: int) -> int:
        """Return what rows count for in a piece, if they take ``size_bytes`` in their file."""
        if not self.by_columns:
            return size_bytes
        return min(self.cost.of(rows, size_bytes), max(size_bytes, 1))


def lane_pieces(files: FileList, lane: Lane, reading: Reading, cursor: Cursor) -> Iterator[Piece]:
    """Yield the pieces of a lane from a cursor on, in order."""
    weights = lane.chunks.weights
    starts = np.cumsum(weights) - weights
    total = max(int(weights.sum()), 1)
    for window in range(cursor[0], lane.windows):
        position = int(starts[lane.members(window).start]) / total
        skip = cursor[1] if window == cursor[0] else 0
        yield from window_pieces(files, lane, window, reading, skip=skip, position=position)


def window_pieces(
    files: FileList, lane: Lane, window: int, reading: Reading, *, skip: int, position: float
) -> Iterator[Piece]:
    """Yield the pieces of one window.

    If it is one chunk whose rows are counted, the first ``skip`` of them are not read at all.
    """
    chunks, span, cost = lane.chunks[lane.members(window)], lane.span(window), reading.cost
    if reading.together:
        splits, size_bytes = [], 0
        for at in range(len(chunks)):
            splits.append(chunks.split(at, files))
            size = int(chunks.size_bytes[at])
            is_counted = chunks.kind[at] == ROWS
            size_bytes += cost.of(int(chunks.length[at]), size) if is_counted else size
        exact = chunks.counted and not cost.variable
        yield Piece(lane.index, window, span, None, tuple(splits), size_bytes, exact, position)
        return
    chunk = chunks.split(0, files)
    for split, row, size, exact in _parts(chunk, skip if reading.counted else 0, reading):
        yield Piece(lane.index, window, span, row, (split,), size, exact, position)


def _parts(
    chunk: FileSplit, skip: int, reading: Reading
) -> Iterator[tuple[FileSplit, int | None, int, bool]]:
    """Yield the parts of a chunk with the rows before them, their cost, and if that is exact."""
    block_bytes = reading.block_bytes
    if chunk.byte_range is not None:
        whole = chunk.byte_range
        for start in range(whole.offset, whole.stop, block_bytes):
            text = ByteRange(start, min(block_bytes, whole.stop - start))
            yield FileSplit(chunk.file, byte_range=text), None, text.length, False
    elif chunk.row_range is not None:
        for part, size in _row_parts(chunk.file, chunk.row_range, skip, reading):
            held = min(reading.cost.of(part.length, size), 4 * block_bytes)
            row = part.offset - chunk.row_range.offset if reading.counted else None
            yield FileSplit(chunk.file, row_range=part), row, held, not reading.cost.variable
    else:
        yield chunk, None, 2 * block_bytes, False


def _row_parts(
    file: DataFileInfo, wanted: RowRange, skip: int, reading: Reading
) -> Iterator[tuple[RowRange, int]]:
    """Yield runs of rows that end where row groups do, with their uncompressed bytes."""
    start, stop = wanted.offset + skip, wanted.stop
    groups = reading.groups_of(file) if file.row_groups is None else file.row_groups
    if groups is None:
        if start < stop:
            yield RowRange(start, stop - start), file.file_size or 0
        return
    ends: Int64Array = groups.start + groups.rows
    at, size, counted = start, 0, 0
    for group in np.flatnonzero((ends > start) & (groups.start < stop)).tolist():
        begin, group_bytes = max(int(groups.start[group]), start), int(groups.size_bytes[group])
        more = reading.size_of(int(groups.rows[group]), group_bytes)
        if begin > at and counted + more > reading.block_bytes:
            yield RowRange(at, begin - at), size
            at, size, counted = begin, 0, 0
        size += group_bytes
        counted += more
    if at < stop:
        yield RowRange(at, stop - at), size
