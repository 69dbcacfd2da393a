"""The order of twenty million rows, a million at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from data import Data

from arms.registry import Mark, Pieces, arm
from headrace.access import GlobalShuffleSampler

SLICE = 1 << 20
Indices = npt.NDArray[np.int64]


def _count(data: Data) -> int:
    return max(1, round(20_000_000 * data.scale))


def _slices(count: int, indices: Callable[[int, int], Indices]) -> Pieces:
    for start in range(0, count, SLICE):
        yield len(indices(start, min(start + SLICE, count)))


@arm("sampling.global", reads=None)
def by_arithmetic(data: Data) -> Pieces:
    count = _count(data)
    sampler = GlobalShuffleSampler(count, seed=1)
    if not np.array_equal(np.unique(sampler.indices(0, count)), np.arange(count)):
        raise SystemExit("the sampler does not give every index once")
    yield Mark.CLOCK_STARTS
    yield from _slices(count, sampler.indices)


@arm("sampling.permutation", reads=None)
def by_a_permutation(data: Data) -> Pieces:
    """Yield copies of slices, because the caller may change them."""
    yield Mark.CLOCK_STARTS
    order = np.random.default_rng(1).permutation(_count(data))
    yield from _slices(_count(data), lambda start, stop: order[start:stop].copy())
