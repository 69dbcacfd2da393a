"""Computed permutations: each number once, different for all coordinates, and never changed."""

from __future__ import annotations

import pickle
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.plan.permutations import IndexPermutation

SEEDS = 3000


@pytest.mark.parametrize(
    "count", [0, 1, 2, 3, 10, 4095, 4096, 4097, 8191, 8192, 8193, 65_536, 65_537, 300_007]
)
def test_every_number_comes_once(count: int) -> None:
    order = IndexPermutation(count, seed=1)[:]
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(count))
    assert count < 10 or not np.array_equal(order, np.arange(count))


@settings(max_examples=60)
@given(
    count=st.integers(1, 60_000),
    seed=st.integers(-(2**70), 2**70),
    epoch=st.integers(0, 2**40),
    data=st.data(),
)
def test_any_places_agree_with_the_whole(
    count: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    permutation = IndexPermutation(count, seed, epoch)
    whole = permutation[:]
    assert np.array_equal(np.sort(whole), np.arange(count))
    places = np.array(data.draw(st.lists(st.integers(0, count - 1), max_size=20)), np.int64)
    assert np.array_equal(permutation.at(places), whole[places])
    start = data.draw(st.integers(0, count))
    assert np.array_equal(permutation[start : start + 100 : 3], whole[start : start + 100 : 3])


@pytest.mark.parametrize(
    "count", [(1 << 32) - 5, 1 << 32, (1 << 32) + 1, 1 << 40, (1 << 62) + 12345]
)
def test_numbers_too_many_to_list_are_all_there_are_and_none_twice(count: int) -> None:
    permutation = IndexPermutation(count, seed=3)
    ends = np.concatenate([np.arange(50_000), count - 1 - np.arange(50_000)])
    numbers = permutation.at(ends)
    assert len(np.unique(numbers)) == len(ends)
    assert int(numbers.min()) >= 0
    assert int(numbers.max()) < count
    assert abs(float(np.mean(numbers / count)) - 0.5) < 0.01


def test_all_permutations_of_four_come_equally_often() -> None:
    frequencies = Counter(tuple(IndexPermutation(4, seed)[:].tolist()) for seed in range(SEEDS))
    assert set(frequencies) == set(permutations(range(4)))
    expected = SEEDS / 24
    assert sum((n - expected) ** 2 / expected for n in frequencies.values()) < 60  # 23 ± 7


def _excess(bins: np.ndarray, groups: int) -> float:
    """Return how many standard deviations the chi-square of counts exceeds its expected value."""
    counts = np.bincount(bins.ravel(), minlength=groups)
    expected = bins.size / groups
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    return (chi_square - groups + 1) / (2 * groups - 2) ** 0.5


@pytest.mark.parametrize("count", [4097, 8192, 100_003])
def test_neighbours_have_nothing_in_common(count: int) -> None:
    first = np.stack([IndexPermutation(count, seed)[0:64] for seed in range(SEEDS)])
    steps = (first[:, 1:] - first[:, :-1]) % count
    assert _excess(first[:, 0] * 32 // count, 32) < 5
    assert _excess((first[:, 0] * 16 // count) * 16 + first[:, 1] * 16 // count, 256) < 5
    assert _excess(steps * 64 // count, 64) < 5
    assert _excess((first[:, 1:] ^ first[:, :-1]) & 63, 64) < 5


def test_seeds_epochs_and_parts_are_not_added() -> None:
    """Check that the order of (seed + 1, epoch) differs from that of (seed, epoch + 1), etc."""
    permutation = {
        tuple(IndexPermutation(5000, seed, epoch, part)[0:16].tolist())
        for seed in range(8)
        for epoch in range(8)
        for part in range(8)
    }
    assert len(permutation) == 8**3


def test_the_order_is_the_same_for_ever() -> None:
    assert IndexPermutation(10, 42)[:].tolist() == [9, 4, 7, 2, 8, 0, 3, 1, 5, 6]
    assert IndexPermutation(10, 42, 1)[:].tolist() == [5, 8, 1, 4, 2, 3, 7, 0, 6, 9]
    assert IndexPermutation(5000, 42)[0:6].tolist() == [758, 1930, 3172, 4975, 405, 3380]
    large = IndexPermutation(1_000_003, 42, 3)[0:4]
    assert large.tolist() == [562492, 572614, 201568, 720476]
    huge = IndexPermutation(1 << 40, -1, 0, 7)[0:3]
    assert huge.tolist() == [13282745405, 737537738243, 941138787363]


def test_pickles_hold_no_table() -> None:
    permutation = IndexPermutation(4000, 1)
    order = permutation[:]
    sent = pickle.dumps(permutation)
    assert len(sent) < 200
    assert np.array_equal(pickle.loads(sent)[:], order)


@pytest.mark.parametrize("count", [100, 5000])
def test_coordinates_of_numpy_are_numbers(count: int) -> None:
    permutation = IndexPermutation(np.int64(count), np.int64(-3), np.uint8(2), np.int32(1))
    assert np.array_equal(permutation[:], IndexPermutation(count, -3, 2, 1)[:])
    with pytest.raises(TypeError):
        IndexPermutation(count, 1.5)
