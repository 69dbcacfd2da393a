"""Lanes of chunks to runs of batches: the stages of the flow, put together."""

from __future__ import annotations

import heapq
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Protocol

import pyarrow as pa

from headrace.convert import Block, Converter
from headrace.convert.blocks import Permuted
from headrace.convert.decoded import Kind, Kinds
from headrace.errors import ConversionError, ReadError
from headrace.loader.stats import Stats
from headrace.matrices import width_of
from headrace.model import (
    NOWHERE,
    START,
    Cursor,
    DataFileInfo,
    FileList,
    FileSplit,
    Int64Array,
    RowGroups,
)
from headrace.plan import (
    ROW_ORDER,
    Grouping,
    Lane,
    Piece,
    Reading,
    RowCost,
    lane_pieces,
    no_groups,
    permutation,
    taking_turns,
    window_pieces,
)
from headrace.sources.crew import usable_cores
from headrace.sources.files.failures import may_be_skipped
from headrace.sources.reader import TabularReader
from headrace.storage import Meter, Patience, side_by_side
from headrace.stream import Job, Located, Pace, ReadAhead, Run, cut

__all__ = [
    "Chosen",
    "Finish",
    "LaneStart",
    "OpenLanes",
    "Pipeline",
    "Stream",
    "row_cost",
    "sent_cost",
]


def sent_cost(schema: pa.Schema, kinds: Kinds) -> RowCost:
    """The same once batches are made of them: what is lent has been copied by then."""
    held = row_cost(schema)
    lent = any(kinds.get(name) is Kind.LENT for name in schema.names)
    return RowCost(held.fixed_bytes, held.variable or lent)


def row_cost(schema: pa.Schema) -> RowCost:
    """Return what a row of these columns holds in memory once decoded."""
    widths = [width_of(field.type) for field in schema]
    return RowCost(sum(w for w in widths if w is not None), any(w is None for w in widths))


@dataclass(frozen=True, slots=True)
class LaneStart:
    """A lane of an epoch, and where in it to begin."""

    lane: Lane
    cursor: Cursor = START
    jobs_ahead: int | None = None

    @property
    def index(self) -> int:
        """The lane's number, by which its runs are asked for."""
        return self.lane.index

    def pieces(self, files: FileList, reading: Reading) -> Iterator[Piece]:
        """What is to be read, in order."""
        return lane_pieces(files, self.lane, reading, self.cursor)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Some windows of a lane, from the first row of each."""

    lane: Lane
    windows: tuple[int, ...]
    cursor: Cursor = NOWHERE
    jobs_ahead: int | None = None

    @property
    def index(self) -> int:
        """The lane's number."""
        return self.lane.index

    def pieces(self, files: FileList, reading: Reading) -> Iterator[Piece]:
        """Return what is to be read, in order."""
        for place, window in enumerate(self.windows):
            position = place / len(self.windows)
            yield from window_pieces(files, self.lane, window, reading, skip=0, position=position)


class Stream(Protocol):
    """Windows that are delivered one after the other: a lane, or what is taken of several."""

    @property
    def index(self) -> int: ...
    @property
    def cursor(self) -> Cursor: ...
    @property
    def jobs_ahead(self) -> int | None:
        """Pieces that may be begun at a time; None: as many as do good."""
        ...

    def pieces(self, files: FileList, reading: Reading) -> Iterator[Piece]: ...


Spread = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""``map``, or a function that does the same in several threads."""
BLOCK_BYTES = 16 << 20
_WINDOW_IN_ONE_PART = 64 << 20
"""Size of a window up to which its rows are taken from all of it at once."""
_PART_BYTES = 32 << 20
_MAX_THREADS = 4
_WAITING_THREADS = 16
"""that wait for bytes from elsewhere: decoding is bounded by the threads of Arrow"""


@dataclass(frozen=True, slots=True)
class Finish:
    """The user's functions, which are applied to each batch."""

    transform: Callable[[Any], Any] | None
    collate_fn: Callable[[Any], Any] | None

    def __call__(self, batch: Any) -> Any:
        if self.transform is not None:
            batch = self.transform(batch)
        return batch if self.collate_fn is None else self.collate_fn(batch)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """How chunks become batches, apart from which chunks they are. Pickles."""

    reader: TabularReader
    converter: Converter
    batch_size: int
    drop_last: bool
    seed: int
    grouping: Grouping
    counted: bool
    """whether the rows of a chunk are known before it is read"""
    skip_broken: bool
    prefetch_bytes: int
    pin_memory: bool = False

    def sharing(self, consumers: int) -> Pipeline:
        """The same for one of several processes that share the memory of the whole."""
        reader = self.reader.keeping(self.reader.source.cache_bytes // consumers)
        return replace(self, reader=reader, prefetch_bytes=max(self.prefetch_bytes // consumers, 1))

    def open(
        self, files: FileList, streams: Sequence[Stream], epoch: int, stats: Stats
    ) -> OpenLanes:
        """Lanes to be read side by side; threads start when the first run is asked for."""
        return OpenLanes(self, files, streams, epoch, stats)

    @property
    def reading(self) -> Reading:
        """How windows are read."""
        return Reading(
            self.grouping.reorders,
            self.counted,
            self.block_bytes,
            row_cost(self.reader.read_schema),
            by_columns=not self.reader.store.local,  # larger jobs have fewer requests
            groups_of=self._groups_of if self.reader.store.local else no_groups,
        )

    def _groups_of(self, file: DataFileInfo) -> RowGroups | None:
        try:
            return self.reader.source.row_groups(file)
        except ReadError:  # who reads it will say so
            return None

    @property
    def block_bytes(self) -> int:
        """Size of the blocks that are decoded at once: some of them must fit the budget."""
        return max(min(BLOCK_BYTES, self.prefetch_bytes // 4), 1 << 16)


class OpenLanes:
    """Some lanes of an epoch while they are read. Close it, or its threads stay."""

    def __init__(
        self,
        pipeline: Pipeline,
        files: FileList,
        streams: Sequence[Stream],
        epoch: int,
        stats: Stats,
    ) -> None:
        self._pipeline = pipeline
        self._epoch = epoch
        self._stats = stats
        self._streams = {stream.index: stream for stream in streams}
        self._beside: set[threading.Thread] = set()  # they outlive a window that fails
        self._counting = threading.Lock()
        self._windows_being_made = 0
        store = pipeline.reader.store
        self._meter, self._patience = Meter(), Patience()
        store = store.during(self._meter, self._patience)
        self._reader = pipeline.reader.through(store)
        self._row_cost = row_cost(pipeline.reader.schema)
        self._cores = cores = min(_MAX_THREADS, usable_cores())
        threads = cores if store.local else _WAITING_THREADS
        self._pace = Pace(cores, first=threads // 2, most=threads)
        pieces = heapq.merge(
            *(stream.pieces(files, pipeline.reading) for stream in streams),
            key=lambda piece: piece.position,
        )
        self._ahead: ReadAhead[Piece, Block] = ReadAhead(
            (self._job(piece) for piece in pieces),
            self._blocks,
            size_of=lambda block: block.nbytes,
            budget_bytes=pipeline.prefetch_bytes,
            threads=threads,
            most_jobs=self._most_jobs,
            give_up=self._patience.give_up,
        )

    def _most_jobs(self) -> int | None:
        """To be further ahead than needed gains nothing, and fresh memory costs much."""
        for stream in self._streams.values():
            if stream.jobs_ahead is not None:
                return stream.jobs_ahead
        if not self._reader.store.local:
            return len(self._streams) + self._pace.jobs
        if self._pipeline.grouping.reorders:
            return None
        return len(self._streams) + self._cores + 1

    def _job(self, piece: Piece) -> Job[Piece, Block]:
        """From elsewhere bytes come first, and are held until they have been decoded."""
        cost = piece.cost_bytes
        if not self._reader.store.local:
            cost += cost // 2
        return Job(piece.lane, piece, cost, piece.exact)

    def runs(self, lane: int) -> Iterator[Run[Block]]:
        """The runs of batches of one lane, from its start on."""
        return cut(
            self._located(self._streams[lane]),
            self._pipeline.batch_size,
            concat=self._joined,
            drop_last=self._pipeline.drop_last,
        )

    def rows_of_windows(self, lane: int) -> Counter[int]:
        """Read one lane to its end and return the number of rows of each of its windows."""
        counts: Counter[int] = Counter()
        for located in self._located(self._streams[lane]):
            counts[located.window] += located.block.num_rows
        return counts

    def close(self) -> None:
        """Stop reading; returns when no thread is left."""
        self._ahead.close()
        for thread in list(self._beside):
            thread.join()
        self._stats.stored(self._meter.drain())
        self._stats.spend("wait", self._ahead.waited_s)
        self._ahead.waited_s = 0.0

    def _located(self, stream: Stream) -> Iterator[Located[Block]]:
        """A lane's blocks with their place; rows that are not its own, or were, are cut off."""
        window, row = stream.cursor[0], 0
        current: Piece | None = None
        for piece, block in self._ahead.blocks(stream.index):
            if piece.window != window:
                window, row = piece.window, 0
            if piece is not current and piece.row is not None:
                row = piece.row
            current = piece
            behind = piece.span.start
            if piece.row is None and window == stream.cursor[0]:
                behind = max(behind, stream.cursor[1])
            first = min(max(behind - row, 0), block.num_rows)
            last = block.num_rows
            if piece.span.stop is not None:
                last = max(min(last, piece.span.stop - row), first)
            if first < last:
                cut_off = last - first < block.num_rows
                rest = block.slice(first, last - first) if cut_off else block
                yield Located(rest, window, row + first)
            row += block.num_rows

    def _blocks(self, piece: Piece) -> Iterator[Block]:
        """What a thread does with a piece: decode, convert, bring into order."""
        if not self._pipeline.grouping.reorders:
            for chunk in piece.chunks:
                yield from map(self._pinned, self._converted(chunk))
            return
        with self._counting:
            self._windows_being_made += 1
            beside = self._windows_being_made
        try:
            # Cores that other windows use are left to them.
            threads = max(self._cores // beside, 1)
            spread = partial(_spread, threads if self._reader.store.local else _WAITING_THREADS)
            yield from map(self._pinned, self._window(piece, spread))
        finally:
            with self._counting:
                self._windows_being_made -= 1

    def _window(self, piece: Piece, spread: Spread) -> Iterator[Block]:
        """Read the chunks of a window side by side, and bring their rows into order."""
        sources: Sequence[Iterable[Block]] = [self._converted(chunk) for chunk in piece.chunks]
        counts = self._known_counts(piece.chunks)
        if counts is None:
            sources = list(spread(self._read_all, sources))
            counts = [sum(block.num_rows for block in blocks) for blocks in sources]
        starts = [0, *accumulate(counts)]
        part_rows = self._part_rows(piece.cost_bytes, starts[-1])
        rows = Permuted(partial(self._order, piece, counts), part_rows=part_rows)
        placing = [
            partial(self._place, rows, pair, blocks)
            for pair, blocks in zip(pairwise(starts), sources, strict=True)
        ]
        # The order takes as long as to decode some chunks: it is made beside them.
        for _ in spread(lambda work: work(), [rows.order, *placing]):
            pass
        with self._stats.timed("mix"):
            yield from spread(rows.part, range(rows.parts))

    def _part_rows(self, window_bytes: int, rows: int) -> int:
        """Return how many rows of a window are handed out together."""
        if window_bytes <= _WINDOW_IN_ONE_PART:
            return max(rows, 1)
        return max(rows * _PART_BYTES // window_bytes, self._pipeline.batch_size)

    def _known_counts(self, chunks: Sequence[FileSplit]) -> list[int] | None:
        """Return the number of rows of each chunk; None if only reading them tells."""
        ranges = [chunk.row_range for chunk in chunks]
        if not self._pipeline.counted or None in ranges:
            return None
        return [one.length for one in ranges if one is not None]

    def _order(self, piece: Piece, counts: Sequence[int]) -> Int64Array:
        """Return the order of the rows of a window whose chunks have so many rows."""
        if self._pipeline.grouping.interleave > 1:
            return taking_turns(counts)
        lane, number = piece.span.key
        return permutation(
            sum(counts),
            seed=self._pipeline.seed,
            epoch=self._epoch,
            purpose=ROW_ORDER,
            lane=lane,
            window=number,
        )

    def _place(self, rows: Permuted, bounds: tuple[int, int], blocks: Iterable[Block]) -> None:
        """Bring the blocks of a chunk to their places in a window."""
        row, stop = bounds
        with self._in_side_thread():
            for block in blocks:
                with self._stats.timed("mix"):
                    rows.put(row, block)
                row += block.num_rows
        if row != stop:
            raise ReadError(
                f"{stop - bounds[0]} rows were expected and {row - bounds[0]} read: a file was "
                "changed after it was listed"
            )

    def _read_all(self, blocks: Iterable[Block]) -> list[Block]:
        with self._in_side_thread():
            return list(blocks)

    @contextmanager
    def _in_side_thread(self) -> Iterator[None]:
        """Note the thread while it reads, so that ``close`` can wait for it."""
        self._beside.add(thread := threading.current_thread())
        try:
            yield
        finally:
            self._beside.discard(thread)

    def _pinned(self, block: Block) -> Block:
        return block.pin() if self._pipeline.pin_memory else block

    def _joined(self, blocks: Sequence[Block]) -> Block:
        """Rows on both sides of a seam, in memory of their own."""
        return blocks[0] if len(blocks) == 1 else self._pinned(Block.concat(blocks))

    def _converted(self, chunk: FileSplit) -> Iterator[Block]:
        for table in self._tables(chunk):
            cost = self._row_cost
            self._stats.decoded(table.nbytes if cost.variable else cost.of(table.num_rows, 0))
            with self._stats.timed("convert"):
                block = self._convert(table, chunk)
            yield block

    def _convert(self, table: pa.Table, chunk: FileSplit) -> Block:
        try:
            return self._pipeline.converter.convert(table)
        except ConversionError as error:
            raise ConversionError(f"{chunk}: {error}") from error

    def _tables(self, chunk: FileSplit) -> Iterator[pa.Table]:
        tables = self._reader.read(chunk, self._pipeline.block_bytes)
        waited, spent = self._patience.waited_s, 0.0
        try:
            while True:
                began = time.perf_counter()
                table = next(tables, None)
                took = time.perf_counter() - began
                spent += took
                self._stats.spend("read", took)
                self._stats.stored(self._meter.drain())
                if table is None:
                    waited = self._patience.waited_s - waited
                    self._pace.note(waited, spent - waited)
                    return
                yield table
        except ReadError as error:
            if not (self._pipeline.skip_broken and may_be_skipped(error)):
                raise
            self._stats.stored(self._meter.drain())
            self._stats.skip(str(error))


def _spread(threads: int, work: Callable[[Any], Any], items: Iterable[Any]) -> Iterable[Any]:
    """Do what ``map`` does, in several threads."""
    return map(work, items) if threads == 1 else side_by_side(work, items, threads=threads)
