"""Chunks are dealt to lanes: every row once, in the order that the arithmetic of batches gives."""

from __future__ import annotations

import pickle
from itertools import pairwise

import numpy as np
import pytest
from file_makers import Row, counted_files, grouped, mixed_files, rows_of, surviving, text
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OptionError
from headrace.model import DataFileInfo, FileList
from headrace.plan import (
    EvenBatchesSplitStrategy,
    Plan,
    RoundRobinSplitStrategy,
    TargetSizeSplitStrategy,
    cut_chunks,
    plan_lanes,
)
from headrace.plan.permutations import CHUNK_ORDER, permutation

FILES = [
    grouped("a", [4, 3], [40, 30]),
    grouped("b", [5], [50]),
    grouped("c", [2, 3, 4], [20, 30, 40]),
    grouped("d", [1], [10]),
    grouped("e", [3, 3], [30, 30]),
]


def describe(plan: Plan) -> list[list[str]]:
    return [[str(chunk).replace(", rows", "") for chunk in split.file_splits] for split in plan]


def test_golden_lanes_in_file_order() -> None:
    plan = EvenBatchesSplitStrategy(4, split_bytes=50).generate(FILES, 3, 0)
    assert describe(plan) == [
        ["a 0-4", "a 4-7", "b 0-5"],
        ["c 0-5", "c 5-8"],
        ["c 8-9", "d 0-1", "e 0-3", "e 3-6"],
    ]


GOLDEN = {
    (42, 0): [
        ["c 0-5", "a 4-7", "c 5-9"],
        ["b 0-5", "d 0-1", "e 0-2"],
        ["e 2-3", "e 3-6", "a 0-4"],
    ],
    (42, 1): [
        ["c 5-9", "e 0-3", "c 0-5"],
        ["a 4-7", "d 0-1", "e 3-6", "b 0-1"],
        ["b 1-5", "a 0-4"],
    ],
    (7, 0): [
        ["c 5-9", "d 0-1", "e 3-6", "a 4-7", "b 0-1"],
        ["b 1-5", "e 0-3", "c 0-1"],
        ["c 1-5", "a 0-4"],
    ],
    (7, 1): [
        ["d 0-1", "e 3-6", "c 0-5", "c 5-8"],
        ["c 8-9", "e 0-3", "a 4-7", "b 0-1"],
        ["b 1-5", "a 0-4"],
    ],
}


@pytest.mark.parametrize(("seed", "epoch"), list(GOLDEN))
def test_golden_lanes_shuffled(seed: int, epoch: int) -> None:
    strategy = EvenBatchesSplitStrategy(4, split_bytes=50, shuffle=True, seed=seed)
    assert describe(strategy.generate(FILES, 3, epoch)) == GOLDEN[seed, epoch]


def test_seed_and_epoch_make_different_plans() -> None:
    files = [grouped(f"f{i}", [8], [8]) for i in range(12)]
    plans = {
        str(describe(EvenBatchesSplitStrategy(4, shuffle=True, seed=s).generate(files, 2, e)))
        for s in range(5)
        for e in range(5)
    }
    assert len(plans) == 25


def global_batches(plan: Plan, batch_size: int) -> list[list[Row]]:
    """Return the batches in global order: batch g is batch g div L of lane g mod L."""
    lanes = [rows_of(split.file_splits) for split in plan]
    cut = [[rows[i : i + batch_size] for i in range(0, len(rows), batch_size)] for rows in lanes]
    total = sum(len(batches) for batches in cut)
    return [cut[g % len(cut)][g // len(cut)] for g in range(total)]


@given(
    files=counted_files(),
    batch_size=st.integers(1, 12),
    lanes=st.integers(1, 7),
    split_bytes=st.integers(1, 200),
    split_rows=st.none() | st.integers(1, 20),
    shuffle=st.booleans(),
    seed=st.integers(-5, 5),
    epoch=st.integers(0, 3),
)
def test_any_files_are_dealt_exactly_once_in_full_batches(
    files: list[DataFileInfo],
    batch_size: int,
    lanes: int,
    split_bytes: int,
    split_rows: int | None,
    shuffle: bool,
    seed: int,
    epoch: int,
) -> None:
    strategy = EvenBatchesSplitStrategy(batch_size, split_bytes, split_rows, shuffle, seed)
    plan = plan_lanes(strategy, files, lanes=lanes, epoch=epoch)
    wanted = surviving(files)
    dealt = [rows_of(split.file_splits) for split in plan]
    assert len(plan) == lanes
    assert sorted(row for lane in dealt for row in lane) == sorted(wanted)
    assert [split.row_count for split in plan] == [len(rows) for rows in dealt]
    assert plan.row_count == len(wanted)

    total = -(-len(wanted) // batch_size)
    owned = [len(range(lane, total, lanes)) for lane in range(lanes)]
    short = total * batch_size - len(wanted)
    expected = [count * batch_size for count in owned]
    if total:
        expected[(total - 1) % lanes] -= short
    assert [len(rows) for rows in dealt] == expected

    batches = global_batches(plan, batch_size)
    assert len(batches) == total
    assert all(len(batch) == batch_size for batch in batches[:-1])
    assert not batches or len(batches[-1]) == batch_size - short

    listed = FileList(files)
    chunks = cut_chunks(listed, split_bytes=split_bytes, split_rows=split_rows)
    order = range(len(chunks))
    if shuffle:
        order = permutation(len(chunks), seed=seed, epoch=epoch, purpose=CHUNK_ORDER).tolist()
    end_to_end = rows_of(chunks.split(i, listed) for i in order)
    assert [row for lane in dealt for row in lane] == end_to_end
    if not shuffle:
        assert end_to_end == wanted


@given(
    files=mixed_files(),
    lanes=st.integers(1, 7),
    split_bytes=st.integers(1, 60),
    shuffle=st.booleans(),
    epoch=st.integers(0, 2),
    strategy=st.sampled_from(["even", "target", "round"]),
)
def test_unknown_counts_lose_and_repeat_nothing(
    files: list[DataFileInfo],
    lanes: int,
    split_bytes: int,
    shuffle: bool,
    epoch: int,
    strategy: str,
) -> None:
    made = {
        "even": EvenBatchesSplitStrategy(3, split_bytes, shuffle=shuffle),
        "target": TargetSizeSplitStrategy(split_bytes, shuffle=shuffle),
        "round": RoundRobinSplitStrategy(shuffle=shuffle),
    }[strategy].generate(files, lanes, epoch)
    assert len(made) == lanes
    chunks = [chunk for split in made for chunk in split.file_splits]
    by_rows = [c for c in chunks if c.row_range is not None]
    assert sorted(rows_of(by_rows)) == sorted(surviving(f for f in files if f.path.startswith("f")))
    by_bytes = [
        (c.file.path, at)
        for c in chunks
        if c.byte_range is not None
        for at in range(c.byte_range.offset, c.byte_range.stop)
    ]
    lines = [f for f in files if f.path.startswith("t")]
    assert sorted(by_bytes) == sorted(
        (f.path, at)
        for f in lines
        if f.splittable and f.file_size is not None
        for at in range(f.body_offset, f.file_size)
    )
    whole = [c.file.path for c in chunks if c.row_range is None and c.byte_range is None]
    assert sorted(whole) == sorted(
        f.path for f in lines if f.file_size is None or not (f.splittable or f.file_size == 0)
    )


def test_lines_are_dealt_in_runs_of_equal_bytes() -> None:
    plan = EvenBatchesSplitStrategy(4, split_bytes=64).generate([text("t", 300)], 3, 0)
    assert [split.size_bytes for split in plan] == [100, 100, 100]
    assert plan[0].row_count is None
    assert plan.row_count is None
    assert [str(chunk) for chunk in plan[1].file_splits] == ["t, bytes 100-128", "t, bytes 128-192",
                                                             "t, bytes 192-200"]  # fmt: skip


def test_lane_sizes_of_huge_chunks_do_not_overflow() -> None:
    plan = EvenBatchesSplitStrategy(4, split_bytes=1 << 60).generate([text("t", 1 << 50)], 2, 0)
    assert [split.size_bytes for split in plan] == [1 << 49, 1 << 49]


@given(files=counted_files(), lanes=st.integers(1, 6), split_rows=st.integers(1, 20))
def test_largest_first_is_balanced_and_keeps_the_order(
    files: list[DataFileInfo], lanes: int, split_rows: int
) -> None:
    strategy = TargetSizeSplitStrategy(split_rows=split_rows, shuffle=True, seed=3)
    plan = strategy.generate(files, lanes, 5)
    listed = FileList(files)
    chunks = cut_chunks(listed, split_bytes=1, split_rows=split_rows)
    order = permutation(len(chunks), seed=3, epoch=5, purpose=CHUNK_ORDER)
    place = {str(chunks.split(int(i), listed)): at for at, i in enumerate(order)}
    loads = [split.row_count or 0 for split in plan]
    assert max(loads) - min(loads) <= max(chunks.length, default=0)
    ideal = max([-(-sum(loads) // lanes), *chunks.length.tolist()], default=0)
    assert max(loads) <= ideal * (4 / 3 - 1 / (3 * lanes)) + max(chunks.length, default=0)
    for split in plan:
        places = [place[str(chunk)] for chunk in split.file_splits]
        assert places == sorted(places)
    assert sorted(row for split in plan for row in rows_of(split.file_splits)) == sorted(
        surviving(files)
    )


def test_largest_first_is_better_than_in_turn() -> None:
    files = [grouped(f"f{i}", [rows], [rows]) for i, rows in enumerate([1, 9, 1, 9, 1, 9, 1, 9])]
    assert [s.row_count for s in TargetSizeSplitStrategy(1).generate(files, 2, 0)] == [20, 20]
    assert [s.row_count for s in RoundRobinSplitStrategy().generate(files, 2, 0)] == [4, 36]


def test_largest_first_weighs_by_rows_and_not_by_bytes() -> None:
    files = [grouped("a", [10], [1]), grouped("b", [5], [1000]), grouped("c", [5], [1])]
    plan = TargetSizeSplitStrategy(10_000).generate(files, 2, 0)
    assert describe(plan) == [["a 0-10"], ["b 0-5", "c 0-5"]]


def test_files_in_turn_are_whole_files() -> None:
    plan = RoundRobinSplitStrategy().generate(FILES, 2, 0)
    assert describe(plan) == [["a 0-7", "c 0-9", "e 0-6"], ["b 0-5", "d 0-1"]]


def test_golden_files_in_turn_shuffled() -> None:
    plan = RoundRobinSplitStrategy(shuffle=True, seed=42).generate(FILES, 2, 0)
    assert describe(plan) == [["d 0-1", "e 0-6", "a 0-7"], ["b 0-5", "c 0-9"]]


def test_what_a_filter_left_of_a_file_stays_in_one_lane() -> None:
    files = [grouped("a", [2] * 5, [2] * 5, keep=[0, 2, 4]), FILES[1], FILES[2], FILES[3]]
    plan = RoundRobinSplitStrategy().generate(files, 2, 0)
    assert describe(plan) == [["a 0-2", "a 4-6", "a 8-10", "c 0-9"], ["b 0-5", "d 0-1"]]


@given(files=mixed_files(), lanes=st.integers(1, 5), shuffle=st.booleans())
def test_files_in_turn_are_even_in_number(
    files: list[DataFileInfo], lanes: int, shuffle: bool
) -> None:
    plan = RoundRobinSplitStrategy(shuffle=shuffle, seed=9).generate(files, lanes, 1)
    held = [{chunk.file.path for chunk in split.file_splits} for split in plan]
    counts = [len(paths) for paths in held]
    assert max(counts) - min(counts) <= 1
    assert sum(counts) == len(set().union(*held))
    for split in plan:
        owners = [chunk.file.path for chunk in split.file_splits]
        changes = sum(before != after for before, after in pairwise(owners))
        assert changes == max(len(set(owners)) - 1, 0)


def test_split_bytes_as_text_and_as_nonsense() -> None:
    assert len(TargetSizeSplitStrategy("1kB").generate(FILES, 1, 0)[0].file_splits) == 5
    with pytest.raises(OptionError, match="split_bytes"):
        TargetSizeSplitStrategy("much").generate(FILES, 1, 0)


def test_no_files_give_empty_lanes() -> None:
    for strategy in (
        EvenBatchesSplitStrategy(4, shuffle=True),
        TargetSizeSplitStrategy(shuffle=True),
        RoundRobinSplitStrategy(shuffle=True),
    ):
        plan = plan_lanes(strategy, [], lanes=3, epoch=1)
        assert [list(split.file_splits) for split in plan] == [[], [], []]
        assert plan.row_count == 0


def test_a_plan_is_a_sequence_of_splits() -> None:
    plan = EvenBatchesSplitStrategy(4).generate(FILES, 3, 0)
    assert plan[-1] == plan[2] == list(plan)[2]
    assert [split.id for split in plan[1:]] == [1, 2]
    assert plan[-1].id == 2
    with pytest.raises(IndexError, match="lane 3 of 3"):
        plan[3]
    again = pickle.loads(pickle.dumps(plan))
    assert list(again) == list(plan)
    assert np.array_equal(again.bounds, plan.bounds)
