"""One pass over what several workers take of the same lanes: batches as they come."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headrace.loader.claims import Claims, Loose
from headrace.loader.epoch import BatchRun, EpochPass, LaneFeed
from headrace.loader.stats import Stats
from headrace.plan import Lane
from headrace.stream import Cursor

__all__ = ["AsTheyCome"]


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
        streams = [LaneFeed((-1, 0), lambda: None) for _ in range(workers)]
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
