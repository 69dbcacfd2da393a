"""Batches of one bucket: every sample comes once, and all ranks take the same number of steps."""

from __future__ import annotations

import warnings
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from bucket_samplers import BATCH, BUCKETS, SAMPLES, make, ranks_of

import headrace
from headrace.access import ArrowBackend, BucketBatchSampler, RowDataset
from headrace.errors import OptionError, SkippedDataWarning
from headrace.sources.tar.buckets import AspectBuckets


def shaped(key_twice: bool = False, unknown: int = 0) -> AspectBuckets:
    """Return 100 samples of shape (4, 3) and 50 of shape (8, 6)."""
    starts = np.array([0, 100, 150])
    return AspectBuckets(
        keys=("1.33",) if key_twice else ("(4, 3)", "(8, 6)"),
        starts=starts[[0, 2]] if key_twice else starts,
        samples=np.arange(150)[::-1].copy(),
        shape_starts=starts,
        widths=np.array([4, 8]),
        heights=np.array([3, 6]),
        unknown=np.arange(150, 150 + unknown),
        shard_starts=np.array([0, 150 + unknown]),
    )


def test_an_epoch_is_every_sample_once_in_batches_of_one_bucket() -> None:
    sampler = make()
    epochs = [list(sampler) for _ in range(3)]
    for batches in epochs:
        assert sorted(chain(*batches)) == list(range(SAMPLES))
        assert all(len(set(BUCKETS[batch].tolist())) == 1 for batch in batches)
        assert len(batches) == len(sampler)
        short = [BUCKETS[batch[0]] for batch in batches if len(batch) < BATCH]
        assert len(short) == len(set(short))  # one for each bucket
    assert len({str(batches) for batches in epochs}) == 3
    assert list(make()) == epochs[0]
    assert list(make(seed=1)) != epochs[0]
    assert list(make(epoch=2)) == epochs[2]
    assert type(epochs[0][0][0]) is int
    assert headrace.BucketBatchSampler is BucketBatchSampler


def test_batches_of_all_buckets_are_mixed() -> None:
    of_batches = [int(BUCKETS[batch[0]]) for batch in make()]
    changes = int(np.count_nonzero(np.diff(of_batches)))
    assert changes > len(set(of_batches)) * 2
    in_order = list(make(shuffle=False))
    assert [int(BUCKETS[batch[0]]) for batch in in_order] == sorted(of_batches)
    assert list(chain(*in_order)) == np.argsort(BUCKETS, kind="stable").tolist()


def test_orders_are_the_same_for_ever() -> None:
    batches = list(make([0, 0, 0, 1, 1, 1, 1, 2], 2, seed=7))
    assert batches == [[6, 5], [1, 0], [4, 3], [2], [7]]
    long = make(np.arange(100_000) % 5, 4, seed=7)
    assert long.batch(1000, epoch=3) == [15234, 3089, 3574, 16804]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 64])
def test_ranks_take_every_sample_once_in_as_many_steps(size: int) -> None:
    lists = [list(sampler) for sampler in ranks_of(size)]
    assert {len(batches) for batches in lists} == {len(ranks_of(size)[0])}
    assert len(lists[0]) == -(-len(make()) // size)
    assert sorted(chain(*chain(*lists))) == list(range(SAMPLES))
    for batch in chain(*lists):
        assert 1 <= len(batch) <= BATCH
        assert len(set(BUCKETS[batch].tolist())) == 1
    if size < 8:
        whole = list(make())
        together = [batch for step in zip(*lists, strict=True) for batch in step]
        steps = len(whole) // size * size
        assert together[:steps] == whole[:steps]  # only batches of the last step are cut


def test_batches_of_the_last_step_are_cut_as_evenly_as_they_can_be() -> None:
    lists = [list(sampler) for sampler in ranks_of(4, [0] * 50, batch_size=10)]
    assert [len(batch) for batch in (batches[1] for batches in lists)] == [2, 3, 2, 3]
    lists = [list(sampler) for sampler in ranks_of(4, [0] * 100 + [1] * 8, batch_size=20, seed=5)]
    last = sorted(len(batches[-1]) for batches in lists)
    assert sum(last) in (28, 40)
    assert last[-1] - last[0] <= 6


def test_fewer_samples_than_ranks_come_twice() -> None:
    samplers = ranks_of(4, [0, 0, 1])
    lists = []
    for sampler in samplers:
        with pytest.warns(UserWarning, match="1 samples come twice in this epoch, for 4 ranks"):
            lists.append(list(sampler))
    assert [len(batches) for batches in lists] == [1] * 4
    samples = sorted(chain(*chain(*lists)))
    assert len(samples) == 4
    assert set(samples) == {0, 1, 2}


def test_dropping_what_is_not_full() -> None:
    sampler = make(drop_last=True)
    full = int(sum(count // BATCH for count in np.bincount(BUCKETS)))
    batches = list(sampler)
    assert len(batches) == len(sampler) == full
    assert {len(batch) for batch in batches} == {BATCH}
    assert len(set(chain(*batches))) == full * BATCH
    left_out = set(range(SAMPLES)) - set(chain(*batches))
    assert left_out != set(range(SAMPLES)) - set(chain(*sampler))  # other samples in the next epoch
    lists = [list(one) for one in ranks_of(7, drop_last=True)]
    assert {len(one) for one in lists} == {full // 7}
    assert len(set(chain(*chain(*lists)))) == full // 7 * 7 * BATCH
    state = ranks_of(7, drop_last=True)[3].state_dict(batches=full // 7)
    assert (state["epoch"], state["steps"]) == (1, 0)
    too_few = make(drop_last=True).state_dict(batches=full - 6)  # for seven ranks
    others = ranks_of(7, drop_last=True)
    others[0].load_state_dict(too_few)
    assert others[0].epoch == 1
    with pytest.raises(OptionError, match="drop_last leaves no batch of 3 samples in 2 buckets"):
        make([0, 0, 1], 4, drop_last=True)


def test_repeats_are_only_where_samples_do_not_suffice() -> None:
    for size in range(1, 9):
        for batch in range(1, 6):
            samplers = ranks_of(size, BUCKETS[:40], batch_size=batch)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                samples = list(chain(*chain(*samplers)))
            steps = len(samplers[0])
            assert len(samples) == max(40, steps * size)
            assert set(samples) == set(range(40))


def test_batch_sizes_of_buckets() -> None:
    by_key = list(make(["wide", "tall"] * 30, {"wide": 6, "tall": 10}))
    assert sorted(map(len, by_key)) == [6] * 5 + [10] * 3
    by_shape = list(make(shaped(), lambda shape: 480 // (shape[0] * shape[1])))
    assert sorted(map(len, by_shape)) == [10] * 5 + [20] + [40] * 2
    with pytest.raises(OptionError, match="batch_size has no entry for the bucket 'tall'"):
        make(["wide", "tall"], {"wide": 6})
    with pytest.raises(OptionError, match="batch_size of the bucket 1 must be an int of at least"):
        make([0, 1], {0: 1, 1: 0})
    with pytest.raises(OptionError, match="batch_size must be an int"):
        make(batch_size=None)


@pytest.mark.parametrize("key_twice", [False, True])
def test_batches_are_of_one_shape_whatever_the_key(key_twice: bool) -> None:
    batches = list(make(shaped(key_twice), 20))
    assert sorted(chain(*batches)) == list(range(150))
    assert all(len({sample < 50 for sample in batch}) == 1 for batch in batches)


def test_samples_of_no_known_shape() -> None:
    with pytest.raises(OptionError, match=r"7 of 157 samples have no known shape, .* sample 150"):
        make(shaped(unknown=7))
    with pytest.warns(SkippedDataWarning, match="7 of 157 samples have no known shape"):
        sampler = make(shaped(unknown=7), unknown="skip")
    assert sorted(chain(*sampler)) == list(range(150))
    assert sorted(chain(*make([-1, 0, 0, -1, 1]))) == [1, 2, 4]
    with pytest.raises(OptionError, match='unknown must be "raise" or "skip"'):
        make(unknown="drop")


class WithBuckets(ArrowBackend):
    def aspect_buckets(self) -> AspectBuckets:
        return shaped()


def test_rows_that_know_their_buckets() -> None:
    backend = WithBuckets(table=pa.table({"id": range(150)}))
    assert list(make(backend)) == list(make(RowDataset(backend))) == list(make(shaped()))
    with pytest.raises(OptionError, match="a view of 20 of 150 rows has no buckets"):
        make(RowDataset(backend)[:20])


@pytest.mark.parametrize("wrong", [5, None, [1.5], [[1, 2]], {}], ids=repr)
def test_what_has_no_buckets(wrong: Any) -> None:
    with pytest.raises(TypeError, match="buckets must be AspectBuckets, an object that has them"):
        make(wrong)


def test_wrong_ranks_of_batches() -> None:
    with pytest.raises(OptionError, match="rank 2 of 2"):
        make(rank=2, world_size=2)
    with pytest.raises(OptionError, match="must be given together"):
        make(rank=0)
    with pytest.raises(OptionError, match="from 0 on, or -1"):
        make([0, -2])
    assert list(make([])) == []
    assert len(make([], rank=1, world_size=3)) == 0


def test_frameworks_find_what_they_look_for() -> None:
    plain, ranked = make(), make(rank=1, world_size=2)
    assert not hasattr(
        plain, "batch_size"
    )  # otherwise batches of other sizes would be filled up or lost
    assert not hasattr(plain, "generator")
    plain.sampler.set_epoch(3)
    assert plain.epoch == 3
    with pytest.raises(OptionError, match="rank 1 of 2, but Accelerate distributes batches itself"):
        ranked.generator  # noqa: B018
