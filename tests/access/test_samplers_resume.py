"""Samplers resume in the middle of an epoch from a single number, even if a loader prefetches."""

from __future__ import annotations

import json
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from resumed_loaders import batches, check_another_goes_on
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from headrace import StructuredDataset, merge_states
from headrace.access import ArrowBackend, GlobalShuffleSampler, RowDataset, ShardShuffleSampler
from headrace.errors import OptionError, StateMismatchError

SHARDS = [300, 5, 420, 286]
ROWS = sum(SHARDS)
BATCH = 16

Sampler = GlobalShuffleSampler | ShardShuffleSampler


def make(kind: str, **options: Any) -> Sampler:
    if kind == "global":
        return GlobalShuffleSampler(ROWS, 5, **options)
    return ShardShuffleSampler(SHARDS, 5, **options)


@pytest.fixture(scope="module")
def rows() -> RowDataset:
    return RowDataset(ArrowBackend(table=pa.table({"id": range(ROWS)})))


kinds = pytest.mark.parametrize("kind", ["global", "shards"])


@kinds
@pytest.mark.parametrize("even", ["drop", "pad", False])
def test_a_state_says_where_iterating_is(kind: str, even: str | bool) -> None:
    options = {"rank": 1, "world_size": 3, "even": even}
    whole = [list(make(kind, epoch=epoch, **options)) for epoch in range(2)]
    for count in (0, 1, 100, len(whole[0]) - 1, len(whole[0])):
        sampler = make(kind, **options)
        running = iter(sampler)
        assert list(islice(running, count)) == whole[0][:count]
        state = json.loads(json.dumps(sampler.state_dict()))
        resumed = make(kind, **options)
        resumed.load_state_dict(state)
        assert resumed.state_dict()["steps"] == (0 if count == len(whole[0]) else count)
        rest = list(resumed)
        assert rest == (whole[0][count:] or whole[1])
        assert list(running) == whole[0][count:]
        assert list(sampler) == whole[1]
        following = 1 if count < len(whole[0]) else 2
        assert list(resumed) == list(make(kind, epoch=following, **options))


@pytest.mark.parametrize(("kind", "workers"), [("global", 2), ("shards", 0)])
def test_behind_a_loader_that_reads_ahead(kind: str, workers: int, rows: RowDataset) -> None:
    def loader(sampler: Sampler) -> Any:
        return DataLoader(
            rows,
            batch_size=BATCH,
            sampler=sampler,
            num_workers=workers,
            multiprocessing_context="fork" if workers else None,
        )

    expected = [batches(loader(make(kind, epoch=epoch))) for epoch in range(3)]
    sampler = make(kind)
    running = iter(loader(sampler))
    steps = len(expected[0]) - 2  # prefetching has exhausted the sampler by then
    for _ in range(steps):
        next(running)
    state = sampler.state_dict(samples=steps * BATCH)
    del running
    assert state["epoch"] == 0

    resumed = make(kind)
    resumed.load_state_dict(state)
    again = loader(resumed)
    assert batches(again) == expected[0][steps:]
    assert batches(again) == expected[1]

    sought = make(kind)
    sought.seek(3 * BATCH, epoch=2)
    assert batches(loader(sought)) == expected[2][3:]


@pytest.mark.parametrize(("kind", "workers"), [("global", 0), ("shards", 2)])
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # warned by torchdata
def test_stateful_dataloader(kind: str, workers: int, rows: RowDataset) -> None:
    def loader() -> Any:
        return StatefulDataLoader(
            rows,
            batch_size=BATCH,
            sampler=make(kind),
            num_workers=workers,
            multiprocessing_context="fork" if workers else None,
        )

    check_another_goes_on(loader)


def test_another_number_of_ranks_goes_on() -> None:
    before = [GlobalShuffleSampler(ROWS, 5, rank, 2, even=False) for rank in range(2)]
    rows_before = [row for sampler in before for row in islice(sampler, 100)]
    state = before[0].state_dict(samples=100)
    after = [GlobalShuffleSampler(ROWS, 5, rank, 3, even=False) for rank in range(3)]
    for sampler in after:
        sampler.load_state_dict(state)
    rest = [list(sampler) for sampler in after]
    assert sorted([*rows_before, *chain(*rest)]) == list(range(ROWS))
    assert max(map(len, rest)) - min(map(len, rest)) <= 1
    assert len(list(after[0])) == len(after[0])  # the next epoch is complete

    padded = [GlobalShuffleSampler(ROWS, 5, rank, 4, even="pad") for rank in range(4)]
    for sampler in padded:
        sampler.load_state_dict(state)
    parts = [list(sampler) for sampler in padded]
    assert len(set(map(len, parts))) == 1
    assert set(rows_before) | set(chain(*parts)) == set(range(ROWS))


@kinds
def test_setting_the_epoch_that_it_is_keeps_the_place(kind: str) -> None:
    sampler = make(kind)
    whole = list(make(kind, epoch=4))
    sampler.seek(50, epoch=4)
    sampler.set_epoch(4)
    assert list(sampler) == whole[50:]
    sampler.seek(50, epoch=4)
    sampler.set_epoch(6)
    assert list(sampler) == list(make(kind, epoch=6))


@kinds
def test_leaving_an_epoch_begins_it_again(kind: str) -> None:
    sampler = make(kind)
    whole = list(make(kind))
    assert list(islice(sampler, 10)) == whole[:10]
    assert sampler.epoch == 0
    assert list(sampler) == whole
    assert sampler.epoch == 1
    sampler.set_epoch(0)
    assert list(sampler) == whole


@kinds
def test_states_of_other_samplers(kind: str) -> None:
    sampler = make(kind)
    of_other_seed = GlobalShuffleSampler(ROWS, 6) if kind == "global" else None
    of_other_seed = of_other_seed or ShardShuffleSampler(SHARDS, 6)
    with pytest.raises(StateMismatchError, match=r"seed .*6 in the state, 5 here"):
        sampler.load_state_dict(of_other_seed.state_dict())
    of_other_rows = GlobalShuffleSampler(7, 5) if kind == "global" else None
    of_other_rows = of_other_rows or ShardShuffleSampler([7], 5)
    with pytest.raises(StateMismatchError, match="rows, buckets or options"):
        sampler.load_state_dict(of_other_rows.state_dict())
    with pytest.raises(StateMismatchError, match="not a state of this library"):
        sampler.load_state_dict({"epoch": 1})
    with pytest.raises(OptionError, match="samples must be an int of at least 0"):
        sampler.seek(-1)


@kinds
def test_states_of_ranks_that_are_not_in_step_are_merged(kind: str) -> None:
    """Merge states of ranks of which the middle one has not begun and the last one has finished."""
    ranks = [make(kind, rank=rank, world_size=3) for rank in range(3)]
    whole = [list(make(kind, rank=rank, world_size=3)) for rank in range(3)]
    counts = (5, 0, len(whole[2]))
    for sampler, count in zip(ranks, counts, strict=True):
        assert len(list(islice(sampler, count))) == count
    merged = json.loads(json.dumps(merge_states([sampler.state_dict() for sampler in ranks[::-1]])))
    for rank, count in enumerate(counts):
        resumed = make(kind, rank=rank, world_size=3)
        resumed.load_state_dict(merged)
        assert resumed.epoch == 0
        assert list(resumed) == whole[rank][count:]
        assert resumed.epoch == 1
    with pytest.raises(StateMismatchError, match="different numbers of steps"):
        make(kind, rank=1, world_size=2).load_state_dict(merged)


def test_merged_states_of_ranks_in_step_belong_to_any_ranks() -> None:
    before = [GlobalShuffleSampler(ROWS, 5, rank, 2, even=False) for rank in range(2)]
    rows_before = [row for sampler in before for row in islice(sampler, 100)]
    merged = merge_states([sampler.state_dict(samples=100) for sampler in before])
    after = [GlobalShuffleSampler(ROWS, 5, rank, 3, even=False) for rank in range(3)]
    for sampler in after:
        sampler.load_state_dict(merged)
        rows_before += islice(sampler, 50)
    last = GlobalShuffleSampler(ROWS, 5)
    last.load_state_dict(merge_states([sampler.state_dict(samples=50) for sampler in after]))
    assert sorted([*rows_before, *last]) == list(range(ROWS))


def test_a_state_of_a_loader_is_no_state_of_a_sampler(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(ROWS)}), tmp_path / "a.parquet")
    loader, _ = StructuredDataset.create_dataloader(tmp_path, num_workers=0, shuffle_seed=5)
    with pytest.raises(StateMismatchError, match="files"):
        make("global").load_state_dict(loader.state_dict())
    with pytest.raises(StateMismatchError, match="files"):
        loader.load_state_dict(make("global").state_dict())


def test_runs_of_shards_stay_with_their_ranks() -> None:
    state = make("shards", rank=1, world_size=2).state_dict(samples=10)
    with pytest.raises(StateMismatchError, match=r"of 2 ranks, and 3 cannot go on"):
        make("shards", rank=1, world_size=3).load_state_dict(state)
    start = make("shards", rank=1, world_size=2, epoch=2).state_dict()
    resumed = make("shards", rank=1, world_size=3)
    resumed.load_state_dict(start)  # no sample of this epoch was taken
    assert list(resumed) == list(make("shards", rank=1, world_size=3, epoch=2))
