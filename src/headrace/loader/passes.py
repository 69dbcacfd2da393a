"""Passes over a data set that this process reads: for a loader, by hand, or only to count."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
from torch.utils.data import get_worker_info

from headrace.convert import Block, Converter
from headrace.convert.packing import Batch
from headrace.convert.shared import is_shared, shared_integers
from headrace.loader.epoch import EpochPass, LaneFeed, LocalRun
from headrace.loader.pipeline import Chosen, Finish, LaneStart, Pipeline
from headrace.loader.planner import Planner
from headrace.loader.stats import Stats
from headrace.model import Cursor, FileList
from headrace.options import check_count
from headrace.plan import Fingerprint, Place, Readers, State
from headrace.stream import Run

__all__ = ["Bookmark", "DatasetIterator", "Passes", "readers_here"]


@dataclass(frozen=True, slots=True)
class Passes:
    """Reads a dataset in this process, and counts by reading where no plan knows the rows.

    Attributes:
        planner: The plans of its epochs.
        pipeline: Turns the chunks of a plan into batches.
        files: The files.
        finish: The user's functions, which are applied to each batch.
        counters: Statistics of what is handed out.
    """

    planner: Planner
    pipeline: Pipeline
    files: FileList
    finish: Finish | None
    counters: Stats

    def begin(self, state: State, pipeline: Pipeline) -> EpochPass:
        """Return a pass that begins at a state; what it hands out is counted."""
        starts, epoch, turn = self._starts(state), state.epoch, state.turns[0]
        return self._over(starts, epoch, pipeline, self.counters, finish=self.finish, turn=turn)

    def first_batch(self, place: Place) -> tuple[Any, int] | None:
        """Return the first batch of this rank from a place on, and how many rows it has.

        A rank that has none gets the first one of a lane of another rank.
        """
        plan, ranks = self.planner.plan_at(place).plan, self.planner.ranks
        own = range(ranks.rank, len(plan), ranks.size)
        others = [[lane] for lane in range(len(plan)) if lane not in own]
        for lanes in (own, *others):
            starts = [LaneStart(plan.lane(lane)) for lane in lanes]
            passing = self._over(starts, place[0], self.pipeline, Stats(), finish=self.finish)
            with closing(iter(passing)) as batches:
                for batch in batches:
                    return batch, passing.handed_over["rows"]
        return None

    def resume(self, state: State, readers: Readers) -> State:
        """Return where readers go on from a state; rows may have to be read for it."""
        return self.planner.resume(state, readers, self)

    def has_ended(self, state: State, running: EpochPass) -> bool:
        """Return True if no batch is left; the pass may have to read on to know."""
        left = self.planner.batches_left(state)
        if left is not None:
            return left == 0
        if running.ended and not running.finished and not self.planner.adaptive:
            return not self._anything_behind(state)
        return running.is_over()

    def _anything_behind(self, state: State) -> bool:
        """Return True if a batch is left behind a pass that was stopped."""
        passing = self._counting(self._starts(state), state.place)
        with closing(iter(passing)) as batches:
            return next(batches, None) is not None

    def batches(
        self, place: Place, lanes: Sequence[int], steps: int
    ) -> tuple[Mapping[int, Cursor], int]:
        """Read so many batches of some lanes, without their columns; see ``Recount``."""
        plan = self.planner.plan_at(place).plan
        passing = self._counting([LaneStart(plan.lane(lane)) for lane in lanes], place)
        with closing(iter(passing)) as batches:
            for _ in range(steps):
                if next(batches, None) is None:
                    break
            return dict(zip(lanes, passing.cursors, strict=True)), passing.turn

    def windows(
        self, place: Place, windows: Sequence[tuple[int, int]]
    ) -> dict[tuple[int, int], int]:
        """Read some windows, without their columns, and count their rows; see ``Recount``."""
        plan, chosen = self.planner.plan_at(place).plan, dict[int, list[int]]()
        for lane, window in windows:
            chosen.setdefault(lane, []).append(window)
        streams = [Chosen(plan.lane(lane), tuple(some)) for lane, some in chosen.items()]
        opened = self._counting_pipeline.open(self.files, streams, place[0], Stats())
        with closing(opened):
            counts = {stream.index: opened.rows_of_windows(stream.index) for stream in streams}
        return {(lane, window): counts[lane][window] for lane, window in windows}

    def _starts(self, state: State) -> list[LaneStart]:
        plan = self.planner.plan_at(state.place).plan
        return [LaneStart(plan.lane(lane), state.cursor(lane)) for lane in state.own_lanes]

    def _counting(self, starts: Sequence[LaneStart], place: Place) -> EpochPass:
        """Return a pass that only counts, without columns and without the user's functions.

        Its batches are those of the place, which may be of another size than those of now.
        """
        pipeline = replace(self._counting_pipeline, batch_size=place[1][-1].batch_size)
        return self._over(starts, place[0], pipeline, Stats(), finish=None)

    @property
    def _counting_pipeline(self) -> Pipeline:
        """The pipeline, without columns.

        Where broken chunks are skipped it decodes all columns, so that it skips the same ones.
        """
        reader = self.pipeline.reader.counting(all_columns=self.pipeline.skip_broken)
        nothing = Converter(pa.schema([]), "torch")
        return replace(self.pipeline, reader=reader, converter=nothing)

    def _over(
        self,
        starts: Sequence[LaneStart],
        epoch: int,
        pipeline: Pipeline,
        stats: Stats,
        *,
        finish: Finish | None,
        turn: int = 0,
    ) -> EpochPass:
        opened = pipeline.open(self.files, starts, epoch, stats)
        feeds = [
            LaneFeed(start.cursor, partial(_next_run, opened.runs(start.lane.index), finish))
            for start in starts
        ]
        return EpochPass(epoch, feeds, turn=turn, stats=stats, close=opened.close)


def _next_run(runs: Iterator[Run[Block]], finish: Finish | None) -> LocalRun | None:
    run = next(runs, None)
    return None if run is None else LocalRun(run, finish)


_EPOCH, _READ_BY_WORKERS = 0, 1
"""places in the memory that is shared with workers"""


class Bookmark:
    """The epoch that the next iteration reads, and the position in it from which it goes on.

    The epoch is in shared memory, so that workers that are already running see a new one.
    """

    def __init__(self) -> None:
        self.position: State | None = None
        self._shared = shared_integers(2)

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration reads."""
        return int(self._shared[_EPOCH])

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; a position in another one is forgotten."""
        check_count("epoch", epoch, least=0)
        self._shared[_EPOCH] = epoch
        if self.position is not None and self.position.epoch != epoch:
            self.position = None

    def end_epoch(self, epoch: int) -> None:
        """Go on to the next epoch, unless another was chosen in the meantime."""
        if self.epoch == epoch:
            self._shared[_EPOCH] = epoch + 1

    def put(self, position: State) -> None:
        """Let the next iteration go on from a position."""
        self.position = position
        self.set_epoch(position.epoch)

    def take(self) -> State | None:
        """Return the position for the iteration that begins now, and forget it: it counts once."""
        position, self.position = self.position, None
        return position

    @property
    def read_by_workers(self) -> bool:
        """Whether a worker process has begun to read, so that the parent knows no position."""
        return bool(self._shared[_READ_BY_WORKERS])

    def tell_parent(self) -> None:
        """Let the parent of this worker know that it reads."""
        self._shared[_READ_BY_WORKERS] = 1

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if not is_shared(self._shared):  # copied, and not sent to a worker
            self._shared = shared_integers(2).copy_(self._shared)


class DatasetIterator:
    """The batches of one consumer of a dataset; a state counts those that were handed out."""

    def __init__(
        self,
        passes: Passes,
        bookmark: Bookmark,
        fingerprint: Callable[[], Fingerprint],
        *,
        readers: Readers,
        in_worker: bool,
    ) -> None:
        self._passes = passes
        self._bookmark = bookmark
        self._fingerprint = fingerprint
        self._readers = readers
        self._in_worker = in_worker

    def begin(self, position: State | None) -> None:
        """Read from a position on; None: from the start of the epoch."""
        passes, readers, epoch = self._passes, self._readers, self._bookmark.epoch
        if position is None or position.epoch != epoch:
            start = readers.start(epoch)
        else:
            start = passes.resume(position, readers)
        share = passes.pipeline.sharing(max(readers.ranks // passes.planner.ranks.size, 1))
        self._running = passes.begin(start, share)
        self._began = start
        self._batches = iter(self._running)

    def __iter__(self) -> DatasetIterator:
        return self

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            if not self._in_worker:  # workers see the epochs that their parent sets
                self._bookmark.end_epoch(self._running.epoch)
            raise
        return _crossing(batch) if self._in_worker else batch

    def state_dict(self) -> dict[str, Any]:
        """Return where this consumer is, as JSON."""
        now = self._began.after(self._running)
        if not self._in_worker and self._passes.has_ended(now, self._running):
            now = self._readers.start(now.epoch + 1)
        return now.as_json(self._fingerprint())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Stop where it is, and continue from a state."""
        self._running.end()
        position = State.from_json(state, self._fingerprint())
        self._bookmark.set_epoch(position.epoch)
        self.begin(position)

    def close(self) -> None:
        """Stop reading."""
        self._running.end()

    def __del__(self) -> None:
        if hasattr(self, "_batches"):
            self._running.leave()


def readers_here(planner: Planner) -> Readers:
    """Return the readers of this process, which may be a worker of a loader of the user's own."""
    info = get_worker_info()
    worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
    return planner.readers_by_hand(worker, workers)


def _crossing(batch: Any) -> Any:
    """Return a batch as it leaves a worker: a dict of many tensors goes in one piece."""
    return Batch(batch) if type(batch) is dict else batch
