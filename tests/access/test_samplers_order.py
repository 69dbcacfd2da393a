"""The order of samplers: every row once, a share for each rank, and never another order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.access import ArrowBackend, GlobalShuffleSampler, RowDataset, ShardShuffleSampler
from headrace.errors import OptionError

SHARDS = [40, 0, 25, 300, 7]
ROWS = sum(SHARDS)

Make = Callable[..., GlobalShuffleSampler | ShardShuffleSampler]


def over_all(**options: Any) -> GlobalShuffleSampler:
    return GlobalShuffleSampler(ROWS, **options)


def over_shards(**options: Any) -> ShardShuffleSampler:
    return ShardShuffleSampler(SHARDS, **options)


both = pytest.mark.parametrize("make", [over_all, over_shards], ids=["global", "shards"])


@both
def test_an_epoch_is_every_row_once_and_each_another_order(make: Make) -> None:
    sampler = make(seed=1)
    epochs = [list(sampler) for _ in range(3)]
    assert all(sorted(epoch) == list(range(ROWS)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert list(make(seed=1)) == epochs[0]
    assert list(make(seed=2)) != epochs[0]
    assert list(make(seed=1, epoch=2)) == epochs[2]
    assert type(epochs[0][0]) is int


@both
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_ranks_share_the_rows(make: Make, ranks: int) -> None:
    lists = [list(make(rank=rank, world_size=ranks)) for rank in range(ranks)]
    rows_of_all = [row for rows in lists for row in rows]
    assert {len(rows) for rows in lists} == {ROWS // ranks}
    assert len(set(rows_of_all)) == len(rows_of_all)

    padded = [list(make(rank=rank, world_size=ranks, even="pad")) for rank in range(ranks)]
    assert {len(rows) for rows in padded} == {-(-ROWS // ranks)}
    assert {row for rows in padded for row in rows} == set(range(ROWS))

    uneven = [list(make(rank=rank, world_size=ranks, even=False)) for rank in range(ranks)]
    assert sorted(row for rows in uneven for row in rows) == list(range(ROWS))
    assert [len(make(rank=r, world_size=ranks, even=False)) for r in range(ranks)] == [
        len(rows) for rows in uneven
    ]


def test_ranks_go_through_one_order_in_step() -> None:
    whole = list(over_all(seed=4))
    lists = [list(over_all(seed=4, rank=rank, world_size=3)) for rank in range(3)]
    together = [row for step in zip(*lists, strict=True) for row in step]
    assert together == whole[: len(together)]


def test_a_shard_is_finished_before_the_next() -> None:
    ends = np.cumsum(SHARDS)
    for epoch in range(5):
        shards = np.searchsorted(ends, list(over_shards(epoch=epoch)), side="right")
        changes = int(np.count_nonzero(np.diff(shards)))
        assert changes == 3  # four shards have rows


def test_rows_of_a_shard_and_shards_are_both_shuffled() -> None:
    counts = [30] * 20
    order = list(ShardShuffleSampler(counts, seed=3))
    shards = [row // 30 for row in order[::30]]
    assert sorted(shards) == list(range(20))
    assert shards != sorted(shards)
    within = {tuple(row % 30 for row in order[start : start + 30]) for start in range(0, 600, 30)}
    assert len(within) == 20


@both
@given(data=st.data())
def test_any_sample_of_any_epoch_is_there_at_once(make: Make, data: st.DataObject) -> None:
    ranks = data.draw(st.integers(1, 6))
    rank = data.draw(st.integers(0, ranks - 1))
    even = data.draw(st.sampled_from(["drop", "pad", False]))
    epoch = data.draw(st.integers(0, 10**6))
    sampler = make(rank=rank, world_size=ranks, even=even)
    whole = list(make(rank=rank, world_size=ranks, even=even, epoch=epoch))
    start = data.draw(st.integers(0, len(sampler)))
    stop = data.draw(st.integers(start, len(sampler)))
    assert sampler.indices(start, stop, epoch=epoch).tolist() == whole[start:stop]
    if start < len(whole):
        assert sampler.index(start, epoch=epoch) == whole[start]


def test_long_orders_in_blocks() -> None:
    sampler = GlobalShuffleSampler(20_011, seed=9)
    order = list(sampler)
    assert sorted(order) == list(range(20_011))
    assert order == sampler.indices(0, 20_011, epoch=0).tolist()
    shards = ShardShuffleSampler([9000, 9001, 10], seed=9)
    assert sorted(shards) == list(range(18_011))


def test_memory_does_not_grow_with_the_rows() -> None:
    sampler = GlobalShuffleSampler(10**15, seed=1, rank=3, world_size=8)
    assert len(sampler) == 10**15 // 8
    rows = sampler.indices(10**14, 10**14 + 1000)
    assert len(set(rows.tolist())) == 1000
    assert next(iter(sampler)) == sampler.index(0)


def test_a_backend_says_how_many_rows_its_shards_have() -> None:
    backend = ArrowBackend(table=pa.table({"x": range(50)}))
    sampler = ShardShuffleSampler(backend, seed=2)
    assert sorted(sampler) == list(range(50))


def test_orders_are_the_same_for_ever() -> None:
    assert GlobalShuffleSampler(1_000_000, 7).indices(0, 4).tolist() == [
        314355,
        91706,
        587458,
        330764,
    ]
    assert GlobalShuffleSampler(1_000_000, 7, 1, 2).indices(0, 2).tolist() == [91706, 330764]
    shards = ShardShuffleSampler([3, 2, 4], seed=5)
    assert [list(shards), list(shards)] == [
        [4, 3, 2, 1, 0, 7, 8, 6, 5],
        [4, 3, 1, 0, 2, 7, 6, 5, 8],
    ]
    long = ShardShuffleSampler([10_000] * 4, seed=5)
    assert long.indices(9998, 10_002).tolist() == [18131, 16618, 9970, 1487]


@both
def test_wrong_options(make: Make) -> None:
    with pytest.raises(OptionError, match="rank 2 of 2"):
        make(rank=2, world_size=2)
    with pytest.raises(OptionError, match="seed must be an int"):
        make(seed="1")
    with pytest.raises(OptionError, match="even must be"):
        make(even=True)
    with pytest.raises(OptionError, match="epoch must be an int of at least 0"):
        make().set_epoch(-1)
    with pytest.raises(OptionError, match="cannot be shared by 1000 ranks"):
        make(world_size=1000)
    with pytest.raises(IndexError, match="of 372"):
        make().indices(0, 373)


def test_negative_counts() -> None:
    with pytest.raises(OptionError, match="-1"):
        GlobalShuffleSampler(-1)
    with pytest.raises(OptionError, match="-3 rows"):
        ShardShuffleSampler([5, -3])


def test_nothing_to_sample() -> None:
    assert list(GlobalShuffleSampler(0)) == []
    assert list(ShardShuffleSampler([])) == []
    assert list(ShardShuffleSampler([0, 0])) == []


def test_a_count_of_numpy() -> None:
    assert GlobalShuffleSampler(np.int64(ROWS), 77).index(5) == (
        GlobalShuffleSampler(ROWS, 77).index(5)
    )


def test_shards_of_rows() -> None:
    backend = ArrowBackend(table=pa.table({"id": range(50)}))
    rows = RowDataset(backend)
    assert list(ShardShuffleSampler(rows, 3)) == list(ShardShuffleSampler(backend, 3))
    with pytest.raises(OptionError, match="a view of 20 of 50 rows has no shards"):
        ShardShuffleSampler(rows[:20])


@pytest.mark.parametrize("shards", [5, {}, None, [1.5, 2.0], ["3"], [[1, 2], [3, 4]]])
def test_what_has_no_shards(shards: Any) -> None:
    with pytest.raises(TypeError, match="shards must be a backend with shard_rows"):
        ShardShuffleSampler(shards)
