"""One pass over lanes, and at any moment the place in every lane.

``EpochPass`` takes a batch from each lane in turn. ``AsTheyCome`` hands out what several workers
take of the same lanes in the order in which it comes.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from headrace.convert import Block
from headrace.errors import SkippedDataWarning
from headrace.loader.claims import Claims, Loose
from headrace.loader.stats import Stats
from headrace.model import NOWHERE, Cursor
from headrace.plan import Lane
from headrace.process import run_aside
from headrace.stream import Run

__all__ = ["AsTheyCome", "BatchRun", "EpochPass", "LaneFeed", "LocalRun"]


class BatchRun(Protocol):
    """Batches of one lane that follow each other."""

    @property
    def count(self) -> int:
        """How many they are."""
        ...

    def rows(self, delivered: int) -> int:
        """Rows in so many of them."""
        ...

    def batches(self) -> Iterator[Any]:
        """The batches as the user gets them."""
        ...

    def cursor(self, delivered: int) -> Cursor:
        """The place in the lane after so many of them."""
        ...


class LocalRun:
    """A run that was cut in this process."""

    __slots__ = ("_finish", "_run", "count")

    def __init__(self, run: Run[Block], finish: Callable[[Any], Any] | None) -> None:
        self._run = run
        self._finish = finish
        self.count = run.batches

    def rows(self, delivered: int) -> int:
        return min(delivered * self._run.batch_size, self._run.block.num_rows)

    def batches(self) -> Iterator[Any]:
        made = self._run.block.batches(self._run.batch_size)
        # Not map: it would take a StopIteration of the user's function for the end of the run.
        return made if self._finish is None else (self._finish(batch) for batch in made)

    def cursor(self, delivered: int) -> Cursor:
        return self._run.cursor(delivered)


class LaneFeed:
    """A lane's runs one after the other. ``delivered`` counts batches handed out of the run."""

    __slots__ = (
        "_following",
        "_next_run",
        "_run",
        "batches",
        "delivered",
        "done_batches",
        "done_rows",
        "start",
    )

    def __init__(self, start: Cursor, next_run: Callable[[], BatchRun | None]) -> None:
        self.start = start
        self.batches: Iterator[Any] = iter(())
        self.delivered = 0
        self.done_batches = 0
        self.done_rows = 0
        self._run: BatchRun | None = None
        self._following: deque[BatchRun] = deque()
        self._next_run = next_run

    def ahead(self, wanted: int) -> int:
        """How many batches are certain to come, reading on until they are ``wanted`` or all."""
        certain = 0 if self._run is None else self._run.count - self.delivered
        certain += sum(run.count for run in self._following)
        while certain < wanted and (run := self._next_run()) is not None:
            self._following.append(run)
            certain += run.count
        return certain

    def put(self, run: BatchRun) -> None:
        """A run to come after all that are known."""
        self._following.append(run)

    def advance(self) -> bool:
        """Make sure that ``batches`` has one more, reading on if need be; False at the end."""
        while self._run is None or self.delivered == self._run.count:
            run = self._following.popleft() if self._following else self._next_run()
            if run is None:
                return False
            if self._run is not None:
                self.start = self._run.cursor(self.delivered)
                self.done_batches += self._run.count
                self.done_rows += self._run.rows(self._run.count)
            self._run, self.delivered, self.batches = run, 0, run.batches()
        return True

    @property
    def cursor(self) -> Cursor:
        """The place after the last batch that was handed out."""
        if self._run is None or self.delivered == 0:
            return self.start
        return self._run.cursor(self.delivered)

    @property
    def handed_over(self) -> tuple[int, int]:
        """Batches and rows handed out so far."""
        if self._run is None:
            return 0, 0
        rows = self.done_rows + self._run.rows(self.delivered)
        return self.done_batches + self.delivered, rows


class EpochPass:
    """Iterates once over the batches of some lanes; ``close`` is called at the end."""

    def __init__(
        self,
        epoch: int,
        lanes: Sequence[LaneFeed],
        *,
        turn: int,
        stats: Stats,
        close: Callable[[], None],
    ) -> None:
        self.epoch = epoch
        self.lanes = lanes
        self.finished = False
        self.ended = False
        self.counted = False
        self._running = False
        self._turn = turn
        self._stats = stats
        self._warned = len(stats.skipped)
        self._close = close
        self._process = os.getpid()
        self._is_gone = threading.Event()

    def __iter__(self) -> Generator[Any, None, None]:
        self._running = True
        try:
            yield from self._batches()
            self.finished = True
        except GeneratorExit:
            self.leave()
            raise
        finally:
            if not self.ended:
                self.end()

    def end(self) -> None:
        """Stop reading, and wait until nothing is left of it. May be called more than once.

        In a forked child nothing reads, and locks of what did may be held for ever.
        """
        if self._process != os.getpid():
            return
        if self._begin_end():
            self._let_go()
        else:
            self._is_gone.wait()

    def leave(self) -> None:
        """Stop reading without waiting for it: this may be called by a garbage collection."""
        if self._process == os.getpid() and self._begin_end():
            run_aside(self._let_go)

    def _begin_end(self) -> bool:
        """Return True for the first caller, who is to let go."""
        if self.ended:
            return False
        self._running, self.ended = False, True
        counts = self.handed_over
        self._stats.batches += counts["batches"]
        self._stats.rows += counts["rows"]
        self.counted = True
        return True

    def _let_go(self) -> None:
        try:
            self._close()
            self._warn()
        finally:
            self._is_gone.set()

    def is_over(self) -> bool:
        """Whether no batch is left. May have to read on to know, and then keeps what it read.

        Of a pass that has not begun or was broken off it is not known.
        """
        return self.finished or (self._running and not any(lane.ahead(1) for lane in self.lanes))

    def ahead(self, wanted: int) -> int:
        """How many batches are certain to come: ``wanted`` or more, or all that there are."""
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
        """The place in every lane."""
        return [lane.cursor for lane in self.lanes]

    @contextmanager
    def before_last_batch(self) -> Iterator[None]:
        """Be, for that long, where it was before the batch that was handed out last."""
        turn, lane = self._turn, self._last_lane()
        lane.delivered -= 1
        self._turn = turn - 1
        try:
            yield
        finally:
            lane.delivered += 1
            self._turn = turn

    def _last_lane(self) -> LaneFeed:
        return self.lanes[(self._turn - 1) % len(self.lanes)]

    @property
    def handed_over(self) -> Mapping[str, int]:
        """Batches and rows handed out so far."""
        counts = [lane.handed_over for lane in self.lanes]
        return {"batches": sum(c[0] for c in counts), "rows": sum(c[1] for c in counts)}

    def progress(self, lanes: Sequence[int]) -> tuple[dict[int, Cursor], Loose]:
        """How far these lanes have come, and which windows lie open beyond that."""
        return dict(zip(lanes, self.cursors, strict=True)), ()

    def _batches(self) -> Iterator[Any]:
        return self._one_lane() if len(self.lanes) == 1 else self._in_turn()

    def _one_lane(self) -> Iterator[Any]:
        lane = self.lanes[0]
        while lane.advance():
            self._warn()
            for batch in lane.batches:
                lane.delivered += 1
                yield batch

    def _in_turn(self) -> Iterator[Any]:
        left = set(range(len(self.lanes)))
        while left:
            index = self._turn % len(self.lanes)
            lane = self.lanes[index]
            if index in left and lane.advance():
                batch = next(lane.batches)
                lane.delivered += 1
                self._turn = index + 1  # only now: what failed to come is still to come
                yield batch
                continue
            self._turn = index + 1
            if index in left:
                left.discard(index)
                self._warn()

    def _warn(self) -> None:
        """Say in the user's thread what threads and processes had to leave out."""
        for reason in self._stats.skipped[self._warned :]:
            self._warned += 1
            warnings.warn(f"skipped: {reason}", SkippedDataWarning, stacklevel=3)


class AsTheyCome(EpochPass):
    """Batches in the order in which workers have made them; their windows are known by number."""

    def __init__(
        self,
        epoch: int,
        lanes: Sequence[Lane],
        claims: Claims,
        workers: int,
        *,
        receive: Callable[[], tuple[int, BatchRun] | None],
        stats: Stats,
        close: Callable[[], None],
    ) -> None:
        streams = [LaneFeed(NOWHERE, lambda: None) for _ in range(workers)]
        super().__init__(epoch, streams, turn=0, stats=stats, close=close)
        self._taken = lanes
        self._claims = claims
        self._receive = receive
        self._arrived: deque[tuple[int, int]] = deque()
        self._last = streams[0]

    @property
    def turn(self) -> int:
        return 0

    def ahead(self, wanted: int) -> int:
        certain = sum(lane.ahead(0) for lane in self.lanes)
        while certain < wanted and (count := self._wait_for_more()):
            certain += count
        return certain

    def is_over(self) -> bool:
        return self.finished or (self._running and self.ahead(1) == 0)

    def progress(self, lanes: Sequence[int]) -> tuple[dict[int, Cursor], Loose]:
        return self._claims.progress(self._taken, self.cursors)

    def _batches(self) -> Iterator[Any]:
        while self._arrived or self._wait_for_more():
            worker, count = self._arrived.popleft()
            self._warn()
            stream = self._last = self.lanes[worker]
            for _ in range(count):
                stream.advance()
                batch = next(stream.batches)
                stream.delivered += 1
                yield batch

    def _last_lane(self) -> LaneFeed:
        return self._last

    def _wait_for_more(self) -> int:
        """Batches that came with the next run of any worker; 0 when all have ended."""
        received = self._receive()
        if received is None:
            return 0
        worker, run = received
        self.lanes[worker].put(run)
        self._arrived.append((worker, run.count))
        return run.count
