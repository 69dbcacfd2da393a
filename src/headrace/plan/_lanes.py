"""Chunks, and lanes: ordered chunks in windows, whose rows are permuted together."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from headrace.errors import OptionError
from headrace.model import (
    START,
    ByteRange,
    Cursor,
    DataFileInfo,
    FileList,
    FileSplit,
    Int64Array,
    RowGroups,
    RowRange,
    Split,
)

ROWS, BYTES, WHOLE = 0, 1, 2
"""Kinds of chunks: bounded by rows, bounded by bytes of text, or a whole file."""
_GENERATION = 1 << 32


@dataclass(frozen=True, slots=True)
class Chunks:
    """An ordered list of chunks, as columns."""

    file: Int64Array
    """Index of the file of each chunk in the file list."""
    offset: Int64Array
    """First row or byte of each chunk."""
    length: Int64Array
    """Number of rows or bytes of each chunk; for a whole file its size in bytes."""
    kind: npt.NDArray[np.int8]
    size_bytes: Int64Array
    """Uncompressed bytes of all columns, estimated where a chunk cuts through a row group."""

    def __len__(self) -> int:
        return len(self.file)

    def __getitem__(self, index: slice | Int64Array) -> Chunks:
        return Chunks(*map(itemgetter(index), self.columns))

    @property
    def columns(self) -> tuple[npt.NDArray[Any], ...]:
        """The columns, in the order of the fields."""
        return self.file, self.offset, self.length, self.kind, self.size_bytes

    @property
    def counted(self) -> bool:
        """True if the number of rows of every chunk is known."""
        return bool((self.kind == ROWS).all())

    @property
    def weights(self) -> Int64Array:
        """Weights by which lanes are balanced: rows if all are known, else bytes."""
        if self.counted:
            return self.length
        return np.maximum(np.where(self.kind == ROWS, self.size_bytes, self.length), 1)

    def split(self, index: int, files: FileList) -> FileSplit:
        """Return one chunk as an object."""
        file = files[int(self.file[index])]
        offset, length = int(self.offset[index]), int(self.length[index])
        kind = self.kind[index]
        if kind == WHOLE:
            return FileSplit(file)
        if kind == BYTES:
            return FileSplit(file, byte_range=ByteRange(offset, length))
        return FileSplit(file, row_range=RowRange(offset, length))

    @classmethod
    def concat(cls, parts: list[Chunks]) -> Chunks:
        """Return the chunks of several lists, one list after the other."""
        return cls(*map(np.concatenate, zip(*(part.columns for part in parts), strict=True)))

    @classmethod
    def empty(cls) -> Chunks:
        """Return a list of no chunks."""
        none = np.empty(0, np.int64)
        return cls(none, none, none, np.empty(0, np.int8), none)


def share_of(size_bytes: Int64Array, part: Int64Array, whole: Int64Array) -> Int64Array:
    """Return the bytes of a part, computed in floats because integer products may overflow."""
    share: Int64Array = (size_bytes * (part / np.maximum(whole, 1))).astype(np.int64)
    return share


@dataclass(frozen=True, slots=True)
class Grouping:
    """The way in which the chunks of a lane form windows, and their rows are permuted.

    Attributes:
        mix: Number of chunks in a window, whose rows are permuted together if there are several.
        interleave: Number of files that give one chunk each to a window, whose rows are taken in
            turn.
        permuted: True if the rows of a window of a single chunk are permuted, too.
    """

    mix: int = 1
    interleave: int = 1
    permuted: bool = False

    @property
    def reorders(self) -> bool:
        """True if the rows of a window come in another order than they stand in."""
        return self.permuted or self.mix > 1 or self.interleave > 1

    def of(self, file: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the order in which chunks of these files are read, and the window of each."""
        if self.interleave > 1:
            return _in_turn(file, self.interleave)
        places = np.arange(len(file))
        return places, places // self.mix


def _in_turn(file: Int64Array, width: int) -> tuple[Int64Array, Int64Array]:
    """Return windows of one chunk from each of ``width`` files, replacing files that end."""
    chunks_of: dict[int, deque[int]] = {}
    for place, index in enumerate(file.tolist()):
        chunks_of.setdefault(index, deque()).append(place)
    waiting = deque(chunks_of.values())
    order: list[int] = []
    window: list[int] = []
    opened: list[deque[int]] = []
    number = 0
    while waiting or opened:
        while waiting and len(opened) < width:
            opened.append(waiting.popleft())
        order.extend(chunks.popleft() for chunks in opened)
        window.extend([number] * len(opened))
        opened = [chunks for chunks in opened if chunks]
        number += 1
    return np.asarray(order, np.int64), np.asarray(window, np.int64)


@dataclass(frozen=True, slots=True)
class Span:
    """The rows of a window that belong to a lane, and the key of their order."""

    key: tuple[int, int]
    """Coordinates of the window's permutation."""
    start: int = 0
    """Number of rows of the window that were delivered before the lane began."""
    stop: int | None = None
    """Row of the window at which the span ends; None for the end of the window."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows that follow each other, of one chunk or of a permuted window (with a span)."""

    chunks: Chunks
    span: Span | None = None

    @property
    def rows(self) -> int:
        """Number of rows; a span must have an end."""
        if self.span is None or self.span.stop is None:
            return int(self.chunks.length.sum())
        return self.span.stop - self.span.start

    def split(self, rows: int) -> tuple[Segment, Segment]:
        """Return the first rows as one segment, and all others as another."""
        if self.span is None:
            return Segment(sliced(self.chunks, 0, rows)), Segment(sliced(self.chunks, rows, None))
        middle = self.span.start + rows
        head, tail = replace(self.span, stop=middle), replace(self.span, start=middle)
        return Segment(self.chunks, head), Segment(self.chunks, tail)


def sliced(chunk: Chunks, start: int, stop: int | None) -> Chunks:
    """Return some rows of a single chunk."""
    length = (chunk.length if stop is None else np.full_like(chunk.length, stop)) - start
    size = share_of(chunk.size_bytes, length, chunk.length)
    return replace(chunk, offset=chunk.offset + start, length=length, size_bytes=size)


def take_first_rows(line: deque[Segment], rows: int) -> list[Segment]:
    """Take the first rows off some segments."""
    taken: list[Segment] = []
    while rows:
        first = line.popleft()
        if first.rows > rows:
            first, rest = first.split(rows)
            line.appendleft(rest)
        rows -= first.rows
        taken.append(first)
    return taken


@dataclass(frozen=True, slots=True)
class Lane:
    """A lane of the plan of an epoch."""

    index: int
    chunks: Chunks
    window: Int64Array
    """Window of each chunk; ascending, without gaps."""
    spans: Mapping[int, Span]
    """Spans of windows that are not whole windows of this plan, by window."""
    generation: int = 0
    """Number of times that the epoch was planned anew."""

    @property
    def windows(self) -> int:
        """Number of windows."""
        return int(self.window[-1]) + 1 if len(self.window) else 0

    @property
    def end(self) -> Cursor:
        """The cursor behind its last row."""
        return Cursor(self.windows)

    def members(self, window: int) -> slice:
        """Return the chunks of a window."""
        first, last = np.searchsorted(self.window, [window, window + 1])
        return slice(int(first), int(last))

    def span(self, window: int) -> Span:
        """Return the lane's part of a window: all of it, unless ``spans`` has another."""
        known = self.spans.get(window)
        return known or Span((self.generation * _GENERATION + self.index, window))

    def divide(self, rows: int, reorders: bool) -> tuple[Lane, list[Segment]]:
        """Split the lane after ``rows`` rows, all of which must be counted.

        Args:
            rows: Number of rows that stay.
            reorders: True if the rows of windows are permuted.
        """
        at = self.cursor_after(rows)
        at_its_end = self.rows_left(at) == self.rows_left(Cursor(at.window + 1))
        cut = at.window + at_its_end
        first = self.members(cut).start
        spans = {window: span for window, span in self.spans.items() if window < cut}
        head = replace(self, chunks=self.chunks[:first], window=self.window[:first], spans=spans)
        rest = deque[Segment]()
        for window in range(cut, self.windows):
            chunks, span = self.chunks[self.members(window)], self.span(window)
            if span.stop is None:
                span = replace(span, stop=int(chunks.length.sum()))
            in_order = not reorders and window not in self.spans
            rest.append(Segment(chunks, None if in_order else span))
        kept = take_first_rows(rest, rows - head.rows_left())
        return head.extended(kept), list(rest)

    def extended(self, segments: Iterable[Segment]) -> Lane:
        """Return the lane with more rows at its end: every segment is a window of its own."""
        chunks, windows, spans = [self.chunks], [self.window], dict(self.spans)
        for number, segment in enumerate(segments, start=self.windows):
            chunks.append(segment.chunks)
            windows.append(np.full(len(segment.chunks), number, np.int64))
            if segment.span is not None:
                spans[number] = segment.span
        window = np.concatenate(windows)
        return replace(self, chunks=Chunks.concat(chunks), window=window, spans=spans)

    def rows_left(self, cursor: Cursor = START) -> int:
        """Return the number of rows behind a cursor, where all rows are counted."""
        rows = int(self._window_rows()[cursor[0] :].sum())
        return rows - max(cursor[1] - self.span(cursor[0]).start, 0)

    def cursor_after(self, rows: int) -> Cursor:
        """Return the cursor behind the first ``rows`` rows, where all rows are counted."""
        if rows <= 0:
            return Cursor()
        sizes = self._window_rows()
        ends = np.cumsum(sizes)
        window = min(int(np.searchsorted(ends, rows)), len(ends) - 1)
        before = int(ends[window] - sizes[window])
        return Cursor(window, rows - before + self.span(window).start)

    def _window_rows(self) -> Int64Array:
        """Return the number of rows that the lane has of each window, where all are counted."""
        first = np.flatnonzero(np.diff(self.window, prepend=-1))
        rows: Int64Array = np.add.reduceat(self.chunks.length, first) if len(first) else first
        for window, span in self.spans.items():
            rows[window] = (rows[window] if span.stop is None else span.stop) - span.start
        return rows


@dataclass(frozen=True, slots=True)
class Plan(Sequence[Split]):
    """The lanes of one epoch; a sequence of their Splits, which are made on request."""

    files: FileList
    chunks: Chunks
    """Chunks of all lanes, lane after lane."""
    bounds: Int64Array
    """Bounds of the lanes: lane l has the chunks from bounds[l] to bounds[l + 1]."""
    window: Int64Array
    """Window of each chunk, counted in its lane."""
    spans: Mapping[tuple[int, int], Span] = field(default_factory=dict)
    """Spans of windows that are not whole windows of this plan, by lane and window."""
    generation: int = 0
    """Number of times that the rest of the epoch was planned anew."""
    dropped_rows: int = 0
    """Number of rows left out, so that all ranks take the same number of steps."""
    same_rows: tuple[int, ...] = ()
    """Number of rows at the start of each lane that were not moved for the ranks; empty for all."""
    repeats: tuple[tuple[int, int], ...] = ()
    """Lane and window of each run of rows that is repeated."""

    @classmethod
    def of(cls, files: FileList, chunks: Chunks, bounds: Int64Array) -> Plan:
        """Return lanes in which every chunk is a window."""
        places = np.arange(len(chunks)) - np.repeat(bounds[:-1], np.diff(bounds))
        return cls(files, chunks, bounds, places)

    @classmethod
    def of_lanes(cls, files: FileList, lanes: Sequence[Lane]) -> Plan:
        """Return the plan of some lanes."""
        return cls(
            files,
            Chunks.concat([lane.chunks for lane in lanes]),
            np.cumsum([0, *(len(lane.chunks) for lane in lanes)]),
            np.concatenate([lane.window for lane in lanes]),
            {(lane.index, at): span for lane in lanes for at, span in lane.spans.items()},
            lanes[0].generation,
        )

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def lanes(self) -> list[Lane]:
        """All lanes."""
        return [self.lane(index) for index in range(len(self))]

    def lane(self, index: int) -> Lane:
        """Return one lane with its windows."""
        mine = slice(self.bounds[index], self.bounds[index + 1])
        spans = dict[int, Span]()
        for (lane, window), span in self.spans.items():
            if lane == index:
                spans[window] = span
        return Lane(index, self.chunks[mine], self.window[mine], spans, self.generation)

    def repeated_rows(self, rank: int, ranks: int) -> int:
        """Return the number of repeated rows in the lanes of a rank."""
        mine = [(self.lane(lane), window) for lane, window in self.repeats if lane % ranks == rank]
        return sum(int(lane.chunks.length[lane.members(window)].sum()) for lane, window in mine)

    def grouped(self, grouping: Grouping) -> Plan:
        """Return the same lanes, in which every chunk is a window, with larger windows."""
        if grouping.interleave == 1:
            return replace(self, window=self.window // grouping.mix)
        order, window = self.window.copy(), self.window.copy()
        for first, last in zip(self.bounds[:-1], self.bounds[1:], strict=True):
            places, window[first:last] = grouping.of(self.chunks.file[first:last])
            order[first:last] = first + places
        return replace(self, chunks=self.chunks[order], window=window)

    def shard(self, index: int, count: int) -> Split:
        """Return the chunks of reader ``index`` of ``count``, for readers that do not use lanes.

        Its chunks are those of the lanes ``l`` with ``l % count == index``.
        """
        if not 0 <= index < count:
            raise OptionError(f"there is no shard {index} of {count}")
        if len(self) % count:
            raise OptionError(
                f"{len(self)} lanes cannot be shared evenly by {count}; plan(lanes={count}) can"
            )
        mine = self[index::count]
        chunks = [chunk for split in mine for chunk in split.file_splits]
        rows = [split.row_count for split in mine if split.row_count is not None]
        size = sum(split.size_bytes or 0 for split in mine)
        return Split(index, chunks, sum(rows) if len(rows) == len(mine) else None, size)

    @overload
    def __getitem__(self, index: int) -> Split: ...
    @overload
    def __getitem__(self, index: slice) -> list[Split]: ...
    def __getitem__(self, index: int | slice) -> Split | list[Split]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"lane {index} of {len(self)}")
        chunks = self.lane(index % len(self)).chunks
        return Split(
            id=index % len(self),
            file_splits=[chunks.split(i, self.files) for i in range(len(chunks))],
            row_count=int(chunks.length.sum()) if chunks.counted else None,
            size_bytes=int(chunks.size_bytes.sum()),
        )

    def digest(self) -> str:
        """Return a short digest of the chunks of every lane, in order, and of their windows."""
        made = hashlib.sha256()
        chunks = self.chunks
        columns = (chunks.file, chunks.offset, chunks.length, chunks.kind, self.bounds, self.window)
        for column in columns:
            made.update(np.ascontiguousarray(column, "<i8").data)
        return made.hexdigest()[:12]

    @property
    def row_count(self) -> int | None:
        """Number of rows of all lanes before filtering; None if it is not known."""
        return int(self.chunks.length.sum()) if self.chunks.counted else None


# --- Pieces: the parts of a lane that one job reads each, with their cost in memory


@dataclass(frozen=True, slots=True)
class RowCost:
    """The memory that decoded rows take.

    Attributes:
        fixed_bytes: Bytes of a row in columns of fixed width.
        variable: True if there are other columns.
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
        lane: Number of the lane.
        window: Number of the window in the lane.
        span: The part of the window that belongs to the lane.
        row: Number of rows of the window before the piece; None if it is not known.
        chunks: The chunks to read.
        cost_bytes: Estimate of the memory that the piece takes.
        exact: True if this is known; False if it is estimated from the size on disk.
        position: Where the piece begins in its lane, from 0 to 1, to read lanes side by side.
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
    """Return None: the row groups of a file are not known beyond its description."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The way in which windows are read.

    Attributes:
        together: True if a window is read as one piece. If False, every window is a single chunk,
            which may be read in several pieces.
        counted: True if the number of rows that come out of a chunk is known.
        block_bytes: Size of a piece of a window that is read in several pieces.
        cost: The memory that rows take.
        by_columns: True if ``block_bytes`` counts only the columns that are read.
        groups_of: Returns the row groups of a file that the plan does not know, if this is cheap.
    """

    together: bool
    counted: bool
    block_bytes: int
    cost: RowCost
    by_columns: bool = False
    groups_of: Callable[[DataFileInfo], RowGroups | None] = no_groups


def lane_pieces(lane: Lane, cursor: Cursor, files: FileList, reading: Reading) -> Iterator[Piece]:
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
    """Yield each part of a chunk, the rows before it, its cost, and True if the cost is exact."""
    block_bytes = reading.block_bytes
    if chunk.byte_range is not None:
        whole = chunk.byte_range
        for start in range(whole.offset, whole.stop, block_bytes):
            text = ByteRange(start, min(block_bytes, whole.stop - start))
            yield FileSplit(chunk.file, byte_range=text), None, text.length, False
    elif chunk.row_range is not None:
        for part, size in _row_runs(chunk.file, chunk.row_range, skip, reading):
            held = min(reading.cost.of(part.length, size), 4 * block_bytes)
            row = part.offset - chunk.row_range.offset if reading.counted else None
            yield FileSplit(chunk.file, row_range=part), row, held, not reading.cost.variable
    else:
        yield chunk, None, 2 * block_bytes, False


def _row_runs(
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
        more = group_bytes  # how much of a piece the group fills
        if reading.by_columns:
            held = reading.cost.of(int(groups.rows[group]), group_bytes)
            more = min(held, max(group_bytes, 1))
        if begin > at and counted + more > reading.block_bytes:
            yield RowRange(at, begin - at), size
            at, size, counted = begin, 0, 0
        size += group_bytes
        counted += more
    if at < stop:
        yield RowRange(at, stop - at), size
