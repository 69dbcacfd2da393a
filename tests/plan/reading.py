"""The rows that readers of a plan would deliver, computed from the plan alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from file_makers import Row, rows_of

from headrace.model import Cursor
from headrace.plan import ROW_ORDER, Grouping, Lane, Plan, permutation

Keep = Callable[[Row], bool]


def every_row(row: Row) -> bool:
    """Keep every row."""
    return True


def taking_turns(chunks: Sequence[Sequence[Row]]) -> list[Row]:
    """Take a row of each chunk in turn, passing over chunks that have none left."""
    rounds = range(max(map(len, chunks), default=0))
    return [chunk[turn] for turn in rounds for chunk in chunks if turn < len(chunk)]


def window_rows(
    plan: Plan, lane: Lane, window: int, grouping: Grouping, keep: Keep = every_row
) -> list[Row]:
    """Return all rows of a window in their order, no matter which lanes deliver them."""
    places = range(*lane.members(window).indices(len(lane.chunks)))
    chunks = [
        [row for row in rows_of([lane.chunks.split(place, plan.files)]) if keep(row)]
        for place in places
    ]
    rows = [row for chunk in chunks for row in chunk]
    if grouping.interleave > 1:
        return taking_turns(chunks)
    if grouping.mix > 1:
        key = lane.span(window).key
        order = permutation(
            len(rows), seed=3, epoch=1, purpose=ROW_ORDER, lane=key[0], window=key[1]
        )
        return [rows[i] for i in order]
    return rows


def located_rows(
    plan: Plan, index: int, grouping: Grouping, keep: Keep = every_row
) -> list[tuple[Row, Cursor]]:
    """Return the rows of a lane in order, each with the cursor after it."""
    lane = plan.lane(index)
    located: list[tuple[Row, Cursor]] = []
    for window in range(lane.windows):
        span = lane.span(window)
        rows = window_rows(plan, lane, window, grouping, keep)[: span.stop]
        located += [(row, (window, at + 1)) for at, row in enumerate(rows) if at >= span.start]
    return located


def lane_rows(plan: Plan, index: int, grouping: Grouping, keep: Keep = every_row) -> list[Row]:
    """Return the rows of a lane in order."""
    return [row for row, _ in located_rows(plan, index, grouping, keep)]


def in_batches(rows: Sequence[Row], size: int, drop_last: bool = False) -> list[list[Row]]:
    """Return the batches that a lane is cut into."""
    cut = [list(rows[at : at + size]) for at in range(0, len(rows), size)]
    return [batch for batch in cut if len(batch) == size or not drop_last]


def in_turn(lanes: Sequence[list[list[Row]]], turn: int = 0) -> list[list[Row]]:
    """Take a batch from each lane in turn, passing over lanes that have none left."""
    waiting = [list(lane) for lane in lanes]
    located: list[list[Row]] = []
    while any(waiting):
        lane = waiting[turn % len(waiting)]
        turn += 1
        if lane:
            located.append(lane.pop(0))
    return located
