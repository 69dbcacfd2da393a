"""The rest of an epoch is planned again: exactly once every row, however often, from any place."""

from __future__ import annotations

from collections import Counter

import numpy as np
from file_makers import Row, counted_files, grouped, surviving, text
from hypothesis import given
from hypothesis import strategies as st
from reading import in_batches, in_turn, lane_rows, located_rows, window_rows

from headrace.model import Cursor, DataFileInfo, FileList
from headrace.plan import EvenBatchesSplitStrategy, Grouping, Plan
from headrace.plan._resume import plan_the_rest, windows_begun

groupings = st.sampled_from([Grouping(), Grouping(mix=2), Grouping(mix=3), Grouping(interleave=2)])


def planned(
    files: list[DataFileInfo], lanes: int, batch_size: int, split_rows: int | None, how: Grouping
) -> Plan:
    strategy = EvenBatchesSplitStrategy(batch_size, 50, split_rows, True, 3)
    return strategy.generate(FileList(files), lanes, 1).grouped(how)


@given(
    files=counted_files(),
    split_rows=st.none() | st.integers(1, 9),
    how=groupings,
    sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 7)), min_size=1, max_size=4),
    data=st.data(),
)
def test_every_row_comes_once_over_any_number_of_changes(
    files: list[DataFileInfo],
    split_rows: int | None,
    how: Grouping,
    sizes: list[tuple[int, int]],
    data: st.DataObject,
) -> None:
    lanes, batch_size = sizes[0]
    plan = planned(files, lanes, batch_size, split_rows, how)
    rows_read: list[Row] = []
    for lanes, batch_size in sizes[1:]:
        cursors: list[Cursor] = []
        for index in range(len(plan)):
            rows = located_rows(plan, index, how)
            row_count = data.draw(st.integers(0, len(rows)), label=f"rows of lane {index}")
            rows_read += [row for row, _ in rows[:row_count]]
            cursors.append(rows[row_count - 1][1] if row_count else (0, 0))
            assert plan.lane(index).rows_left(cursors[-1]) == len(rows) - row_count
            assert plan.lane(index).cursor_after(row_count) == cursors[-1]
        plan = plan_the_rest(plan, cursors, lanes=lanes, batch_size=batch_size, grouping=how)
        assert len(plan) == lanes
        _check_evenness(plan, batch_size)
    rows_read += [row for index in range(len(plan)) for row in lane_rows(plan, index, how)]
    assert Counter(rows_read) == Counter(surviving(files))


def _check_evenness(plan: Plan, batch_size: int) -> None:
    """Check that lane l has the batches l, l + L, …, so that in turn only the last one is short."""
    rows = [plan.lane(index).rows_left() for index in range(len(plan))]
    batches = [-(-count // batch_size) for count in rows]
    assert sorted(batches, reverse=True) == batches
    assert batches[0] - batches[-1] <= 1
    full = sum(rows) // batch_size
    assert sum(count // batch_size for count in rows) == full


@given(files=counted_files(), how=groupings, data=st.data())
def test_rows_of_a_window_that_was_begun_keep_their_order(
    files: list[DataFileInfo], how: Grouping, data: st.DataObject
) -> None:
    plan = planned(files, 2, 3, 4, how)
    cursors: list[Cursor] = []
    begun: list[list[Row]] = []
    for index in range(len(plan)):
        rows = located_rows(plan, index, how)
        row_count = data.draw(st.integers(0, len(rows)))
        cursor = rows[row_count - 1][1] if row_count else (0, 0)
        cursors.append(cursor)
        if row_count:
            begun.append(window_rows(plan, plan.lane(index), cursor[0], how)[cursor[1] :])
    rest = plan_the_rest(plan, cursors, lanes=3, batch_size=2, grouping=how)
    for window in begun:
        pieces = [
            [row for row in lane_rows(rest, index, how) if row in window]
            for index in range(len(rest))
        ]
        assert [row for piece in pieces for row in piece] == window


@given(
    files=counted_files(),
    split_rows=st.none() | st.integers(1, 9),
    how=groupings,
    sizes=st.lists(st.integers(1, 5), min_size=2, max_size=4),
    kept=st.integers(1, 4),
    data=st.data(),
)
def test_rows_that_only_reading_counts_come_once_over_any_number_of_changes(
    files: list[DataFileInfo],
    split_rows: int | None,
    how: Grouping,
    sizes: list[int],
    kept: int,
    data: st.DataObject,
) -> None:
    def keep(row: Row) -> bool:
        return row[1] % 4 < kept

    plan = planned(files, sizes[0], 2, split_rows, how)
    rows_read: list[Row] = []
    for lanes in sizes[1:]:
        cursors: list[Cursor] = []
        for index in range(len(plan)):
            rows = located_rows(plan, index, how, keep)
            row_count = data.draw(st.integers(0, len(rows)), label=f"rows of lane {index}")
            rows_read += [row for row, _ in rows[:row_count]]
            cursors.append(rows[row_count - 1][1] if row_count else (0, 0))
        counts: dict[tuple[int, int], int] | None = {
            (lane, window): len(window_rows(plan, plan.lane(lane), window, how, keep))
            for lane, window in windows_begun(plan, cursors)
        }
        if kept == 4 and data.draw(st.booleans(), label="counted this time"):
            counts = None
        plan = plan_the_rest(plan, cursors, lanes=lanes, batch_size=2, grouping=how, counts=counts)
        left = [len(lane_rows(plan, index, how, keep)) for index in range(len(plan))]
        if kept == 4:
            assert max(left) - min(left) <= 2
    rows_read += [row for index in range(len(plan)) for row in lane_rows(plan, index, how, keep)]
    assert Counter(rows_read) == Counter(row for row in surviving(files) if keep(row))


def test_what_was_begun_goes_to_lanes_that_get_no_other_file() -> None:
    """Plan files that cannot be cut: four lanes share three new files and most of one begun."""
    files = FileList([text(name, 100, splittable=False) for name in "abcd"])
    plan = EvenBatchesSplitStrategy(2, 50).generate(files, 1, 0).grouped(Grouping())
    rest = plan_the_rest(
        plan, [(0, 7)], lanes=4, batch_size=2, grouping=Grouping(), counts={(0, 0): 1000}
    )
    shares = [[(s.start, s.stop) for s in rest.lane(index).spans.values()] for index in range(4)]
    assert [len(rest.lane(index).chunks) for index in range(4)] == [1, 1, 1, 1]
    assert sorted(shares) == [[], [], [], [(7, 1000)]]


def test_what_is_left_of_lines_that_were_begun_is_shared_row_by_row() -> None:
    files = FileList([text("a", 100), text("b", 100)])
    plan = EvenBatchesSplitStrategy(2, 50).generate(files, 2, 0).grouped(Grouping())
    rest = plan_the_rest(
        plan, [(1, 7), (0, 0)], lanes=4, batch_size=2, grouping=Grouping(), counts={(0, 1): 99}
    )
    spans = [rest.lane(index).span(0) for index in range(4)]
    assert [(span.start, span.stop) for span in spans] == [(7, 30), (30, 53), (53, 76), (76, 99)]
    untouched = [int(rest.lane(index).chunks.length[1:].sum()) for index in range(4)]
    assert untouched == [25, 25, 25, 25]


def test_a_second_generation_mixes_by_coordinates_of_its_own() -> None:
    files = FileList([grouped("a", [4] * 6, [10] * 6)])
    plan = EvenBatchesSplitStrategy(2, 10).generate(files, 1, 0).grouped(Grouping(mix=2))
    rest = plan_the_rest(plan, [(0, 2)], lanes=1, batch_size=2, grouping=Grouping(mix=2))
    keys = [rest.lane(0).span(window).key for window in range(rest.lane(0).windows)]
    assert keys == [(0, 0), (1 << 32, 1), (1 << 32, 2)]


@given(
    files=counted_files(),
    how=groupings,
    lanes=st.sampled_from([2, 4, 6, 12]),
    batch_size=st.integers(1, 5),
)
def test_batches_taken_in_turn_do_not_depend_on_who_takes_them(
    files: list[DataFileInfo], how: Grouping, lanes: int, batch_size: int
) -> None:
    plan = planned(files, lanes, batch_size, 3, how)
    cut = [in_batches(lane_rows(plan, index, how), batch_size) for index in range(lanes)]
    whole = in_turn(cut)
    for ranks in (rank for rank in range(1, lanes + 1) if lanes % rank == 0):
        of_ranks = [in_turn(cut[rank::ranks]) for rank in range(ranks)]
        steps = max(map(len, of_ranks))
        together = [
            batch for step in range(steps) for own in of_ranks for batch in own[step : step + 1]
        ]
        assert together == whole
    assert np.all(np.diff([len(batch) for batch in whole][:-1]) == 0)
