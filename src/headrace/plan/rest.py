"""Plan what is left of an epoch anew, for other lanes or another size of batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from headrace.model import Cursor, Int64Array
from headrace.plan.chunks import ROWS, Chunks
from headrace.plan.lanes import Grouping, Lane, Plan, Span, cut_at, cut_evenly

__all__ = ["plan_the_rest", "windows_begun"]


@dataclass(frozen=True, slots=True)
class _Begun:
    """A window of which some rows were delivered: its rows stay in their order."""

    chunks: Chunks
    span: Span
    rows: int
    """rows that are left"""


def windows_begun(
    plan: Plan, cursors: Sequence[Cursor], loose: Sequence[tuple[int, int, int]] = ()
) -> list[tuple[int, int]]:
    """Return the windows (lane, window) whose rows have to be counted before a new plan.

    They are those of which some rows were delivered, and whose number of rows does not follow
    from an earlier plan.
    """
    found: list[tuple[int, int]] = []
    for index, cursor in enumerate(cursors):
        lane = plan.lane(index)
        delivered = _delivered(index, cursor, loose)
        found += [
            (index, window)
            for window, row in sorted(delivered.items())
            if row > 0 and window < lane.windows and lane.span(window).stop is None
        ]
    return found


def plan_the_rest(
    plan: Plan,
    cursors: Sequence[Cursor],
    *,
    lanes: int,
    batch_size: int,
    grouping: Grouping,
    counts: Mapping[tuple[int, int], int] | None = None,
    loose: Sequence[tuple[int, int, int]] = (),
) -> Plan:
    """Deal what lies behind the cursors to so many lanes, as if the epoch began with it.

    Untouched chunks are cut again. A window that was begun keeps the order of its rows, and lanes
    share what is left of it.

    Args:
        counts: The rows of each of ``windows_begun``, where rows are not counted before they are
            read; None where they are. Untouched chunks are then dealt by what is known of them, as
            at the start of an epoch, and what is left of those windows row by row.
        loose: Windows beyond the cursor of their lane (lane, window, row) of which so many rows
            were delivered; all of them if it is negative.
    """
    begun: list[_Begun] = []
    untouched: list[Chunks] = []
    for index, cursor in enumerate(cursors):
        lane, delivered = plan.lane(index), _delivered(index, cursor, loose)
        if grouping.reorders or counts is not None or lane.spans:
            windows, rest = _windows_left(lane, cursor[0], delivered, counts)
            begun.extend(windows)
        else:
            rest = _rows_left(lane, cursor[0], delivered)
        untouched.append(rest)
    rest = Chunks.concat(untouched)
    if counts is None:
        line = _in_line(rest, _signs(begun))
        pieces, bounds = cut_evenly(line, lanes=lanes, batch_size=batch_size)
    else:
        pieces, bounds = _dealt_apart(rest, begun, lanes)
    return _expanded(plan, pieces, bounds, begun, grouping)


def _delivered(lane: int, cursor: Cursor, loose: Sequence[tuple[int, int, int]]) -> dict[int, int]:
    """Return the rows that were delivered of windows at and beyond the cursor of a lane."""
    return {**{window: row for owner, window, row in loose if owner == lane}, cursor[0]: cursor[1]}


def _windows_left(
    lane: Lane,
    first: int,
    delivered: Mapping[int, int],
    counts: Mapping[tuple[int, int], int] | None,
) -> tuple[list[_Begun], Chunks]:
    """Return the windows from ``first`` on that were begun, and the chunks of all others.

    A window may have been begun by this lane, or by a lane of an earlier plan.
    """
    special = {window for window in lane.spans if window >= first}
    special.update(window for window, row in delivered.items() if row)
    begun: list[_Begun] = []
    for window in sorted(special & set(range(lane.windows))):
        chunks, span = lane.chunks[lane.members(window)], lane.span(window)
        if delivered.get(window, 0) < 0:
            continue
        start = max(span.start, delivered.get(window, 0))
        stop = span.stop
        if stop is None:
            stop = int(chunks.length.sum()) if counts is None else counts[lane.index, window]
        if start < stop:
            begun.append(_Begun(chunks, Span(span.key, start, stop), stop - start))
    plain = (lane.window >= first) & ~np.isin(lane.window, sorted(special))
    return begun, lane.chunks[np.flatnonzero(plain)]


def _rows_left(lane: Lane, start: int, delivered: Mapping[int, int]) -> Chunks:
    """Return the chunks that are left of a lane whose windows are single, counted chunks."""
    rest = lane.chunks[slice(int(np.searchsorted(lane.window, start)), None)]
    if not len(rest) or not any(delivered.values()):
        return rest
    first = np.zeros(len(rest), np.int64)
    for window, row in delivered.items():
        if window - start < len(rest):
            place = window - start
            first[place] = rest.length[place] if row < 0 else row
    size = rest.size_bytes * ((rest.length - first) / np.maximum(rest.length, 1))
    trimmed = Chunks(
        rest.file, rest.offset + first, rest.length - first, rest.kind, size.astype(np.int64)
    )
    return trimmed[np.flatnonzero(trimmed.length > 0)]


def _signs(begun: Sequence[_Begun]) -> Chunks:
    """Return chunks that stand for begun windows: in place of a file they have negative numbers."""
    return Chunks(
        -1 - np.arange(len(begun)),
        np.asarray([window.span.start for window in begun], np.int64),
        np.asarray([window.rows for window in begun], np.int64),
        np.full(len(begun), ROWS, np.int8),
        np.asarray([window.chunks.size_bytes.sum() for window in begun], np.int64),
    )


def _in_line(untouched: Chunks, signs: Chunks) -> Chunks:
    """Return all that is left, end to end; begun windows are spread, so that all lanes get some."""
    places = np.arange(len(signs)) * len(untouched) // max(len(signs), 1)
    return Chunks(
        *(
            np.insert(getattr(untouched, name), places, getattr(signs, name))
            for name in Chunks.__slots__
        )
    )


def _dealt_apart(
    untouched: Chunks, begun: Sequence[_Begun], lanes: int
) -> tuple[Chunks, Int64Array]:
    """Deal chunks whose rows are not known, and windows whose rows are; the windows come first.

    A lane that has less of the chunks, because some cannot be cut, gets more of the windows.
    """
    dealt, bounds = cut_evenly(untouched, lanes=lanes, batch_size=1)
    shares = _filled_up(_estimated_rows(dealt, bounds, begun), sum(each.rows for each in begun))
    shared, ends = cut_at(_signs(begun), np.cumsum(shares)[:-1])
    owner = np.concatenate([np.repeat(np.arange(lanes), np.diff(each)) for each in (ends, bounds)])
    return Chunks.concat([shared, dealt])[np.argsort(owner, kind="stable")], ends + bounds


def _estimated_rows(dealt: Chunks, bounds: Int64Array, begun: Sequence[_Begun]) -> list[int]:
    """Return about how many rows the chunks of each lane have, if they are like begun windows."""
    by_stop = sorted(begun, key=lambda window: window.span.stop or 0)
    windows = {window.span.key: window for window in by_stop}  # the last part of each
    parts = [dealt, *(window.chunks for window in windows.values())]
    weights = Chunks.concat(parts).weights
    before = np.append(0, np.cumsum(weights))
    weight = int(before[-1] - before[len(dealt)])
    rows = sum(window.span.stop or 0 for window in windows.values())
    return [int(of_lane) * rows // max(weight, 1) for of_lane in np.diff(before[bounds])]


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


def _expanded(
    plan: Plan,
    pieces: Chunks,
    bounds: Int64Array,
    begun: Sequence[_Begun],
    grouping: Grouping,
) -> Plan:
    """Lanes with begun windows in place of their signs, each chunk with its window."""
    chunks: list[Chunks] = [Chunks.empty()]
    windows: list[Int64Array] = [np.empty(0, np.int64)]
    spans: dict[tuple[int, int], Span] = {}
    ends = [0]
    for lane, (first, last) in enumerate(pairwise(bounds.tolist())):
        count = 0
        signs = first + np.flatnonzero(pieces.file[first:last] < 0)
        edges = [first, *(edge for at in signs.tolist() for edge in (at, at + 1)), last]
        for number, (start, stop) in enumerate(pairwise(edges)):
            run = pieces[slice(start, stop)]
            if not len(run):
                continue
            if number % 2:
                window = begun[-1 - int(run.file[0])]
                start_row = int(run.offset[0])
                span = Span(window.span.key, start_row, start_row + int(run.length[0]))
                spans[lane, count] = span
                run, places = window.chunks, np.zeros(len(window.chunks), np.int64)
            else:
                order, places = grouping.of(run.file)
                run = run[order]
            chunks.append(run)
            windows.append(places + count)
            count += int(places[-1]) + 1
        ends.append(sum(map(len, chunks)))
    joined = Chunks.concat(chunks)
    return Plan(
        plan.files,
        joined,
        np.asarray(ends, np.int64),
        np.concatenate(windows),
        spans,
        plan.generation + 1,
    )
