"""Find the plan and the cursors for a state, and any ranks, workers and size of batches.

``Planner.plan`` returns the plan of a state, and ``Planner.resume`` the state with which a rank
goes on from one that any other ranks and workers may have saved:

* The plan is kept if ranks x workers divides its lanes and the size of batches and the option
  ``lanes`` are the same. The global sequence of batches then goes on, also for another number of
  ranks: all batches below some number were taken, and each rank begins at its first one from there
  on. Only the last batches are cut anew, if the new ranks cannot share them. (``State.goes_on`` has
  this part of the rule, for loaders, samplers and batches of buckets alike.) The last batches
  cannot be cut anew where short ones among them were taken already.
* Otherwise the plan is given up, and what is left of all lanes is planned anew.

Nothing is read here. Where rows are not counted before they are read, a ``Recount`` reads.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from headrace.errors import OptionError
from headrace.model import Cursor, FileList, Int64Array
from headrace.plan._lanes import (
    ROWS,
    Chunks,
    Grouping,
    Lane,
    Plan,
    Segment,
    Span,
    share_of,
    take_first_rows,
)
from headrace.plan._state import DONE, END, RankShare, State, WindowRow
from headrace.plan._strategies import EvenBatchesSplitStrategy, Order, cut_at, cut_evenly

logger = logging.getLogger(__name__)

_MOST_DROPPED = 0.01
"""Share of the rows of an epoch that may be left out without a warning."""


class Recount(Protocol):
    """Counts again, without reading columns, what no plan knows."""

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
        counted: True if the rows of chunks are known before they are read.
        origin: The state in which this rank begins epoch 0.
        workers: Number of workers of each rank, at least 1.
        in_step: True if all ranks have to take the same number of batches.
        kept: The plans that were made last, by the values that decide them.
    """

    files: FileList
    order: Order
    counted: bool
    origin: State
    workers: int = 1
    in_step: bool = True
    kept: dict[Any, Plan] = field(default_factory=dict, repr=False)

    @property
    def num_rows(self) -> int | None:
        """Number of rows of an epoch; None if it is not known without reading them."""
        return int(self.files.counts.sum()) if self.counted else None

    @property
    def must_agree(self) -> bool:
        """True if ranks stay in step only by agreeing on the number of steps while they run."""
        share = self.origin.shares[0]
        return self.in_step and share.ranks > 1 and not share.even

    def start(self, epoch: int, lanes: int | None = None) -> State:
        """Return the state before the first batch of an epoch, in any number of lanes."""
        return replace(self.origin, epoch=epoch, lanes=lanes or self.origin.lanes)

    def by_hand(self, worker: int, workers: int) -> Planner:
        """Return the planner for a worker of the user's own loader: workers count as ranks."""
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

    def plan(self, state: State, *, shared: bool = True) -> Plan:
        """Return the lanes of an epoch, or of what was left of it.

        Args:
            state: The state.
            shared: True to cut the last batches for the ranks that share them.
        """
        shared = shared and any(share.even for share in state.shares)
        key = state.epoch, state.lanes, state.batch_size, state.before, shared and state.shares
        if key in self.kept:
            return self.kept[key]
        if shared:
            lanes = self.plan(state, shared=False)
            made = self._with_last_round_cut(lanes, state)
            if made is not lanes:
                self._report_rows_left_out(state, made)
        elif state.before is not None:
            made = self._rest(state.before, state)
        else:
            made = self.order.plan(
                self.files, lanes=state.lanes, epoch=state.epoch, batch_size=state.batch_size
            )
        for old in list(self.kept)[:-1]:  # two are kept: of an epoch, and the same as it is shared
            del self.kept[old]
        self.kept[key] = made
        return made

    def _with_last_round_cut(self, plan: Plan, state: State) -> Plan:
        """Cut the last batches of a plan for the ranks that shared it, one after the other.

        Ranks that were replaced before the last round began leave no trace, because none of the
        batches that were cut for them was taken.
        """
        uncut, size, reorders = plan, state.batch_size, self.order.grouping.reorders
        whole_rounds = sum(lane.rows_left() for lane in uncut.lanes) // size
        whole_rounds -= whole_rounds % max(len(uncut), 1)
        for share in state.shares:
            if not share.even:
                continue
            if self.dealt_evenly(state):
                plan = plan if share.taken > whole_rounds else uncut
                plan = share_last_round(plan, share, size, reorders)
            else:
                plan = even_out(plan, share, size, reorders)
        return plan

    def _rest(self, ended: State, following: State) -> Plan:
        """Deal the rest of a plan that was given up to the lanes of the plan that follows it."""
        plan, cursors, loose = self.plan(ended, shared=False), ended.cursors, ended.loose
        shared = self._with_last_round_cut(plan, ended)
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
        """Return a digest of the splits that the user's own strategy makes for an epoch.

        Returns None for the strategies of the library, because their parameters say as much.
        """
        if not self.order.has_own_strategy:
            return None
        return self.plan(self.start(epoch, lanes), shared=False).digest()

    def dealt_evenly(self, state: State) -> bool:
        """Return True if the numbers of batches of the lanes differ by one at most."""
        if state.before is not None:
            return state.before.counts is None
        strategy = self.order.split_strategy
        if isinstance(strategy, EvenBatchesSplitStrategy):
            return strategy.batch_size == state.batch_size
        return strategy is None

    def batches_left(self, state: State) -> int | None:
        """Return the number of batches behind a state; None if it is not known without reading."""
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
            mine = replace(origin, epoch=state.epoch, before=self._end_of_plan(state, recount))
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

    def _end_of_plan(self, state: State, recount: Recount) -> State:
        """Return the state of all ranks in which the plan of a state is given up.

        Where rows are not counted, the rows of windows that were begun have to be counted: the rest
        of a window can be shared only if its size is known.
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
        return replace(ended, counts=tuple(WindowRow(*window, counts[window]) for window in begun))

    def __getstate__(self) -> dict[str, Any]:
        # A plan of many chunks is cheaper to make than to send.
        return {**self.__dict__, "kept": {}}


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
    """Return True if no lane has come further than its number of ``rows``."""
    ends = zip(cursors, plan.lanes, rows, strict=True)
    return all(cursor <= lane.cursor_after(most) for cursor, lane, most in ends)


def _without_repeats(
    plan: Plan, cursors: Sequence[Cursor], loose: tuple[WindowRow, ...]
) -> tuple[tuple[Cursor, ...], tuple[WindowRow, ...]]:
    """Count repeated rows as delivered, because they are no part of what is left."""
    moved = list(cursors)
    for lane, window in sorted(plan.repeats):
        if moved[lane][0] == window:
            moved[lane] = Cursor(window + 1)
    beyond = [WindowRow(lane, at, DONE) for lane, at in plan.repeats if at > moved[lane][0]]
    return tuple(moved), (*loose, *beyond)


# --- Plan what is left of an epoch anew, for other lanes or another size of batches


def windows_begun(
    plan: Plan, cursors: Sequence[Cursor], loose: Sequence[WindowRow] = ()
) -> list[tuple[int, int]]:
    """Return the windows (lane, window) whose rows have to be counted before a new plan.

    These are the windows of which some rows were delivered, and whose number of rows does not
    follow from an earlier plan.
    """
    found: list[tuple[int, int]] = []
    for lane, cursor in zip(plan.lanes, cursors, strict=True):
        for window, row in sorted(_delivered(lane.index, cursor, loose).items()):
            if row > 0 and window < lane.windows and lane.span(window).stop is None:
                found.append((lane.index, window))
    return found


def plan_the_rest(
    plan: Plan,
    cursors: Sequence[Cursor],
    *,
    lanes: int,
    batch_size: int,
    grouping: Grouping,
    counts: Mapping[tuple[int, int], int] | None = None,
    loose: Sequence[WindowRow] = (),
) -> Plan:
    """Deal the rows behind the cursors to ``lanes`` lanes, as if the epoch began with them.

    Untouched chunks are cut again. A window that was begun keeps the order of its rows, and lanes
    share what is left of it.

    Args:
        plan: The plan that is given up.
        cursors: How far each of its lanes has come.
        lanes: Number of lanes of the new plan.
        batch_size: Number of rows in a batch of the new plan.
        grouping: How chunks form windows.
        counts: The rows of each of ``windows_begun``, where rows are not counted before they are
            read; None where they are. Untouched chunks are then dealt by what is known of them, as
            at the start of an epoch, and what is left of those windows row by row.
        loose: Windows beyond the cursor of their lane (lane, window, row) of which ``row`` rows
            were delivered; all of them if ``row`` is negative.
    """
    begun: list[Segment] = []
    untouched: list[Chunks] = []
    for lane, cursor in zip(plan.lanes, cursors, strict=True):
        delivered = _delivered(lane.index, cursor, loose)
        if grouping.reorders or counts is not None or lane.spans:
            windows, rest = _windows_left(lane, cursor[0], delivered, counts)
            begun.extend(windows)
        else:
            rest = _rows_left(lane, cursor[0], delivered)
        untouched.append(rest)
    rest = Chunks.concat(untouched)
    if counts is None:
        line = _in_line(rest, _signs(begun))
        pieces, bounds = cut_evenly(line, lanes, batch_size)
    else:
        pieces, bounds = _dealt_apart(rest, begun, lanes)
    made = [
        _lane_of(index, pieces[first:last], begun, grouping, plan.generation + 1)
        for index, (first, last) in enumerate(pairwise(bounds.tolist()))
    ]
    return Plan.of_lanes(plan.files, made)


def _delivered(lane: int, cursor: Cursor, loose: Sequence[WindowRow]) -> dict[int, int]:
    """Return the rows that were delivered of windows at and beyond the cursor of a lane."""
    return {**{window: row for owner, window, row in loose if owner == lane}, cursor[0]: cursor[1]}


def _windows_left(
    lane: Lane,
    first: int,
    delivered: Mapping[int, int],
    counts: Mapping[tuple[int, int], int] | None,
) -> tuple[list[Segment], Chunks]:
    """Return the windows from ``first`` on that were begun, and the chunks of all others.

    A window may have been begun by this lane, or by a lane of an earlier plan.
    """
    special = {window for window in lane.spans if window >= first}
    special.update(window for window, row in delivered.items() if row)
    begun: list[Segment] = []
    for window in sorted(special & set(range(lane.windows))):
        row = delivered.get(window, 0)
        if row < 0:
            continue
        chunks, span = lane.chunks[lane.members(window)], lane.span(window)
        stop = span.stop
        if stop is None:
            stop = int(chunks.length.sum()) if counts is None else counts[lane.index, window]
        start = max(span.start, row)
        if start < stop:
            begun.append(Segment(chunks, Span(span.key, start, stop)))
    plain = (lane.window >= first) & ~np.isin(lane.window, sorted(special))
    return begun, lane.chunks[np.flatnonzero(plain)]


def _rows_left(lane: Lane, start: int, delivered: Mapping[int, int]) -> Chunks:
    """Return the chunks that are left of a lane whose windows are single, counted chunks."""
    rest = lane.chunks[start:]
    first = np.zeros(len(rest), np.int64)
    for window, row in delivered.items():
        if window - start < len(rest):
            first[window - start] = rest.length[window - start] if row < 0 else row
    length = rest.length - first
    size = share_of(rest.size_bytes, length, rest.length)
    trimmed = replace(rest, offset=rest.offset + first, length=length, size_bytes=size)
    return trimmed[np.flatnonzero(length > 0)]


def _signs(begun: Sequence[Segment]) -> Chunks:
    """Return chunks that stand for windows that were begun, with negative numbers as files."""
    return Chunks(
        -1 - np.arange(len(begun)),
        np.asarray([window.span.start for window in begun if window.span], np.int64),
        np.asarray([window.rows for window in begun], np.int64),
        np.full(len(begun), ROWS, np.int8),
        np.asarray([window.chunks.size_bytes.sum() for window in begun], np.int64),
    )


def _in_line(untouched: Chunks, signs: Chunks) -> Chunks:
    """Return everything left, end to end, with begun windows spread so that all lanes get some."""
    places = np.arange(len(signs)) * len(untouched) // max(len(signs), 1)
    columns = zip(untouched.columns, signs.columns, strict=True)
    return Chunks(*(np.insert(all_others, places, its) for all_others, its in columns))


def _dealt_apart(
    untouched: Chunks, begun: Sequence[Segment], lanes: int
) -> tuple[Chunks, Int64Array]:
    """Deal chunks whose rows are not counted, and begun windows, whose rows are; these come first.

    A lane that has less of the chunks, because some cannot be cut, gets more of the windows.
    """
    dealt, bounds = cut_evenly(untouched, lanes, 1)
    shares = _filled_up(_estimated_rows(dealt, bounds, begun), sum(each.rows for each in begun))
    shared, ends = cut_at(_signs(begun), np.cumsum(shares)[:-1])
    owner = np.concatenate([np.repeat(np.arange(lanes), np.diff(each)) for each in (ends, bounds)])
    return Chunks.concat([shared, dealt])[np.argsort(owner, kind="stable")], ends + bounds


def _estimated_rows(dealt: Chunks, bounds: Int64Array, begun: Sequence[Segment]) -> list[int]:
    """Return about how many rows the chunks of each lane have, if they are like begun windows."""
    rows: dict[tuple[int, int], int] = {}
    chunks: dict[tuple[int, int], Chunks] = {}
    for window in begun:  # of which several lanes may have parts
        assert window.span is not None
        key, stop = window.span.key, window.span.stop or 0
        rows[key], chunks[key] = max(rows.get(key, 0), stop), window.chunks
    weights = Chunks.concat([dealt, *chunks.values()]).weights
    before = np.append(0, np.cumsum(weights))
    weight = int(before[-1] - before[len(dealt)])
    total = sum(rows.values())
    return [int(of_lane) * total // max(weight, 1) for of_lane in np.diff(before[bounds])]


def _filled_up(levels: Sequence[int], amount: int) -> list[int]:
    """Return how much of ``amount`` to add to each level so that the lowest rise to one height.

    >>> _filled_up([5, 0, 3], 4)
    [0, 4, 0]
    >>> _filled_up([5, 0, 3], 9)
    [0, 6, 3]
    """
    order = sorted(range(len(levels)), key=levels.__getitem__)
    raised, total = 0, amount
    while raised < len(order) and levels[order[raised]] * raised <= total:
        total += levels[order[raised]]
        raised += 1
    height, over = divmod(total, raised)
    added = [0] * len(levels)
    for place, lane in enumerate(order[:raised]):
        added[lane] = height - levels[lane] + (place < over)
    return added


def _lane_of(
    index: int, pieces: Chunks, begun: Sequence[Segment], grouping: Grouping, generation: int
) -> Lane:
    """Return a lane with begun windows in place of their signs, and all other chunks in windows."""
    lane = Lane(index, Chunks.empty(), np.empty(0, np.int64), {}, generation)
    signs = np.flatnonzero(pieces.file < 0).tolist()
    edges = [0, *(edge for at in signs for edge in (at, at + 1)), len(pieces)]
    for number, (first, last) in enumerate(pairwise(edges)):
        run = pieces[first:last]
        if number % 2:
            window, start = begun[-1 - int(run.file[0])], int(run.offset[0])
            assert window.span is not None
            span = replace(window.span, start=start, stop=start + int(run.length[0]))
            lane = lane.extended([replace(window, span=span)])
        elif len(run):
            order, windows = grouping.of(run.file)
            chunks = Chunks.concat([lane.chunks, run[order]])
            window_of = np.concatenate([lane.window, lane.windows + windows])
            lane = replace(lane, chunks=chunks, window=window_of)
    return lane


# --- Give every rank the same number of batches


class CannotShareError(Exception):
    """The last batches of a plan cannot be cut for other ranks: what is left is planned anew."""


def batches_in(rows: int, batch_size: int, drop_last: bool) -> int:
    """Return the number of batches that the rows of a lane make."""
    return rows // batch_size if drop_last else -(-rows // batch_size)


def first_in_turn(counts: Sequence[int], wanted: int) -> list[int]:
    """Return how many of the first ``wanted`` batches come from each lane, one from each in turn.

    ``counts`` is the number of batches of each lane; a lane without more batches is passed over.
    """

    def batches(rounds: int) -> int:
        return sum(min(count, rounds) for count in counts)

    # The largest number of whole rounds that are not too much.
    rounds = bisect_right(range(1, max(counts, default=0) + 1), wanted, key=batches)
    taken = [min(count, rounds) for count in counts]
    missing = wanted - sum(taken)
    for lane, count in enumerate(counts):
        if count > rounds and missing > 0:
            taken[lane] += 1
            missing -= 1
    return taken


def share_last_round(plan: Plan, share: RankShare, batch_size: int, reorders: bool) -> Plan:
    """Cut the last batches anew, so that every rank has the same number of them left.

    At the start of an epoch the rows of the last, incomplete round of the lanes are cut into as
    many batches as are needed, a multiple of the ranks, whose sizes differ by one row at most.
    Where batches were taken by another number of ranks, the last ones are joined and cut for these
    ranks, if they cannot share what is left.

    Fewer rows than ranks are left out ("drop"), or some rows are repeated ("pad"). With "full" all
    batches are full, and fewer rows than a batch for each rank are left out.

    Args:
        plan: Lanes that were dealt in turn: lane l has the batches l, l + lanes, l + 2 * lanes, …
        share: The ranks, whose number divides the lanes.
        batch_size: Number of rows in a batch.
        reorders: True if the rows of a window are permuted.

    Raises:
        CannotShareError: A batch would have to follow a short one that was taken, in its lane.
    """
    drop_last, ranks, taken = share.even == "full", share.ranks, share.taken
    made, lanes = plan.lanes, len(plan)
    rows = [lane.rows_left() for lane in made]
    full = [count - count % batch_size for count in rows] if drop_last else rows
    counts = [-(-count // batch_size) for count in full]
    last = [n - max(count - 1, 0) * batch_size for n, count in zip(full, counts, strict=True)]
    batches = sum(counts)
    if taken:
        tail = (batches - taken) % ranks
        wanted = ranks if tail else 0
    else:
        tail = batches - sum(full) // (lanes * batch_size) * lanes
        wanted = ranks * -(-tail // ranks)
    moved = {number % lanes: last[number % lanes] for number in range(batches - tail, batches)}
    held = sum(moved.values())
    sizes, repeated = _last_sizes(held, wanted, share, batch_size)
    if sizes == list(moved.values()):  # these batches can stay where they are
        moved, sizes = {}, []
    dropped = sum(rows) - sum(full) + (max(held - sum(sizes), 0) if moved else 0)
    if not moved and not dropped:
        return plan
    same = [count - moved.get(index, 0) for index, count in enumerate(full)]
    for number in range(batches - tail, batches - tail + len(sizes)):
        if same[number % lanes] % batch_size:
            raise CannotShareError  # a lane has no short batch but its last one
    ends: dict[int, list[Segment]] = {}
    for index, count in enumerate(same):
        if count < rows[index]:
            made[index], ends[index] = made[index].divide(count, reorders)
    line: deque[Segment] = deque()
    for index, count in moved.items():
        line.extend(take_first_rows(deque(ends[index]), count))
    line.extend(_first_rows(plan.chunks, repeated))
    repeats: list[tuple[int, int]] = []
    for number, size in enumerate(sizes, start=batches - tail):
        lane, segments = made[number % lanes], take_first_rows(line, size)
        for window, segment in enumerate(segments, start=lane.windows):
            # A segment never holds both: rows that are repeated begin with one of their own.
            if held <= 0:
                repeats.append((lane.index, window))
            held -= segment.rows
        made[number % lanes] = lane.extended(segments)
    return _ended(plan, made, dropped, same, repeats)


def _last_sizes(rows: int, wanted: int, share: RankShare, batch_size: int) -> tuple[list[int], int]:
    """Return the sizes of the last batches, and how many rows have to be repeated for them."""
    if share.even == "full":
        return [batch_size] * (share.ranks * (rows // (share.ranks * batch_size))), 0
    if rows >= wanted:
        return [rows // wanted + (place < rows % wanted) for place in range(wanted)], 0
    if share.even == "pad":
        return [1] * wanted, wanted - rows
    return [1] * (wanted - share.ranks), 0


def even_out(plan: Plan, share: RankShare, batch_size: int, reorders: bool) -> Plan:
    """Give all ranks as many batches as the rank with the fewest, or with the most if they pad.

    Lanes of the user's own strategy may differ by any number of rows. Rank r of R has the lanes r,
    r + R, …
    """
    ranks, pad = share.ranks, share.even == "pad"
    made = plan.lanes
    rows = [lane.rows_left() for lane in made]
    counts = [batches_in(left, batch_size, share.even == "full") for left in rows]
    totals = [sum(counts[rank::ranks]) for rank in range(ranks)]
    if len(set(totals)) == 1:
        return plan
    same, repeats, dropped = list(rows), list[tuple[int, int]](), 0
    for rank, total in enumerate(totals):
        own = range(rank, len(rows), ranks)
        missing = max(totals) - total
        if pad and missing:
            needs = {i: (counts[i] + missing - 1) * batch_size + 1 - rows[i] for i in own}
            index = min(own, key=lambda index: (needs[index], counts[index], index))
            source = next((c for i in (index, *own) if len(c := plan.lane(i).chunks)), plan.chunks)
            segments, first = _first_rows(source, needs[index]), made[index].windows
            repeats += [(index, first + place) for place in range(len(segments))]
            made[index] = made[index].extended(segments)
        elif not pad:
            allowed = first_in_turn(counts[rank::ranks], min(totals))
            for index, batches_left in zip(own, allowed, strict=True):
                if batches_left < counts[index]:
                    same[index] = batches_left * batch_size
                    dropped += rows[index] - same[index]
                    made[index], _ = made[index].divide(same[index], reorders)
    return _ended(plan, made, dropped, same, repeats)


def _ended(
    plan: Plan,
    lanes: Sequence[Lane],
    dropped: int,
    same: Sequence[int],
    repeats: Sequence[tuple[int, int]],
) -> Plan:
    """Return a plan with other ends; ``same`` is how many rows of each lane have not changed."""
    return replace(
        Plan.of_lanes(plan.files, lanes),
        dropped_rows=plan.dropped_rows + dropped,
        same_rows=tuple(map(min, same, plan.same_rows or same)),
        repeats=tuple(repeats),
    )


def _first_rows(source: Chunks, wanted: int) -> list[Segment]:
    """Return the first rows of some chunks, over and over until there are enough."""
    line: deque[Segment] = deque()
    found = 0
    while found < wanted:
        for place in range(len(source)):
            line.append(Segment(source[place : place + 1]))
            found += line[-1].rows
            if found >= wanted:
                break
    return take_first_rows(line, wanted)
