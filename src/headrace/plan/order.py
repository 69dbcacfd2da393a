"""Permutations that are arithmetic: the same on every platform and for every numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.model import Int64Array

__all__ = ["CHUNK_ORDER", "ROW_ORDER", "permutation", "taking_turns"]

CHUNK_ORDER = 1
"""purpose of a permutation: the chunks of an epoch"""
ROW_ORDER = 2
"""purpose of a permutation: the rows of a window"""

_WORD = (1 << 64) - 1


def permutation(
    count: int, *, seed: int, epoch: int, purpose: int, lane: int = 0, window: int = 0
) -> Int64Array:
    """A permutation of ``range(count)`` for these coordinates.

    The coordinates are key and counter of a counter-based generator (Philox), each in a word
    of its own, so that no two ever share a stream. Its raw words are sorted, ties by position:
    a stable sort has one result only, whatever algorithm computes it.

    >>> permutation(5, seed=42, epoch=0, purpose=CHUNK_ORDER).tolist()
    [3, 1, 4, 2, 0]
    """
    key = np.array([int(seed) & _WORD, purpose], np.uint64)
    counter = np.array([0, int(epoch) & _WORD, lane, window], np.uint64)
    words = np.random.Philox(key=key, counter=counter).random_raw(count)
    # The low half of a word above the position in one number: these are all different, so that any
    # sort gives the order of a stable one, and numpy sorts numbers several times faster than
    # it finds the order of others.
    packed = (words << np.uint64(32)) | np.arange(count, dtype=np.uint64)
    packed.sort()
    packed &= np.uint64(0xFFFFFFFF)
    order: Int64Array = packed.view(np.int64)
    return order


def taking_turns(counts: Sequence[int]) -> Int64Array:
    """The order of rows in several lists laid end to end, if one is taken from each in turn.

    >>> taking_turns([3, 1, 2]).tolist()
    [0, 3, 4, 1, 5, 2]
    """
    turn = np.concatenate([np.empty(0, np.int64), *map(np.arange, counts)])
    order: Int64Array = np.argsort(turn, kind="stable").astype(np.int64, copy=False)
    return order
