"""Read lanes in a worker process, and send their batches in parcels.

A parcel has consecutive batches of one lane in one shared buffer. Columns are sent whole where that
is faster, and the trainer cuts them into batches; batches made by the user's functions are sent as
they are. The plan of an epoch is on a board in shared memory, where workers read it.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NoReturn

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from headrace.convert import Block
from headrace.convert.columns import DenseColumn
from headrace.convert.device import Device
from headrace.convert.packing import (
    BufferLayout,
    Call,
    Packed,
    dumps,
    is_plain,
    know_classes_of_trainer,
    pack,
    unpack,
)
from headrace.convert.shared import ByteArray, SharedBuffer, shared_bytes
from headrace.errors import WorkerError
from headrace.loader._claims import Claims, claimed_stream
from headrace.loader._epoch import BatchRun
from headrace.loader._pipeline import Finish, OpenLanes, Pipeline, Stats, Stream
from headrace.loader.start import Sealed
from headrace.model import Cursor, FileList
from headrace.plan import Plan
from headrace.process import end_with_parent
from headrace.stream import Run

_SIZE_BYTES = 8


@dataclass(frozen=True, slots=True)
class Parcel:
    """Consecutive batches of one lane on their way to another process.

    Attributes:
        lane: The number of the lane, or of the worker where workers share lanes.
        cursors: Cursor after each batch.
        num_rows: Number of rows.
        buffer: The memory of the values; unpickling it in the other process makes a copy of its own
            (`convert/shared.py`).
        layout: The places of the values in the buffer.
        is_block: True if it holds a block, which is still to be cut into batches.
        stats: The counts of the worker since its previous parcel.
    """

    lane: int
    cursors: list[Cursor]
    num_rows: int
    buffer: SharedBuffer | ByteArray
    layout: BufferLayout
    is_block: bool
    stats: dict[str, Any]

    def run(self, batch_size: int, pin: bool, device: Device | None = None) -> BatchRun:
        """Return the batches of a parcel that has arrived, in pinned memory or on a device.

        Tensors are pinned and not the buffer: until a copy to a device is done, torch keeps pinned
        memory only for tensors that it has pinned itself, and for views of those.
        """

        def batches() -> Iterator[Any]:
            content = unpack(self.buffer, self.layout)
            if device is not None and self.is_block:
                moved = device.mark_ready(device.move([content]))
                device.receive(moved)
                return device.batches(moved, batch_size)
            if device is not None:
                return map(device.move_values, content)
            if not self.is_block:
                return map(pin_memory, content) if pin else iter(content)
            block: Block = content.pin() if pin else content
            return block.batches(batch_size)

        def cursor(delivered: int) -> Cursor:
            return self.cursors[max(delivered - 1, 0)]

        return BatchRun(len(self.cursors), self.num_rows, batch_size, batches, cursor, self.lane)


@dataclass(frozen=True, slots=True)
class LaneEnd:
    """The message that a lane has no more batches."""

    lane: int
    stats: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Failure:
    """The message that a worker cannot go on.

    Attributes:
        error: The exception, pickled.
        trace: Its traceback as text.
    """

    error: bytes
    trace: str

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """Return an error in a form that can be sent: itself if it pickles, and its traceback."""
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
        except Exception:  # the class of the exception may fail in any way
            raise cause from None
        raise error from cause


# --- packing


def pack_blocks(blocks: Sequence[Block]) -> Packed | None:
    """Pack the rows of consecutive blocks; return None if batches should be cut before sending."""
    kind: Any = type(blocks[0])
    sent = kind.to_send(blocks)
    return None if sent is None else pack(sent)


def pack_batches(batches: list[Any]) -> Packed:
    """Pack batches that the user's functions made.

    Raises:
        WorkerError: They hold an object that cannot be sent to another process.
    """
    try:
        return pack_dicts(batches) or pack(batches)
    except Exception as error:  # a user's object may fail to pickle in any way
        raise WorkerError(
            f"a batch cannot be sent from a worker process ({type(error).__name__}: {error}): "
            "return values that can be pickled from transform, collate_fn and decoders, or use "
            "num_workers=0"
        ) from error


def pack_dicts(batches: Sequence[Any]) -> Packed | None:
    """Pack dicts of tensors that differ only in their rows, column by column; None for others."""
    first = batches[0]
    if not all(type(batch) is dict and batch.keys() == first.keys() for batch in batches):
        return None
    columns = [[batch[key] for batch in batches] for key in first]
    if not columns or not all(map(_alike, columns)):
        return None
    try:
        sent = [
            DenseColumn.concat([DenseColumn(part.numpy(), True) for part in parts])
            for parts in columns
        ]
    except TypeError:  # numpy has no type for these, such as bfloat16
        return None
    lengths = [[len(part) for part in parts] for parts in columns]
    return pack(Call(_dicts, (list(first), sent, lengths)))


def _alike(column: Sequence[Any]) -> bool:
    """Return True if all parts are tensors that numpy can concatenate."""
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


# --- reading


def begin_worker(worker_id: int) -> None:
    """Prepare a worker process; torch calls this first."""
    end_with_parent()
    know_classes_of_trainer()


class Feed(IterableDataset[Any]):
    """The dataset that torch sends to its workers. It yields parcels, from each lane in turn.

    All lanes send parcels of the same sizes, small ones first. So the parent needs them in the
    order in which they are sent, and the first batch does not wait for many others.

    Attributes:
        init: The ``worker_init_fn`` of the user.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        files: FileList,
        board: Board,
        finish: Finish | None,
        init: Callable[[int], None] | None,
        parcel_batches: int,
        workers: int,
        claims: Claims | None = None,
    ) -> None:
        super().__init__()
        self.init = init
        self._pipeline = pipeline.on_host().sharing(workers)
        self._files = files
        self._board = board
        self._finish = finish
        self._parcel_batches = parcel_batches
        self._claims = claims
        self._sealed: Sealed | None = None

    def __getstate__(self) -> Sealed:
        self._sealed = None
        self._sealed = Sealed(self.__dict__.copy())  # it arrives as this dict
        return self._sealed

    @property
    def user_code(self) -> dict[str, Any]:
        """Values of the user that are sent to workers, by the names of their options."""
        reader = self._pipeline.reader
        found = {**reader.store.given, **reader.source.given}
        if self._finish is not None:
            found.update(self._finish.functions)
        return {**found, "worker_init_fn": self.init}

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        try:
            init, self.init = self.init, None  # once in a process, even if workers are persistent
            if init is not None:
                init(info.id)
            epoch, plan, cursors = self._board.read()
            if self._claims is None:
                mine = sorted(cursors)[info.id :: info.num_workers]
                # Copies of its own lanes do not keep the whole plan in memory.
                lanes = [deepcopy(plan.lane(lane)) for lane in mine]
                streams = [Stream.of_lane(lane, cursors[lane.index]) for lane in lanes]
            else:
                streams = [claimed_stream(info.id, self._claims, cache(plan.lane))]
            yield from self._parcels(epoch, streams)
        except Exception as error:
            yield Failure.of(error)

    def _parcels(self, epoch: int, streams: Sequence[Stream]) -> Iterator[Parcel | LaneEnd]:
        stats = Stats()
        lanes = OpenLanes(self._pipeline, self._files, streams, epoch, stats)
        left = {stream.index: _RunParts(lanes.runs(stream.index)) for stream in streams}
        size = 1
        try:
            while left:
                for lane, parts in list(left.items()):
                    runs = parts.take(size)
                    if runs:
                        yield self._parcel(lane, runs, stats)
                    else:
                        del left[lane]
                        yield LaneEnd(lane, stats.drain())
                size = min(2 * size, self._parcel_batches)
        finally:
            lanes.close()

    def _parcel(self, lane: int, runs: list[Run[Block]], stats: Stats) -> Parcel:
        cursors = [run.cursor(number + 1) for run in runs for number in range(run.batches)]
        blocks = [run.block for run in runs]
        packed = pack_blocks(blocks) if self._finish is None else None
        is_block = packed is not None
        if packed is None:
            size = self._pipeline.batch_size
            batches = [batch for block in blocks for batch in block.batches(size)]
            if self._finish is not None:
                with stats.timed("transform"):
                    batches = [self._finish(batch) for batch in batches]
            packed = pack_batches(batches)
        num_rows = sum([block.num_rows for block in blocks])
        return Parcel(lane, cursors, num_rows, *packed, is_block, stats.drain())


class _RunParts:
    """Takes a number of batches at a time from runs of any length."""

    def __init__(self, runs: Iterator[Run[Block]]) -> None:
        self._runs = runs
        self._rest: Run[Block] | None = None

    def take(self, count: int) -> list[Run[Block]]:
        """Return runs with ``count`` batches in all, fewer at the end of the lane."""
        taken: list[Run[Block]] = []
        while count:
            run, self._rest = self._rest or next(self._runs, None), None
            if run is None:
                break
            if run.batches > count:
                rows, whole = count * run.batch_size, run.block
                rest = whole.slice(rows, whole.num_rows - rows)
                self._rest = replace(run, block=rest, row=run.row + rows)
                run = replace(run, block=whole.slice(0, rows))
            taken.append(run)
            count -= run.batches
        return taken


class Board:
    """The plan of an epoch in shared memory, where all workers of a loader see it.

    It is written while no worker reads it: before they start, or before they start another epoch.
    """

    def __init__(self, epoch: int, plan: Plan, cursors: Mapping[int, Cursor]) -> None:
        """Write an epoch, and where to begin in the lanes that are to be read."""
        posted = _posted(epoch, plan, cursors)
        # The plan of another epoch is cut differently, and may have a few chunks more.
        self._memory = shared_bytes(len(posted) * 9 // 8 + (1 << 16))
        self._write(posted)

    def post(self, epoch: int, plan: Plan, cursors: Mapping[int, Cursor]) -> bool:
        """Write another epoch; return False if there is no room for it."""
        posted = _posted(epoch, plan, cursors)
        fits = _SIZE_BYTES + len(posted) <= len(self._memory)
        if fits:
            self._write(posted)
        return fits

    def _write(self, posted: bytes) -> None:
        memory = self._memory.numpy()
        memory[:_SIZE_BYTES].view(np.int64)[0] = len(posted)
        memory[_SIZE_BYTES : _SIZE_BYTES + len(posted)] = np.frombuffer(posted, np.uint8)

    def read(self) -> tuple[int, Plan, dict[int, Cursor]]:
        """Return the epoch, its lanes, and the cursors at which some of them begin."""
        memory: Any = self._memory.numpy()
        size = int(memory[:_SIZE_BYTES].view(np.int64)[0])
        epoch, plan, cursors = pickle.loads(memory[_SIZE_BYTES : _SIZE_BYTES + size])
        return epoch, plan, cursors


def _posted(epoch: int, plan: Plan, cursors: Mapping[int, Cursor]) -> bytes:
    return pickle.dumps((epoch, replace(plan, files=FileList()), dict(cursors)), protocol=5)
