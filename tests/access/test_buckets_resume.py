"""Batches of buckets continue from a state, with prefetching and for any number of ranks."""

from __future__ import annotations

import json
import warnings
from itertools import chain, islice
from typing import Any

import pyarrow as pa
import pytest
from bucket_samplers import BUCKETS, SAMPLES, make, ranks_of
from hypothesis import given
from hypothesis import strategies as st
from resumed_loaders import batches, check_another_goes_on
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from headrace import merge_states
from headrace.access import ArrowBackend, BucketBatchSampler, GlobalShuffleSampler, RowDataset
from headrace.errors import StateMismatchError


def resumed(
    state: dict[str, Any], size: int, buckets: list[int], **options: Any
) -> list[list[list[int]]]:
    """Return the batches that ``size`` ranks take after loading a state."""
    samplers = ranks_of(size, buckets, **options)
    for sampler in samplers:
        sampler.load_state_dict(state)
    return [list(sampler) for sampler in samplers]


@pytest.mark.filterwarnings("ignore:.* samples come twice")
def test_small_batches_at_the_end_take_from_the_steps_before() -> None:
    """Check last steps whose only batch has one sample: other batches are cut so that four are
    left.
    """
    buckets = [0] * 40 + [1, 2, 3, 4, 5]
    inside_of_batches = 0
    for seed in range(30):
        options = {"batch_size": 10, "seed": seed}
        samplers = ranks_of(4, buckets, **options)
        lists = [list(sampler) for sampler in samplers]
        assert {len(batches) for batches in lists} == {3}
        assert sorted(chain(*chain(*lists))) == list(range(45))
        for steps in range(3):
            state = samplers[0].state_dict(batches=steps)
            place = samplers[0]._deal(samplers[0]._began).after(steps)
            inside_of_batches += place[1] > 0
            assert resumed(state, 4, buckets, **options) == [batches[steps:] for batches in lists]
            for size in (1, 3, 7):
                rest = resumed(state, size, buckets, **options)
                assert len({len(batches) for batches in rest}) == 1
                first = chain(*(batches[:steps] for batches in lists))
                everything = list(chain(*first, *chain(*rest)))
                assert set(everything) == set(range(45))
                left = 45 - sum(len(batch) for batches in lists for batch in batches[:steps])
                assert len(everything) - 45 == max(0, len(rest[0]) * size - left)
    assert inside_of_batches


@st.composite
def bucket_lists(draw: st.DrawFn) -> list[int]:
    counts = draw(st.lists(st.integers(0, 9), min_size=1, max_size=6))
    return [number for number, count in enumerate(counts) for _ in range(count)]


@given(
    buckets=bucket_lists(),
    batch=st.integers(1, 5),
    before=st.integers(1, 6),
    after=st.integers(1, 6),
    steps=st.integers(0, 50),
    seed=st.integers(0, 5),
    merged=st.booleans(),
)
def test_any_ranks_go_on_from_any_step_of_any_others(
    buckets: list[int], batch: int, before: int, after: int, steps: int, seed: int, merged: bool
) -> None:
    count = len(buckets)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = [
            BucketBatchSampler(buckets, batch, seed=seed, rank=rank, world_size=before)
            for rank in range(before)
        ]
        steps = min(steps, len(first[0]))
        running = [iter(sampler) for sampler in first]
        first_batches = [list(islice(one, steps)) for one in running]
        states = [json.loads(json.dumps(sampler.state_dict())) for sampler in first]
        assert len({state["steps"] for state in states}) == 1
        rests = [list(one) for one in running]
        over = steps == len(first[0])

        again = [
            BucketBatchSampler(buckets, batch, seed=seed, rank=rank, world_size=before)
            for rank in range(before)
        ]
        for sampler in again:
            sampler.load_state_dict(states[0])
        if not over:
            assert [list(sampler) for sampler in again] == rests
        assert {sampler.epoch for sampler in again} == ({1} if count else {0})

        others = [
            BucketBatchSampler(buckets, batch, seed=seed, rank=rank, world_size=after)
            for rank in range(after)
        ]
        for sampler in others:
            sampler.load_state_dict(merge_states(states) if merged else states[-1])
        left = [list(sampler) for sampler in others]
    assert len({len(batches) for batches in left}) == 1
    for one in chain(*first_batches, *left):
        assert one
        assert len({buckets[sample] for sample in one}) == 1
    if not over:
        everything = list(chain(*chain(*first_batches), *chain(*left)))
        assert set(everything) == set(range(count))
        assert len(everything) < count + max(before, after)
        if count >= max(before, after) * len(first[0]) * 2:
            assert len(everything) == count


@pytest.mark.parametrize("workers", [0, 2])
def test_behind_a_loader_that_reads_ahead(workers: int) -> None:
    rows = RowDataset(ArrowBackend(table=pa.table({"id": range(SAMPLES)})))

    def loader(sampler: BucketBatchSampler) -> Any:
        return DataLoader(
            rows,
            batch_sampler=sampler,
            num_workers=workers,
            multiprocessing_context="fork" if workers else None,
        )

    expected = [batches(loader(make(epoch=epoch))) for epoch in range(2)]
    assert expected == [list(make(epoch=epoch)) for epoch in range(2)]
    sampler = make()
    assert len(loader(sampler)) == len(expected[0])
    running = iter(loader(sampler))
    steps = len(expected[0]) - 2  # prefetching has exhausted the sampler by then
    for _ in range(steps):
        next(running)
    state = sampler.state_dict(batches=steps)
    del running
    assert state["epoch"] == 0
    resumed = make()
    resumed.load_state_dict(state)
    again = loader(resumed)
    assert batches(again) == expected[0][steps:]
    assert batches(again) == expected[1]
    resumed.seek(3, epoch=1)
    assert batches(again) == expected[1][3:]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # warned by torchdata
def test_stateful_dataloader_over_buckets(workers: int) -> None:
    rows = RowDataset(ArrowBackend(table=pa.table({"id": range(SAMPLES)})))

    def loader() -> Any:
        return StatefulDataLoader(
            rows,
            batch_sampler=make(rank=1, world_size=2),
            num_workers=workers,
            multiprocessing_context="fork" if workers else None,
        )

    check_another_goes_on(loader)


def test_epochs_and_places() -> None:
    sampler = make()
    whole = [list(make(epoch=epoch)) for epoch in range(3)]
    assert list(islice(sampler, 5)) == whole[0][:5]
    assert sampler.epoch == 0
    assert list(sampler) == whole[0]  # an epoch that was abandoned begins again
    assert sampler.epoch == 1
    sampler.set_epoch(2)
    assert list(sampler) == whole[2]
    sampler.seek(4, epoch=1)
    sampler.set_epoch(1)  # setting the same epoch keeps the position
    assert sampler.state_dict(batches=0) == sampler.state_dict()
    assert list(sampler) == whole[1][4:]
    assert [sampler.batch(step, epoch=0) for step in (0, 7, -1)] == [
        whole[0][s] for s in (0, 7, -1)
    ]
    old = iter(sampler)
    next(old)
    sampler.seek(0, epoch=0)
    list(old)
    assert (sampler.epoch, sampler.state_dict()["steps"]) == (0, 0)
    sampler.load_state_dict(make().state_dict(batches=len(sampler)))
    assert (sampler.epoch, sampler.state_dict()["steps"]) == (1, 0)


@pytest.mark.filterwarnings("ignore:.* samples come twice")
@given(sizes=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3)), max_size=5))
def test_one_number_of_ranks_after_the_other(sizes: list[tuple[int, int]]) -> None:
    """Check jobs that take a few steps each, one after the other, and a last one that takes the
    rest.
    """
    samples: list[int] = []
    state = make().state_dict()
    for size, steps in [*sizes, (1, 1000)]:
        states = []
        for sampler in ranks_of(size):
            sampler.load_state_dict(state)
            if sampler.epoch:
                break
            for batch in islice(sampler, steps):
                samples += batch
            states.append(sampler.state_dict())
        if len(states) < size:
            break
        state = json.loads(json.dumps(states[0]))
    assert sorted(samples) == list(range(SAMPLES))


def test_states_of_others() -> None:
    state = make().state_dict(batches=5)
    assert state["steps"] == 5
    for wrong in ({"epoch": -1}, {"steps": "5"}, {"steps": 10**6}, {"steps": 2**70}, {"turn": 1}):
        with pytest.raises(StateMismatchError, match="damaged"):
            make().load_state_dict({**state, **wrong})
    others = {
        "seed": make(seed=6),
        "drop_last": make(drop_last=True),
        "in order": make(shuffle=False),
        "buckets": make(batch_size=8),
        "buckets of": make(BUCKETS[::-1]),
        "global": GlobalShuffleSampler(SAMPLES, 42),
    }
    for message, other in others.items():
        with pytest.raises(StateMismatchError, match=message):
            make().load_state_dict(other.state_dict())
    with pytest.raises(StateMismatchError, match="not a state of this library"):
        make().load_state_dict({"epoch": 1})
