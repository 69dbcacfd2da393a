"""The side of a worker process: reads its lanes and sends their batches in parcels."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from headrace.access.streaming import BackendRows
from headrace.convert import Block
from headrace.convert.packing import pack
from headrace.convert.shared import shared_bytes
from headrace.loader.board import Board
from headrace.loader.claims import Claims, Takings
from headrace.loader.freed_memory import keep_freed_memory
from headrace.loader.parcels import Parcel, pack_blocks, pack_dicts
from headrace.loader.pipeline import Finish, OpenLanes, Pipeline
from headrace.loader.stats import Stats
from headrace.loader.streams import Stream
from headrace.model import FileList
from headrace.stream import Cursor, Run

__all__ = ["Failure", "Feed", "LaneEnd", "Sent"]


@dataclass(frozen=True, slots=True)
class LaneEnd:
    """A lane has no more batches."""

    lane: int
    stats: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Failure:
    """A worker cannot go on."""

    error: Exception
    trace: str


Sent = Parcel | LaneEnd | Failure


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
        self._pipeline = pipeline.sharing(workers)
        self._files = files
        self._board = board
        self._finish = finish
        self._parcel_batches = parcel_batches
        self._claims = claims
        self._sent: torch.Tensor | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """In shared memory, but for the board.

        A parent blocks for ever if it writes more into the pipe of a spawned process than the
        pipe holds, and the process dies before it reads (for want of a ``__main__`` guard, say).
        """
        kept_back = ("_board", "_sent")
        state = {name: self.__dict__[name] for name in self.__dict__ if name not in kept_back}
        pickled = np.frombuffer(ForkingPickler.dumps(state), np.uint8)
        memory = shared_bytes(len(pickled))
        memory.numpy()[:] = pickled
        self._sent = memory  # its descriptor must be open until the process has it
        return _received, (memory, self._board)

    @property
    def user_code(self) -> dict[str, Any]:
        """What comes from the user and must reach a worker, by the name of its option."""
        reader = self._pipeline.reader
        found = dict(reader.store.given)
        if isinstance(reader.rows, BackendRows):
            found.update(reader.rows.backend.given)
        if self._finish is not None:
            found.update(transform=self._finish.transform, collate_fn=self._finish.collate_fn)
        return found

    def __iter__(self) -> Iterator[Sent]:
        info = get_worker_info()
        assert info is not None
        keep_freed_memory()
        streams: Sequence[Stream]
        if self._claims is None:
            streams = self._board.starts(info.id, info.num_workers)
        else:
            streams = [Takings(info.id, self._claims, self._board.lane)]
        stats = Stats()
        lanes = self._pipeline.open(self._files, streams, self._board.epoch, stats)
        try:
            yield from self._parcels(lanes, [stream.index for stream in streams], stats)
        except Exception as error:
            yield failure(error)
        finally:
            lanes.close()

    def _parcels(self, lanes: OpenLanes, order: list[int], stats: Stats) -> Iterator[Sent]:
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
            packed = pack_dicts(batches) or pack(batches)
        return Parcel(lane, cursors, rows, *packed, whole, stats.drain())


def _received(memory: torch.Tensor, board: Board) -> Feed:
    feed = Feed.__new__(Feed)
    feed.__dict__.update(pickle.loads(memory.numpy().tobytes()), _board=board)
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


def failure(error: Exception) -> Failure:
    """An error as it can be sent: itself if it pickles, and the text of where it came from."""
    trace = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # a user's exception may fail to pickle in any way
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return Failure(error, trace)
