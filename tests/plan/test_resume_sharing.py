"""All ranks take the same number of steps: only rows at the end are left out or repeated."""

from __future__ import annotations

from collections import Counter

import pytest
from file_makers import Row, counted_files, grouped, surviving
from hypothesis import given
from hypothesis import strategies as st
from reading import in_batches, in_turn, lane_rows

from headrace.model import DataFileInfo, FileList
from headrace.plan import (
    EvenBatchesSplitStrategy,
    Grouping,
    Plan,
    RankShare,
    TargetSizeSplitStrategy,
    plan_lanes,
)
from headrace.plan._resume import even_out, first_in_turn

groupings = st.sampled_from([Grouping(), Grouping(mix=2), Grouping(interleave=3)])


def planned(
    files: list[DataFileInfo], lanes: int, batch_size: int, how: Grouping, even: bool = True
) -> Plan:
    strategy = EvenBatchesSplitStrategy(batch_size, 50, None, True, 3)
    chosen = strategy if even else TargetSizeSplitStrategy(50)
    return plan_lanes(chosen, FileList(files), lanes=lanes, epoch=1).grouped(how)


def evened(
    plan: Plan, ranks: int, batch_size: int, how: Grouping, pad: bool, drop_last: bool = False
) -> Plan:
    share = RankShare(0, ranks, "full" if drop_last else "pad" if pad else "drop")
    return even_out(plan, share, batch_size, how.reorders)


def padded_rows(plan: Plan, ranks: int) -> int:
    return sum(plan.repeated_rows(rank, ranks) for rank in range(ranks))


def batches_of(plan: Plan, how: Grouping, size: int, drop_last: bool) -> list[list[list[Row]]]:
    return [in_batches(lane_rows(plan, i, how), size, drop_last) for i in range(len(plan))]


@given(
    files=counted_files(),
    how=groupings,
    ranks=st.integers(1, 4),
    lanes_each=st.integers(1, 3),
    batch_size=st.integers(1, 5),
    drop_last=st.booleans(),
    dealt_evenly=st.booleans(),
)
def test_drop_takes_the_ends_off_and_changes_nothing_before(
    files: list[DataFileInfo],
    how: Grouping,
    ranks: int,
    lanes_each: int,
    batch_size: int,
    drop_last: bool,
    dealt_evenly: bool,
) -> None:
    plan = planned(files, ranks * lanes_each, batch_size, how, dealt_evenly)
    result = evened(plan, ranks, batch_size, how, pad=False, drop_last=drop_last)
    before = batches_of(plan, how, batch_size, drop_last)
    after = batches_of(result, how, batch_size, drop_last)
    whole = [in_turn(before[rank::ranks]) for rank in range(ranks)]
    kept = [in_turn(after[rank::ranks]) for rank in range(ranks)]
    steps = min(map(len, whole))
    assert kept == [batches[:steps] for batches in whole]
    lost = sum(len(batches) - steps for batches in whole)
    if dealt_evenly:
        assert lost < ranks
    if not drop_last:
        dropped = sum(len(batch) for batches in whole for batch in batches[steps:])
        assert result.dropped_rows == dropped


@given(
    files=counted_files(),
    how=groupings,
    ranks=st.integers(2, 4),
    lanes_each=st.integers(1, 3),
    batch_size=st.integers(1, 5),
    dealt_evenly=st.booleans(),
)
def test_pad_repeats_the_fewest_rows_that_make_it_even(
    files: list[DataFileInfo],
    how: Grouping,
    ranks: int,
    lanes_each: int,
    batch_size: int,
    dealt_evenly: bool,
) -> None:
    plan = planned(files, ranks * lanes_each, batch_size, how, dealt_evenly)
    result = evened(plan, ranks, batch_size, how, pad=True)
    before = batches_of(plan, how, batch_size, False)
    after = batches_of(result, how, batch_size, False)
    whole = [in_turn(before[rank::ranks]) for rank in range(ranks)]
    padded = [in_turn(after[rank::ranks]) for rank in range(ranks)]
    assert {len(batches) for batches in padded} == {max(map(len, whole))}
    rows = Counter(row for i in range(len(plan)) for row in lane_rows(result, i, how))
    wanted = Counter(surviving(files))
    assert not wanted - rows
    assert sum((rows - wanted).values()) == padded_rows(result, ranks)
    if dealt_evenly:
        assert padded_rows(result, ranks) == sum(
            max(map(len, whole)) - len(batches) for batches in whole
        )


def test_a_rank_without_rows_of_its_own_repeats_one_of_another() -> None:
    plan = planned([grouped("a", [3], [30])], 2, 8, Grouping())
    result = evened(plan, 2, 8, Grouping(), pad=True)
    assert [result.repeated_rows(rank, 2) for rank in range(2)] == [0, 1]
    assert lane_rows(result, 1, Grouping()) == [("a", 0)]


@given(
    counts=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    wanted=st.integers(0, 30),
)
def test_batches_in_turn_are_counted_by_lane(counts: list[int], wanted: int) -> None:
    lanes = [[[("", lane)]] * count for lane, count in enumerate(counts)]
    counts_by_lane = Counter(batch[0][1] for batch in in_turn(lanes)[:wanted])
    assert first_in_turn(counts, wanted) == [counts_by_lane[lane] for lane in range(len(counts))]


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_that_are_even_are_left_alone(ranks: int) -> None:
    plan = planned([grouped("a", [ranks * 8], [30])], ranks, 4, Grouping())
    for pad in (False, True):
        result = evened(plan, ranks, 4, Grouping(), pad=pad)
        assert result is plan
