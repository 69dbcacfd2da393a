"""Plans of users' strategies are checked: they must contain every row exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from file_makers import counted_files, grouped, rows_of, surviving, text
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OptionError, PlanError
from headrace.model import (
    ByteRange,
    DataFileInfo,
    FileList,
    FileSplit,
    RowGroups,
    RowRange,
    Split,
)
from headrace.plan import EvenBatchesSplitStrategy, Plan, TargetSizeSplitStrategy, plan_lanes


@dataclass
class Custom:
    """A user's strategy that returns its constructor's argument."""

    splits: Any

    def generate(self, files: Sequence[DataFileInfo], num_workers: int, epoch: int) -> Any:
        return self.splits


A = grouped("a.parquet", [10, 10, 10], [1, 1, 1])
PRUNED = grouped("p.parquet", [10, 10, 10], [1, 1, 1], keep=[0, 2])
LINES = text("t.csv", 100, 10)
WHOLE = text("w.csv.gz", 100, splittable=False)


def rows(file: DataFileInfo, offset: int, stop: int) -> FileSplit:
    return FileSplit(file, RowRange(offset, stop - offset))


def lines(file: DataFileInfo, offset: int, stop: int) -> FileSplit:
    return FileSplit(file, byte_range=ByteRange(offset, stop - offset))


def plan(files: list[DataFileInfo], *lanes: list[Any], count: int = 3) -> Plan:
    splits = [Split(i, chunks) for i, chunks in enumerate(lanes)]
    return plan_lanes(Custom(splits), files, lanes=count, epoch=0)


def describe(result: Plan) -> list[list[str]]:
    return [[str(chunk) for chunk in split.file_splits] for split in result]


def test_what_a_strategy_returns_is_the_order() -> None:
    result = plan([A], [rows(A, 20, 30), rows(A, 0, 5)], [rows(A, 5, 20)], count=2)
    assert describe(result) == [
        ["a.parquet, rows 20-30", "a.parquet, rows 0-5"],
        ["a.parquet, rows 5-20"],
    ]
    assert [split.row_count for split in result] == [15, 15]
    assert result.row_count == 30


def test_fewer_splits_than_lanes_leave_lanes_empty() -> None:
    result = plan([A], [FileSplit(A)], count=3)
    assert describe(result) == [["a.parquet, rows 0-30"], [], []]
    assert describe(plan([], count=2)) == [[], []]


def test_a_tuple_of_tuples_and_integers_of_numpy_will_do() -> None:
    chunks = (FileSplit(A, RowRange(np.int64(0), np.int32(30))),)  # type: ignore[arg-type]
    result = plan_lanes(Custom((Split(0, chunks),)), [A], lanes=1, epoch=0)
    assert describe(result) == [["a.parquet, rows 0-30"]]


def test_a_chunk_without_a_range_is_all_that_is_to_be_read() -> None:
    result = plan([PRUNED, LINES, WHOLE], [FileSplit(PRUNED), FileSplit(LINES), FileSplit(WHOLE)])
    assert describe(result)[0] == [
        "p.parquet, rows 0-10",
        "p.parquet, rows 20-30",
        "t.csv, bytes 10-100",
        "w.csv.gz",
    ]


def test_chunks_without_rows_are_left_out() -> None:
    result = plan([A], [rows(A, 3, 3), rows(A, 0, 30), rows(A, 30, 30)])
    assert describe(result)[0] == ["a.parquet, rows 0-30"]


def test_ranges_over_pruned_groups_are_allowed_and_pruned_groups_may_be_left_out() -> None:
    assert describe(plan([PRUNED], [rows(PRUNED, 0, 30)]))[0] == ["p.parquet, rows 0-30"]
    result = plan([PRUNED], [rows(PRUNED, 0, 12)], [rows(PRUNED, 18, 30)])
    assert result.row_count == 24
    gone = replace(A, row_groups=RowGroups.of([], []))
    assert describe(plan([gone])) == [[], [], []]


def test_lines_by_bytes() -> None:
    result = plan([LINES], [lines(LINES, 10, 40)], [lines(LINES, 40, 100)])
    assert describe(result)[:2] == [["t.csv, bytes 10-40"], ["t.csv, bytes 40-100"]]
    assert describe(plan([LINES], [lines(LINES, 0, 100)]))[0] == ["t.csv, bytes 0-100"]


def test_files_without_content_may_be_left_out() -> None:
    empty = [
        DataFileInfo("a", 100, 0),
        text("b", 0),
        text("c", 5, 5),
        text("d.gz", 0, splittable=False),
        grouped("e", [0, 0], [1, 1]),
    ]
    assert describe(plan(empty)) == [[], [], []]
    assert describe(plan(empty, [FileSplit(file) for file in empty])) == [[], [], []]


@pytest.mark.parametrize(
    ("files", "chunks", "message"),
    [
        ([A], [], "loses rows 0-30 of a.parquet"),
        ([A], [rows(A, 0, 29)], "loses rows 29-30 of a.parquet"),
        ([A], [rows(A, 1, 30)], "loses rows 0-1 of a.parquet"),
        ([A], [rows(A, 20, 30), rows(A, 0, 15)], "loses rows 15-20 of a.parquet"),
        ([PRUNED], [rows(PRUNED, 0, 10)], "loses rows 20-30 of p.parquet"),
        ([PRUNED], [rows(PRUNED, 0, 25)], "loses rows 25-30 of p.parquet"),
        ([A, PRUNED], [FileSplit(A)], "loses rows 0-10 of p.parquet"),
        ([LINES], [], "loses bytes 10-100 of t.csv"),
        ([LINES], [lines(LINES, 10, 50), lines(LINES, 51, 100)], "loses bytes 50-51 of t.csv"),
        ([WHOLE], [], "loses bytes 0-100 of w.csv.gz"),
        ([text("u.csv", None)], [], "loses bytes 0-1 of u.csv"),
        ([A], [FileSplit(A), rows(A, 3, 4)], "repeats rows 3-4 of a.parquet"),
        ([A], [FileSplit(A), FileSplit(A)], "repeats rows 0-30 of a.parquet"),
        ([A], [rows(A, 0, 20), rows(A, 19, 30)], "repeats rows 19-20 of a.parquet"),
        ([LINES], [FileSplit(LINES), lines(LINES, 99, 100)], "repeats bytes 99-100 of t.csv"),
        ([WHOLE], [FileSplit(WHOLE), FileSplit(WHOLE)], "repeats bytes 0-100 of w.csv.gz"),
        ([A], [rows(A, 0, 31)], "reads rows up to 31 of 30 of a.parquet"),
        ([A], [FileSplit(A), rows(A, 40, 50)], "reads rows up to 50 of 30 of a.parquet"),
        ([LINES], [lines(LINES, 10, 101)], "reads bytes up to 101 of 100 of t.csv"),
        ([A], [FileSplit(PRUNED)], "p.parquet is not a file of the data set"),
        ([A], [rows(A, -1, 30)], "a.parquet is read by one RowRange of .* from 0 on.*offset=-1"),
        ([A], [FileSplit(A), FileSplit(A, RowRange(1, 2**63 - 1))], "a.parquet is read by one Row"),
        ([A], [FileSplit(A, RowRange(0, 2**70))], "a.parquet is read by one RowRange of integers"),
        ([A], [FileSplit(A, RowRange(5, -5))], "a.parquet is read by one RowRange.*length=-5"),
        ([LINES], [FileSplit(LINES, RowRange(0, 5))], "t.csv is read by one ByteRange of integers"),
        ([WHOLE], [FileSplit(WHOLE, RowRange(0, 5))], "w.csv.gz is read by no range, not RowRange"),
        ([A], [lines(A, 0, 5)], "a.parquet is read by one RowRange.* not None and ByteRange"),
        ([WHOLE], [lines(WHOLE, 0, 100)], "w.csv.gz is read by no range, not None and ByteRange"),
        (
            [A],
            [FileSplit(A, RowRange(0, 30), ByteRange(0, 1))],
            r"a.parquet is read by one RowRange.*RowRange\(offset=0, length=30\) and ByteRange",
        ),
        ([A], [A], "split 0 holds DataFileInfo.*not a FileSplit"),
        ([A], ["a.parquet"], "split 0 holds 'a.parquet', not a FileSplit"),
        ([A], [FileSplit("a.parquet")], "not a FileSplit of a DataFileInfo"),  # type: ignore[arg-type]
        ([A], [FileSplit(A, (0, 30))], r"a.parquet is read by one RowRange.* not \(0, 30\)"),  # type: ignore[arg-type]
        ([A], [FileSplit(A, ByteRange(0, 30))], "a.parquet is read by one RowRange.* ByteRange"),  # type: ignore[arg-type]
        ([A], [FileSplit(A, RowRange(0, 30.0))], "a.parquet is read by one RowRange of integers"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_plan_is_refused_by_file_and_rows(
    files: list[DataFileInfo], chunks: list[Any], message: str
) -> None:
    with pytest.raises(PlanError, match=message) as caught:
        plan(files, chunks)
    assert str(caught.value).startswith("Custom")


def test_rows_repeated_in_another_lane_are_found() -> None:
    with pytest.raises(PlanError, match=r"repeats rows 10-20 of a\.parquet"):
        plan([A], [rows(A, 0, 20)], [rows(A, 10, 30)])


@pytest.mark.parametrize(
    "returned", [None, 5, "splits", {}, [FileSplit(A)], [[FileSplit(A)]], (s for s in ())]
)
def test_what_is_no_list_of_splits_is_refused(returned: Any) -> None:
    with pytest.raises(PlanError, match=r"Custom\.generate must return a list of Split, got"):
        plan_lanes(Custom(returned), [A], lanes=2, epoch=0)


def test_a_split_without_a_list_is_refused() -> None:
    with pytest.raises(PlanError, match="split 7 holds None, not a list"):
        plan_lanes(Custom([Split(7, None)]), [A], lanes=2, epoch=0)  # type: ignore[arg-type]


def test_too_many_splits_are_refused() -> None:
    with pytest.raises(PlanError, match=r"Custom\.generate returned 3 splits for 2 lanes"):
        plan([A], [FileSplit(A)], [], [], count=2)


@pytest.mark.parametrize("lanes", [0, -1, 10**9, 2**70])
def test_numbers_of_lanes_that_cannot_be_planned_are_refused(lanes: int) -> None:
    with pytest.raises(OptionError, match=r"from 1 to 1,048,576 lanes, not .*ranks or workers"):
        plan_lanes(EvenBatchesSplitStrategy(10), [A], lanes=lanes, epoch=0)


@pytest.mark.parametrize("batch_size", [0, -1, "5", 2**63])
def test_a_wrong_size_of_batches_is_refused(batch_size: Any) -> None:
    with pytest.raises(OptionError, match="batch_size must be"):
        EvenBatchesSplitStrategy(batch_size).generate([A], 1, 0)


def test_a_strategy_that_wraps_a_built_in_one_is_checked_too() -> None:
    class FirstFileOnly:
        def generate(self, files: Sequence[DataFileInfo], num_workers: int, epoch: int) -> Any:
            return TargetSizeSplitStrategy().generate(files[:1], num_workers, epoch)

    class AllFiles:
        def generate(self, files: Sequence[DataFileInfo], num_workers: int, epoch: int) -> Any:
            return TargetSizeSplitStrategy().generate(list(reversed(files)), num_workers, epoch)

    with pytest.raises(PlanError, match=r"FirstFileOnly loses rows 0-10 of p\.parquet"):
        plan_lanes(FirstFileOnly(), [A, PRUNED], lanes=2, epoch=0)
    result = plan_lanes(AllFiles(), FileList([A, PRUNED]), lanes=1, epoch=0)
    assert rows_of(result[0].file_splits) == surviving([PRUNED, A])


def test_estimated_sizes_of_huge_files_do_not_overflow() -> None:
    huge = DataFileInfo("huge", 10**12, 10**10)
    result = plan([huge], [rows(huge, 0, 10**9)], [rows(huge, 10**9, 10**10)])
    assert [split.size_bytes for split in result] == [10**11, 9 * 10**11, 0]


def test_a_file_of_many_groups_is_checked_in_reasonable_time() -> None:
    file = grouped("f", [2] * 20_000, [2] * 20_000)
    result = plan([file], [rows(file, at, at + 2) for at in range(0, 40_000, 2)])
    assert result.row_count == 40_000


@given(files=counted_files(), data=st.data())
def test_any_right_plan_passes_and_any_lost_or_repeated_chunk_is_found(
    files: list[DataFileInfo], data: st.DataObject
) -> None:
    rows_each = data.draw(st.integers(1, 6))
    given_plan = TargetSizeSplitStrategy(split_rows=rows_each).generate(files, 3, 0)
    lanes = [list(data.draw(st.permutations(list(s.file_splits)))) for s in given_plan]
    result = plan(files, *lanes)
    assert describe(result) == [[str(chunk) for chunk in lane] for lane in lanes]
    chunks = [(i, j) for i, lane in enumerate(lanes) for j in range(len(lane))]
    if not chunks:
        return
    lane, place = data.draw(st.sampled_from(chunks))
    picked = lanes[lane].pop(place)
    with pytest.raises(PlanError, match=f"loses rows .* of {picked.file.path}"):
        plan(files, *lanes)
    lanes[lane] += [picked, picked]
    with pytest.raises(PlanError, match=f"repeats rows .* of {picked.file.path}"):
        plan(files, *lanes)
