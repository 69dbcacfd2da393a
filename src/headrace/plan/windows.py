"""A lane as a list of jobs: what is read as one, where it begins, what it will hold in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from headrace.model import (
    LARGEST_BLOCKS,
    ByteRange,
    DataFileInfo,
    FileList,
    FileSplit,
    Int64Array,
    RowGroups,
    RowRange,
)
from headrace.plan.chunks import BYTES, ROWS, WHOLE, Chunks
from headrace.plan.lane import Lane, Span

__all__ = ["Piece", "Reading", "RowCost", "lane_pieces", "window_pieces"]


@dataclass(frozen=True, slots=True)
class RowCost:
    """What rows hold in memory once decoded."""

    fixed_bytes: int
    """bytes of a row in columns of fixed width"""
    variable: bool
    """whether there are other columns"""

    def of(self, rows: int, size_bytes: int) -> int:
        """An estimate for rows that take ``size_bytes`` uncompressed in their file."""
        return rows * self.fixed_bytes + (size_bytes if self.variable else 0)


@dataclass(frozen=True, slots=True)
class Piece:
    """What one job reads: chunks of one window, together."""

    lane: int
    window: int
    span: Span
    row: int | None
    """rows of the window that come before it; None: to be counted by who reads in order"""
    chunks: tuple[FileSplit, ...]
    cost_bytes: int
    exact: bool
    """whether that is known, and not only guessed from the size on disk"""
    position: float
    """where in its lane it begins, from 0 to 1, to read lanes side by side"""


def no_groups(file: DataFileInfo) -> RowGroups | None:
    """Leaves files as they are known."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How windows are read."""

    together: bool
    """a window is one piece; else it is one chunk, which may be several"""
    counted: bool
    """whether the rows that come out of a chunk are known"""
    block_bytes: int
    """size of a piece where a window may be several"""
    cost: RowCost
    batch_rows: int = 1
    """rows of a batch: pieces of files that can be cut anywhere end where batches do"""
    by_columns: bool = False
    """whether that is the size of the columns that are read, and not of all"""
    groups_of: Callable[[DataFileInfo], RowGroups | None] = no_groups
    """looks into a file whose row groups the plan does not know, where that costs little"""

    def size_of(self, rows: int, size_bytes: int) -> int:
        """What rows count for in a piece, if they take ``size_bytes`` in their file."""
        if not self.by_columns:
            return size_bytes
        return min(self.cost.of(rows, size_bytes), max(size_bytes, 1))


def lane_pieces(
    files: FileList, lane: Lane, reading: Reading, cursor: tuple[int, int]
) -> Iterator[Piece]:
    """The pieces of a lane from a cursor on, in order."""
    weights = lane.chunks.weights
    starts = np.cumsum(weights) - weights
    total = max(int(weights.sum()), 1)
    begin = None
    for window in range(cursor[0], lane.windows):
        before = int(starts[lane.members(window).start])
        begin = before + cursor[1] if begin is None else begin
        skip = cursor[1] if window == cursor[0] else 0
        yield from window_pieces(
            files,
            lane,
            window,
            reading,
            skip=skip,
            position=before / total,
            before=before,
            read=before + skip - begin,
        )


def window_pieces(
    files: FileList,
    lane: Lane,
    window: int,
    reading: Reading,
    *,
    skip: int,
    position: float,
    before: int = 0,
    read: int = 0,
) -> Iterator[Piece]:
    """The pieces of one window.

    There are so many rows ``before`` it in its lane, of which ``read`` have been read in this pass,
    where that is known: small pieces come first, so that the first batch does not wait for many.
    If it is one chunk whose rows are counted, the first ``skip`` of them are not read at all.
    """
    chunks, members = lane.chunks, lane.members(window)
    if not reading.together:
        skipped = skip if reading.counted else 0
        place = members.start
        yield from _split_window(
            files, lane, window, place, skipped, reading, position, before, read
        )
        return
    places = range(members.start, members.stop)
    splits = tuple(chunks.split(place, files) for place in places)
    size = sum(_cost(chunks, place, reading.cost) for place in places)
    exact = chunks[members].counted and not reading.cost.variable
    yield Piece(lane.index, window, lane.span(window), None, splits, size, exact, position)


def _cost(chunks: Chunks, index: int, cost: RowCost) -> int:
    size = int(chunks.size_bytes[index])
    return cost.of(int(chunks.length[index]), size) if chunks.kind[index] == ROWS else size


def _split_window(
    files: FileList,
    lane: Lane,
    window: int,
    place: int,
    skip: int,
    reading: Reading,
    position: float,
    before: int,
    read: int,
) -> Iterator[Piece]:
    block_bytes, cost = reading.block_bytes, reading.cost
    chunk = lane.chunks.split(place, files)
    kind, span = lane.chunks.kind[place], lane.span(window)
    if kind == WHOLE:
        size = 2 * block_bytes
        yield Piece(lane.index, window, span, None, (chunk,), size, False, position)
    elif kind == BYTES and chunk.byte_range is not None:
        whole = chunk.byte_range
        for start in range(whole.offset, whole.stop, block_bytes):
            text = ByteRange(start, min(block_bytes, whole.stop - start))
            split = FileSplit(chunk.file, byte_range=text)
            size = text.length
            yield Piece(lane.index, window, span, None, (split,), size, False, position)
    elif chunk.row_range is not None:
        wanted = chunk.row_range
        for part, size in _row_parts(chunk, skip, reading, before, read):
            held = min(cost.of(part.length, size), 4 * block_bytes)
            row = part.offset - wanted.offset if reading.counted else None
            split = FileSplit(chunk.file, row_range=part)
            exact = not cost.variable
            yield Piece(lane.index, window, span, row, (split,), held, exact, position)


def _row_parts(
    chunk: FileSplit, skip: int, reading: Reading, before: int, read: int
) -> Iterator[tuple[RowRange, int]]:
    """Runs of rows that end where row groups do, or batches, with their uncompressed bytes."""
    assert chunk.row_range is not None
    start, stop = chunk.row_range.offset + skip, chunk.row_range.stop
    groups = chunk.file.row_groups
    if groups is None:
        groups = reading.groups_of(chunk.file)
    if groups is None:
        if start < stop:
            yield RowRange(start, stop - start), chunk.file.file_size or 0
        return
    ends: Int64Array = groups.start + groups.rows
    found = np.flatnonzero((ends > start) & (groups.start < stop))
    if groups.divisible[found].all() and not reading.cost.variable:
        last = np.minimum(ends[found], stop).tolist()
        yield from _divided(start, last, reading, before + skip, read)
        return
    at, size, counted = start, 0, 0
    for group in found.tolist():
        begin, group_bytes = max(int(groups.start[group]), start), int(groups.size_bytes[group])
        more = reading.size_of(int(groups.rows[group]), group_bytes)
        if begin > at and counted + more > reading.block_bytes:
            yield RowRange(at, begin - at), size
            at, size, counted = begin, 0, 0
        size += group_bytes
        counted += more
    if at < stop:
        yield RowRange(at, stop - at), size


def _divided(
    start: int, ends: list[int], reading: Reading, before: int, read: int
) -> Iterator[tuple[RowRange, int]]:
    """Whole groups, of which these are the ends; large ones are cut where batches end.

    A cut within a group makes a read of each column out of one read. What is only copied makes more
    work by the piece than by the byte: pieces grow with what was read before them.
    """
    row_bytes = max(reading.cost.fixed_bytes, 1)
    block_rows = max(reading.block_bytes // row_bytes, 1)
    at = done = start
    for end in ends:
        most = min(max(read + at - start, block_rows), LARGEST_BLOCKS * block_rows)
        if end - at > most and done > at:
            yield RowRange(at, done - at), (done - at) * row_bytes
            at = done
        if end - at > most:
            for rows in _in_batches(end - at, most, reading.batch_rows, before + at - start):
                yield RowRange(at, rows), rows * row_bytes
                at += rows
        done = end
    if at < done:
        yield RowRange(at, done - at), (done - at) * row_bytes


def _in_batches(rows: int, most: int, batch: int, before: int) -> Iterator[int]:
    """Numbers of rows that end where batches do, with so many rows before them."""
    batch = batch if batch <= most else 1
    while rows:
        some = min((before + most) // batch * batch - before, rows)
        yield some
        rows -= some
        before = (before + some) % batch
