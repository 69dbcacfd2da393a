"""Permutations are pinned, independent of numpy, and different for all coordinates."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import islice, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.plan.permutations import CHUNK_ORDER, ROW_ORDER, permutation

WORD = (1 << 64) - 1

GOLDEN = [
    ({"seed": 42, "epoch": 0, "purpose": CHUNK_ORDER}, [3, 9, 1, 8, 4, 2, 5, 6, 7, 0]),
    ({"seed": 42, "epoch": 1, "purpose": CHUNK_ORDER}, [4, 9, 6, 3, 1, 5, 7, 8, 2, 0]),
    ({"seed": 43, "epoch": 0, "purpose": CHUNK_ORDER}, [9, 8, 0, 1, 3, 6, 7, 2, 4, 5]),
    ({"seed": 0, "epoch": 0, "purpose": CHUNK_ORDER}, [2, 1, 5, 9, 8, 6, 4, 3, 7, 0]),
    ({"seed": -1, "epoch": 0, "purpose": CHUNK_ORDER}, [3, 6, 4, 7, 0, 9, 1, 8, 5, 2]),
    ({"seed": 42, "epoch": 0, "purpose": ROW_ORDER}, [7, 6, 9, 5, 8, 4, 0, 3, 2, 1]),
    ({"seed": 42, "epoch": 0, "purpose": ROW_ORDER, "lane": 3}, [6, 3, 5, 0, 4, 2, 9, 8, 7, 1]),
    ({"seed": 42, "epoch": 0, "purpose": ROW_ORDER, "window": 3}, [6, 2, 1, 8, 9, 0, 4, 5, 3, 7]),
    (
        {"seed": 2**63 + 5, "epoch": 2**40, "purpose": ROW_ORDER, "lane": 7, "window": 11},
        [4, 8, 7, 9, 2, 3, 5, 6, 1, 0],
    ),
]


@pytest.mark.parametrize(("coordinates", "order"), GOLDEN)
def test_golden_orders(coordinates: dict[str, int], order: list[int]) -> None:
    assert permutation(10, **coordinates).tolist() == order


def test_golden_order_of_many_rows() -> None:
    order = permutation(100_000, seed=42, epoch=0, purpose=ROW_ORDER)
    digest = hashlib.sha256(order.astype("<i8").tobytes()).hexdigest()
    assert digest == "584ba61ccb82fa220e2b791ea7ba8dd3745acdac30dc9e4c404c66818b6cfa72"


def philox_words(key: tuple[int, int], counter: tuple[int, int, int, int]) -> Iterator[int]:
    """Yield the words of Philox 4x64 in ten rounds, computed with Python integers."""
    number = sum(word << (64 * place) for place, word in enumerate(counter))
    while True:
        number += 1
        words = [(number >> (64 * place)) & WORD for place in range(4)]
        low, high = key
        for _ in range(10):
            first, second = 0xD2E7470EE14C6C93 * words[0], 0xCA5A826395121157 * words[2]
            words = [
                (second >> 64) ^ words[1] ^ low,
                second & WORD,
                (first >> 64) ^ words[3] ^ high,
                first & WORD,
            ]
            low, high = (low + 0x9E3779B97F4A7C15) & WORD, (high + 0xBB67AE8584CAA73B) & WORD
        yield from words


@given(
    count=st.integers(0, 200),
    seed=st.integers(0, WORD),
    epoch=st.integers(0, 2**40),
    purpose=st.sampled_from([CHUNK_ORDER, ROW_ORDER]),
    lane=st.integers(0, 2**20),
    window=st.integers(0, 2**20),
)
def test_orders_do_not_depend_on_numpy(
    count: int, seed: int, epoch: int, purpose: int, lane: int, window: int
) -> None:
    words = list(islice(philox_words((seed, purpose), (0, epoch, lane, window)), count))
    expected = sorted(range(count), key=lambda place: words[place] & 0xFFFFFFFF)
    result = permutation(count, seed=seed, epoch=epoch, purpose=purpose, lane=lane, window=window)
    assert result.tolist() == expected


def test_coordinates_are_never_interchangeable() -> None:
    coordinates = list(product(range(4), range(4), (CHUNK_ORDER, ROW_ORDER), range(3), range(3)))
    orders = {
        tuple(permutation(32, seed=s, epoch=e, purpose=p, lane=lane, window=w).tolist())
        for s, e, p, lane, w in coordinates
    }
    assert len(orders) == len(coordinates)


def test_seed_and_epoch_are_not_added() -> None:
    later = permutation(50, seed=1, epoch=1, purpose=CHUNK_ORDER).tolist()
    other = permutation(50, seed=2, epoch=0, purpose=CHUNK_ORDER).tolist()
    swapped = permutation(50, seed=0, epoch=2, purpose=CHUNK_ORDER).tolist()
    assert later != other
    assert later != swapped
    assert other != swapped


def test_a_permutation_of_nothing_and_of_one() -> None:
    assert permutation(0, seed=1, epoch=1, purpose=ROW_ORDER).tolist() == []
    assert permutation(1, seed=1, epoch=1, purpose=ROW_ORDER).tolist() == [0]
