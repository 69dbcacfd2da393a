"""The pipeline from lanes of chunks to runs of batches.

A thread of the read-ahead takes a piece of a lane, reads and converts its chunks, and brings the
rows of a window into order. The consumer cuts the blocks of each lane into runs of batches.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch.utils.data import get_worker_info

from headrace.convert import Block, Converter, concat
from headrace.convert.decoded import together
from headrace.convert.device import Device, DeviceCache
from headrace.errors import ConversionError, ReadError, may_be_skipped
from headrace.matrices import rows_at, width_of
from headrace.model import (
    NOWHERE,
    START,
    Cursor,
    DataFileInfo,
    FileList,
    FileSplit,
    RowGroups,
)
from headrace.options import DatasetOptions
from headrace.plan import (
    ROW_ORDER,
    Grouping,
    Lane,
    Piece,
    Reading,
    RowCost,
    lane_pieces,
    no_groups,
    row_keys,
    stable_order,
    window_pieces,
)
from headrace.process import PerProcess, usable_cores
from headrace.sources.source import TabularReader
from headrace.storage import Meter, Patience, SideThreads
from headrace.stream import Job, Located, Pace, ReadAhead, Run, cut


def row_cost(schema: pa.Schema) -> RowCost:
    """Return the memory that a decoded row of these columns takes."""
    widths = list(map(width_of, schema.types))
    return RowCost(sum(filter(None, widths)), None in widths)


@dataclass(frozen=True, slots=True)
class Stream:
    """Windows that are delivered one after the other, of one lane or of several.

    Attributes:
        index: The number by which its runs are requested.
        pieces: Yields the pieces to be read, in order.
        cursor: The position where it begins.
        jobs_ahead: Number of pieces that may be begun at a time; None for as many as are useful.
    """

    index: int
    pieces: Callable[[FileList, Reading], Iterator[Piece]]
    cursor: Cursor = NOWHERE
    jobs_ahead: int | None = None

    @classmethod
    def of_lane(cls, lane: Lane, cursor: Cursor = START) -> Stream:
        """Return a lane from a cursor on."""
        return cls(lane.index, partial(lane_pieces, lane, cursor), cursor)

    @classmethod
    def of_windows(cls, lane: Lane, windows: Sequence[int]) -> Stream:
        """Return some windows of a lane, from the first row of each."""

        def pieces(files: FileList, reading: Reading) -> Iterator[Piece]:
            for place, window in enumerate(windows):
                position = place / len(windows)
                yield from window_pieces(files, lane, window, reading, skip=0, position=position)

        return cls(lane.index, pieces)


BLOCK_BYTES = 16 << 20
_DEVICE_PIECE_BYTES = 32 << 20
_PART_BYTES = 32 << 20
"""Size of the parts in which a window larger than two parts is ordered."""
_MOST_CORES = 16
"""Number of cores beyond which threads wait for the interpreter; more cores were not measured."""
_REMOTE_READING_THREADS = 16
_REMOTE_CHUNK_THREADS = 64
"""Number of threads that wait for remote bytes; Arrow bounds the threads that decode."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The user's functions, which are applied to each row and then to each batch.

    Attributes:
        functions: The functions that are given, by the names of their options.
        output_format: The form of batches.
    """

    functions: Mapping[str, Callable[[Any], Any]]
    output_format: str = "torch"

    @classmethod
    def of(cls, options: DatasetOptions) -> Finish | None:
        """Return the functions that are given; None if there are none."""
        given: dict[str, Any] = {}
        for name in ("row_transform", "transform", "collate_fn"):
            if options[name] is not None:
                given[name] = options[name]
        return cls(given, options["output_format"]) if given else None

    def __call__(self, batch: Any) -> Any:
        for name, function in self.functions.items():
            if name == "row_transform":
                batch = _joined([function(row) for row in _rows(batch)], self.output_format)
            else:
                batch = function(batch)
        return batch


def _rows(batch: Any) -> list[Any]:
    """Return the rows of a batch, as dicts of their columns."""
    if isinstance(batch, pa.RecordBatch):
        rows: list[Any] = batch.to_pylist()
        return rows
    columns = {
        name: _rows(column) if isinstance(column, Mapping) else column
        for name, column in batch.items()
    }
    count = min(map(len, columns.values()), default=0)
    return [{name: column[row] for name, column in columns.items()} for row in range(count)]


def _joined(rows: list[Any], output_format: str) -> Any:
    """Return a batch of rows: dicts and tuples joined by item, numbers and arrays stacked."""
    if output_format == "arrow" or not rows:
        return rows
    first = rows[0]
    if isinstance(first, Mapping):
        return {name: _joined([row[name] for row in rows], output_format) for name in first}
    if isinstance(first, tuple):
        return tuple(_joined(list(items), output_format) for items in zip(*rows, strict=True))
    if output_format == "torch" and all(isinstance(row, np.ndarray) for row in rows):
        rows = [torch.from_numpy(row) if row.dtype.kind in "biufc" else row for row in rows]
    return together(rows, output_format)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The stages from chunks to batches, independent of the chunks. It can be pickled.

    Attributes:
        reader: Reads chunks.
        converter: Converts tables to blocks.
        batch_size: Number of rows in a batch.
        drop_last: True if the short batch at the end of a lane is left out.
        seed: The seed of permutations.
        grouping: How chunks form windows.
        counted: True if the rows of a chunk are known before it is read.
        skip_broken: True if chunks that cannot be read are skipped.
        prefetch_bytes: Number of bytes that may be read ahead.
        pin_memory: True if tensors are in pinned memory.
        device: The device on which batches arrive; None for plain tensors of the host.
        device_cache: Blocks that stay on the device for later epochs.
    """

    reader: TabularReader
    converter: Converter
    batch_size: int
    drop_last: bool
    seed: int
    grouping: Grouping
    counted: bool
    skip_broken: bool
    prefetch_bytes: int
    pin_memory: bool = False
    device: torch.device | None = None
    device_cache: DeviceCache | None = None

    def open_device(self) -> Device | None:
        """Return the device for the threads of this process."""
        return None if self.device is None else Device(self.device, self.prefetch_bytes)

    def on_host(self) -> Pipeline:
        """Return the pipeline whose batches are plain tensors of the host."""
        return replace(self, device=None, device_cache=None)

    def sharing(self, consumers: int) -> Pipeline:
        """Return the pipeline of one of ``consumers`` processes that share the memory."""
        reader = self.reader.keeping(self.reader.source.cache_bytes // consumers)
        return replace(self, reader=reader, prefetch_bytes=max(self.prefetch_bytes // consumers, 1))

    @property
    def reading(self) -> Reading:
        """The parameters by which windows are cut into pieces."""
        local = self.reader.store.local
        return Reading(
            self.grouping.reorders,
            self.counted,
            self.piece_bytes,
            row_cost(self.reader.read_schema),
            by_columns=not local,  # larger jobs have fewer requests
            groups_of=self._groups_of if local else no_groups,
        )

    def _groups_of(self, file: DataFileInfo) -> RowGroups | None:
        try:
            return self.reader.source.row_groups(file)
        except ReadError:  # the job that reads the file will raise it
            return None

    @property
    def piece_bytes(self) -> int:
        """Size of what one job reads of a window in several pieces; several pieces fit the budget.

        On a device each block costs the trainer's thread some CUDA calls, so pieces are larger.
        """
        if self.device is None:
            return self.block_bytes
        return max(min(_DEVICE_PIECE_BYTES, self.prefetch_bytes // 8), 1 << 16)

    @property
    def block_bytes(self) -> int:
        """Size of the blocks that are decoded at once; several blocks must fit the budget."""
        return max(min(BLOCK_BYTES, self.prefetch_bytes // 4), 1 << 16)


class OpenLanes:
    """Some lanes of an epoch while they are read. Close it to end its threads.

    Threads start when the first run is asked for.
    """

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
        self._windows = itertools.count()
        self._meter, self._patience = Meter(), Patience()
        store = pipeline.reader.store.during(self._meter, self._patience)
        self._reader = pipeline.reader.through(store)
        self._row_cost = row_cost(pipeline.reader.schema)
        self.device = pipeline.open_device()
        worker = get_worker_info()
        cores = usable_cores() // (1 if worker is None else worker.num_workers)
        self._cores = max(min(_MOST_CORES, cores), 1)
        threads = self._cores if store.local else _REMOTE_READING_THREADS
        # For the chunks and parts of all windows, the first window first. At the end, a thread that
        # waits for a silent server is left behind.
        chunk_threads = self._cores if store.local else _REMOTE_CHUNK_THREADS
        self._beside = SideThreads(chunk_threads, join=store.local)
        self._pace = Pace(self._cores, first=max(threads // 2, 1), most=threads)
        reading = pipeline.reading
        pieces = [stream.pieces(files, reading) for stream in streams]
        self._ahead: ReadAhead[Piece, Block] = ReadAhead(
            map(self._job, heapq.merge(*pieces, key=lambda piece: piece.position)),
            self._blocks,
            size_of=attrgetter("nbytes"),
            budget_bytes=pipeline.prefetch_bytes,
            threads=threads,
            most_jobs=self._most_jobs,
            give_up=self._patience.give_up,
        )

    def _most_jobs(self) -> int | None:
        """Return how many jobs may be under way.

        Being further ahead than needed gains nothing, and fresh memory is expensive.
        """
        for stream in self._streams.values():
            if stream.jobs_ahead is not None:
                return stream.jobs_ahead
        if not self._reader.store.local:
            return len(self._streams) + self._pace.jobs
        if self._pipeline.grouping.reorders:
            # Windows whose chunks keep all cores busy while others are put in order.
            chunks = max(self._pipeline.grouping.mix, self._pipeline.grouping.interleave)
            return len(self._streams) + 1 + 2 * self._cores // chunks
        # More than there are cores, because one block may take longer than those after it.
        return len(self._streams) + self._cores + max(self._cores // 2, 1)

    def _job(self, piece: Piece) -> Job[Piece, Block]:
        """Return the job of a piece. Remote bytes are held until they have been decoded."""
        cost = piece.cost_bytes
        if not self._reader.store.local:
            cost += cost // 2
        return Job(piece.lane, piece, cost, piece.exact)

    def runs(self, lane: int) -> Iterator[Run[Block]]:
        """Return the runs of batches of one stream, from its start on."""
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
        """Stop reading, and return when no thread is left."""
        self._ahead.stop()
        self._beside.end()
        self._ahead.close()
        self._stats.count(**self._meter.drain())
        self._stats.spend("wait", self._ahead.waited_s)
        self._ahead.waited_s = 0.0

    def _located(self, stream: Stream) -> Iterator[Located[Block]]:
        """Yield the blocks of a stream with their places.

        It cuts off rows that belong to another lane or were delivered before.
        """
        window, row = stream.cursor[0], 0
        current: Piece | None = None
        for piece, block in self._ahead.blocks(stream.index):
            if self.device is not None:
                self.device.receive(block)
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
        """Read, convert and order the rows of a piece, in a thread of the read-ahead."""
        # Rows without columns are alike, and are only counted.
        if self._pipeline.grouping.reorders and len(self._pipeline.converter.schema):
            yield from map(self._finished, self._window(piece))
            return
        for chunk in piece.chunks:
            for block in self._chunk(chunk):
                if self.device is not None and self._pipeline.device_cache is not None:
                    block = self.device.copy(block)
                yield self._finished(block)

    def _window(self, piece: Piece) -> Iterator[Block]:
        """Read the chunks of a window side by side, and order their rows."""
        rank = next(self._windows)
        window = self._filled_window(piece, rank)
        parts = deque([partial(self._part, piece, window, index) for index in range(window.parts)])
        del window  # its memory is free once its last part is made
        # A few parts ahead: all of them at once would double the memory of a window.
        ahead: deque[Future[Block | None]] = deque()
        while parts or ahead:
            while parts and len(ahead) < self._cores:
                ahead.append(self._beside.submit(parts.popleft(), rank))
            if (made := ahead.popleft().result()) is not None:
                yield made

    def _filled_window(self, piece: Piece, rank: int) -> Window:
        """Read all rows of a window, in threads that take the work of the lowest rank first."""
        read = self._tables if self.device is None else self._chunk
        reads: list[Any] = list(map(read, piece.chunks))
        counts = [chunk.row_range.length for chunk in piece.chunks if chunk.row_range is not None]
        if not self._pipeline.counted or len(counts) < len(reads):
            # The key of a row follows from its number, which is known when all rows before it are.
            read_rows = _all_done(
                [self._beside.submit(partial(deque, rows), rank) for rows in reads]
            )
            counts = [sum([some.num_rows for some in rows]) for rows in read_rows]
            reads = list(map(_emptied, read_rows))
        in_turn = self._pipeline.grouping.interleave > 1
        parts = -(-piece.cost_bytes // _PART_BYTES) if piece.cost_bytes > 2 * _PART_BYTES else 1
        key_bits = max(counts).bit_length() if in_turn else 32
        if self.device is None:
            window = Window(parts, key_bits)
        else:
            window = Window(1, key_bits, self.device.sort)
        placed, first_row = [], 0
        for rows, count in zip(reads, counts, strict=True):
            place = partial(self._place, window, piece, first_row, count, rows)
            placed.append(self._beside.submit(place, rank))
            first_row += count
        _all_done(placed)
        return window

    def _place(
        self, window: Window, piece: Piece, first_row: int, count: int, rows: Iterable[Rows]
    ) -> None:
        """Put the rows of a chunk into a window."""
        row, (lane, number) = 0, piece.span.key
        for some in rows:
            with self._stats.timed("mix"):
                if self._pipeline.grouping.interleave > 1:
                    # The first rows of all chunks, then their second rows, and so on.
                    keys = np.arange(row, row + some.num_rows, dtype=np.uint32)
                else:
                    keys = row_keys(
                        first_row + row,
                        some.num_rows,
                        seed=self._pipeline.seed,
                        epoch=self._epoch,
                        purpose=ROW_ORDER,
                        lane=lane,
                        window=number,
                    )
                window.put(first_row + row, some, keys)
            row += some.num_rows
        if row != count:
            raise ReadError(
                f"{count} rows were expected and {row} read: a file was changed after it was listed"
            )

    def _part(self, piece: Piece, window: Window, index: int) -> Block | None:
        with self._stats.timed("mix"):
            rows = window.part(index)
        if rows is None or self.device is not None:
            return rows
        with self._stats.timed("convert"):
            try:
                return self._pipeline.converter.build(rows)
            except ConversionError:
                for chunk in piece.chunks:  # only converting each chunk shows which one has failed
                    for _ in self._converted(chunk):
                        pass
                raise

    def _finished(self, block: Block) -> Block:
        if self.device is not None:
            return self.device.mark_ready(block)
        return block.pin() if self._pipeline.pin_memory else block

    def _joined(self, blocks: Sequence[Block]) -> Block:
        """Return the rows on both sides of a seam, copied into memory of their own."""
        joined = concat(blocks)
        return joined.pin() if len(blocks) > 1 and self._pipeline.pin_memory else joined

    def _chunk(self, chunk: FileSplit) -> Iterator[Block]:
        """Yield the rows of a chunk, on the device if there is one."""
        if self.device is None:
            yield from self._converted(chunk)
            return
        cache = self._pipeline.device_cache
        key = chunk.file.path, chunk.row_range, chunk.byte_range
        kept = None if cache is None else cache.get(key)
        if kept is not None:
            yield from kept
            return
        moved: list[Any] = []
        for blocks in _in_groups(self._converted(chunk), self._pipeline.piece_bytes):
            moved.append(self.device.move(blocks))
            yield moved[-1]
            if cache is None:
                moved.clear()
        if cache is not None:
            cache.put(key, moved)

    def _converted(self, chunk: FileSplit) -> Iterator[Block]:
        """Read and convert the rows of a chunk."""
        for table in self._read(chunk):
            with self._stats.timed("convert"):
                try:
                    block = self._pipeline.converter.convert(table)
                except ConversionError as error:
                    raise ConversionError(f"{chunk}: {error}") from error
            yield block

    def _tables(self, chunk: FileSplit) -> Iterator[pa.Table]:
        """Read the rows of a chunk, to be permuted as tables."""
        return map(self._pipeline.converter.movable, self._read(chunk))

    def _read(self, chunk: FileSplit) -> Iterator[pa.Table]:
        """Read the rows of a chunk."""
        stats, cost, patience = self._stats, self._row_cost, self._patience
        tables = self._reader.read(chunk, self._pipeline.block_bytes)
        waited, spent = patience.waited_s, 0.0
        while True:
            began = time.perf_counter()
            try:
                table = next(tables, None)
            except ReadError as error:
                if not (self._pipeline.skip_broken and may_be_skipped(error)):
                    raise
                stats.skip(str(error))
                table = None
            took = time.perf_counter() - began
            spent += took
            stats.spend("read", took)
            stats.count(**self._meter.drain())
            if table is None:
                break
            stats.count(bytes=table.nbytes if cost.variable else cost.of(table.num_rows, 0))
            yield table
        waited = patience.waited_s - waited
        self._pace.note(waited, spent - waited)


def _in_groups(blocks: Iterable[Block], size_bytes: int) -> Iterator[list[Any]]:
    """Yield blocks in groups of about ``size_bytes``, in order."""
    group: list[Any] = []
    held = 0
    for block in blocks:
        if group and held + block.nbytes > size_bytes:
            yield group
            group, held = [], 0
        group.append(block)
        held += block.nbytes
    if group:
        yield group


def _emptied(tables: deque[Rows]) -> Iterator[Rows]:
    """Yield tables without keeping those that were yielded in memory."""
    while tables:
        yield tables.popleft()


def _all_done(futures: Sequence[Future[Any]]) -> list[Any]:
    """Return the results; after an error, cancel the calls that have not begun."""
    try:
        return list(map(Future.result, futures))
    except BaseException:
        for future in futures:
            future.cancel()
        raise


# --- The rows of a window, brought into the order of their keys


RowKeys = npt.NDArray[np.uint32]
Rows = Any
"""A table, or a block on a device."""
_MAX_PARTS = 256


def sort_tables(tables: Sequence[pa.Table], keys: RowKeys) -> pa.Table:
    """Return the rows of tables in the order of their keys; equal keys keep their order."""
    return rows_at(pa.concat_tables(tables), stable_order(keys))


class Window:
    """Sorts the rows of many tables by their keys, and hands them out in parts.

    The caches of a processor hold few of the rows of a large window, and taking rows at random from
    all of it is several times slower. So the rows come out in parts: when a table arrives, its rows
    are grouped by the upper bits of their keys, and a part consists of one run of rows of each
    table. Both steps move rows within the cache, and threads can do them for several tables or
    parts at the same time. Rows with equal keys keep their order.

    Arrow moves all columns in one call, without the GIL: threads that move column by column spend
    most of their time waiting for it.

    >>> import pyarrow as pa
    >>> window = Window(parts=2, key_bits=2)
    >>> window.put(0, pa.table({"x": [10, 11, 12]}), np.array([3, 0, 2], "u4"))
    >>> window.put(3, pa.table({"x": [13]}), np.array([1], "u4"))
    >>> [window.part(index)["x"].to_pylist() for index in range(window.parts)]
    [[11, 13], [12, 10]]
    """

    def __init__(
        self, parts: int, key_bits: int, sort: Callable[[Sequence[Any], RowKeys], Any] = sort_tables
    ) -> None:
        """Prepare for tables.

        Args:
            parts: Number of parts; it is rounded up to a power of two.
            key_bits: Number of bits of the largest key.
            sort: Returns rows, laid end to end, in the order of their keys. If rows are not tables,
                there is only one part.
        """
        self._sort = sort
        part_bits = (min(parts, _MAX_PARTS) - 1).bit_length()
        self.parts = 1 << part_bits
        self._shift = np.uint32(max(key_bits - part_bits, 0))
        self._grouped: dict[int, tuple[Rows, RowKeys, list[int]]] = {}

    def put(self, first_row: int, rows: Rows, keys: RowKeys) -> None:
        """Add rows. Threads may call it at the same time.

        Args:
            first_row: Number of rows of all tables before this one.
            rows: A table of the same schema as all others.
            keys: The keys of its rows.
        """
        edges = [0, len(keys)]
        if self.parts > 1:
            order = np.argsort((keys >> self._shift).astype(np.uint8), kind="stable")
            rows, keys = rows_at(rows, order), keys[order]
            parts = np.arange(self.parts + 1, dtype=np.uint32)
            edges = np.searchsorted(keys >> self._shift, parts).tolist()
        self._grouped[first_row] = rows, keys, edges

    def part(self, index: int) -> Rows | None:
        """Return the rows of a part in order, once all are there; None if it has no rows."""
        found, keys = [], []
        for first_row in sorted(self._grouped):
            rows, its_keys, edges = self._grouped[first_row]
            start, stop = edges[index], edges[index + 1]
            if start < stop:
                found.append(rows if self.parts == 1 else rows.slice(start, stop - start))
                keys.append(its_keys[start:stop])
        return self._sort(found, np.concatenate(keys)) if found else None


# --- Statistics of a loader, counted in its threads and processes, and added up here


_COUNTS = (
    "rows",
    "batches",
    "bytes",
    "padded",
    "requests",
    "retries",
    "fetched_bytes",
    "cached_bytes",
)
"""Rows and batches handed out, bytes decoded, rows repeated, and the counts of stores."""


class Stats:
    """Counters of one process. Threads may add to them; ``drain`` hands them to another Stats."""

    def __init__(self) -> None:
        self._lock = PerProcess(threading.RLock)
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._seconds: dict[str, float] = {}
        self.skipped: list[str] = []

    def count(self, **counts: int) -> None:
        """Add to some counts."""
        with self._lock.get():
            for name, count in counts.items():
                self._counts[name] += count

    def spend(self, stage: str, seconds: float) -> None:
        """Add to the time of a stage."""
        with self._lock.get():
            self._seconds[stage] = self._seconds.get(stage, 0.0) + seconds

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time of the context to a stage."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.spend(stage, time.perf_counter() - began)

    def skip(self, reason: str) -> None:
        """Note a chunk or file that could not be read and was left out."""
        with self._lock.get():
            self.skipped.append(reason)

    def drain(self) -> dict[str, Any]:
        """Return all that was counted since the last call, for ``add``."""
        with self._lock.get():
            taken = {"counts": self._counts, "seconds": self._seconds, "skipped": self.skipped}
            self._counts, self._seconds, self.skipped = dict.fromkeys(_COUNTS, 0), {}, []
        return taken

    def add(self, drained: Mapping[str, Any]) -> None:
        """Add what another process drained."""
        self.count(**drained["counts"])
        for stage, seconds in drained["seconds"].items():
            self.spend(stage, seconds)
        for reason in drained["skipped"]:
            self.skip(reason)

    def as_dict(self) -> dict[str, Any]:
        """Return the counters as plain values."""
        with self._lock.get():
            others = {"seconds": dict(self._seconds), "skipped_chunks": list(self.skipped)}
            return {**self._counts, **others}
