"""Give every rank the same number of batches.

Batches are dealt to lanes in turn, and lanes to ranks in turn, so ranks differ only at the end of
an epoch. There the last batches are joined and cut again, so that every rank gets as many, of
nearly equal size (``share_last_round``). The batches before them do not depend on the number of
ranks. Lanes that a user's own strategy made may differ by more: these end early, or repeat rows
(``even_out``).

Rows must be counted for all of this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from headrace.plan._chunks import Chunks
from headrace.plan._lanes import Lane, Plan, Segment, take_rows

__all__ = ["CannotShareError", "batches_in", "even_out", "first_in_turn", "share_last_round"]


class CannotShareError(Exception):
    """The last batches of a plan cannot be cut for other ranks: what is left is planned anew."""


def batches_in(rows: int, batch_size: int, drop_last: bool) -> int:
    """Return how many batches so many rows of a lane make."""
    return rows // batch_size if drop_last else -(-rows // batch_size)


def first_in_turn(counts: Sequence[int], wanted: int) -> list[int]:
    """Return how many of the first ``wanted`` batches come from each lane, one from each in turn.

    ``counts`` is what the lanes have; a lane that has no more is passed over.
    """
    most, least = max(counts, default=0), 0
    while least < most:  # the largest number of whole rounds that are not too much
        rounds = (least + most + 1) // 2
        if sum(min(count, rounds) for count in counts) <= wanted:
            least = rounds
        else:
            most = rounds - 1
    taken = [min(count, least) for count in counts]
    missing = wanted - sum(taken)
    for lane, count in enumerate(counts):
        if count > least and missing > 0:
            taken[lane] += 1
            missing -= 1
    return taken


def share_last_round(
    plan: Plan,
    ranks: int,
    *,
    taken: int = 0,
    batch_size: int,
    drop_last: bool,
    pad: bool,
    reorders: bool,
) -> Plan:
    """Cut the last batches anew, so that every rank has the same number of them left.

    At the start of an epoch the rows of the last, incomplete round of the lanes are cut into as
    many batches as are needed, a multiple of ``ranks``, whose sizes differ by one row at most.
    Where ``taken`` batches were taken by another number of ranks, the last ones are joined and cut
    for these ranks, if they cannot share what is left.

    Fewer rows than ranks are left out, or some rows are repeated (``pad``). With ``drop_last`` all
    batches stay full, and fewer than ``ranks * batch_size`` rows are left out.

    Args:
        plan: Lanes that were dealt in turn: lane l has the batches l, l + lanes, l + 2 * lanes, …
        ranks: Number of ranks; it divides the lanes.
        taken: Number of batches that were taken before, over all ranks.
        batch_size: Number of rows in a batch.
        drop_last: Whether a short batch is left out.
        pad: Whether rows are repeated rather than left out.
        reorders: Whether the rows of a window are permuted.

    Raises:
        CannotShareError: A batch would have to follow a short one that was taken, in its lane.
    """
    lanes = len(plan)
    rows = [plan.lane(index).rows_left() for index in range(lanes)]
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
    sizes, repeated = _last_sizes(held, wanted, ranks, batch_size, drop_last, pad)
    if sizes == list(moved.values()):  # these batches can stay where they are
        moved, sizes = {}, []
    dropped = sum(rows) - sum(full) + (max(held - sum(sizes), 0) if moved else 0)
    if not moved and not dropped:
        return plan
    same = [count - moved.get(index, 0) for index, count in enumerate(full)]
    for number in range(batches - tail, batches - tail + len(sizes)):
        if same[number % lanes] % batch_size:
            raise CannotShareError  # a lane has no short batch but its last one
    made = [plan.lane(index) for index in range(lanes)]
    ends: dict[int, list[Segment]] = {}
    for index, count in enumerate(same):
        if count < rows[index]:
            made[index], ends[index] = made[index].divide(count, reorders)
    line: deque[Segment] = deque()
    for index, count in moved.items():
        line.extend(take_rows(deque(ends[index]), count))
    line.extend(_first_rows(plan.chunks, repeated))
    repeats: list[tuple[int, int]] = []
    for number, size in enumerate(sizes, start=batches - tail):
        lane, segments = made[number % lanes], take_rows(line, size)
        for window, segment in enumerate(segments, start=lane.windows):
            # A segment never holds both: rows that are repeated begin with one of their own.
            if held <= 0:
                repeats.append((lane.index, window))
            held -= segment.rows
        made[number % lanes] = lane.extended(segments)
    return _ended(plan, made, dropped, same, repeats)


def _last_sizes(
    rows: int, wanted: int, ranks: int, batch_size: int, drop_last: bool, pad: bool
) -> tuple[list[int], int]:
    """Return the sizes of the last batches, and how many rows have to be repeated for them."""
    if drop_last:
        return [batch_size] * (ranks * (rows // (ranks * batch_size))), 0
    if rows >= wanted:
        return [rows // wanted + (place < rows % wanted) for place in range(wanted)], 0
    if pad:
        return [1] * wanted, wanted - rows
    return [1] * (wanted - ranks), 0


def even_out(
    plan: Plan, ranks: int, *, batch_size: int, drop_last: bool, pad: bool, reorders: bool
) -> Plan:
    """Give every rank as many batches as the one with the fewest, or, padding, the most.

    For lanes of a user's own strategy, which may differ by any number of rows. Rank r of R has the
    lanes r, r + R, …
    """
    rows = [plan.lane(index).rows_left() for index in range(len(plan))]
    counts = [batches_in(left, batch_size, drop_last) for left in rows]
    totals = [sum(counts[rank::ranks]) for rank in range(ranks)]
    if len(set(totals)) == 1:
        return plan
    made = [plan.lane(index) for index in range(len(plan))]
    same, repeats, dropped = list(rows), list[tuple[int, int]](), 0
    for rank, total in enumerate(totals):
        own = range(rank, len(rows), ranks)
        missing = max(totals) - total
        if pad and missing:
            batches = {index: counts[index] + missing - (not drop_last) for index in own}
            needs = {i: n * batch_size + (not drop_last) - rows[i] for i, n in batches.items()}
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
    return take_rows(line, wanted)
