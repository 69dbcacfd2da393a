"""Passes over a data set that this process reads: for a loader, by hand, or only to count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import pyarrow as pa
from torch.utils.data import get_worker_info

from headrace.convert import Block, Converter
from headrace.convert.packing import Batch
from headrace.convert.shared import is_shared, shared_integers
from headrace.loader.epoch import BatchRun, EpochPass, LaneFeed
from headrace.loader.fingerprint import fingerprint_of
from headrace.loader.pipeline import Finish, OpenLanes, Pipeline, Stream
from headrace.loader.stats import Stats
from headrace.model import Cursor, computed_once
from headrace.options import check_count
from headrace.plan import Fingerprint, Planner, Readers, State
from headrace.sources.reader import Discovered
from headrace.stream import Run

__all__ = ["Bookmark", "DatasetIterator", "Passes", "readers_by_hand"]


@dataclass(frozen=True)
class Passes:
    """Reads some data in this process, and counts by reading where no plan knows the rows.

    Attributes:
        found: The files.
        planner: The plans of its epochs.
        pipeline: Turns the chunks of a plan into batches.
        finish: The user's functions, which are applied to each batch.
        counters: Statistics of what is handed out.
    """

    found: Discovered
    planner: Planner
    pipeline: Pipeline
    finish: Finish | None
    counters: Stats

    @computed_once
    def fingerprint(self) -> Fingerprint:
        """The data and order that a state belongs to."""
        return fingerprint_of(self.found, self.planner)

    def begin(self, state: State, pipeline: Pipeline) -> EpochPass:
        """Return a pass that begins at a state; what it hands out is counted."""
        turn = state.turns[0]
        return self._over(state, state.own_lanes, pipeline, self.counters, self.finish, turn)

    def first_batch(self, state: State) -> tuple[Any, int] | None:
        """Return the first batch of this rank in the plan of a state, and how many rows it has.

        A rank that has none gets the first one of a lane of another rank.
        """
        state = replace(state, cursors={})
        others = [[lane] for lane in range(state.stage.lanes) if lane not in state.own_lanes]
        for lanes in (state.own_lanes, *others):
            passing = self._over(state, lanes, self.pipeline, Stats(), self.finish)
            with closing(iter(passing)) as batches:
                for batch in batches:
                    return batch, passing.handed_over["rows"]
        return None

    def load(self, state: Mapping[str, Any]) -> State:
        """Return the state that JSON describes, if it is of this data and order."""
        read = State.from_json(state)
        self.fingerprint.check(read)
        return read

    def resume(self, state: State, readers: Readers) -> State:
        """Return where readers go on from a state; rows may have to be read for it."""
        return self.planner.resume(state, readers, self)

    def has_ended(self, state: State, running: EpochPass) -> bool:
        """Return True if no batch is left; the pass may have to read on to know."""
        left = self.planner.batches_left(state)
        if left is not None:
            return left == 0
        if running.ended and not running.finished and not self.planner.adaptive:
            # The pass was stopped: look if there is a batch behind it.
            passing = self._over(state, state.own_lanes, self._counting(state), Stats(), None)
            with closing(iter(passing)) as batches:
                return next(batches, None) is None
        return running.is_over()

    def batches(self, state: State) -> tuple[Mapping[int, Cursor], int]:
        """Read the batches of a rank without their columns; see ``Recount``."""
        lanes = state.own_lanes
        passing = self._over(state, lanes, self._counting(state), Stats(), None)
        with closing(iter(passing)) as batches:
            for _ in islice(batches, state.steps[0]):
                pass
            return dict(zip(lanes, passing.cursors, strict=True)), passing.turn

    def windows(
        self, state: State, windows: Sequence[tuple[int, int]]
    ) -> dict[tuple[int, int], int]:
        """Read some windows without their columns, and count their rows; see ``Recount``."""
        plan, chosen = self.planner.plan(state), dict[int, list[int]]()
        for lane, window in windows:
            chosen.setdefault(lane, []).append(window)
        streams = [Stream.of_windows(plan.lane(lane), some) for lane, some in chosen.items()]
        pipeline = self._counting(state)
        opened = OpenLanes(pipeline, self.found.files, streams, state.epoch, Stats())
        with closing(opened):
            counts = {stream.index: opened.rows_of_windows(stream.index) for stream in streams}
        return {(lane, window): counts[lane][window] for lane, window in windows}

    def _counting(self, state: State) -> Pipeline:
        """Return the pipeline without columns, for batches of the size that the state has.

        Where broken chunks are skipped it decodes all columns, so that it skips the same ones.
        """
        reader = self.pipeline.reader.counting(all_columns=self.pipeline.skip_broken)
        nothing, size = Converter(pa.schema([]), "torch"), state.stage.batch_size
        return replace(self.pipeline, reader=reader, converter=nothing, batch_size=size)

    def _over(
        self,
        state: State,
        lanes: Sequence[int],
        pipeline: Pipeline,
        stats: Stats,
        finish: Finish | None,
        turn: int = 0,
    ) -> EpochPass:
        """Return a pass over some lanes, from the cursors of a state on."""
        plan = self.planner.plan(state)
        streams = [Stream.of_lane(plan.lane(lane), state.cursor(lane)) for lane in lanes]
        opened = OpenLanes(pipeline, self.found.files, streams, state.epoch, stats)
        feeds = [
            LaneFeed(stream.cursor, partial(_next_run, opened.runs(stream.index), finish))
            for stream in streams
        ]
        return EpochPass(state.epoch, feeds, turn=turn, stats=stats, close=opened.close)


def _next_run(runs: Iterator[Run[Block]], finish: Finish | None) -> BatchRun | None:
    run = next(runs, None)
    return None if run is None else BatchRun.of(run, finish)


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
        """True if a worker process has begun to read, so that the parent knows no position."""
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

    def __init__(self, passes: Passes, bookmark: Bookmark) -> None:
        self._passes = passes
        self._bookmark = bookmark
        info = get_worker_info()
        self._in_worker = info is not None
        # The workers of a loader of the user's own count as ranks.
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        self._readers = readers_by_hand(passes.planner.readers, worker, workers)
        self._workers = workers

    def begin(self, position: State | None) -> None:
        """Read from a position on; None: from the start of the epoch."""
        passes, epoch = self._passes, self._bookmark.epoch
        if position is None or position.epoch != epoch:
            start = self._readers.start(epoch)
        else:
            start = passes.resume(position, self._readers)
        self._running = passes.begin(start, passes.pipeline.sharing(self._workers))
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
        # A dict of many tensors leaves a worker in one piece.
        return Batch(batch) if self._in_worker and type(batch) is dict else batch

    def state_dict(self) -> dict[str, Any]:
        """Return where this consumer is, as JSON."""
        now = self._began.after(self._running)
        if not self._in_worker and self._passes.has_ended(now, self._running):
            now = self._readers.start(now.epoch + 1)
        return now.as_json(self._passes.fingerprint)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Stop where it is, and continue from a state."""
        self._running.end()
        position = self._passes.load(state)
        self._bookmark.set_epoch(position.epoch)
        self.begin(position)

    def close(self) -> None:
        """Stop reading."""
        self._running.end()

    def __del__(self) -> None:
        if hasattr(self, "_batches"):
            self._running.leave()


def readers_by_hand(readers: Readers, worker: int = 0, workers: int = 1) -> Readers:
    """Return the readers of a loader of the user's own, whose workers count as ranks."""
    return replace(
        readers,
        rank=worker * readers.ranks + readers.rank,
        ranks=workers * readers.ranks,
        workers=1,
        in_step=False,
        adaptive=False,
    )
