"""The batches of buckets, their order in an epoch, and how ranks share them in step."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from headrace.model import Int64Array, computed_once
from headrace.plan.permutations import IndexPermutation

__all__ = ["BatchPart", "BucketOrder", "Deal"]

_LOOKED_BACK = 1 << 12
"""batches from the end whose sizes are looked at first, to see where ranks run out of them"""


@dataclass(frozen=True, slots=True)
class BatchPart:
    """A batch of an epoch, or a part of one."""

    place: int
    """place of the batch in the order of the epoch"""
    start: int
    """number of samples of the batch before this part"""
    length: int
    """number of samples"""


@dataclass(frozen=True, eq=False)
class BucketOrder:
    """The batches of an epoch as arithmetic: nothing is kept of them but counts of buckets.

    Samples of a bucket are shuffled and cut into batches, and the batches of all buckets are
    shuffled: both follow from (seed, epoch).
    """

    counts: Int64Array
    """number of samples of each bucket"""
    sizes: Int64Array
    """size of the batches of each bucket; the last one may be smaller"""
    seed: int
    shuffle: bool
    drop_last: bool

    @computed_once
    def _batch_ends(self) -> Int64Array:
        counts = self.counts if self.drop_last else self.counts + self.sizes - 1
        return np.cumsum(counts // self.sizes)

    @computed_once
    def num_batches(self) -> int:
        """Number of batches of an epoch."""
        return int(self._batch_ends[-1]) if len(self._batch_ends) else 0

    @computed_once
    def _starts(self) -> Int64Array:
        return np.cumsum(self.counts) - self.counts

    def batches(self, places: Int64Array, epoch: int) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return the bucket of each batch at these places, where it begins there, and its size."""
        numbers = places
        if self.shuffle and len(places):
            numbers = _permutation(self.num_batches, self.seed, epoch, 0).at(places)
        buckets = np.searchsorted(self._batch_ends, numbers, side="right")
        sizes = self.sizes[buckets]
        before = np.append(0, self._batch_ends)[buckets]
        starts = (numbers - before) * sizes
        return buckets, starts, np.minimum(sizes, self.counts[buckets] - starts)

    def samples(
        self, buckets: Int64Array, starts: Int64Array, lengths: Int64Array, epoch: int
    ) -> Int64Array:
        """Return the samples of some parts of buckets, one after the other.

        They are places in the list of all samples, in which those of a bucket follow each other.
        """
        ends = np.cumsum(lengths)
        within = np.arange(int(ends[-1]) if len(ends) else 0, dtype=np.int64)
        within += np.repeat(starts - (ends - lengths), lengths)
        of_bucket = np.repeat(buckets, lengths)
        if self.shuffle:
            order = np.argsort(of_bucket, kind="stable")
            held, begins = np.unique(of_bucket[order], return_index=True)
            for bucket, here in zip(held.tolist(), np.split(order, begins[1:]), strict=True):
                count = int(self.counts[bucket])
                within[here] = _permutation(count, self.seed, epoch, 1 + bucket).at(within[here])
        found: Int64Array = self._starts[of_bucket] + within
        return found


@lru_cache(maxsize=256)
def _permutation(count: int, seed: int, epoch: int, part: int) -> IndexPermutation:
    """Return a permutation, kept because it holds keys or a table of at most 32 KiB."""
    return IndexPermutation(count, seed, epoch, part)


class Deal:
    """How ranks share what is left of an epoch from some place on, all in the same number of steps.

    At each step they take as many batches as they are, in order; rank r the r-th. Where that does
    not come out even the batches of the last step are cut into smaller ones, and if these do not
    have enough samples those of the steps before it. What is left after any step is dealt in the
    same way, so that a place is all that a state needs. With ``drop_last`` the last few batches
    are left out instead.
    """

    def __init__(self, order: BucketOrder, epoch: int, place: tuple[int, int], ranks: int) -> None:
        self.order, self.epoch, self.ranks = order, epoch, ranks
        self.first, self.offset = place
        left = max(order.num_batches - self.first, 0)
        self.steps = left // ranks if order.drop_last else -(-left // ranks)
        self.whole_steps = self.steps
        self._last: list[list[BatchPart]] = []
        if self.steps * ranks > left:
            self._cut(left)

    @property
    def repeated(self) -> int:
        """Number of samples that come twice, if there are fewer samples than ranks need batches."""
        return self._repeated if self._last else 0

    def parts(self, start: int, stop: int, rank: int) -> list[BatchPart]:
        """Return what a rank takes at these steps."""
        whole = min(stop, self.whole_steps)
        places = (
            self.first + np.arange(start, max(whole, start), dtype=np.int64) * self.ranks + rank
        )
        found = self._uncut(places)
        late = range(max(start, self.whole_steps), stop)
        return found + [self._last[step - self.whole_steps][rank] for step in late]

    def after(self, steps: int) -> tuple[int, int]:
        """Return the place behind so many steps: a batch, and how much of it is taken."""
        if steps >= self.steps:
            return self.order.num_batches, 0
        if steps <= self.whole_steps:
            return self.first + steps * self.ranks, 0 if steps else self.offset
        following = self._last[steps - self.whole_steps][0]
        return following.place, following.start

    def _uncut(self, places: Int64Array) -> list[BatchPart]:
        *_, lengths = self.order.batches(places, self.epoch)
        return [
            BatchPart(place, self.offset, length - self.offset)
            if place == self.first
            else BatchPart(place, 0, length)
            for place, length in zip(places.tolist(), lengths.tolist(), strict=True)
        ]

    def _cut(self, left: int) -> None:
        """Find out how many of the last steps need smaller batches, and cut them."""
        missing = self.steps * self.ranks - left
        steps, spare = self._uneven_steps(left, missing)
        self._repeated = max(missing - spare, 0)
        self.whole_steps = self.steps - steps
        begin = self.first + self.whole_steps * self.ranks
        parts = self._uncut(np.arange(begin, self.order.num_batches, dtype=np.int64))
        for later in range(steps - 1, 0, -1):
            needed = later * self.ranks - self._repeated
            taken, parts = _taken(parts, sum(part.length for part in parts) - needed, self.ranks)
            self._last.append(taken)
        cut = _halved(parts, min(self.ranks, sum(part.length for part in parts)))
        self._last.append([cut[rank % len(cut)] for rank in range(self.ranks)])

    def _uneven_steps(self, left: int, missing: int) -> tuple[int, int]:
        """Return the fewest last steps whose batches can be cut so often, and how often at most."""
        looked = _LOOKED_BACK
        while True:
            begin = self.order.num_batches - min(looked, left)
            places = np.arange(begin, self.order.num_batches, dtype=np.int64)
            *_, lengths = self.order.batches(places, self.epoch)
            if begin == self.first:
                lengths[0] -= self.offset
            spare = np.cumsum(lengths[::-1] - 1)
            if looked >= left or int(spare[-1]) >= missing:
                break
            looked *= 2
        enough = min(missing, int(spare[-1]))
        batches = int(np.searchsorted(spare, enough)) + 1
        in_last = left - (self.steps - 1) * self.ranks
        return 1 + max(-(-(batches - in_last) // self.ranks), 0), int(spare[-1])


def _taken(
    parts: list[BatchPart], budget: int, count: int
) -> tuple[list[BatchPart], list[BatchPart]]:
    """Take ``count`` parts from the front, of ``budget`` samples at most; return them and the rest.

    They are as large as they may be.
    """
    taken, left = [], parts[::-1]
    for others in range(count - 1, -1, -1):
        part = left.pop()
        length = min(part.length, budget - others)
        taken.append(BatchPart(part.place, part.start, length))
        budget -= length
        if length < part.length:
            left.append(BatchPart(part.place, part.start + length, part.length - length))
    return taken, left[::-1]


def _halved(parts: list[BatchPart], count: int) -> list[BatchPart]:
    """Return the same samples in ``count`` parts; the largest ones are cut most often."""
    times = [1] * len(parts)
    heap = [(-float(part.length), number) for number, part in enumerate(parts)]
    heapq.heapify(heap)
    for _ in range(count - len(parts)):
        _, number = heap[0]
        times[number] += 1
        heapq.heapreplace(heap, (-(parts[number].length / times[number]), number))
    return [piece for part, n in zip(parts, times, strict=True) for piece in _evenly(part, n)]


def _evenly(part: BatchPart, count: int) -> list[BatchPart]:
    edges = [part.length * number // count for number in range(count + 1)]
    return [
        BatchPart(part.place, part.start + edges[number], edges[number + 1] - edges[number])
        for number in range(count)
    ]
