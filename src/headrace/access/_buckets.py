"""Batches of one bucket each, such as images of one shape: every sample once, ranks in step.

The parts of this module are, from top to bottom: the samples of each bucket, the order of their
batches in an epoch and how ranks share them, and the sampler.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch.distributed as dist

from headrace.access._samplers import ResumableSampler, kept_permutation
from headrace.access.rows._dataset import RowDataset
from headrace.errors import OptionError, SkippedDataWarning
from headrace.model import Int64Array, computed_once
from headrace.options import checked_keywords, whole_number
from headrace.plan import State
from headrace.sources.tar.buckets import AspectBuckets
from headrace.sources.tar.payloads import places_by_number


@dataclass(frozen=True, slots=True, eq=False)
class Buckets:
    """Samples by bucket.

    Attributes:
        keys: The key of each bucket; several shapes may have the same key.
        starts: The position in ``samples`` where each bucket begins, and where the last one ends.
        samples: The samples of all buckets, bucket after bucket.
        shapes: (width, height) of each bucket.
    """

    keys: Sequence[Any]
    starts: Int64Array
    samples: Int64Array
    shapes: Sequence[tuple[int, int]] | None = None


def buckets_of(source: Any, unknown: str) -> Buckets:
    """Return the buckets of a source; ``unknown`` says how to handle samples without a shape."""
    if unknown not in ("raise", "skip"):
        raise OptionError(f'unknown must be "raise" or "skip", not {unknown!r}')
    if isinstance(source, RowDataset):
        source = source.whole_backend("buckets")
    if hasattr(source, "aspect_buckets"):
        source = source.aspect_buckets()
    if isinstance(source, AspectBuckets):
        return _of_shapes(source, unknown)
    return _of_numbers(source)


def _of_shapes(buckets: AspectBuckets, unknown: str) -> Buckets:
    if len(buckets.unknown):
        reason = (
            f"{len(buckets.unknown)} of {len(buckets.unknown) + len(buckets.samples)} samples "
            f"have no known shape, the first is sample {int(buckets.unknown[0])}"
        )
        if unknown == "raise":
            raise OptionError(
                f"{reason}: index images with geometry=True, or skip these samples with "
                'on_error="skip" (create_dataloader) or unknown="skip" (the sampler)'
            )
        warnings.warn(f"skipped: {reason}", SkippedDataWarning, stacklevel=4)
    shapes = list(zip(buckets.widths.tolist(), buckets.heights.tolist(), strict=True))
    return Buckets(buckets.shape_keys(), buckets.shape_starts, buckets.samples, shapes)


def _of_numbers(source: Any) -> Buckets:
    given = np.asarray(source)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iuU"):
        raise TypeError(
            "buckets must be AspectBuckets, an object that has them (a TarBackend, its rows), or "
            f"the bucket of each sample as integers or strings, not {source!r:.200}"
        )
    if given.dtype.kind == "i" and given.min(initial=0) < -1:
        raise OptionError(f"a bucket is a number from 0 on, or -1 for none, not {given.min()}")
    samples = np.flatnonzero(given != -1) if given.dtype.kind == "i" else np.arange(len(given))
    keys, numbers, counts = np.unique(given[samples], return_inverse=True, return_counts=True)
    starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    return Buckets(keys.tolist(), starts, samples[np.argsort(numbers, kind="stable")])


class BatchPart(NamedTuple):
    """A batch of an epoch, or a part of one.

    Attributes:
        place: Place of the batch in the order of the epoch.
        start: Number of samples of the batch before this part.
        length: Number of samples.
    """

    place: int
    start: int
    length: int


@dataclass(frozen=True, eq=False)
class BucketOrder:
    """The batches of an epoch, computed from the counts of buckets.

    Samples of a bucket are shuffled and cut into batches, and the batches of all buckets are
    shuffled: both follow from (seed, epoch).

    Attributes:
        counts: Number of samples of each bucket.
        sizes: Size of the batches of each bucket; the last one may be smaller.
        seed: The seed.
        shuffle: True to shuffle samples and batches.
        drop_last: True to leave out the last batch of a bucket if it is not full.
    """

    counts: Int64Array
    sizes: Int64Array
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
        """Return the bucket of each of these batches, its place in the bucket, and its size."""
        numbers = places
        if self.shuffle and len(places):
            numbers = kept_permutation(self.num_batches, self.seed, epoch, 0).at(places)
        buckets = np.searchsorted(self._batch_ends, numbers, side="right")
        sizes = self.sizes[buckets]
        before = np.append(0, self._batch_ends)[buckets]
        starts = (numbers - before) * sizes
        return buckets, starts, np.minimum(sizes, self.counts[buckets] - starts)

    def samples(
        self, buckets: Int64Array, starts: Int64Array, lengths: Int64Array, epoch: int
    ) -> Int64Array:
        """Return the samples of some parts of buckets, one after the other.

        They are positions in the list of all samples, in which the buckets follow each other.
        """
        ends = np.cumsum(lengths)
        within = np.arange(int(ends[-1]) if len(ends) else 0, dtype=np.int64)
        within += np.repeat(starts - (ends - lengths), lengths)
        of_bucket = np.repeat(buckets, lengths)
        if self.shuffle:
            for bucket, here in places_by_number(of_bucket):
                count = int(self.counts[bucket])
                order = kept_permutation(count, self.seed, epoch, 1 + bucket)
                within[here] = order.at(within[here])
        found: Int64Array = self._starts[of_bucket] + within
        return found


class Deal:
    """The share of each rank in the rest of an epoch, all in the same number of steps.

    At each step R ranks take the next R batches; rank r takes the r-th. If there are fewer batches
    for the last step, they are cut into smaller ones. If they have too few samples for that, the
    batches of more steps before it are cut, too. With ``drop_last`` the last few batches are left
    out instead.

    Attributes:
        steps: Number of steps.
        repeated: Number of samples that are repeated, if there are too few samples for the ranks.

    Args:
        order: The batches of the epoch.
        epoch: The epoch.
        place: The first batch of the rest, and the number of its samples that are taken.
        ranks: Number of ranks.
    """

    def __init__(self, order: BucketOrder, epoch: int, place: tuple[int, int], ranks: int) -> None:
        self._order, self._epoch, self._ranks = order, epoch, ranks
        self._first, self._offset = place
        left = max(order.num_batches - self._first, 0)
        self.steps = left // ranks if order.drop_last else -(-left // ranks)
        self.repeated = 0
        self._whole_steps = self.steps
        self._cut_parts: list[BatchPart] = []
        if self.steps * ranks > left:
            self._cut_last_steps()

    def parts(self, start: int, stop: int, rank: int) -> list[BatchPart]:
        """Return the batches that a rank takes at these steps."""
        whole = np.arange(start, max(min(stop, self._whole_steps), start), dtype=np.int64)
        late = range(max(start, self._whole_steps), stop)
        return self._uncut(self._first + whole * self._ranks + rank) + [
            self._cut_parts[(step - self._whole_steps) * self._ranks + rank] for step in late
        ]

    def after(self, steps: int) -> tuple[int, int]:
        """Return the position after some steps: a batch, and the number of its samples taken."""
        if steps >= self.steps:
            return self._order.num_batches, 0
        if steps <= self._whole_steps:
            return self._first + steps * self._ranks, 0 if steps else self._offset
        following = self._cut_parts[(steps - self._whole_steps) * self._ranks]
        return following.place, following.start

    def _uncut(self, places: Int64Array) -> list[BatchPart]:
        *_, lengths = self._order.batches(places, self._epoch)
        return [
            BatchPart(place, self._offset, length - self._offset)
            if place == self._first
            else BatchPart(place, 0, length)
            for place, length in zip(places.tolist(), lengths.tolist(), strict=True)
        ]

    def _cut_last_steps(self) -> None:
        """Cut the batches of the last steps, as few steps as have a sample for each rank."""
        last = 1
        while True:
            begin = self._first + (self.steps - last) * self._ranks
            parts = self._uncut(np.arange(begin, self._order.num_batches, dtype=np.int64))
            samples, needed = sum(part.length for part in parts), last * self._ranks
            if samples >= needed or last == self.steps:
                break
            last = min(2 * last, self.steps)
        cut = _halved(parts, min(needed, samples))
        self.repeated = needed - len(cut)
        self._whole_steps = self.steps - last
        self._cut_parts = [cut[number % len(cut)] for number in range(needed)]


def _halved(parts: list[BatchPart], count: int) -> list[BatchPart]:
    """Return the same samples in ``count`` parts; the largest parts are cut most often."""
    lengths = np.array([part.length for part in parts])
    times = np.ones(len(parts), np.int64)
    for _ in range(count - len(parts)):
        times[np.argmax(lengths / times)] += 1
    return [
        piece for part, n in zip(parts, times.tolist(), strict=True) for piece in _evenly(part, n)
    ]


def _evenly(part: BatchPart, count: int) -> list[BatchPart]:
    edges = [part.length * number // count for number in range(count + 1)]
    return [BatchPart(part.place, part.start + a, b - a) for a, b in pairwise(edges)]


BatchSize = int | Mapping[Any, int] | Callable[[Any], int]


@checked_keywords
class BucketBatchSampler(ResumableSampler[list[int]]):
    """The ``batch_sampler`` of a DataLoader: batches of one bucket, every sample once an epoch.

    The order follows from (seed, epoch): the samples of each bucket are shuffled, and then the
    batches of all buckets. At each step R ranks take the next R batches, rank r the r-th. All ranks
    have the same number of steps: the batches of the last steps are cut smaller. If they hold too
    few samples for that, as with a batch_size of 1, some samples are repeated, with a warning.
    ``drop_last`` leaves out samples that do not fill a batch of their bucket, and batches that do
    not fill a step.

    When an iteration has ended, the next epoch follows; ``set_epoch`` chooses one. When an
    iteration was interrupted, its epoch begins again. Any number of ranks can continue from a
    state. Lightning also needs ``use_distributed_sampler=False``, and Accelerate a sampler of rank
    0 of 1.

    Args:
        buckets: AspectBuckets, for batches of one shape each whatever their key; an object
            with a method ``aspect_buckets()``, such as a TarBackend or its rows; or an array with
            the bucket of each sample, -1 for samples without a bucket.
        batch_size: A number, a mapping by key, or a function of the (width, height) for
            AspectBuckets, and of the key for others.
        shuffle: If True, samples and batches are shuffled.
        seed: The seed of the order.
        drop_last: If True, batches that are not full are left out.
        rank: The rank of this process; by default the rank in torch.distributed, if initialised.
        world_size: Number of ranks.
        epoch: The epoch of the first iteration.
        unknown: With "skip", samples without a known shape are left out.

    Examples:
        >>> buckets = np.array([0, 1, 0, 1])
        >>> list(BucketBatchSampler(buckets, batch_size=2, shuffle=False))
        [[0, 2], [1, 3]]
    """

    def __init__(
        self,
        buckets: Any,
        batch_size: BatchSize,
        *,
        shuffle: bool = True,
        seed: int = 42,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        epoch: int = 0,
        unknown: str = "raise",
    ) -> None:
        super().__init__(seed, *_ranks(rank, world_size), epoch, even="")
        self.shuffle, self.drop_last = bool(shuffle), bool(drop_last)
        self._dealt: tuple[Any, Deal] | None = None  # for the last state that was asked for
        self._buckets = buckets_of(buckets, unknown)
        self._order = BucketOrder(
            counts=np.diff(self._buckets.starts),
            sizes=_batch_sizes(batch_size, self._buckets),
            seed=self.seed,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
        )
        if len(self._buckets.samples) and not len(self):
            raise OptionError(
                f"drop_last leaves no batch of {len(self._buckets.samples)} samples in "
                f"{len(self._buckets.keys)} buckets for {self.world_size} ranks: "
                "choose a smaller batch_size, or drop_last=False"
            )

    # --- batches

    def __len__(self) -> int:
        """Return the number of steps of a whole epoch, the same on all ranks."""
        batches = self._order.num_batches
        steps = batches if self.drop_last else batches + self.world_size - 1
        return steps // self.world_size

    @property
    def num_samples(self) -> int:
        """Number of samples in all buckets, for all ranks together."""
        return len(self._buckets.samples)

    def batch(self, step: int, *, epoch: int | None = None) -> list[int]:
        """Return the samples of this rank at a step of an epoch, by default the current one."""
        step = range(len(self))[step]
        return self._computed(self.start(self._epoch_or(epoch)), step, step + 1)[0]

    def __iter__(self) -> Iterator[list[int]]:
        repeated = self._deal(self.next_start).repeated
        if repeated:
            warnings.warn(
                f"{repeated} samples come twice in this epoch, for {self.world_size} ranks "
                "take the same number of steps and there are too few samples",
                stacklevel=2,
            )
        return super().__iter__()

    def _computed(self, state: State, start: int, stop: int) -> list[list[int]]:
        parts = self._deal(state).parts(start, stop, self.rank)
        places, starts, lengths = np.array(parts, np.int64).T
        buckets, begins, _ = self._order.batches(places, state.epoch)
        found = self._order.samples(buckets, begins + starts, lengths, state.epoch)
        rows = self._buckets.samples[found].tolist()
        ends = np.cumsum(lengths)
        edges = zip((ends - lengths).tolist(), ends.tolist(), strict=True)
        return [rows[begin:end] for begin, end in edges]

    @property
    def _at_once(self) -> int:
        return max(1, super()._at_once // int(self._order.sizes.max(initial=1)))

    def _deal(self, state: State) -> Deal:
        """Return how the last ranks of a state share the batches that earlier ranks left."""
        shares = state.shares
        if self._dealt is None or self._dealt[0] != (state.epoch, shares):
            deal = Deal(self._order, state.epoch, (0, 0), shares[0].ranks)
            for before, following in pairwise(shares):
                steps = (following.taken - before.taken) // before.ranks
                deal = Deal(self._order, state.epoch, deal.after(steps), following.ranks)
            self._dealt = (state.epoch, shares), deal
        return self._dealt[1]

    def _steps_from(self, state: State) -> int:
        return self._deal(state).steps

    def _is_over(self, state: State) -> bool:
        return state.taken > 0 and state.steps[0] >= self._steps_from(state)

    # --- epochs and states

    @property
    def sampler(self) -> BucketBatchSampler:
        """The sampler itself; frameworks look here for an object with ``set_epoch``."""
        return self

    def seek(self, batches: int, *, epoch: int | None = None) -> None:
        """Let the next iteration, once, begin after ``batches`` batches of this rank."""
        self._seek(whole_number("batches", batches, 0), epoch)

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Return the position as JSON. After the last batch it is the start of the next epoch.

        Args:
            batches: Number of batches of the last iteration that the training loop has taken. By
                default, all batches that were requested count, also those that a loader has read
                ahead. torchdata's StatefulDataLoader counts by itself.
        """
        if batches is not None:
            batches = whole_number("batches", batches, 0)
        return self.as_json(self._position(batches))

    def _describe(self) -> str:
        order = "shuffled" if self.shuffle else "in order"
        rest = " drop_last" if self.drop_last else ""
        return f"buckets of {self.num_samples} samples {self._digest} {order}{rest}"

    @computed_once
    def _digest(self) -> str:
        """A digest of the samples of all buckets and of the sizes of their batches."""
        parts = (self._buckets.starts, self._buckets.samples, self._order.sizes)
        return hashlib.sha256(b"".join(_hash(part) for part in parts)).hexdigest()[:16]


def _ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    if rank is None and world_size is None:
        if dist.is_available() and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
        return 0, 1
    if rank is None or world_size is None:
        raise OptionError(
            f"rank and world_size must be given together, not {rank} and {world_size}"
        )
    return rank, world_size


def _batch_sizes(given: BatchSize, buckets: Buckets) -> Int64Array:
    if not callable(given) and not isinstance(given, Mapping):
        return np.full(len(buckets.keys), whole_number("batch_size", given, 1), np.int64)
    chosen: Sequence[Any]
    if callable(given):
        chosen = [given(bucket) for bucket in buckets.shapes or buckets.keys]
    else:
        absent = [key for key in buckets.keys if key not in given]
        if absent:
            raise OptionError(f"batch_size has no entry for the bucket {absent[0]!r}")
        chosen = [given[key] for key in buckets.keys]
    sizes = [
        whole_number(f"batch_size of the bucket {key!r}", size, 1)
        for key, size in zip(buckets.keys, chosen, strict=True)
    ]
    return np.array(sizes, np.int64)


def _hash(numbers: Int64Array) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(numbers, "<i8").data).digest()
