"""Plan what is left of an epoch anew, for other lanes or another size of batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from headrace.model import Cursor, Int64Array
from headrace.plan._chunks import ROWS, Chunks, share_of
from headrace.plan._lanes import Grouping, Lane, Plan, Segment, Span, cut_at, cut_evenly

__all__ = ["plan_the_rest", "windows_begun"]


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
        plan: The plan that is given up.
        cursors: How far each of its lanes has come.
        lanes: Number of lanes of the new plan.
        batch_size: Number of rows in a batch of the new plan.
        grouping: How chunks form windows.
        counts: The rows of each of ``windows_begun``, where rows are not counted before they are
            read; None where they are. Untouched chunks are then dealt by what is known of them, as
            at the start of an epoch, and what is left of those windows row by row.
        loose: Windows beyond the cursor of their lane (lane, window, row) of which so many rows
            were delivered; all of them if it is negative.
    """
    begun: list[Segment] = []
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
        pieces, bounds = cut_evenly(line, lanes, batch_size)
    else:
        pieces, bounds = _dealt_apart(rest, begun, lanes)
    made = [
        _lane_of(index, pieces[first:last], begun, grouping, plan.generation + 1)
        for index, (first, last) in enumerate(pairwise(bounds.tolist()))
    ]
    return Plan.of_lanes(plan.files, made)


def _delivered(lane: int, cursor: Cursor, loose: Sequence[tuple[int, int, int]]) -> dict[int, int]:
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
        chunks, span, row = (
            lane.chunks[lane.members(window)],
            lane.span(window),
            delivered.get(window, 0),
        )
        stop = span.stop
        if row < 0:
            continue
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
    """Return chunks that stand for begun windows: in place of a file they have negative numbers."""
    return Chunks(
        -1 - np.arange(len(begun)),
        np.asarray([window.span.start for window in begun if window.span], np.int64),
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
    untouched: Chunks, begun: Sequence[Segment], lanes: int
) -> tuple[Chunks, Int64Array]:
    """Deal chunks whose rows are not known, and windows whose rows are; the windows come first.

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
