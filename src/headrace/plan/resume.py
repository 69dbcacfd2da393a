"""Find the plan and the cursors for an epoch or a state, and any ranks, workers and batch size.

``Readers.resume`` decides if readers can keep the lanes of a state that any others may have saved,
for loaders, samplers and batches of buckets alike:

* The lanes are kept if ranks x workers divides them and the size of batches and the option
  ``lanes`` are the same. The global sequence of batches then goes on, also for another number of
  ranks: all batches below some number were taken, and each rank begins at its first one from there
  on. Only the last batches are cut anew, if the new ranks cannot share them.
* Otherwise what is left of all lanes is planned anew, as another stage of the epoch.

``Planner.plan`` gives the lanes of a state, and ``Planner.resume`` the cursors in them. Nothing is
read here. Where rows are not counted before they are read, a ``Recount`` reads.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from headrace.errors import OptionError
from headrace.model import Cursor, FileList
from headrace.plan.lanes import LanePlan
from headrace.plan.rest import plan_the_rest, windows_begun
from headrace.plan.sharing import batches_in, even_out, first_in_turn, share_last_round
from headrace.plan.state import DONE, END, Loose, Share, Stage, State
from headrace.plan.strategies import Order

__all__ = ["Planner", "Readers", "Recount", "known_batches"]

logger = logging.getLogger(__name__)

_MOST_DROPPED = 0.01
"""Share of the rows of an epoch that may be left out without a warning."""


@dataclass(frozen=True, slots=True)
class Readers:
    """The ranks and workers that share the lanes.

    Attributes:
        rank: The rank of this process.
        ranks: Number of ranks.
        workers: Number of workers of each rank, at least 1.
        batch_size: Number of rows in a batch.
        lanes: Number of lanes, if the user has chosen it.
        even: How the last batches are cut for these ranks; see ``Share``.
        in_step: Whether all ranks have to take the same number of batches.
        adaptive: Whether workers take windows of each other.
        any_ranks: Whether any number of ranks can share the batches of a stage, as for samplers;
            False where they have to divide its lanes.
    """

    rank: int
    ranks: int
    workers: int = 1
    batch_size: int = 1
    lanes: int | None = None
    even: str = ""
    in_step: bool = True
    adaptive: bool = False
    any_ranks: bool = False

    def start(self, epoch: int, lanes: int | None = None, *, before: Sequence[Stage] = ()) -> State:
        """Return the state before the first batch of an epoch, or of what stages left of it."""
        lanes = lanes or self.lanes or self.ranks * self.workers
        stage = Stage(self.batch_size, lanes, (Share(0, self.ranks, self.even),))
        return State(epoch, (*before, stage), self.rank, adaptive=self.adaptive)

    def resume(self, state: State, *, evenly: bool) -> State | None:
        """Return where this rank goes on in the lanes of a state.

        If ranks and workers are as they were, it goes on in its own lanes. Other ranks share the
        global sequence of batches from the first one that was not taken. The cursors are empty
        where they have to be computed from the number of batches.

        Args:
            state: A state that any readers may have saved.
            evenly: Whether the global sequence of batches is known: lanes have equal numbers of
                batches, to one.

        Returns:
            None if these readers cannot keep the lanes.

        Raises:
            StateMismatchError: The state tells nothing of this rank.
        """
        stage, ranks = state.stage, self.ranks
        fits = self.any_ranks or stage.lanes % (ranks * self.workers) == 0
        keeps = fits and stage.batch_size == self.batch_size and self.lanes in (None, stage.lanes)
        if not state.begun:
            return self.start(state.epoch, stage.lanes if keeps and not self.any_ranks else None)
        if not keeps:
            return None
        same = (stage.ranks, stage.shares[-1].even) == (ranks, self.even)
        same = same and self.adaptive == state.adaptive
        if same and (state.in_step or self.adaptive or not self.in_step):
            return state.of_rank(self.rank)
        if not evenly or not state.in_step or self.adaptive:
            return None
        shares = (*stage.shares, Share(state.taken, ranks, self.even))
        shared = replace(stage, shares=shares, lanes=ranks if self.any_ranks else stage.lanes)
        return State(state.epoch, (*state.stages[:-1], shared), self.rank)


class Recount(Protocol):
    """Reads again what no plan knows, without its columns."""

    def batches(self, state: State) -> tuple[Mapping[int, Cursor], int]:
        """Return where the lanes of a rank stand after its batches, and which lane is next."""
        ...

    def windows(
        self, state: State, windows: Sequence[tuple[int, int]]
    ) -> Mapping[tuple[int, int], int]:
        """Return the number of rows of some windows (lane, window) of the plan of a state."""
        ...


@dataclass(frozen=True, eq=False)
class Planner:
    """The plans of the epochs of some files, shared by ranks and their workers.

    Attributes:
        files: The files.
        order: Their order.
        counted: Whether the rows of chunks are known before they are read.
        readers: The ranks and workers.
    """

    files: FileList
    order: Order
    counted: bool
    readers: Readers
    _kept: dict[Any, LanePlan] = field(default_factory=dict, init=False, repr=False)
    _digests: dict[tuple[int, int], str] = field(default_factory=dict, init=False, repr=False)

    @property
    def num_rows(self) -> int | None:
        """Number of rows of an epoch; None when only reading them would tell."""
        return int(self.files.counts.sum()) if self.counted else None

    @property
    def adaptive(self) -> bool:
        """True if workers take windows of each other."""
        return self.readers.adaptive

    @property
    def must_agree(self) -> bool:
        """True if ranks can be in step only if they agree while they run."""
        readers = self.readers
        return readers.in_step and readers.ranks > 1 and not readers.even

    # --- plans

    def plan(self, state: State) -> LanePlan:
        """Return the lanes of an epoch, or of what was left of it, as its ranks share them."""
        epoch = 0 if self.order.same_in_every_epoch else state.epoch
        key = epoch, state.stages
        if key not in self._kept:
            lanes = self.lanes(state)
            made = self._shared(lanes, state.stages)
            if made is not lanes:
                self._report_rows_left_out(state, made)
            self._keep(key, made)
        return self._kept[key]

    def lanes(self, state: State) -> LanePlan:
        """Return the lanes of a state before their last batches are shared by the ranks."""
        epoch = 0 if self.order.same_in_every_epoch else state.epoch
        *before, last = state.stages
        key = epoch, (*before, replace(last, shares=()))
        if key not in self._kept:
            first = state.stages[0]
            plan = self.order.plan(
                self.files, lanes=first.lanes, epoch=epoch, batch_size=first.batch_size
            )
            for number in range(1, len(state.stages)):
                plan = self._rest(plan, state.stages[: number + 1])
            self._keep(key, plan)
        return self._kept[key]

    def _keep(self, key: Any, plan: LanePlan) -> None:
        """Keep the last two plans: of an epoch, and of the same as its ranks share it."""
        for old in list(self._kept)[:-1]:
            del self._kept[old]
        self._kept[key] = plan

    def _shared(self, plan: LanePlan, stages: Sequence[Stage]) -> LanePlan:
        """Cut the last batches of a stage for the ranks that shared it, one after the other."""
        stage = stages[-1]
        for share in stage.shares:
            if not share.even:
                continue
            how: dict[str, Any] = {
                "batch_size": stage.batch_size,
                "drop_last": share.even == "full",
                "pad": share.even == "pad",
                "reorders": self.order.grouping.reorders,
            }
            if self.dealt_evenly(stages):
                plan = share_last_round(plan, share.ranks, taken=share.taken, **how)
            else:
                plan = even_out(plan, share.ranks, **how)
        return plan

    def _rest(self, plan: LanePlan, stages: Sequence[Stage]) -> LanePlan:
        """Deal what the last stage but one left to the lanes of the one that follows it."""
        ended, following = stages[-2:]
        shared, cursors, loose = self._shared(plan, stages[:-1]), ended.cursors, ended.loose
        if shared.same_rows and not _is_within(plan, shared.same_rows, cursors):
            # The stage ended among the batches that were cut for its ranks.
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

    def _report_rows_left_out(self, state: State, plan: LanePlan) -> None:
        """Refuse a plan that leaves out everything; log how many rows another leaves out."""
        rows, stage = self.num_rows or 0, state.stage
        if len(state.stages) == 1 and plan.same_rows and not len(plan.chunks) and rows:
            raise OptionError(
                f"{rows} rows make no batch of {stage.batch_size} rows for each of {stage.ranks} "
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
                stage.ranks,
            )

    def splits_digest(self, epoch: int, lanes: int) -> str | None:
        """Return a digest of the splits that a strategy of the user's own makes for an epoch.

        None for the strategies of the library: their parameters say as much.
        """
        if not self.order.has_own_strategy:
            return None
        if (epoch, lanes) not in self._digests:
            self._digests[epoch, lanes] = self.lanes(self.readers.start(epoch, lanes)).digest()
        return self._digests[epoch, lanes]

    def dealt_evenly(self, stages: Sequence[Stage]) -> bool:
        """Return True if the lanes of the last stage have equal numbers of batches, to one."""
        return stages[-2].counts is None if len(stages) > 1 else self.order.deals_evenly

    def batches_left(self, state: State) -> int | None:
        """Return the number of batches behind a state; None where only reading would tell."""
        if not self.counted or self.adaptive:
            return None
        plan, order, batches = self.plan(state), self.order, 0
        for index in state.own_lanes:
            rows = plan.lane(index).rows_left(state.cursor(index))
            batches += batches_in(rows, order.batch_size, order.drop_last)
        return batches

    # --- resuming

    def resume(self, state: State, readers: Readers, recount: Recount) -> State:
        """Return where a rank goes on from a state that any readers may have saved.

        Raises:
            StateMismatchError: The state is damaged, or says too little of other ranks.
        """
        cursors = dict(state.cursors)
        for lane, cursor in cursors.items():
            if cursor.window == END:
                cursors[lane] = self.plan(state).lane(lane).end
        state = replace(state, cursors=cursors)
        evenly = self.counted and self.dealt_evenly(state.stages)
        mine = readers.resume(state, evenly=evenly)
        if mine is not None:
            mine = self._with_cursors(mine, recount)
        else:
            ended = self._ended(state, recount)
            mine = readers.start(state.epoch, before=(*state.stages[:-1], ended))
        return replace(mine, data=state.data)

    def _with_cursors(self, state: State, recount: Recount) -> State:
        """Return the state of a rank with its cursors; they follow from its number of batches."""
        if state.cursors or not state.begun:
            return state
        if self.counted:
            cursors, turn = self._counted_after(state)
        else:
            logger.warning(
                "the state is of another rank and rows are not counted: reading %d batches again, "
                "without their columns, to find the place of rank %d; merge_states avoids this",
                state.steps[0],
                state.rank,
            )
            cursors, turn = recount.batches(state)
        return replace(state, turns=(turn,), cursors=cursors)

    def _counted_after(self, state: State) -> tuple[Mapping[int, Cursor], int]:
        """Return where the lanes of a rank stand after its batches, and which lane is next."""
        stage, size, plan = state.stage, state.stage.batch_size, self.plan(state)
        lanes = {index: plan.lane(index) for index in state.own_lanes}
        if self.dealt_evenly(state.stages):
            # Batch g of the stage is batch g // lanes of lane g % lanes.
            total, rank = state.taken, state.own_lanes.start
            batches = [max(-((index - total) // stage.lanes), 0) for index in lanes]
            following = total + (rank - total) % stage.ranks
            turn = following % stage.lanes // stage.ranks
        else:
            rows = [lane.rows_left() for lane in lanes.values()]
            counts = [batches_in(count, size, self.order.drop_last) for count in rows]
            batches = first_in_turn(counts, state.steps[0])
            most = max(batches, default=0)
            last = max((at for at, count in enumerate(batches) if count == most), default=-1)
            turn = (last + 1) % max(len(batches), 1) if state.steps[0] else 0
        cursors = {
            index: lane.cursor_after(min(count * size, lane.rows_left()))
            for (index, lane), count in zip(lanes.items(), batches, strict=True)
        }
        return cursors, turn

    def _ended(self, state: State, recount: Recount) -> Stage:
        """Return the last stage of a state as one that was given up there.

        Where rows are not counted, those of windows that were begun have to be: what is left of
        such a window can be shared only if it is known how much it is.
        """
        known: dict[int, Cursor] = {}
        for rank in range(state.stage.ranks):
            known.update(self._with_cursors(state.of_rank(rank), recount).cursors)
        cursors = tuple(known[lane] for lane in range(state.stage.lanes))
        ended = replace(state.stage, cursors=cursors, loose=state.loose)
        if self.counted:
            return ended
        begun = windows_begun(self.plan(state), cursors, state.loose)
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
        return {**self.__dict__, "_kept": {}, "_digests": {}}


def known_batches(batches: int | None) -> int:
    """Return a number of batches; raise a TypeError, as ``len`` does, if it is not known."""
    if batches is None:
        raise TypeError(
            "the number of batches is not known before they are read: rows are filtered, "
            "deleted in their table, not counted in this format, or may be skipped "
            '(on_error="skip"), or workers take them as they can (balance="adaptive")'
        )
    return batches


def _is_within(plan: LanePlan, rows: Sequence[int], cursors: Sequence[Cursor]) -> bool:
    """Return True if no lane has come further than so many rows."""
    ends = [plan.lane(index).cursor_after(most) for index, most in enumerate(rows)]
    return all(cursor <= end for cursor, end in zip(cursors, ends, strict=True))


def _without_repeats(
    plan: LanePlan, cursors: Sequence[Cursor], loose: Loose
) -> tuple[tuple[Cursor, ...], Loose]:
    """Count rows that come a second time as delivered: they are no part of what is left."""
    moved = list(cursors)
    for lane, window in sorted(plan.repeats):
        if moved[lane][0] == window:
            moved[lane] = Cursor(window + 1)
    beyond = [(lane, at, DONE) for lane, at in plan.repeats if at > moved[lane][0]]
    return tuple(moved), (*loose, *beyond)
