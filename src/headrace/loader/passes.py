"""Passes over a dataset that are read in this process, for the user or only to count rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from headrace.convert import Block, Converter
from headrace.loader.epoch import EpochPass, LaneFeed, LocalRun
from headrace.loader.pipeline import Finish, Pipeline
from headrace.loader.planner import Planner
from headrace.loader.stats import Stats
from headrace.loader.streams import Chosen, LaneStart
from headrace.model import FileList
from headrace.plan import Place, Readers, State
from headrace.stream import Cursor, Run

__all__ = ["Passes"]


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
