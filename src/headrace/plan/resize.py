"""What is left of an epoch, planned anew for other lanes or another size of batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from headrace.model import Int64Array
from headrace.plan.chunks import ROWS, WHOLE, Chunks
from headrace.plan.lane import Grouping, Lane, Span
from headrace.plan.lanes import LanePlan, cut_evenly

__all__ = ["plan_the_rest"]


@dataclass(frozen=True, slots=True)
class _Begun:
    """A window of which some rows were delivered: its rows stay in their order."""

    chunks: Chunks
    span: Span
    rows: int
    """left, where they are counted"""


def plan_the_rest(
    plan: LanePlan,
    cursors: Sequence[tuple[int, int]],
    *,
    lanes: int,
    batch_size: int,
    grouping: Grouping,
    counted: bool,
    loose: Sequence[tuple[int, int, int]] = (),
) -> LanePlan:
    """Deal what lies behind the cursors to so many lanes, as if the epoch began with it.

    Untouched chunks are cut again. A window that was begun keeps the order of its rows; where
    rows are counted two lanes may share what is left of it, else it goes to one lane whole.

    ``loose`` are windows beyond the cursor of their lane (lane, window, row) of which so many
    rows were delivered; all of them if it is negative.
    """
    begun: list[_Begun] = []
    untouched: list[Chunks] = []
    for index, cursor in enumerate(cursors):
        lane = plan.lane(index)
        open_ = {window: row for owner, window, row in loose if owner == index}
        if grouping.reorders or not counted:
            windows, rest = _windows_left(lane, cursor, open_, counted)
            begun.extend(windows)
        else:
            rest = _rows_left(lane, cursor, open_)
        untouched.append(rest)
    line = _in_line(Chunks.concat(untouched), begun, counted)
    pieces, bounds = cut_evenly(line, lanes=lanes, batch_size=batch_size)
    return _expanded(plan, pieces, bounds, begun, grouping, counted)


def _windows_left(
    lane: Lane, cursor: tuple[int, int], loose: Mapping[int, int], counted: bool
) -> tuple[list[_Begun], Chunks]:
    """Windows that were begun, by this lane or before it, and the chunks of all others."""
    delivered = {**loose, cursor[0]: cursor[1]}
    special = {window for window in lane.spans if window >= cursor[0]}
    special.update(window for window, row in delivered.items() if row)
    begun: list[_Begun] = []
    for window in sorted(special & set(range(lane.windows))):
        chunks, span = lane.chunks[lane.members(window)], lane.span(window)
        if delivered.get(window, 0) < 0:
            continue
        start = max(span.start, delivered.get(window, 0))
        stop = span.stop
        if counted and stop is None:
            stop = int(chunks.length.sum())
        if stop is None or start < stop:
            rows = 0 if stop is None else stop - start
            begun.append(_Begun(chunks, Span(span.key, start, span.stop), rows))
    plain = (lane.window >= cursor[0]) & ~np.isin(lane.window, sorted(special))
    return begun, lane.chunks[np.flatnonzero(plain)]


def _rows_left(lane: Lane, cursor: tuple[int, int], loose: Mapping[int, int]) -> Chunks:
    """Where a window is one chunk and its rows are counted, the rest of it is a chunk as well."""
    rest = lane.chunks[slice(int(np.searchsorted(lane.window, cursor[0])), None)]
    delivered = {**loose, cursor[0]: cursor[1]}
    if not len(rest) or not any(delivered.values()):
        return rest
    first = np.zeros(len(rest), np.int64)
    for window, row in delivered.items():
        if window - cursor[0] < len(rest):
            place = window - cursor[0]
            first[place] = rest.length[place] if row < 0 else row
    size = rest.size_bytes * ((rest.length - first) / np.maximum(rest.length, 1))
    trimmed = Chunks(
        rest.file, rest.offset + first, rest.length - first, rest.kind, size.astype(np.int64)
    )
    return trimmed[np.flatnonzero(trimmed.length > 0)]


def _in_line(untouched: Chunks, begun: Sequence[_Begun], counted: bool) -> Chunks:
    """All that is left, end to end. Of begun windows only a sign stands in the line: a negative
    number in place of a file. They are spread over the line, so that each lane gets some."""
    if not begun:
        return untouched
    size = np.asarray([window.chunks.size_bytes.sum() for window in begun], np.int64)
    signs = Chunks(
        -1 - np.arange(len(begun)),
        np.asarray([window.span.start for window in begun], np.int64),
        np.asarray([window.rows for window in begun], np.int64) if counted else size,
        np.full(len(begun), ROWS if counted else WHOLE, np.int8),
        size,
    )
    places = np.arange(len(begun)) * len(untouched) // len(begun)
    return Chunks(
        *(
            np.insert(getattr(untouched, name), places, getattr(signs, name))
            for name in Chunks.__slots__
        )
    )


def _expanded(
    plan: LanePlan,
    pieces: Chunks,
    bounds: Int64Array,
    begun: Sequence[_Begun],
    grouping: Grouping,
    counted: bool,
) -> LanePlan:
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
                end = int(run.offset[0] + run.length[0]) if counted else window.span.stop
                span = Span(window.span.key, int(run.offset[0]), end)
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
    return LanePlan(
        plan.files,
        joined,
        np.asarray(ends, np.int64),
        np.concatenate(windows),
        spans,
        plan.generation + 1,
    )
