"""Iterate once over lanes, and track the position in every lane.

``EpochPass`` takes a batch from each lane in turn. Where several workers make the batches of the
same lanes, these come as from a single lane, in the order in which they are made.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import pyarrow as pa

from headrace.convert import Block, Converter
from headrace.convert.device import Device
from headrace.errors import SkippedDataWarning
from headrace.loader._fingerprint import fingerprint_of
from headrace.loader._pipeline import Finish, OpenLanes, Pipeline, Stats, Stream
from headrace.model import NOWHERE, Cursor, computed_once
from headrace.plan import Fingerprint, Planner, State, WindowRow
from headrace.process import run_aside
from headrace.sources.source import Discovered
from headrace.stream import Run

Progress = tuple[dict[int, Cursor], tuple[WindowRow, ...]]
"""The cursor of each lane, and the unfinished windows beyond them."""


@dataclass(frozen=True, slots=True)
class BatchRun:
    """Batches of one lane that follow each other.

    Attributes:
        count: Number of batches.
        num_rows: Number of rows.
        batch_size: Number of rows of each batch but the last.
        batches: Returns the batches as the user gets them.
        cursor: Returns the place in the lane after a number of batches.
        worker: The worker that made the run, where workers share lanes.
    """

    count: int
    num_rows: int
    batch_size: int
    batches: Callable[[], Iterator[Any]]
    cursor: Callable[[int], Cursor]
    worker: int = 0

    @classmethod
    def of(
        cls, run: Run[Block], finish: Callable[[Any], Any] | None, device: Device | None = None
    ) -> BatchRun:
        """Return a run that was cut in this process; ``finish`` is applied to each batch."""

        def batches() -> Iterator[Any]:
            block: Any = run.block
            if device is None:
                made: Iterator[Any] = block.batches(run.batch_size)
            else:
                made = device.batches(block, run.batch_size)
            # Not map: it would take a StopIteration of the user's function for the end of the run.
            return made if finish is None else (finish(batch) for batch in made)

        return cls(run.batches, run.block.num_rows, run.batch_size, batches, run.cursor)

    def rows(self, delivered: int) -> int:
        """Return the number of rows in the first batches."""
        return min(delivered * self.batch_size, self.num_rows)


class LaneFeed:
    """The runs of a lane, one after the other.

    Attributes:
        batches: The batches of the run that are still to come.
        delivered: Number of batches of the run that were handed out.
    """

    def __init__(self, start: Cursor, runs: Iterable[BatchRun] = ()) -> None:
        self.batches: Iterator[Any] = iter(())
        self.delivered = 0
        self._start = start
        self._runs = iter(runs)
        self._run: BatchRun | None = None
        self._following: deque[BatchRun] = deque()
        self._ends: dict[int, Cursor] = {}  # end of the runs of each worker before this run
        self._done_batches = 0
        self._done_rows = 0

    def ahead(self, wanted: int) -> int:
        """Return how many batches are certain to come, reading on until there are ``wanted``."""
        certain = 0 if self._run is None else self._run.count - self.delivered
        certain += sum(run.count for run in self._following)
        while certain < wanted and (run := next(self._runs, None)) is not None:
            self._following.append(run)
            certain += run.count
        return certain

    def advance(self) -> bool:
        """Ensure that ``batches`` has another batch, reading on if needed; False at the end."""
        while self._run is None or self.delivered == self._run.count:
            run = self._following.popleft() if self._following else next(self._runs, None)
            if run is None:
                return False
            if self._run is not None:
                self._start = self._ends[self._run.worker] = self._run.cursor(self.delivered)
                self._done_batches += self._run.count
                self._done_rows += self._run.num_rows
            self._run, self.delivered, self.batches = run, 0, run.batches()
        return True

    @property
    def cursor(self) -> Cursor:
        """Position after the last batch that was handed out."""
        if self._run is None or self.delivered == 0:
            return self._start
        return self._run.cursor(self.delivered)

    def cursors_of(self, workers: int) -> list[Cursor]:
        """Return the position after the last batch of each of several workers."""
        ends = {**self._ends}
        if self._run is not None and self.delivered:
            ends[self._run.worker] = self.cursor
        return [ends.get(worker, NOWHERE) for worker in range(workers)]

    @property
    def handed_over(self) -> tuple[int, int]:
        """Numbers of batches and rows handed out so far."""
        if self._run is None:
            return 0, 0
        rows = self._done_rows + self._run.rows(self.delivered)
        return self._done_batches + self.delivered, rows


class EpochPass:
    """Iterates once over the batches of some lanes.

    Attributes:
        epoch: The epoch.
        lanes: The lanes.
        finished: True once a batch after the last one was asked for.
        ended: True once reading was stopped, or is being stopped. The statistics include the
            batches that were handed out when ``end`` has returned.
    """

    def __init__(
        self,
        epoch: int,
        lanes: Sequence[LaneFeed],
        *,
        turn: int,
        stats: Stats,
        close: Callable[[], None],
        progress: Callable[[], Progress] | None = None,
    ) -> None:
        """Prepare a pass.

        Args:
            epoch: The epoch.
            lanes: The lanes.
            turn: The lane that gives the first batch.
            stats: Counts the batches that are handed out.
            close: Stops reading; it is called at the end.
            progress: Returns what the method of that name does, if it does not follow from lanes.
        """
        self.epoch = epoch
        self.lanes = lanes
        self.finished = False
        self.ended = False
        self._running = False
        self._turn = turn
        self._stats = stats
        self._warned = len(stats.skipped)
        self._close = close
        self._progress = progress
        self._process = os.getpid()
        self._is_gone = threading.Event()

    def __iter__(self) -> Generator[Any, None, None]:
        self._running = True
        try:
            left = set(range(len(self.lanes)))
            while left:
                index = self._turn % len(self.lanes)
                lane = self.lanes[index]
                if index not in left or not lane.advance():
                    self._turn = index + 1
                    left.discard(index)
                    self._warn()
                    continue
                if len(self._stats.skipped) > self._warned:
                    self._warn()
                batch = next(lane.batches)
                lane.delivered += 1
                self._turn = index + 1  # only now: a batch that failed is still to come
                yield batch
            self.finished = True
        except GeneratorExit:
            self.leave()
            raise
        finally:
            if not self.ended:
                self.end()

    def end(self) -> None:
        """Stop reading, and wait until no thread or process is left. May be called again.

        A forked child does nothing: it has no threads, and their locks may be held forever.
        """
        if self._process != os.getpid():
            return
        if self._begin_end():
            self._let_go()
        else:
            self._is_gone.wait()

    def leave(self) -> None:
        """Stop reading without waiting, because a garbage collection may call this."""
        if self._process == os.getpid() and self._begin_end():
            run_aside(self._let_go)

    def _begin_end(self) -> bool:
        """Return True for the first caller, which then has to release everything."""
        if self.ended:
            return False
        self._running, self.ended = False, True
        self._stats.count(**self.handed_over)
        return True

    def _let_go(self) -> None:
        try:
            self._close()
            self._warn()
        finally:
            self._is_gone.set()

    def is_over(self) -> bool:
        """Return True if no batch is left; it may have to read on, and keeps what it has read.

        Return False for a pass that has not begun or was broken off, because it is not known.
        """
        return self.finished or (self._running and self.ahead(1) == 0)

    def ahead(self, wanted: int) -> int:
        """Return how many batches are certain to come: ``wanted`` or more, or all that are left."""
        each = -(-wanted // max(len(self.lanes), 1))
        certain = sum(lane.ahead(each) for lane in self.lanes)
        if certain < wanted:  # some lanes are at their end, and others may have more
            certain = sum(lane.ahead(wanted) for lane in self.lanes)
        return certain

    @property
    def turn(self) -> int:
        """The lane whose batch is next, if it has one."""
        return self._turn % max(len(self.lanes), 1)

    @property
    def cursors(self) -> list[Cursor]:
        """Position in every lane."""
        return [lane.cursor for lane in self.lanes]

    @contextmanager
    def before_last_batch(self) -> Iterator[None]:
        """Use, within the context, the position before the batch that was handed out last."""
        turn, lane = self._turn, self.lanes[(self._turn - 1) % len(self.lanes)]
        lane.delivered -= 1
        self._turn = turn - 1
        try:
            yield
        finally:
            lane.delivered += 1
            self._turn = turn

    @property
    def handed_over(self) -> Mapping[str, int]:
        """Numbers of batches and rows handed out so far."""
        batches = rows = 0
        for lane in self.lanes:
            its_batches, its_rows = lane.handed_over
            batches, rows = batches + its_batches, rows + its_rows
        return {"batches": batches, "rows": rows}

    def progress(self, lanes: Sequence[int]) -> Progress:
        """Return the cursors of these lanes, and the unfinished windows beyond them."""
        if self._progress is not None:
            return self._progress()
        return dict(zip(lanes, self.cursors, strict=True)), ()

    def _warn(self) -> None:
        """Warn in the user's thread of data that threads and processes had to leave out."""
        for reason in self._stats.skipped[self._warned :]:
            self._warned += 1
            warnings.warn(f"skipped: {reason}", SkippedDataWarning, stacklevel=3)


# --- Reading in this process: for a loader, by hand, or only to count


@dataclass(frozen=True)
class EpochReader:
    """All that is needed to read some data, and the passes over it in this process.

    It also counts rows by reading, where no plan knows their number.

    Attributes:
        found: The files, and how they are read.
        planner: Makes the plans of the epochs.
        pipeline: Turns the chunks of a plan into batches.
        finish: The user's functions, which are applied to each row and each batch.
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

    def begin(
        self,
        state: State,
        pipeline: Pipeline | None = None,
        *,
        lanes: Sequence[int] | None = None,
        stats: Stats | None = None,
    ) -> EpochPass:
        """Return a pass that begins at a state.

        Args:
            state: The state.
            pipeline: Reads in place of ``pipeline``.
            lanes: The lanes to read, if not those of the state.
            stats: Counts what is handed out in place of ``counters``.
        """
        pipeline, stats = pipeline or self.pipeline, stats or self.counters
        plan, lanes = self.planner.plan(state), state.own_lanes if lanes is None else lanes
        streams = [Stream.of_lane(plan.lane(lane), state.cursor(lane)) for lane in lanes]
        opened = OpenLanes(pipeline, self.found.files, streams, state.epoch, stats)
        made = partial(BatchRun.of, finish=self.finish, device=opened.device)
        feeds = [LaneFeed(one.cursor, map(made, opened.runs(one.index))) for one in streams]
        return EpochPass(state.epoch, feeds, turn=state.turns[0], stats=stats, close=opened.close)

    def first_batch(self, state: State) -> tuple[Any, int] | None:
        """Return the first batch of this rank in the plan of a state, and its number of rows.

        A rank without batches gets the first one of a lane of another rank.
        """
        state = replace(state, cursors=(), turns=(0,))
        others = [[lane] for lane in range(state.lanes) if lane not in state.own_lanes]
        for lanes in (state.own_lanes, *others):
            passing = self.begin(state, lanes=lanes, stats=Stats())
            with closing(iter(passing)) as batches:
                for batch in batches:
                    return batch, passing.handed_over["rows"]
        return None

    def has_ended(self, state: State, running: EpochPass) -> bool:
        """Return True if no batch is left; the pass may have to read on to know."""
        left = self.planner.batches_left(state)
        if left is not None:
            return left == 0
        if running.ended and not running.finished and not state.adaptive:
            # The pass was stopped: look if there is a batch behind it.
            with closing(iter(self._recount(state))) as batches:
                return next(batches, None) is None
        return running.is_over()

    def batches(self, state: State) -> tuple[Sequence[Cursor], int]:
        """Read the batches of a rank without their columns; see ``Recount``."""
        passing = self._recount(state)
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

    def _recount(self, state: State) -> EpochPass:
        """Return a pass without columns and without the user's functions."""
        plain = replace(self, finish=None)
        return plain.begin(replace(state, turns=(0,)), self._counting(state), stats=Stats())
