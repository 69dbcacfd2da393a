"""Find the plan and the cursors for a state, and any ranks, workers and size of batches.

``Planner.plan`` returns the plan of a state, and ``Planner.resume`` the state with which a rank
goes on from one that any other ranks and workers may have saved:

* The plan is kept if ranks x workers divides its lanes and the size of batches and the option
  ``lanes`` are the same. The global sequence of batches then goes on, also for another number of
  ranks: all batches below some number were taken, and each rank begins at its first one from there
  on. Only the last batches are cut anew, if the new ranks cannot share them. (``State.goes_on`` has
  this part of the rule, for loaders, samplers and batches of buckets alike.) They cannot be cut
  anew where short ones among them were taken already.
* Otherwise the plan is given up, and what is left of all lanes is planned anew.

Nothing is read here. Where rows are not counted before they are read, a ``Recount`` reads.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Protocol

from headrace.errors import OptionError
from headrace.model import Cursor, FileList
from headrace.plan._lanes import Plan
from headrace.plan._rest import plan_the_rest, windows_begun
from headrace.plan._sharing import (
    CannotShareError,
    batches_in,
    even_out,
    first_in_turn,
    share_last_round,
)
from headrace.plan._state import DONE, END, Loose, State
from headrace.plan._strategies import Order

__all__ = ["Planner", "Recount", "known_batches"]

logger = logging.getLogger(__name__)

_MOST_DROPPED = 0.01
"""Share of the rows of an epoch that may be left out without a warning."""


class Recount(Protocol):
    """Reads again what no plan knows, without its columns."""

    def batches(self, state: State) -> tuple[Sequence[Cursor], int]:
        """Return where the lanes of a rank stand after its batches, and which lane is next."""
        ...

    def windows(
        self, state: State, windows: Sequence[tuple[int, int]]
    ) -> Mapping[tuple[int, int], int]:
        """Return the number of rows of some windows (lane, window) of the plan of a state."""
        ...


@dataclass(frozen=True, eq=False)
class Planner:
    """The plans of the epochs of some files, for one of the ranks that share them.

    Attributes:
        files: The files.
        order: Their order.
        counted: Whether the rows of chunks are known before they are read.
        origin: The state in which this rank begins epoch 0.
        workers: Number of workers of each rank, at least 1.
        in_step: Whether all ranks have to take the same number of batches.
        kept: The plans that were made last, by what decides them.
    """

    files: FileList
    order: Order
    counted: bool
    origin: State
    workers: int = 1
    in_step: bool = True
    kept: dict[Any, Plan] = field(default_factory=dict, repr=False)
    _digests: dict[tuple[int, int], str] = field(default_factory=dict, init=False, repr=False)

    @property
    def num_rows(self) -> int | None:
        """Number of rows of an epoch; None when only reading them would tell."""
        return int(self.files.counts.sum()) if self.counted else None

    @property
    def must_agree(self) -> bool:
        """True if ranks can be in step only if they agree while they run."""
        share = self.origin.shares[0]
        return self.in_step and share.ranks > 1 and not share.even

    def start(self, epoch: int, lanes: int | None = None) -> State:
        """Return the state before the first batch of an epoch, in any number of lanes."""
        return replace(self.origin, epoch=epoch, lanes=lanes or self.origin.lanes)

    def by_hand(self, worker: int, workers: int) -> Planner:
        """Return the plans for a worker of a loader of the user's own: workers count as ranks."""
        origin = self.origin
        ranks = workers * origin.ranks
        mine = State(
            0,
            origin.batch_size,
            self.order.lanes or ranks,
            (origin.shares[0]._replace(ranks=ranks),),
            worker * origin.ranks + (origin.rank or 0),
        )
        return replace(self, origin=mine, workers=1, in_step=False)

    # --- plans

    def plan(self, state: State) -> Plan:
        """Return the lanes of an epoch, or of what was left of it, as its ranks share them."""
        if not any(map(attrgetter("even"), state.shares)):
            return self.lanes(state)
        epoch = 0 if self.order.same_in_every_epoch else state.epoch
        key = epoch, *state.plan_key
        if key not in self.kept:
            lanes = self.lanes(state)
            made = self._shared(lanes, state)
            if made is not lanes:
                self._report_rows_left_out(state, made)
            self._keep(key, made)
        return self.kept[key]

    def lanes(self, state: State) -> Plan:
        """Return the lanes of a state before their last batches are shared by the ranks."""
        epoch, before = 0 if self.order.same_in_every_epoch else state.epoch, state.before
        key = epoch, state.lanes, state.batch_size, before
        if key in self.kept:
            return self.kept[key]
        if before is None:
            size = state.batch_size
            made = self.order.plan(self.files, lanes=state.lanes, epoch=epoch, batch_size=size)
        else:
            made = self._rest(before, state)
        self._keep(key, made)
        return made

    def _keep(self, key: Any, plan: Plan) -> None:
        """Keep the last two plans: of an epoch, and of the same as its ranks share it."""
        for old in list(self.kept)[:-1]:
            del self.kept[old]
        self.kept[key] = plan

    def _shared(self, plan: Plan, state: State) -> Plan:
        """Cut the last batches of a plan for the ranks that shared it, one after the other.

        Ranks that were replaced before the last round began leave no trace: none of the batches
        that were cut for them was taken.
        """
        uncut, size = plan, state.batch_size
        whole_rounds = sum(uncut.lane(n).rows_left() for n in range(len(uncut))) // size
        whole_rounds -= whole_rounds % max(len(uncut), 1)
        for share in state.shares:
            if not share.even:
                continue
            how: dict[str, Any] = {
                "batch_size": state.batch_size,
                "drop_last": share.even == "full",
                "pad": share.even == "pad",
                "reorders": self.order.grouping.reorders,
            }
            if self.dealt_evenly(state):
                plan = plan if share.taken > whole_rounds else uncut
                plan = share_last_round(plan, share.ranks, taken=share.taken, **how)
            else:
                plan = even_out(plan, share.ranks, **how)
        return plan

    def _rest(self, ended: State, following: State) -> Plan:
        """Deal what a plan that was given up has left to the lanes of the one that follows it."""
        plan, cursors, loose = self.lanes(ended), ended.cursors, ended.loose
        shared = self._shared(plan, ended)
        if shared.same_rows and not _is_within(plan, shared.same_rows, cursors):
            # The plan was given up among the batches that were cut for its ranks.
            plan = shared
            cursors, loose = _without_repeats(shared, cursors, loose)
        counts = None
        if ended.counts is not None:
            counts = {(lane, window): rows for lane, window, rows in ended.counts}
        return plan_the_rest(
            plan,
            cursors,
            lanes=following.lanes,
            batch_size=following.batch_size,
            grouping=self.order.grouping,
            counts=counts,
            loose=loose,
        )

    def _report_rows_left_out(self, state: State, plan: Plan) -> None:
        """Refuse a plan that leaves out everything; log how many rows another leaves out."""
        rows = self.num_rows or 0
        if state.before is None and plan.same_rows and not len(plan.chunks) and rows:
            raise OptionError(
                f"{rows} rows make no batch of {state.batch_size} rows for each of {state.ranks} "
                "ranks, so that nothing would be read; choose a smaller batch_size, fewer ranks, "
                'or even="pad" without drop_last'
            )
        if plan.dropped_rows:
            logger.log(
                logging.WARNING if plan.dropped_rows > _MOST_DROPPED * rows else logging.INFO,
                "epoch %d: %d rows (%.1f %%) are left out, so that %d ranks take the same number "
                "of steps; a smaller batch_size leaves out fewer, and drop_last=False fewer than "
                "there are ranks",
                state.epoch,
                plan.dropped_rows,
                100 * plan.dropped_rows / max(rows, 1),
                state.ranks,
            )

    def splits_digest(self, epoch: int, lanes: int) -> str | None:
        """Return a digest of the splits that a strategy of the user's own makes for an epoch.

        None for the strategies of the library: their parameters say as much.
        """
        if not self.order.has_own_strategy:
            return None
        if (epoch, lanes) not in self._digests:
            self._digests[epoch, lanes] = self.lanes(self.start(epoch, lanes)).digest()
        return self._digests[epoch, lanes]

    def dealt_evenly(self, state: State) -> bool:
        """Return True if the lanes of a plan have equal numbers of batches, to one."""
        if state.before is not None:
            return state.before.counts is None
        return self.order.deals_evenly(state.batch_size)

    def batches_left(self, state: State) -> int | None:
        """Return the number of batches behind a state; None where only reading would tell."""
        if not self.counted or self.origin.adaptive:
            return None
        plan, order, batches = self.plan(state), self.order, 0
        for index in state.own_lanes:
            rows = plan.lane(index).rows_left(state.cursor(index))
            batches += batches_in(rows, order.batch_size, order.drop_last)
        return batches

    # --- resuming

    def resume(self, state: State, recount: Recount) -> State:
        """Return where this rank goes on from a state that any readers may have saved.

        Raises:
            StateMismatchError: The state is damaged, or says too little of other ranks.
        """
        if Cursor(END) in state.cursors:
            plan, pairs = self.plan(state), zip(state.own_lanes, state.cursors, strict=True)
            ends = [plan.lane(lane).end if at.window == END else at for lane, at in pairs]
            state = replace(state, cursors=tuple(ends))
        origin = self.origin
        fits = state.lanes % (origin.ranks * self.workers) == 0
        same = state.batch_size == origin.batch_size and self.order.lanes in (None, state.lanes)
        lanes = state.lanes if fits and same else None
        evenly = self.counted and self.dealt_evenly(state)
        mine = state.goes_on(origin, lanes, evenly=evenly, in_step=self.in_step)
        if mine is not None and self._can_share(mine):
            mine = self._with_cursors(mine, recount)
        else:
            mine = replace(origin, epoch=state.epoch, before=self._given_up(state, recount))
        return replace(mine, data=state.data)

    def _can_share(self, state: State) -> bool:
        """Return True if the last batches of a plan can be cut for the ranks that go on with it."""
        try:
            self.plan(state)
        except CannotShareError:
            return False
        return True

    def _with_cursors(self, state: State, recount: Recount) -> State:
        """Return the state of a rank with its cursors; they follow from its number of batches."""
        if state.cursors or not state.begun:
            return state
        if self.counted:
            return self._counted_after(state)
        logger.warning(
            "the state is of another rank and rows are not counted: reading %d batches again, "
            "without their columns, to find the place of rank %d; merge_states avoids this",
            state.steps[0],
            state.rank,
        )
        cursors, turn = recount.batches(state)
        return replace(state, turns=(turn,), cursors=tuple(cursors))

    def _counted_after(self, state: State) -> State:
        """Return the state of a rank with its cursors after a number of batches."""
        size, plan = state.batch_size, self.plan(state)
        lanes = [plan.lane(index) for index in state.own_lanes]
        rows = [lane.rows_left() for lane in lanes]
        if self.dealt_evenly(state):
            # Batch g of the plan is batch g // lanes of lane g % lanes.
            total, rank = state.taken, state.own_lanes.start
            batches = [max(-((lane.index - total) // state.lanes), 0) for lane in lanes]
            following = total + (rank - total) % state.ranks
            turn = following % state.lanes // state.ranks
        else:
            counts = [batches_in(count, size, self.order.drop_last) for count in rows]
            batches = first_in_turn(counts, state.steps[0])
            most = max(batches, default=0)
            last = max((at for at, count in enumerate(batches) if count == most), default=-1)
            turn = (last + 1) % max(len(batches), 1) if state.steps[0] else 0
        ends = [min(count * size, most) for count, most in zip(batches, rows, strict=True)]
        cursors = [lane.cursor_after(end) for lane, end in zip(lanes, ends, strict=True)]
        return replace(state, turns=(turn,), cursors=tuple(cursors))

    def _given_up(self, state: State, recount: Recount) -> State:
        """Return the state of all ranks in which the plan of a state is given up.

        Where rows are not counted, those of windows that were begun have to be: what is left of
        such a window can be shared only if it is known how much it is.
        """
        each = [self._with_cursors(state.of_rank(rank), recount) for rank in range(state.ranks)]
        ended = State(
            state.epoch,
            state.batch_size,
            state.lanes,
            state.shares,
            None,
            cursors=tuple(each[lane % state.ranks].cursor(lane) for lane in range(state.lanes)),
            loose=state.loose,
            before=state.before,
        )
        if self.counted:
            return ended
        begun = windows_begun(self.plan(state), ended.cursors, state.loose)
        if not begun:
            return replace(ended, counts=())
        logger.info(
            "rows are not counted: reading %d windows that were begun, without their columns, to "
            "share what is left of them",
            len(begun),
        )
        counts = recount.windows(state, begun)
        return replace(ended, counts=tuple((*window, counts[window]) for window in begun))

    def __getstate__(self) -> dict[str, Any]:
        # A plan of many chunks is cheaper to make than to send.
        return {**self.__dict__, "kept": {}, "_digests": {}}


def known_batches(batches: int | None) -> int:
    """Return a number of batches; raise a TypeError, as ``len`` does, if it is not known."""
    if batches is None:
        raise TypeError(
            "the number of batches is not known before they are read: rows are filtered, "
            "deleted in their table, not counted in this format, or may be skipped "
            '(on_error="skip"), or workers take them as they can (balance="adaptive")'
        )
    return batches


def _is_within(plan: Plan, rows: Sequence[int], cursors: Sequence[Cursor]) -> bool:
    """Return True if no lane has come further than so many rows."""
    ends = [plan.lane(index).cursor_after(most) for index, most in enumerate(rows)]
    return all(cursor <= end for cursor, end in zip(cursors, ends, strict=True))


def _without_repeats(
    plan: Plan, cursors: Sequence[Cursor], loose: Loose
) -> tuple[tuple[Cursor, ...], Loose]:
    """Count rows that come a second time as delivered: they are no part of what is left."""
    moved = list(cursors)
    for lane, window in sorted(plan.repeats):
        if moved[lane][0] == window:
            moved[lane] = Cursor(window + 1)
    beyond = [(lane, at, DONE) for lane, at in plan.repeats if at > moved[lane][0]]
    return tuple(moved), (*loose, *beyond)
