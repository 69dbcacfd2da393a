"""Which plan, and which cursors: for an epoch, for a state, for any ranks, workers and batch size.

``Planner.plan_at`` gives the lanes of an epoch as its ranks share them. ``Planner.resume`` answers
how readers go on from a state that any others may have saved:

* The lanes of the state are kept if ranks x workers divides them and the size of batches and the
  option ``lanes`` are the same. The global sequence of batches then goes on, also for another
  number of ranks: all batches below some number were taken, and each rank begins at its first one
  from there on. Only the last batches are cut anew, if the new ranks cannot share them.
* Otherwise what is left of all lanes is planned anew, as another stage of the epoch.

Nothing is read here. Where rows are not counted before they are read, a ``Recount`` reads.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import pairwise
from typing import Any, Protocol

from headrace.errors import OptionError, StateMismatchError
from headrace.loader.order import Order
from headrace.loader.ranks import Ranks
from headrace.model import Cursor, FileList
from headrace.plan import (
    DONE,
    END,
    EvenBatchesSplitStrategy,
    EvenPlan,
    LanePlan,
    Loose,
    Place,
    Readers,
    Share,
    Stage,
    State,
    batches_in,
    even_out,
    first_in_turn,
    plan_lanes,
    plan_the_rest,
    share_last_round,
    windows_begun,
)

__all__ = ["Planner", "Recount", "known_batches"]

logger = logging.getLogger(__name__)

_MOST_DROPPED = 0.01
"""Share of the rows of an epoch that may be left out without a warning."""


class Recount(Protocol):
    """Reads again what no plan knows, without its columns."""

    def batches(
        self, place: Place, lanes: Sequence[int], steps: int
    ) -> tuple[Mapping[int, Cursor], int]:
        """Return where lanes stand after so many batches from a place on, and which is next."""
        ...

    def windows(
        self, place: Place, windows: Sequence[tuple[int, int]]
    ) -> Mapping[tuple[int, int], int]:
        """Return the number of rows of some windows (lane, window) of the plan of a place."""
        ...


class Planner:
    """The plans of the epochs of some files, shared by ranks and their workers.

    ``workers`` may be set, and ``share`` called, until the first iteration.
    """

    def __init__(
        self,
        files: FileList,
        order: Order,
        *,
        counted: bool,
        ranks: Ranks,
        even: str | bool | None,
        balance: str,
    ) -> None:
        self._files = files
        self._order = order
        self._counted = counted
        self._even = even
        self.workers = 1
        self._balance = balance
        self.share(ranks)

    def share(self, ranks: Ranks) -> None:
        """Plan for these ranks from now on; only before the first iteration."""
        rows, lanes = self.num_rows, self._order.lanes
        if rows is not None and rows < ranks.size > 1 and self._even != "pad":
            raise OptionError(
                f"{rows} rows cannot be shared by {ranks.size} ranks; use fewer ranks, or "
                'even="pad", which repeats rows'
            )
        if lanes is not None and lanes % ranks.size:
            raise OptionError(
                f"lanes={lanes} cannot be shared evenly by {ranks.size} ranks; "
                "choose a multiple of their number"
            )
        self.ranks = ranks
        self.even: str | bool = False
        if self._even is not None:
            self.even = self._even
        elif ranks.size > 1:
            self.even = "drop"
        self._forget()

    def _forget(self) -> None:
        self._dealt: tuple[Place, LanePlan] | None = None
        self._shared: tuple[Place, EvenPlan] | None = None
        self._digests: dict[tuple[int, int], str] = {}  # of the user's own splits

    def over(self, files: FileList, order: Order, *, counted: bool) -> Planner:
        """Return a planner of other files for the same ranks and workers."""
        made = copy(self)
        made._files, made._order, made._counted = files, order, counted
        made._forget()
        return made

    @property
    def num_rows(self) -> int | None:
        """Number of rows of an epoch; None when only reading them would tell."""
        return int(self._files.counts.sum()) if self._counted else None

    # --- readers

    @property
    def readers(self) -> Readers:
        """The ranks and workers of this job."""
        even = ""
        if self.ranks.size > 1 and self.even is not False and self.steps_known:
            even = "full" if self._order.drop_last else str(self.even)
        return Readers(
            self.ranks.rank,
            self.ranks.size,
            self.workers,
            self._order.batch_size,
            self._order.lanes,
            even,
            in_step=self.even is not False,
            adaptive=self.adaptive,
        )

    def readers_by_hand(self, worker: int, workers: int) -> Readers:
        """Return the readers of a loader of the user's own, whose workers count as ranks."""
        return replace(
            self.readers,
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

    # --- plans

    def plan_at(self, place: Place) -> EvenPlan:
        """Return the lanes of an epoch, or of what was left of it, as its ranks share them."""
        place = self._same_for_all_epochs(place)
        if self._shared is None or self._shared[0] != place:
            self._shared = place, self._plan_at(place)
        return self._shared[1]

    def _plan_at(self, place: Place) -> EvenPlan:
        epoch, stages = place
        made = self._shared_by_ranks(self.lanes_at(place), stages)
        if len(stages) == 1 and made.same_rows and not len(made.plan.chunks) and self.num_rows:
            raise OptionError(
                f"{self.num_rows} rows make no batch of {stages[0].batch_size} rows for each of "
                f"{stages[0].ranks} ranks, so that nothing would be read; choose a smaller "
                'batch_size, fewer ranks, or even="pad" without drop_last'
            )
        if made.dropped_rows:
            many = made.dropped_rows > _MOST_DROPPED * (self.num_rows or 0)
            logger.log(
                logging.WARNING if many else logging.INFO,
                "epoch %d: %d rows (%.1f %%) are left out, so that %d ranks take the same number "
                "of steps; a smaller batch_size leaves out fewer, and drop_last=False fewer than "
                "there are ranks",
                epoch,
                made.dropped_rows,
                100 * made.dropped_rows / max(self.num_rows or 0, 1),
                stages[-1].ranks,
            )
        return made

    def lanes_at(self, place: Place) -> LanePlan:
        """Return the lanes before their last batches are shared; the last ones are kept."""
        epoch, stages = place
        last = replace(stages[-1], shares=(Share(),))  # the ranks change nothing here
        key = self._same_for_all_epochs((epoch, (*stages[:-1], last)))
        if self._dealt is None or self._dealt[0] != key:
            self._dealt = key, self._dealt_lanes(epoch, stages)
        return self._dealt[1]

    def _dealt_lanes(self, epoch: int, stages: Sequence[Stage]) -> LanePlan:
        first = stages[0]
        strategy = self._order.strategy_for(first.batch_size)
        plan = plan_lanes(strategy, self._files, lanes=first.lanes, epoch=epoch)
        if self._order.has_own_strategy:
            self._digests[epoch, first.lanes] = plan.digest()
        plan = plan.grouped(self._order.grouping)
        for number, (ended, following) in enumerate(pairwise(stages)):
            plan = self._rest_of(plan, stages[: number + 1], ended, following)
        return plan

    def _rest_of(
        self, plan: LanePlan, stages: Sequence[Stage], ended: Stage, following: Stage
    ) -> LanePlan:
        """Deal what a stage left to the lanes of the one that follows it."""
        made, cursors, loose = self._shared_by_ranks(plan, stages), ended.cursors, ended.loose
        if made.same_rows and not self._is_within(plan, made.same_rows, cursors):
            # The stage ended among the batches that were cut for its ranks.
            plan = made.plan
            cursors, loose = _without_repeats(made, cursors, loose)
        self._check_cursors(plan, dict(enumerate(cursors)))
        return plan_the_rest(
            plan,
            cursors,
            lanes=following.lanes,
            batch_size=following.batch_size,
            grouping=self._order.grouping,
            counts=_counts(ended, plan),
            loose=loose,
        )

    def _is_within(self, plan: LanePlan, rows: Sequence[int], cursors: Sequence[Cursor]) -> bool:
        """Return True if no lane has come further than so many rows."""
        lanes = (plan.lane(index) for index in range(len(plan)))
        return all(
            cursor <= lane.cursor_after(most)
            for lane, most, cursor in zip(lanes, rows, cursors, strict=True)
        )

    def _shared_by_ranks(self, plan: LanePlan, stages: Sequence[Stage]) -> EvenPlan:
        """Cut the last batches of a stage for the ranks that shared it, one after the other."""
        made = EvenPlan(plan)
        for share in stages[-1].shares:
            if not share.even:
                continue
            how: dict[str, Any] = {
                "batch_size": stages[-1].batch_size,
                "drop_last": share.even == "full",
                "pad": share.even == "pad",
                "reorders": self._order.grouping.reorders,
            }
            if self.dealt_evenly(stages):
                step = share_last_round(made.plan, share.ranks, taken=share.taken, **how)
            else:
                step = even_out(made.plan, share.ranks, **how)
            made = _joined(made, step)
        return made

    def splits_digest(self, epoch: int, lanes: int) -> str | None:
        """Return a digest of the splits that a strategy of the user's own makes for an epoch.

        None for the strategies of the library: their parameters say as much.
        """
        if not self._order.has_own_strategy:
            return None
        if (epoch, lanes) not in self._digests:
            self.lanes_at((epoch, (Stage(self._order.batch_size, lanes),)))  # it is read next
        return self._digests[epoch, lanes]

    def dealt_evenly(self, stages: Sequence[Stage]) -> bool:
        """Return True if the lanes of the last stage have equal numbers of batches, to one."""
        if len(stages) > 1:
            return stages[-2].counts is None
        return isinstance(self._order.strategy, EvenBatchesSplitStrategy)

    def batches_left(self, state: State) -> int | None:
        """Return the number of batches behind a state; None where only reading would tell."""
        if not self.steps_known:
            return None
        plan, order = self.plan_at(state.place).plan, self._order
        lanes = ((plan.lane(index), state.cursor(index)) for index in state.own_lanes)
        return sum(
            batches_in(lane.rows_left(cursor), order.batch_size, order.drop_last)
            for lane, cursor in lanes
        )

    def _same_for_all_epochs(self, place: Place) -> Place:
        """Return the place whose plan serves this one, too."""
        return (0, place[1]) if self._order.same_in_every_epoch else place

    # --- resuming

    def resume(self, state: State, readers: Readers, recount: Recount) -> State:
        """Return where a rank goes on from a state that any readers may have saved.

        Raises:
            StateMismatchError: The state is damaged, or says too little of other ranks.
        """
        if state.begun:
            state = self._checked(state)
        evenly = self._counted and self.dealt_evenly(state.stages)
        kept = readers.resume(state, evenly=evenly)
        if kept is not None:
            return self._with_cursors(kept, recount)
        return readers.rest(state.epoch, (*state.stages[:-1], self._ended(state, recount)))

    def _checked(self, state: State) -> State:
        """Return the state with cursors that exist."""
        plan, cursors = self.plan_at(state.place).plan, dict(state.cursors)
        for lane, cursor in cursors.items():
            if cursor[0] == END:
                cursors[lane] = plan.lane(lane).end
        self._check_cursors(plan, cursors)
        return replace(state, cursors=cursors)

    def _check_cursors(self, plan: LanePlan, cursors: Mapping[int, Cursor]) -> None:
        """Raise a StateMismatchError if a lane does not reach as far as its cursor."""
        for index, cursor in cursors.items():
            lane = plan.lane(index)
            beyond = cursor[0] > max(lane.windows, 0) or (cursor[0] == lane.windows and cursor[1])
            if beyond or (self._counted and lane.rows_left(cursor) < 0):
                raise StateMismatchError(
                    f"the state is damaged: lane {index} is at {cursor}, which is beyond its end"
                )

    def _with_cursors(self, state: State, recount: Recount) -> State:
        """Return the state of a rank with its cursors; they follow from its number of batches."""
        if state.cursors or not state.begun:
            return state
        if self._counted:
            return self._counted_after(state)
        rank, steps = state.own_lanes.start, state.steps[0]
        logger.warning(
            "the state is of another rank and rows are not counted: reading %d batches again, "
            "without their columns, to find the place of rank %d; merge_states avoids this",
            steps,
            rank,
        )
        found, turn = recount.batches(state.place, state.own_lanes, steps)
        return replace(state, turns=(turn,), cursors=found)

    def _counted_after(self, state: State) -> State:
        """Return a state with the cursors of its rank, from the number of batches it took."""
        stage, steps, size = state.stage, state.steps[0], state.stage.batch_size
        plan, rank = self.plan_at(state.place).plan, state.own_lanes.start
        lanes = {index: plan.lane(index) for index in state.own_lanes}
        if self.dealt_evenly(state.stages):
            # Batch g of the stage is batch g // lanes of lane g % lanes.
            total = state.taken
            batches = {index: max(-((index - total) // stage.lanes), 0) for index in lanes}
            following = total + (rank - total) % stage.ranks
            turn = following % stage.lanes // stage.ranks
        else:
            drop_last = self._order.drop_last
            counts = [batches_in(lane.rows_left(), size, drop_last) for lane in lanes.values()]
            taken = first_in_turn(counts, steps)
            batches = dict(zip(lanes, taken, strict=True))
            last = max((at for at, n in enumerate(taken) if n == max(taken)), default=-1)
            turn = (last + 1) % max(len(taken), 1) if steps else 0
        cursors = {
            index: lane.cursor_after(min(batches[index] * size, lane.rows_left()))
            for index, lane in lanes.items()
        }
        return replace(state, turns=(turn,), cursors=cursors)

    def _ended(self, state: State, recount: Recount) -> Stage:
        """Return the last stage of a state as one that was given up there.

        Where rows are not counted, those of windows that were begun have to be: what is left of
        such a window can be shared only if it is known how much it is.
        """
        stage, cursors = state.stage, self._all_cursors(state, recount)
        ended = replace(stage, cursors=cursors, loose=state.loose)
        if self._counted:
            return ended
        begun = windows_begun(self.plan_at(state.place).plan, cursors, state.loose)
        if not begun:
            return replace(ended, counts=())
        logger.info(
            "rows are not counted: reading %d windows that were begun, without their columns, to "
            "share what is left of them",
            len(begun),
        )
        counts = recount.windows(state.place, begun)
        return replace(ended, counts=tuple((*window, counts[window]) for window in begun))

    def _all_cursors(self, state: State, recount: Recount) -> tuple[Cursor, ...]:
        """Return how far the lanes of all ranks have come."""
        cursors: dict[int, Cursor] = {}
        for rank in range(state.stage.ranks):
            cursors.update(self._with_cursors(state.of_rank(rank), recount).cursors)
        missing = set(range(state.stage.lanes)) - set(cursors)
        if missing:
            raise StateMismatchError(f"the state is damaged: nothing is known of lanes {missing}")
        return tuple(cursors[lane] for lane in range(state.stage.lanes))

    def __getstate__(self) -> dict[str, Any]:
        # A plan of many chunks is cheaper to make than to send.
        return {**self.__dict__, "_dealt": None, "_shared": None, "_digests": {}}


def known_batches(batches: int | None) -> int:
    """Return a number of batches; raise a TypeError, as ``len`` does, if it is not known."""
    if batches is None:
        raise TypeError(
            "the number of batches is not known before they are read: rows are filtered, "
            "deleted in their table, not counted in this format, or may be skipped "
            '(on_error="skip"), or workers take them as they can (balance="adaptive")'
        )
    return batches


def _without_repeats(
    made: EvenPlan, cursors: Sequence[Cursor], loose: Loose
) -> tuple[tuple[Cursor, ...], Loose]:
    """Count rows that come a second time as delivered: they are no part of what is left."""
    moved = list(cursors)
    for lane, window in sorted(made.repeats):
        if moved[lane][0] == window:
            moved[lane] = Cursor(window + 1)
    beyond = [(lane, at, DONE) for lane, at in made.repeats if at > moved[lane][0]]
    return tuple(moved), (*loose, *beyond)


def _joined(before: EvenPlan, after: EvenPlan) -> EvenPlan:
    """Return what two shares of a stage, one after the other, made of its plan.

    Rows that the first one repeated may have moved with the second, and count as ordinary then.
    """
    same = after.same_rows or before.same_rows
    if before.same_rows and after.same_rows:
        same = tuple(map(min, before.same_rows, after.same_rows))
    return EvenPlan(
        after.plan,
        before.dropped_rows + after.dropped_rows,
        after.padded or before.padded,
        after.repeats if after.same_rows else before.repeats,
        same,
    )


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
