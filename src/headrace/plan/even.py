"""The same number of batches for every rank: what to leave out, or what to repeat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.model import Int64Array
from headrace.plan.chunks import ROWS, Chunks
from headrace.plan.lane import Lane, Span
from headrace.plan.lanes import LanePlan

__all__ = ["EvenPlan", "batches_in", "even_out", "first_in_turn"]


@dataclass(frozen=True, slots=True)
class EvenPlan:
    """A plan in which all ranks have the same number of batches left."""

    plan: LanePlan
    dropped_rows: int = 0
    """of all ranks"""
    padded: tuple[int, ...] = ()
    """rows that each rank gets once more"""


def batches_in(rows: int, batch_size: int, drop_last: bool) -> int:
    """How many batches so many rows of a lane make."""
    return rows // batch_size if drop_last else -(-rows // batch_size)


def first_in_turn(counts: Sequence[int], wanted: int, turn: int = 0) -> list[int]:
    """How many of the first ``wanted`` batches come from each lane, one from each in turn.

    ``counts`` is what the lanes have, ``turn`` the lane that begins; a lane that has no more is
    passed over.
    """
    lanes = len(counts)
    in_order = [counts[(turn + place) % lanes] for place in range(lanes)]
    rounds, taken = 0, [0] * lanes
    while sum(taken) < min(wanted, sum(in_order)):
        left = [count for count in in_order if count > rounds]
        more = max(min(min(left) - rounds, (wanted - sum(taken)) // len(left)), 0)
        if more:
            rounds += more
            taken = [min(count, rounds) for count in in_order]
            continue
        missing = wanted - sum(taken)
        for place, count in enumerate(in_order):
            if count > rounds and missing:
                taken[place] += 1
                missing -= 1
    return [taken[(place - turn) % lanes] for place in range(lanes)]


def even_out(
    plan: LanePlan,
    cursors: Sequence[tuple[int, int]],
    turns: Sequence[int],
    *,
    batch_size: int,
    drop_last: bool,
    pad: bool,
    reorders: bool,
) -> EvenPlan:
    """Give every rank as many batches behind the cursors as the one with the fewest (or most).

    Rank r of R has the lanes r, r + R, …; ``turns`` holds for each rank which of them begins.
    Rows must be counted.
    """
    ranks = len(turns)
    lanes = [plan.lane(index) for index in range(len(plan))]
    rows = [lane.rows_left(cursor) for lane, cursor in zip(lanes, cursors, strict=True)]
    counts = [batches_in(left, batch_size, drop_last) for left in rows]
    totals = [sum(counts[rank::ranks]) for rank in range(ranks)]
    if pad:
        return _padded(plan, lanes, rows, counts, totals, batch_size, drop_last)
    kept: dict[int, int] = {}
    for rank, total in enumerate(totals):
        if total > min(totals):
            allowed = first_in_turn(counts[rank::ranks], min(totals), turns[rank])
            for index, batches in zip(range(rank, len(lanes), ranks), allowed, strict=True):
                if batches < counts[index]:
                    kept[index] = batches * batch_size
    dropped = sum(rows[index] - left for index, left in kept.items())
    ends = {index: lanes[index].rows_left() - rows[index] + left for index, left in kept.items()}
    return EvenPlan(_cut_short(plan, lanes, ends, reorders), dropped)


def _cut_short(
    plan: LanePlan, lanes: Sequence[Lane], ends: dict[int, int], reorders: bool
) -> LanePlan:
    """Let lanes end after so many rows; what comes before is as if they did not."""
    if not ends:
        return plan
    spans = dict(plan.spans)
    chunks, windows = [], []
    for lane in lanes:
        if lane.index not in ends:
            chunks.append(lane.chunks)
            windows.append(lane.window)
            continue
        window, row = lane.cursor_after(ends[lane.index])
        last = lane.members(window).stop if row > lane.span(window).start else 0
        kept = lane.chunks[slice(0, last)]
        if last and (reorders or window in lane.spans):
            spans[lane.index, window] = replace(lane.span(window), stop=row)
        elif last:
            length = kept.length.copy()
            length[-1] = row
            kept = replace(kept, length=length)
        for place in [at for at in spans if at[0] == lane.index and (not last or at[1] > window)]:
            del spans[place]
        chunks.append(kept)
        windows.append(lane.window[:last])
    return _put_together(plan, chunks, windows, spans)


def _padded(
    plan: LanePlan,
    lanes: Sequence[Lane],
    rows: Sequence[int],
    counts: Sequence[int],
    totals: Sequence[int],
    batch_size: int,
    drop_last: bool,
) -> EvenPlan:
    ranks = len(totals)
    padded = [0] * ranks
    chunks = [lane.chunks for lane in lanes]
    windows = [lane.window for lane in lanes]
    for rank, total in enumerate(totals):
        missing = max(totals) - total
        if not missing:
            continue
        own = range(rank, len(lanes), ranks)
        needs = [_rows_for(rows[i], counts[i] + missing, batch_size, drop_last) for i in own]
        needed, _, index = min(zip(needs, (counts[i] for i in own), own, strict=True))
        source = next((lanes[i].chunks for i in (index, *own) if len(lanes[i].chunks)), plan.chunks)
        repeated = _first_rows(source, needed)
        chunks[index] = Chunks.concat([chunks[index], repeated])
        number = lanes[index].windows + np.arange(len(repeated))
        windows[index] = np.concatenate([windows[index], number])
        padded[rank] = needed
    if not any(padded):
        return EvenPlan(plan, 0, tuple(padded))
    made = _put_together(plan, chunks, windows, dict(plan.spans))
    return EvenPlan(made, 0, tuple(padded))


def _rows_for(rows: int, batches: int, batch_size: int, drop_last: bool) -> int:
    """Rows that a lane of ``rows`` lacks to make so many batches."""
    return (batches if drop_last else batches - 1) * batch_size + (not drop_last) - rows


def _first_rows(source: Chunks, wanted: int) -> Chunks:
    """The first rows of some chunks, over and over until there are enough."""
    parts: list[Chunks] = []
    while wanted > 0:
        ends = np.cumsum(source.length)
        count = int(np.searchsorted(ends, wanted)) + 1
        part = source[slice(0, count)]
        length = part.length.copy()
        if count <= len(ends):
            length[-1] -= int(ends[count - 1]) - wanted
        parts.append(replace(part, length=length))
        wanted -= int(length.sum())
    return Chunks.concat(parts)


def _put_together(
    plan: LanePlan,
    chunks: Sequence[Chunks],
    windows: Sequence[Int64Array],
    spans: dict[tuple[int, int], Span],
) -> LanePlan:
    bounds = np.cumsum([0, *map(len, chunks)])
    joined = Chunks.concat(list(chunks))
    assert (joined.kind == ROWS).all()
    return replace(plan, chunks=joined, bounds=bounds, window=np.concatenate(windows), spans=spans)
