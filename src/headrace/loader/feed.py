"""The side of a worker process: reads its lanes and sends their batches in parcels."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from headrace.access.orphans import end_with_parent
from headrace.convert import Block
from headrace.convert.columns import DenseColumn
from headrace.convert.packing import (
    Call,
    Layout,
    Packed,
    dumps,
    is_plain,
    know_classes_of_trainer,
    pack,
    unpack,
)
from headrace.convert.shared import Bytes, SharedBuffer, shared_integers
from headrace.errors import WorkerError
from headrace.loader.claims import Claims, Takings
from headrace.loader.pipeline import Finish, LaneStart, OpenLanes, Pipeline, Stream
from headrace.loader.start import Sealed
from headrace.loader.stats import Stats
from headrace.model import Cursor, FileList, Int64Array
from headrace.plan import Chunks, Lane, LanePlan, Span
from headrace.stream import Run

__all__ = [
    "Board",
    "Failure",
    "Feed",
    "LaneEnd",
    "Parcel",
    "ParcelRun",
    "begin_worker",
    "pack_batches",
    "pack_blocks",
    "pack_dicts",
]


@dataclass(slots=True)
class Parcel:
    """Consecutive batches of one lane on their way to another process."""

    lane: int
    cursors: list[Cursor]
    """the place in the lane after each batch"""
    rows: int
    buffer: SharedBuffer | Bytes
    """what holds the values: before it is sent, and when it has arrived"""
    layout: Layout
    """how to make batches of it"""
    whole: bool
    """whether it holds columns, still to be cut, and not batches"""
    stats: dict[str, Any]
    """what reading them took"""


class ParcelRun:
    """The batches of a parcel that has arrived."""

    __slots__ = ("_batch_size", "_parcel", "_pin", "count")

    def __init__(self, parcel: Parcel, batch_size: int, pin: bool) -> None:
        self._parcel = parcel
        self._batch_size = batch_size
        self._pin = pin
        self.count = len(parcel.cursors)

    def rows(self, delivered: int) -> int:
        return min(delivered * self._batch_size, self._parcel.rows)

    def batches(self) -> Iterator[Any]:
        """Pinned are tensors, not the buffer: torch keeps pinned memory until it has been copied to
        a device only for tensors that it has pinned itself, and views of those.
        """
        content = unpack(self._parcel.buffer, self._parcel.layout)
        if not self._parcel.whole:
            return map(pin_memory, content) if self._pin else iter(content)
        block: Block = content.pin() if self._pin else content
        return block.batches(self._batch_size)

    def cursor(self, delivered: int) -> Cursor:
        return self._parcel.cursors[max(delivered - 1, 0)]


def pack_blocks(blocks: Sequence[Block]) -> Packed | None:
    """Pack the rows of consecutive blocks; None if batches should be cut before they are sent."""
    kind: Any = type(blocks[0])
    sent = kind.to_send(blocks)
    return None if sent is None else pack(sent)


def pack_dicts(batches: Sequence[Any]) -> Packed | None:
    """Pack dicts of tensors that differ only in their rows column by column; None for others."""
    first = batches[0]
    if not all(type(batch) is dict and batch.keys() == first.keys() for batch in batches):
        return None
    columns = [[batch[key] for batch in batches] for key in first]
    if not columns or not all(map(_alike, columns)):
        return None
    try:
        sent = [DenseColumn.to_send([DenseColumn(part) for part in parts]) for parts in columns]
    except TypeError:  # numpy has no type for these, such as bfloat16
        return None
    lengths = [[len(part) for part in parts] for parts in columns]
    return pack(Call(_dicts, (list(first), sent, lengths)))


def _alike(column: Sequence[Any]) -> bool:
    """Return True if these are tensors that numpy can lay end to end."""
    first = column[0]
    if type(first) is not torch.Tensor or first.dim() == 0:
        return False
    return all(
        type(part) is torch.Tensor
        and is_plain(part)
        and part.dtype == first.dtype
        and part.shape[1:] == first.shape[1:]
        for part in column
    )


def _dicts(keys: list[Any], columns: list[DenseColumn], lengths: list[list[int]]) -> Any:
    tensors: list[Any] = [column.values for column in columns]
    parts = map(torch.split_with_sizes, tensors, lengths)
    return [dict(zip(keys, leaves, strict=True)) for leaves in zip(*parts, strict=True)]


def begin_worker(worker_id: int) -> None:
    """Called by torch first in a worker process."""
    end_with_parent()
    know_classes_of_trainer()


@dataclass(frozen=True, slots=True)
class LaneEnd:
    """A lane has no more batches."""

    lane: int
    stats: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Failure:
    """A worker cannot go on."""

    error: bytes
    """the exception, pickled"""
    trace: str

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """Return an error as it can be sent: itself if it pickles, and its traceback as text."""
        trace = "".join(traceback.format_exception(error))
        try:
            pickled = dumps(error)
            pickle.loads(pickled)
        except Exception:  # a user's exception may fail to pickle in any way
            pickled = dumps(WorkerError(f"{type(error).__name__}: {error}"))
        return cls(pickled, trace)

    def reraise(self) -> NoReturn:
        """Raise the error in the trainer, with the traceback of the worker as its cause."""
        cause = WorkerError(f"in a worker process:\n{self.trace}")
        try:
            error = pickle.loads(self.error)
        except Exception:  # its class may fail in any way
            raise cause from None
        raise error from cause


class Feed(IterableDataset[Any]):
    """What torch sends to its workers. Iterating gives parcels, lane after lane in turn.

    All lanes send their batches in parcels of the same sizes, small ones first: so the parent
    needs them in the order in which they are sent, and the first batch does not wait for many.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        files: FileList,
        board: Board,
        finish: Finish | None,
        parcel_batches: int,
        workers: int,
        claims: Claims | None = None,
    ) -> None:
        super().__init__()
        self.init: Callable[[int], None] | None = None
        """the ``worker_init_fn`` of the user"""
        self._pipeline = pipeline.sharing(workers)
        self._files = files
        self._board = board
        self._finish = finish
        self._parcel_batches = parcel_batches
        self._claims = claims
        self._sent: Sealed | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        kept_back = ("_board", "_sent")
        state = {name: self.__dict__[name] for name in self.__dict__ if name not in kept_back}
        self._sent = Sealed(state)
        return _received, (self._sent, self._board)

    @property
    def user_code(self) -> dict[str, Any]:
        """What comes from the user and must reach a worker, by the name of its option."""
        reader = self._pipeline.reader
        found = {**reader.store.given, **reader.source.given}
        if self._finish is not None:
            found.update(transform=self._finish.transform, collate_fn=self._finish.collate_fn)
        return {**found, "worker_init_fn": self.init}

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        try:
            init, self.init = self.init, None  # once in a process, also if workers are persistent
            if init is not None:
                init(info.id)
            streams: Sequence[Stream]
            if self._claims is None:
                streams = self._board.starts(info.id, info.num_workers)
            else:
                streams = [Takings(info.id, self._claims, self._board.lane)]
            yield from self._epoch(streams)
        except Exception as error:
            yield Failure.of(error)

    def _epoch(self, streams: Sequence[Stream]) -> Iterator[Any]:
        stats = Stats()
        lanes = self._pipeline.open(self._files, streams, self._board.epoch, stats)
        try:
            yield from self._parcels(lanes, [stream.index for stream in streams], stats)
        finally:
            lanes.close()

    def _parcels(self, lanes: OpenLanes, order: list[int], stats: Stats) -> Iterator[Any]:
        sources = {lane: _LaneBatches(lanes.runs(lane)) for lane in order}
        size = 1
        while sources:
            for lane, source in list(sources.items()):
                parts = source.take(size)
                if parts:
                    yield self._parcel(lane, parts, stats)
                else:
                    del sources[lane]
                    yield LaneEnd(lane, stats.drain())
            size = min(2 * size, self._parcel_batches)

    def _parcel(self, lane: int, parts: list[Run[Block]], stats: Stats) -> Parcel:
        cursors: list[Cursor] = [part.cursor(i + 1) for part in parts for i in range(part.batches)]
        rows = sum(part.block.num_rows for part in parts)
        blocks = [part.block for part in parts]
        packed = pack_blocks(blocks) if self._finish is None else None
        whole = packed is not None
        if packed is None:
            size = self._pipeline.batch_size
            batches = [batch for block in blocks for batch in block.batches(size)]
            if self._finish is not None:
                with stats.timed("transform"):
                    batches = [self._finish(batch) for batch in batches]
            packed = pack_batches(batches)
        return Parcel(lane, cursors, rows, *packed, whole, stats.drain())


def pack_batches(batches: list[Any]) -> Packed:
    """Pack batches that the user's functions made.

    Raises:
        WorkerError: They hold something that cannot be sent to another process.
    """
    try:
        return pack_dicts(batches) or pack(batches)
    except Exception as error:  # a user's object may fail to pickle in any way
        raise WorkerError(
            f"a batch cannot be sent from a worker process ({type(error).__name__}: {error}): "
            "return values that can be pickled from transform, collate_fn and decoders, or use "
            "num_workers=0"
        ) from error


def _received(state: dict[str, Any], board: Board) -> Feed:
    feed = Feed.__new__(Feed)
    feed.__dict__.update(state, _board=board, _sent=None)
    return feed


class _LaneBatches:
    """Takes so many batches at a time from runs of any length."""

    def __init__(self, runs: Iterator[Run[Block]]) -> None:
        self._runs = runs
        self._rest: Run[Block] | None = None

    def take(self, count: int) -> list[Run[Block]]:
        """Runs with ``count`` batches in all, fewer at the end of the lane."""
        taken: list[Run[Block]] = []
        while count:
            run = self._rest or next(self._runs, None)
            self._rest = None
            if run is None:
                break
            if run.batches > count:
                run, self._rest = _split(run, count)
            taken.append(run)
            count -= run.batches
        return taken


def _split(run: Run[Block], count: int) -> tuple[Run[Block], Run[Block]]:
    rows = count * run.batch_size
    head = replace(run, block=run.block.slice(0, rows))
    tail = run.block.slice(rows, run.block.num_rows - rows)
    return head, replace(run, block=tail, row=run.row + rows)


# --- the board

_HEADER = 5  # epoch, lanes, chunks, spans, generation
_COLUMNS = 6  # those of chunks, and the window
_SPAN = 6  # lane, window, key, start, stop
_LANE = 4  # first chunk, chunk after the last, cursor


class Board:
    """One tensor in shared memory, mapped by every worker: a worker copies its own lanes only.

    Written while no worker reads: before they start, or before they are told to start anew.
    """

    def __init__(self, plan: LanePlan) -> None:
        chunks = len(plan.chunks)
        # Another epoch's cuts fall elsewhere and may make a few chunks more.
        self._memory = shared_integers(_size(plan, chunks + chunks // 8 + 64))

    def holds(self, plan: LanePlan) -> bool:
        """Whether there is room for this plan."""
        return _size(plan, len(plan.chunks)) <= len(self._memory)

    def post(self, epoch: int, plan: LanePlan, cursors: Mapping[int, Cursor]) -> None:
        """Write an epoch's lanes, and where to begin in those that are to be read here."""
        lanes, chunks, spans = len(plan), len(plan.chunks), len(plan.spans)
        memory = self._memory.numpy()
        memory[:_HEADER] = epoch, lanes, chunks, spans, plan.generation
        table = _lanes(memory, lanes)
        table[:, 0], table[:, 1] = plan.bounds[:-1], plan.bounds[1:]
        table[:, 2:] = -1
        for lane, cursor in cursors.items():
            table[lane, 2:] = cursor
        rows = _spans(memory, lanes, spans)
        for row, (place, span) in zip(rows, plan.spans.items(), strict=True):
            row[:] = *place, *span.key, span.start, -1 if span.stop is None else span.stop
        columns = _columns(memory, lanes, spans, chunks)
        columns[-1] = plan.window
        for row, name in enumerate(Chunks.__slots__):
            columns[row] = getattr(plan.chunks, name)

    @property
    def epoch(self) -> int:
        """The epoch that is posted."""
        return int(self._memory[0])

    def starts(self, worker: int, workers: int) -> list[LaneStart]:
        """Copies of the lanes of one of the workers, and where to begin."""
        table = _lanes(self._memory.numpy(), int(self._memory[1]))
        mine = np.flatnonzero(table[:, 2] >= 0)[worker::workers].tolist()
        return [LaneStart(self.lane(index), Cursor(*table[index, 2:].tolist())) for index in mine]

    def lane(self, index: int) -> Lane:
        """A copy of one lane."""
        memory: Int64Array = self._memory.numpy()
        _, lanes, chunks, spans, generation = (int(value) for value in memory[:_HEADER])
        first, last = _lanes(memory, lanes)[index, :2].tolist()
        *own, window = _columns(memory, lanes, spans, chunks)[:, first:last].copy()
        own[3] = own[3].astype(np.int8)
        mine = _spans_of(index, _spans(memory, lanes, spans))
        return Lane(index, Chunks(*own), window, mine, generation)


def _size(plan: LanePlan, chunks: int) -> int:
    return _HEADER + _LANE * len(plan) + _SPAN * len(plan.spans) + _COLUMNS * chunks


def _lanes(memory: Int64Array, lanes: int) -> Int64Array:
    return memory[_HEADER:][: _LANE * lanes].reshape(lanes, _LANE)


def _spans(memory: Int64Array, lanes: int, spans: int) -> Int64Array:
    return memory[_HEADER + _LANE * lanes :][: _SPAN * spans].reshape(spans, _SPAN)


def _columns(memory: Int64Array, lanes: int, spans: int, chunks: int) -> Any:
    rest = memory[_HEADER + _LANE * lanes + _SPAN * spans :]
    return rest[: _COLUMNS * chunks].reshape(_COLUMNS, chunks)


def _spans_of(index: int, table: Int64Array) -> dict[int, Span]:
    mine = table[table[:, 0] == index].tolist()
    return {row[1]: Span((row[2], row[3]), row[4], None if row[5] < 0 else row[5]) for row in mine}
