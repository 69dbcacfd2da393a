"""Who reads what, and from where on: plans of the epochs of one data set."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from typing import Any

from headrace.errors import OptionError, StateMismatchError
from headrace.loader.itinerary import Crew, Recount, Route, counted_start, resumed
from headrace.loader.options import OrderOptions
from headrace.loader.ranks import Ranks
from headrace.loader.state import END, Place, Position, Stage
from headrace.model import FileList
from headrace.plan import (
    EvenBatchesSplitStrategy,
    EvenPlan,
    LanePlan,
    batches_in,
    even_out,
    plan_lanes,
    plan_the_rest,
    windows_begun,
)
from headrace.stream import Cursor

__all__ = ["Planner"]

logger = logging.getLogger(__name__)


class Planner:
    """Lanes of the epochs of some files, shared by ranks and their workers. Reads nothing.

    ``ranks`` and ``workers`` may be set until the first iteration.
    """

    def __init__(
        self,
        files: FileList,
        order: OrderOptions,
        *,
        counted: bool,
        ranks: Ranks,
        even: str | bool | None,
        balance: str,
    ) -> None:
        self._files = files
        self._order = order
        self._counted = counted
        self.ranks = ranks
        self.workers = 1
        self.even = _checked_even(even, ranks)
        if balance not in ("static", "adaptive"):
            raise OptionError(f'balance must be "static" or "adaptive", not {balance!r}')
        self._balance = balance
        if order.lanes is not None and order.lanes % ranks.size:
            raise OptionError(
                f"lanes={order.lanes} cannot be shared evenly by {ranks.size} ranks; "
                "choose a multiple of their number"
            )
        self._planned: tuple[Place, LanePlan] | None = None
        self._evened: tuple[Place, EvenPlan] | None = None

    def over(self, files: FileList, order: OrderOptions, *, counted: bool) -> Planner:
        """The same for other files; this one stays as it is."""
        made = copy(self)
        made._files, made._order, made._counted = files, order, counted
        return made

    @property
    def num_rows(self) -> int | None:
        """Rows of an epoch; None when only reading them would tell."""
        return int(self._files.counts.sum()) if self._counted else None

    # --- who

    @property
    def crew(self) -> Crew:
        """Who reads."""
        return Crew(
            self.ranks.rank,
            self.ranks.size,
            self.workers,
            self._order.batch_size,
            self._order.lanes,
            in_step=self.even is not False,
            adaptive=self.adaptive,
        )

    def crew_by_hand(self, worker: int, workers: int) -> Crew:
        """A worker of a loader of the user's own: a rank among ranks x workers."""
        return replace(
            self.crew,
            rank=worker * self.ranks.size + self.ranks.rank,
            ranks=workers * self.ranks.size,
            workers=1,
            in_step=False,
            adaptive=False,
        )

    @property
    def adaptive(self) -> bool:
        """Whether workers take windows of each other: there must be two of them at least."""
        return self._balance == "adaptive" and self.workers > 1

    @property
    def steps_known(self) -> bool:
        """Whether the number of batches is known before they are read."""
        return self._counted and not self.adaptive

    @property
    def must_agree(self) -> bool:
        """Whether ranks can be in step only if they agree while they run."""
        return self.even is not False and self.ranks.size > 1 and not self.steps_known

    # --- what

    def plan_at(self, place: Place) -> LanePlan:
        """The lanes of the epoch, or of what was left of it; the last plan is kept."""
        place = replace(place, ranks=1, taken=0)
        if self._order.same_in_every_epoch:
            place = replace(place, epoch=0)
        if self._planned is None or self._planned[0] != place:
            self._planned = place, self._plan_at(place)
        return self._planned[1]

    def _plan_at(self, place: Place) -> LanePlan:
        stages = place.before
        sizes = [(stage.batch_size, len(stage.cursors)) for stage in stages]
        sizes.append((place.batch_size, place.lanes))
        strategy = self._order.strategy_for(sizes[0][0])
        plan = plan_lanes(strategy, self._files, lanes=sizes[0][1], epoch=place.epoch)
        plan = plan.grouped(self._order.grouping)
        for stage, (batch_size, lanes) in zip(stages, sizes[1:], strict=True):
            self._check_cursors(plan, dict(enumerate(stage.cursors)))
            plan = plan_the_rest(
                plan,
                stage.cursors,
                lanes=lanes,
                batch_size=batch_size,
                grouping=self._order.grouping,
                counts=_counts(stage, plan),
                loose=stage.loose,
            )
        return plan

    def evened(self, place: Place) -> EvenPlan:
        """The lanes from a place on with the same number of batches for every rank.

        Where rows are not counted, or ranks need not be in step, all that there is.
        """
        if self.even is False or self.ranks.size == 1 or not self.steps_known:
            return EvenPlan(self.plan_at(place))
        if self._evened is None or self._evened[0] != place:
            self._evened = place, self._even_out(place)
        return self._evened[1]

    def _even_out(self, place: Place) -> EvenPlan:
        plan = self.plan_at(place)
        cursors, turns = self._starts(place, plan)
        made = even_out(
            plan,
            [cursors[lane] for lane in range(len(plan))],
            turns,
            batch_size=place.batch_size,
            drop_last=self._order.drop_last,
            pad=self.even == "pad",
            reorders=self._order.grouping.reorders,
        )
        first = range(0, len(plan), self.ranks.size)
        steps = sum(self._batches(made.plan.lane(lane).rows_left()) for lane in first)
        if not steps and not place.before and self.num_rows:
            raise OptionError(
                f"{self.num_rows} rows make fewer batches of {self._order.batch_size} rows than "
                f"there are ranks ({self.ranks.size}), so that nothing would be read; choose a "
                'smaller batch_size, or even="pad" without drop_last'
            )
        if made.dropped_rows:
            logger.info(
                "epoch %d: %d rows are left out, so that %d ranks take the same number of steps",
                place.epoch,
                made.dropped_rows,
                self.ranks.size,
            )
        return made

    def _starts(self, place: Place, plan: LanePlan) -> tuple[dict[int, Cursor], list[int]]:
        """Where all lanes begin at a place, and which lane of each rank is first."""
        even, drop_last = self.dealt_evenly(place), self._order.drop_last
        cursors: dict[int, Cursor] = {}
        turns = [0] * self.ranks.size
        for rank in range(place.ranks):
            start = counted_start(place, rank, plan, even=even, drop_last=drop_last)
            cursors.update({lane: start.cursor(lane) for lane in start.own_lanes})
            if place.ranks == self.ranks.size:
                turns[rank] = start.turns[0]
        return cursors, turns

    def dealt_evenly(self, place: Place) -> bool:
        """Whether the lanes of a place have equal numbers of batches, to one."""
        if place.before:
            return place.before[-1].counts is None
        return isinstance(self._order.strategy, EvenBatchesSplitStrategy)

    # --- from where on

    def resumed(self, position: Position, crew: Crew, recount: Recount) -> Position:
        """Where a member of the crew goes on from a position, checked."""
        plan = self.plan_at(position.place)
        cursors = dict(position.cursors)
        if self.even == "pad" and crew.keeps(position.place) and crew.ranks == position.place.ranks:
            plan = self.evened(position.place).plan  # the place may be among repeated rows
        elif self.even == "pad":
            cursors = {lane: min(at, plan.lane(lane).end) for lane, at in cursors.items()}
        for lane, cursor in cursors.items():
            if cursor[0] == END:
                cursors[lane] = plan.lane(lane).end
        self._check_cursors(plan, cursors)
        drop_last = self._order.drop_last
        route = Route(self.plan_at, self._counted, self.dealt_evenly, drop_last, recount)
        return resumed(replace(position, cursors=cursors), crew, route)

    def _check_cursors(self, plan: LanePlan, cursors: Mapping[int, Cursor]) -> None:
        """Raise a StateMismatchError if a lane does not reach as far as its cursor."""
        for index, cursor in cursors.items():
            lane = plan.lane(index)
            beyond = cursor[0] > max(lane.windows, 0) or (cursor[0] == lane.windows and cursor[1])
            if beyond or (self._counted and lane.rows_left(cursor) < 0):
                raise StateMismatchError(
                    f"the state is damaged: lane {index} is at {cursor}, which is beyond its end"
                )

    def batches_left(self, position: Position) -> int | None:
        """Batches behind a position; None where only reading would tell."""
        if not self.steps_known:
            return None
        plan = self.evened(position.place).plan
        return sum(
            self._batches(plan.lane(lane).rows_left(position.cursor(lane)))
            for lane in position.own_lanes
        )

    def _batches(self, rows: int) -> int:
        return batches_in(rows, self._order.batch_size, self._order.drop_last)

    def __getstate__(self) -> dict[str, Any]:
        # A plan of many chunks is cheaper to make than to send.
        return {**self.__dict__, "_planned": None, "_evened": None}


def _counts(stage: Stage, plan: LanePlan) -> dict[tuple[int, int], int] | None:
    """Return the rows of the windows that a stage left begun; None where the plan knows them."""
    if stage.counts is None:
        return None
    counts = {(lane, window): rows for lane, window, rows in stage.counts}
    for lane, window in windows_begun(plan, stage.cursors, stage.loose):
        if counts.get((lane, window), -1) < 0:
            raise StateMismatchError(
                f"the state is damaged: window {window} of lane {lane} was begun, and how many "
                "rows it has is not said"
            )
    return counts


def _checked_even(even: str | bool | None, ranks: Ranks) -> str | bool:
    if even is None:
        return "drop" if ranks.size > 1 else False
    if even is not False and even not in ("drop", "pad"):
        raise OptionError(f'even must be "drop", "pad" or False, not {even!r}')
    return even
