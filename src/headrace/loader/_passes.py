"""Passes over a data set that this process reads: for a loader, by hand, or only to count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from torch.utils.data import get_worker_info

from headrace.convert import Block, Converter
from headrace.convert.packing import Batch
from headrace.errors import OptionError
from headrace.loader._epoch import BatchRun, EpochPass, LaneFeed
from headrace.loader._fingerprint import fingerprint_of
from headrace.loader._pipeline import Finish, OpenLanes, Pipeline, Stream
from headrace.loader._stats import Stats
from headrace.model import Cursor, computed_once
from headrace.plan import Fingerprint, Planner, State
from headrace.sources.reader import Discovered
from headrace.stream import Run

if TYPE_CHECKING:
    from headrace.loader._dataset import TabularDataset

__all__ = ["DatasetIterator", "Passes"]


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
        state = replace(state, cursors=())
        others = [[lane] for lane in range(state.lanes) if lane not in state.own_lanes]
        for lanes in (state.own_lanes, *others):
            passing = self._over(state, lanes, self.pipeline, Stats(), self.finish)
            with closing(iter(passing)) as batches:
                for batch in batches:
                    return batch, passing.handed_over["rows"]
        return None

    def resume(self, state: State) -> State:
        """Return where this rank goes on from a state; rows may have to be read for it."""
        return self.planner.resume(state, self)

    def has_ended(self, state: State, running: EpochPass) -> bool:
        """Return True if no batch is left; the pass may have to read on to know."""
        left = self.planner.batches_left(state)
        if left is not None:
            return left == 0
        if running.ended and not running.finished and not state.adaptive:
            # The pass was stopped: look if there is a batch behind it.
            passing = self._over(state, state.own_lanes, self._counting(state), Stats(), None)
            with closing(iter(passing)) as batches:
                return next(batches, None) is None
        return running.is_over()

    def batches(self, state: State) -> tuple[Sequence[Cursor], int]:
        """Read the batches of a rank without their columns; see ``Recount``."""
        passing = self._over(state, state.own_lanes, self._counting(state), Stats(), None)
        with closing(iter(passing)) as batches:
            for _ in islice(batches, state.steps[0]):
                pass
            return passing.cursors, passing.turn

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
        nothing, size = Converter(pa.schema([]), "torch"), state.batch_size
        on_host = self.pipeline.on_host()
        return replace(on_host, reader=reader, converter=nothing, batch_size=size)

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
            LaneFeed(stream.cursor, partial(_next_run, opened, opened.runs(stream.index), finish))
            for stream in streams
        ]
        return EpochPass(state.epoch, feeds, turn=turn, stats=stats, close=opened.close)


def _next_run(
    opened: OpenLanes, runs: Iterator[Run[Block]], finish: Finish | None
) -> BatchRun | None:
    run = next(runs, None)
    return None if run is None else BatchRun.of(run, finish, opened.device)


class DatasetIterator:
    """The batches of one consumer of a dataset; a state counts those that were handed out."""

    def __init__(self, dataset: TabularDataset, position: State | None) -> None:
        """Begin to read.

        Args:
            dataset: The dataset.
            position: Where to begin; None for the start of the epoch.
        """
        info = get_worker_info()
        self._in_worker = info is not None
        worker, self._workers = (0, 1) if info is None else (info.id, info.num_workers)
        if self._in_worker and dataset.pipeline.device is not None:
            raise OptionError(
                "device= moves batches in the process that trains; make the loader with "
                "dataset.loader(), or use num_workers=0"
            )
        planner = dataset.planner.by_hand(worker, self._workers)
        self._data = dataset.passes  # its fingerprint is computed once, for all iterators
        self._passes = replace(self._data, planner=planner)
        self._dataset = dataset
        self._begin(position)

    def _begin(self, position: State | None) -> None:
        passes, epoch = self._passes, self._dataset.epoch
        if position is None or position.epoch != epoch:
            start = passes.planner.start(epoch)
        else:
            start = passes.resume(position)
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
                self._dataset.end_epoch(self._running.epoch)
            raise
        # A dict of many tensors leaves a worker in one piece.
        return Batch(batch) if self._in_worker and type(batch) is dict else batch

    def state_dict(self) -> dict[str, Any]:
        """Return where this consumer is, as JSON."""
        now = self._began.after(self._running)
        if not self._in_worker and self._passes.has_ended(now, self._running):
            now = self._passes.planner.start(now.epoch + 1)
        return now.as_json(self._data.fingerprint)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Stop where it is, and continue from a state."""
        self._running.end()
        position = State.from_json(state)
        self._data.fingerprint.check(position)
        self._dataset.set_epoch(position.epoch)
        self._begin(position)

    def close(self) -> None:
        """Stop reading."""
        self._running.end()

    def __del__(self) -> None:
        if hasattr(self, "_batches"):
            self._running.leave()
