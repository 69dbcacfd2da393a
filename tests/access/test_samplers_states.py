"""States of samplers: where iterating goes on, for which ranks, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from torch.utils.data import DataLoader

from headrace.access import ArrowBackend, GlobalShuffleSampler, RowDataset, ShardShuffleSampler
from headrace.errors import StateMismatchError

ROWS = 10_000
SHARDS = [6_000, 4_000]

Sampler = GlobalShuffleSampler | ShardShuffleSampler


def make(kind: str, **options: Any) -> Sampler:
    if kind == "global":
        return GlobalShuffleSampler(ROWS, **options)
    return ShardShuffleSampler(SHARDS, **options)


kinds = pytest.mark.parametrize("kind", ["global", "shards"])


@kinds
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.uint64])
def test_numbers_of_numpy_are_numbers(kind: str, dtype: Any) -> None:
    seed = 100 + np.dtype(dtype).num  # a seed that no other test uses
    mine = {"seed": dtype(seed), "rank": dtype(1), "world_size": dtype(2), "epoch": dtype(3)}
    of_numpy = make(kind, **mine)
    first = list(islice(of_numpy, 200))
    plain = make(kind, seed=seed, rank=1, world_size=2, epoch=3)
    assert list(islice(plain, 200)) == first
    assert of_numpy.indices(dtype(5), dtype(9), epoch=dtype(7)).tolist() == (
        plain.indices(5, 9, epoch=7).tolist()
    )
    assert of_numpy.index(dtype(255)) == plain.index(255)
    of_numpy.set_epoch(dtype(4))
    plain.set_epoch(4)
    assert next(iter(of_numpy)) == next(iter(plain))
    of_numpy.seek(dtype(200), epoch=dtype(6))
    plain.seek(200, epoch=6)
    assert next(iter(of_numpy)) == next(iter(plain))
    state = of_numpy.state_dict(samples=dtype(200))
    assert json.loads(json.dumps(state)) == plain.state_dict(samples=200)
    number = {name: np.int64(state[name]) for name in ("epoch", "steps")}
    of_numpy.load_state_dict({**state, **number})
    plain.load_state_dict(state)
    assert next(iter(of_numpy)) == next(iter(plain))


@kinds
def test_a_state_before_the_first_batch_is_where_it_goes_on(kind: str) -> None:
    sampler = make(kind)
    list(islice(sampler, 50))
    other = make(kind)
    other.seek(40, epoch=3)
    sampler.load_state_dict(other.state_dict())
    assert sampler.state_dict(samples=0) == sampler.state_dict()
    assert (sampler.state_dict(samples=0)["epoch"], sampler.state_dict(5)["steps"]) == (3, 45)
    sampler.seek(30)
    assert sampler.state_dict(samples=0)["steps"] == 30
    sampler.set_epoch(8)
    assert (sampler.state_dict(0)["epoch"], sampler.state_dict(0)["steps"]) == (8, 0)


@kinds
def test_the_next_epoch_begins_where_reading_ahead_has_come_to(kind: str) -> None:
    sampler = make(kind)
    list(sampler)
    assert sampler.state_dict(samples=100)["epoch"] == 0  # read ahead, but not yet delivered
    sampler.set_epoch(1)
    assert (sampler.state_dict(0)["epoch"], sampler.state_dict(0)["steps"]) == (1, 0)


@kinds
def test_setting_the_epoch_of_a_running_iteration_keeps_where_it_began(kind: str) -> None:
    sampler = make(kind)
    sampler.seek(40, epoch=2)
    running = iter(sampler)
    next(running)
    sampler.set_epoch(2)
    next(running)
    assert (sampler.state_dict()["steps"], sampler.state_dict(1)["steps"]) == (42, 41)


@kinds
def test_an_iteration_that_was_given_up_changes_nothing(kind: str) -> None:
    sampler = make(kind)
    old = iter(sampler)
    next(old)
    sampler.seek(0, epoch=0)
    rest = len(list(old))
    assert rest == ROWS - 1
    assert (sampler.epoch, sampler.state_dict()["steps"]) == (0, 0)


@kinds
@pytest.mark.parametrize("even", ["drop", "pad", False])
@pytest.mark.parametrize("steps", [2, 3, 4])
def test_ranks_go_on_in_the_same_epoch(kind: str, even: str | bool, steps: int) -> None:
    def ranks() -> Iterator[Sampler]:
        for rank in range(3):
            if kind == "global":
                yield GlobalShuffleSampler(10, 1, rank, 3, even=even)
            else:
                yield ShardShuffleSampler([4, 6], 1, rank, 3, even=even)

    whole = [list(sampler) for sampler in ranks()]
    first = next(ranks())
    first.seek(steps)
    state = first.state_dict()
    resumed = list(ranks())
    for sampler in resumed:
        sampler.load_state_dict(state)
    over = steps >= max(map(len, whole))
    assert {sampler.epoch for sampler in resumed} == {int(over)}
    if not over:
        assert [list(sampler) for sampler in resumed] == [rows[steps:] for rows in whole]
        assert {sampler.epoch for sampler in resumed} == {1}


@kinds
def test_after_the_last_sample_comes_the_next_epoch(kind: str) -> None:
    sampler = make(kind)
    running = iter(sampler)
    for _ in range(ROWS):  # does not ask for a sample after the last one
        next(running)
    for state in (sampler.state_dict(), sampler.state_dict(samples=ROWS + 16)):
        assert (state["epoch"], state["steps"]) == (1, 0)
        resumed = make(kind)
        resumed.load_state_dict(state)
        resumed.set_epoch(state["epoch"])
        assert list(islice(resumed, 9)) == make(kind, epoch=1).indices(0, 9).tolist()


def test_states_of_another_kind_or_other_shards() -> None:
    of_all = GlobalShuffleSampler(ROWS).state_dict(samples=50)
    by_shards = ShardShuffleSampler(SHARDS)
    with pytest.raises(StateMismatchError, match=r"'global shuffle of .*'shuffle of 2 shards"):
        by_shards.load_state_dict(of_all)
    with pytest.raises(StateMismatchError, match=r"'shuffle of 2 shards.*'global shuffle of "):
        GlobalShuffleSampler(ROWS).load_state_dict(by_shards.state_dict())
    with pytest.raises(StateMismatchError, match="the state was taken with other data or options"):
        ShardShuffleSampler([4_000, 6_000]).load_state_dict(by_shards.state_dict())
    with pytest.raises(StateMismatchError, match=r"even drop.*even pad"):
        ShardShuffleSampler(SHARDS, even="pad").load_state_dict(by_shards.state_dict())
    ShardShuffleSampler(np.array(SHARDS, np.int32)).load_state_dict(by_shards.state_dict())


@kinds
@pytest.mark.parametrize("value", [-5, "5", None, 1.5, True, 8])
@pytest.mark.parametrize("name", ["epoch", "steps"])
def test_states_that_are_damaged(kind: str, name: str, value: Any) -> None:
    sampler = make(kind)
    sampler.seek(7)
    with pytest.raises(StateMismatchError, match="the state is damaged"):
        sampler.load_state_dict({**sampler.state_dict(), name: value})
    assert sampler.state_dict()["steps"] == 7


@kinds
def test_a_state_is_for_one_iteration(kind: str) -> None:
    rows = RowDataset(ArrowBackend(table=pa.table({"id": range(ROWS)})))
    sampler = make(kind)
    loader = DataLoader(rows, batch_size=100, sampler=sampler)
    sampler.seek(9_800)
    state = sampler.state_dict()
    assert next(iter(loader))["id"].tolist() == sampler.indices(9_800, 9_900).tolist()
    assert len(list(islice(loader, 5))) == 5  # the epoch from its start
    sampler.load_state_dict(state)
    assert len(list(loader)) == 2
