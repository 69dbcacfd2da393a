"""The ranks share the last round of an epoch: equal steps, and nothing changes before it."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest
from file_makers import Row, counted_files, surviving
from hypothesis import example, given
from hypothesis import strategies as st
from reading import in_batches, in_turn, lane_rows

from headrace.model import DataFileInfo, FileList
from headrace.plan import (
    EvenBatchesSplitStrategy,
    Grouping,
    Plan,
    RankShare,
)
from headrace.plan._resume import CannotShareError, share_last_round
from headrace.plan._strategies import plan_lanes

groupings = st.sampled_from([Grouping(), Grouping(mix=2), Grouping(interleave=3)])


def planned(files: list[DataFileInfo], lanes: int, batch_size: int, how: Grouping) -> Plan:
    strategy = EvenBatchesSplitStrategy(batch_size, 50, None, True, 3)
    return plan_lanes(strategy, FileList(files), lanes=lanes, epoch=1).grouped(how)


def share_of(ranks: int, drop_last: bool, pad: bool, taken: int = 0) -> RankShare:
    return RankShare(taken, ranks, "full" if drop_last else "pad" if pad else "drop")


def in_global_order(plan: Plan, how: Grouping, size: int) -> list[list[Row]]:
    return in_turn([in_batches(lane_rows(plan, lane, how), size) for lane in range(len(plan))])


def padded_rows(plan: Plan, ranks: int) -> int:
    return sum(plan.repeated_rows(rank, ranks) for rank in range(ranks))


def expected_sizes(
    rows: int, lanes: int, ranks: int, size: int, drop_last: bool, pad: bool
) -> list[int]:
    """Return the sizes of the batches of the last round, according to the rule."""
    rest = rows % (lanes * size)
    if drop_last:
        return [size] * (ranks * (rest // (ranks * size)))
    count = ranks * -(-rest // (ranks * size))
    if rest < count:
        return [1] * count if pad else [1] * (count - ranks)
    return [rest // count + (place < rest % count) for place in range(count)]


@given(
    files=counted_files(),
    how=groupings,
    ranks=st.integers(2, 4),
    lanes_each=st.integers(1, 3),
    size=st.integers(1, 5),
    drop_last=st.booleans(),
    pad=st.booleans(),
)
def test_every_rank_has_the_same_number_of_batches_and_all_but_the_last_round_stay(
    files: list[DataFileInfo],
    how: Grouping,
    ranks: int,
    lanes_each: int,
    size: int,
    drop_last: bool,
    pad: bool,
) -> None:
    lanes = ranks * lanes_each
    plan = planned(files, lanes, size, how)
    whole = Counter(surviving(files))
    result = share_last_round(plan, share_of(ranks, drop_last, pad), size, how.reorders)
    before, after = in_global_order(plan, how, size), in_global_order(result, how, size)
    full = sum(whole.values()) // (lanes * size) * lanes
    assert after[:full] == before[:full]
    sizes = [len(batch) for batch in after[full:]]
    assert sizes == expected_sizes(sum(whole.values()), lanes, ranks, size, drop_last, pad)
    steps = [
        sum(
            len(in_batches(lane_rows(result, lane, how), size))
            for lane in range(rank, lanes, ranks)
        )
        for rank in range(ranks)
    ]
    assert len(set(steps)) == 1
    rows_after = Counter(chain.from_iterable(after))
    assert sum((whole - rows_after).values()) == result.dropped_rows
    assert sum((rows_after - whole).values()) == padded_rows(result, ranks)
    assert result.dropped_rows < (ranks * size if drop_last else ranks)
    assert padded_rows(result, ranks) < ranks
    if pad and not drop_last:
        assert not whole - rows_after


@given(
    files=counted_files(),
    how=groupings,
    before=st.integers(1, 4),
    after=st.integers(1, 4),
    lanes_each=st.integers(1, 2),
    size=st.integers(1, 5),
    taken=st.integers(0, 200),
    drop_last=st.booleans(),
    pad=st.booleans(),
)
@example(  # the only batch that was taken is short, and its lane would get another one
    files=[DataFileInfo("a", 40, 4)],
    how=Grouping(),
    before=1,
    after=2,
    lanes_each=1,
    size=3,
    taken=1,
    drop_last=False,
    pad=False,
)
def test_another_number_of_ranks_goes_on_with_the_same_batches(
    files: list[DataFileInfo],
    how: Grouping,
    before: int,
    after: int,
    lanes_each: int,
    size: int,
    taken: int,
    drop_last: bool,
    pad: bool,
) -> None:
    lanes = before * after * lanes_each
    plan = planned(files, lanes, size, how)

    def shared(plan: Plan, ranks: int, taken: int) -> Plan:
        return share_last_round(plan, share_of(ranks, drop_last, pad, taken), size, how.reorders)

    first = shared(plan, before, 0)
    batches = in_global_order(first, how, size)
    taken = min(taken, len(batches)) // before * before
    if not taken:
        return
    left = len(batches) - taken
    same = taken + left // after * after
    try:
        second = shared(first, after, taken)
    except CannotShareError:  # what is left is planned anew
        assert any(len(batch) < size for batch in batches[:same])
        return
    rest = in_global_order(second, how, size)
    assert rest[:same] == batches[:same]
    assert (len(rest) - taken) % after == 0
    sizes = [len(batch) for batch in rest[same:]]
    assert not sizes or max(sizes) - min(sizes) <= 1
    rows_before = Counter(chain.from_iterable(batches))
    rows_after = Counter(chain.from_iterable(rest))
    dropped = second.dropped_rows - first.dropped_rows
    assert (
        sum((rows_before - rows_after).values()) == dropped < (after * size if drop_last else after)
    )
    padded = 0 if second is first else padded_rows(second, after)
    assert sum((rows_after - rows_before).values()) <= padded < after


@pytest.mark.parametrize("pad", [False, True])
def test_nothing_changes_where_ranks_are_even_already(pad: bool) -> None:
    files = [DataFileInfo("a", 4000, 240)]
    plan = planned(files, 4, 10, Grouping())
    result = share_last_round(plan, share_of(2, False, pad), 10, False)
    assert result is plan
