"""Permutations that are arithmetic: the same on every platform and for every numpy."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.model import Int64Array, computed_once

CHUNK_ORDER = 1
"""Purpose of a permutation: the chunks of an epoch."""
ROW_ORDER = 2
"""Purpose of a permutation: the rows of a window."""
INDEX_ORDER = 4
"""Purpose of a permutation: rows by index. (3 is that of shuffled copies.)"""

_WORD = (1 << 64) - 1
_WORDS_A_STEP = 4
"""Number of words that the generator makes for each value of its counter."""


def permutation(
    count: int, *, seed: int, epoch: int, purpose: int, lane: int = 0, window: int = 0
) -> Int64Array:
    """Return a permutation of ``range(count)`` for these coordinates.

    The coordinates are key and counter of a counter-based generator (Philox), each in a word
    of its own, so that no two ever share a stream. The low halves of its raw words are sorted,
    ties by position: a stable sort has one result only, whatever algorithm computes it.

    >>> permutation(5, seed=42, epoch=0, purpose=CHUNK_ORDER).tolist()
    [3, 1, 4, 2, 0]
    """
    keys = row_keys(0, count, seed=seed, epoch=epoch, purpose=purpose, lane=lane, window=window)
    return stable_order(keys)


def row_keys(
    start: int, count: int, *, seed: int, epoch: int, purpose: int, lane: int = 0, window: int = 0
) -> npt.NDArray[np.uint32]:
    """Return the keys of rows from ``start`` on; a permutation sorts the rows by their keys.

    Any part of the keys can be drawn without the keys before it.
    """
    key = np.array([int(seed) & _WORD, purpose], np.uint64)
    counter = np.array([start // _WORDS_A_STEP, int(epoch) & _WORD, lane, window], np.uint64)
    skipped = start % _WORDS_A_STEP
    words = np.random.Philox(key=key, counter=counter).random_raw(skipped + count)
    return words[skipped:].astype(np.uint32)


def stable_order(keys: npt.NDArray[np.uint32]) -> Int64Array:
    """Return the positions of keys in ascending order; equal keys keep their order.

    Keys and positions are sorted together, as one number each: numpy sorts numbers several times as
    fast as it finds their order.
    """
    if len(keys) >> 32:
        return np.argsort(keys, kind="stable")
    numbers = keys.astype(np.uint64) << np.uint64(32)
    numbers |= np.arange(len(keys), dtype=np.uint64)
    numbers.sort()
    numbers &= np.uint64(0xFFFFFFFF)
    return numbers.view(np.int64)


_ROUNDS = 6
"""Number of rounds of the network; after 4, the low bits of neighbours are still correlated."""
_TABLE_COUNT = 1 << 12
"""Largest permutation that is drawn and kept whole: a network of few bits mixes too little."""
_BLOCK = 1 << 15
"""Number of places computed at once; their data fits the second-level cache of a processor."""
_MULTIPLIERS: dict[int, tuple[Any, Any]] = {
    32: (np.uint32(0x7FEB352D), np.uint32(0x846CA68B)),
    64: (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)),
}

Words = npt.NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class IndexPermutation:
    """A permutation of ``range(count)``, in constant memory.

    The permutation is a Feistel network over a grid of 2^m columns and as few rows as hold
    ``count`` cells. Numbers that fall into the cells beyond, fewer than one row, go through the
    network again until they do not. The keys of the rounds are words of a counter-based generator
    (Philox). Its key and counter are ``seed``, ``epoch`` and ``part``, so that different seeds,
    epochs or parts share no words.

    >>> IndexPermutation(5, seed=42)[0:5].tolist()
    [4, 2, 0, 3, 1]
    """

    count: int
    seed: int
    epoch: int = 0
    part: int = 0
    """Number that tells apart permutations of one seed and epoch."""

    def __post_init__(self) -> None:
        for name in ("count", "seed", "epoch", "part"):  # words of numpy would overflow
            object.__setattr__(self, name, operator.index(getattr(self, name)))

    def __getitem__(self, places: slice) -> Int64Array:
        """Return the numbers at consecutive places."""
        start, stop, step = places.indices(self.count)
        return self.at(np.arange(start, stop, step, dtype=np.int64))

    def at(self, places: Int64Array) -> Int64Array:
        """Return the numbers at any places, all of which must exist."""
        if self.count <= _TABLE_COUNT:
            return self._table[places]
        moved = np.empty(len(places), np.int64)
        for start in range(0, len(places), _BLOCK):
            block = slice(start, start + _BLOCK)
            moved[block] = self._walked(places[block].astype(self._dtype))
        return moved

    def __reduce__(self) -> tuple[Any, ...]:
        return IndexPermutation, (self.count, self.seed, self.epoch, self.part)

    @computed_once
    def _table(self) -> Int64Array:
        return permutation(
            self.count, seed=self.seed, epoch=self.epoch, purpose=INDEX_ORDER, lane=self.part
        )

    @computed_once
    def _keys(self) -> Words:
        key = np.array([self.seed & _WORD, INDEX_ORDER], np.uint64)
        counter = np.array([0, self.epoch & _WORD, self.part, 0], np.uint64)
        words = np.random.Philox(key=key, counter=counter).random_raw(_ROUNDS)
        return (words >> np.uint64(64 - self._bits)).astype(self._dtype)

    @property
    def _bits(self) -> int:
        return 32 if self.count <= 1 << 32 else 64

    @property
    def _dtype(self) -> Any:
        return np.uint32 if self._bits == 32 else np.uint64

    def _walked(self, numbers: Words) -> Words:
        moved = self._through_network(numbers)
        outside = np.flatnonzero(moved >= self.count)
        while len(outside):
            moved[outside] = self._through_network(moved[outside])
            outside = outside[moved[outside] >= self.count]
        return moved

    def _through_network(self, numbers: Words) -> Words:
        """Change the column by the row, and the row by the column, in turns."""
        bits, word = self._bits, self._dtype
        width = (self.count - 1).bit_length() // 2
        rows = -(-self.count // (1 << width))
        high, low = numbers >> word(width), numbers & word((1 << width) - 1)
        wide, spare = np.empty(len(numbers), np.uint64), np.empty_like(high)
        for by_row, by_column in self._keys.reshape(-1, 2):
            step = _mixed(high, by_row, bits, spare)
            step >>= word(bits - width)
            low ^= step
            step = _mixed(low, by_column, bits, spare)
            # The upper 32 bits are a fraction, and the step is that part of all rows.
            np.right_shift(step, word(bits - 32), out=wide, casting="safe")
            wide *= np.uint64(rows)
            wide >>= np.uint64(32)
            np.add(high, wide, out=high, casting="unsafe", dtype=word)
            np.subtract(high, word(rows), out=spare)
            np.minimum(high, spare, out=high)  # a difference below zero is a large word
        high <<= word(width)
        joined: Words = np.bitwise_or(high, low, out=high)
        return joined


def _mixed(numbers: Words, key: np.unsignedinteger[Any], bits: int, spare: Words) -> Words:
    """Return words whose upper bits depend on all bits of the numbers and of the key."""
    first, second = _MULTIPLIERS[bits]
    mixed: Words = np.bitwise_xor(numbers, key)
    mixed *= first
    np.right_shift(mixed, bits // 2 - 1, out=spare)
    mixed ^= spare
    mixed *= second
    return mixed
