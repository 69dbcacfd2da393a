"""The worker processes of a loader: what they are given, and kept for the next epoch."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from headrace.loader.as_they_come import AsTheyCome
from headrace.loader.board import Board
from headrace.loader.claims import Claims, Unit, units_left
from headrace.loader.epoch import EpochPass, LaneFeed
from headrace.loader.pipeline import Pipeline
from headrace.loader.row_cost import sent_cost
from headrace.loader.workers import Inbox, WorkerOptions, Workers
from headrace.plan import LanePlan, State

if TYPE_CHECKING:
    from headrace.loader.dataset import TabularDataset

__all__ = ["WorkerPool"]

_PARCEL_BYTES = 8 << 20
_PARCEL_BATCHES = 32
_PARCEL_BATCHES_AS_THEY_COME = 8
"""fewer, for a slow worker is waited for at the end"""


@dataclass(frozen=True, slots=True)
class _Team:
    """Processes, and the shared memory that tells them what to read."""

    pipeline: Pipeline
    """what they run"""
    board: Board
    claims: Claims | None
    source: Workers

    def can_read(self, plan: LanePlan, units: int) -> bool:
        """Whether all are alive, and there is room for another plan."""
        if self.source.have_failed:
            return False
        return self.board.holds(plan) and (self.claims is None or self.claims.holds(units))


class WorkerPool:
    """Starts workers, or uses those of the last epoch again if they are persistent."""

    def __init__(self, dataset: TabularDataset, options: WorkerOptions) -> None:
        self._dataset = dataset
        self._options = options
        if options.count and options.context is not None:
            options.chosen_context(dataset.fork_safe)  # what cannot be is refused now
        self._kept: _Team | None = None
        self._user_of_kept: weakref.ref[EpochPass] | None = None

    def begin(self, plan: LanePlan, position: State, *, pin: bool) -> EpochPass:
        """A pass over the lanes of a position that workers read."""
        adaptive, own = self._dataset.planner.adaptive, position.own_lanes
        cursors = {lane: position.cursor(lane) for lane in own}
        lanes = [plan.lane(lane) for lane in own] if adaptive else []
        units = units_left(lanes, cursors, position.loose)
        team = self._team(plan, units)
        epoch, stats = position.epoch, self._dataset.counters
        team.board.post(epoch, plan, cursors)
        streams = range(self._options.count) if adaptive else own
        inbox = Inbox(team.source, self._dataset.pipeline, list(streams), pin, stats)
        if team.claims is not None:
            team.claims.post(units)
            made: EpochPass = AsTheyCome(
                epoch,
                lanes,
                team.claims,
                self._options.count,
                receive=inbox.next_of_any,
                stats=stats,
                close=inbox.close,
            )
        else:
            feeds = [LaneFeed(at, partial(inbox.next_run, lane)) for lane, at in cursors.items()]
            turn = position.turns[0]
            made = EpochPass(epoch, feeds, turn=turn, stats=stats, close=inbox.close)
        if self._kept is team:
            self._user_of_kept = weakref.ref(made)
        return made

    def _team(self, plan: LanePlan, units: list[list[Unit]]) -> _Team:
        """That of the last epoch if it is kept, idle and fit for it, or a new one."""
        user = self._user_of_kept() if self._user_of_kept is not None else None
        idle = user is None or user.ended
        count = sum(map(len, units))
        dataset, options = self._dataset, self._options
        same = self._kept is not None and self._kept.pipeline is dataset.pipeline
        if self._kept is not None and same and idle and self._kept.can_read(plan, count):
            return self._kept
        board, claims = Board(plan), None
        if dataset.planner.adaptive:
            context = options.chosen_context(dataset.fork_safe)
            claims = Claims(options.count, count + count // 8 + 64, context)
        feed = dataset.feed(board, self._parcel_batches(), options.count, claims)
        source = options.start(feed, dataset.fork_safe, in_order=claims is None)
        made = _Team(dataset.pipeline, board, claims, source)
        if options.persistent and idle:
            self._kept = made
        return made

    def _parcel_batches(self) -> int:
        """Batches to a parcel: enough to share its cost, few enough to wait for.

        All parcels that workers may be ahead fit what may be read ahead, if they hold one batch
        at least.
        """
        rows, stored_bytes = self._dataset.stored
        pipeline, options = self._dataset.pipeline, self._options
        cost = sent_cost(pipeline.reader.schema, pipeline.converter.kinds)
        size_bytes = cost.of(rows, stored_bytes)
        batch_bytes = max(size_bytes * self._dataset.batch_size // max(rows, 1), 1)
        ahead = max(options.count * options.prefetch_factor, 1)
        most_bytes = min(_PARCEL_BYTES, pipeline.prefetch_bytes // ahead)
        most = _PARCEL_BATCHES_AS_THEY_COME if self._dataset.planner.adaptive else _PARCEL_BATCHES
        return max(1, min(most, most_bytes // batch_bytes))
