"""Batches of one bucket each, such as images of one shape: every sample once, ranks in step."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch.distributed as dist

from headrace.access.buckets.order import BucketOrder, Deal
from headrace.access.buckets.sources import Buckets, buckets_of
from headrace.access.sampling import ResumableSampler, whole_number
from headrace.errors import OptionError
from headrace.model import Int64Array, computed_once
from headrace.options import checked_keywords
from headrace.plan import State

__all__ = ["BucketBatchSampler"]

_AT_ONCE = 1 << 13
"""samples that are computed together while their batches are handed out one by one"""

BatchSize = int | Mapping[Any, int] | Callable[[Any], int]


@checked_keywords
class BucketBatchSampler(ResumableSampler[list[int]]):
    """The ``batch_sampler`` of a DataLoader: batches of one bucket, every sample once an epoch.

    ``buckets`` are AspectBuckets, whose batches are of one shape each whatever their key; what has
    a method ``aspect_buckets()``, as a TarBackend or its rows; or the bucket of each sample as an
    array, -1 for samples of none. ``batch_size`` may be a mapping by key, or a function of the
    (width, height) of AspectBuckets, of the key of others.

    The order follows from (seed, epoch): samples are shuffled in their buckets, and the batches of
    all of them. At each step R ranks take the next R batches, rank r the r-th. All have the same
    number of steps: the batches of the last ones are cut smaller, or, if they hold too few samples
    for that, as with a batch_size of 1, some samples come twice, with a warning. ``drop_last``
    leaves out what does not fill a batch of its bucket, and the batches that do not fill a step.
    Without ``rank`` and ``world_size`` they are those of torch.distributed, if initialised.

    An iteration that comes to its end goes on to the next epoch; ``set_epoch`` chooses one. One
    that is left begins its epoch again. Any number of ranks goes on from a state. Lightning wants
    ``use_distributed_sampler=False`` beside it, Accelerate a sampler of rank 0 of 1.
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
        self._dealt: tuple[Any, Deal] | None = None  # of the last state that was asked for
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
                f"drop_last leaves nothing of {len(self._buckets.samples)} samples in "
                f"{len(self._buckets.keys)} buckets for {self.world_size} ranks: "
                "choose a smaller batch_size, or keep batches that are not full"
            )

    # --- batches

    def __len__(self) -> int:
        """Return the number of steps of a whole epoch, the same on all ranks."""
        batches = self._order.num_batches
        steps = batches if self.drop_last else batches + self.world_size - 1
        return steps // self.world_size

    @property
    def num_samples(self) -> int:
        """Samples that are in a bucket, of all ranks."""
        return len(self._buckets.samples)

    def batch(self, step: int, *, epoch: int | None = None) -> list[int]:
        """Return what this rank takes at a step of an epoch: this one, or any other."""
        step = range(len(self))[step]
        return self._computed(self._readers.start(self._epoch_or(epoch)), step, step + 1)[0]

    def __iter__(self) -> Iterator[list[int]]:
        repeated = self._deal(self._next).repeated
        if repeated:
            warnings.warn(
                f"{repeated} samples come twice in this epoch, for {self.world_size} ranks "
                "take the same number of steps and there are too few samples",
                stacklevel=2,
            )
        return super().__iter__()

    def _computed(self, state: State, start: int, stop: int) -> list[list[int]]:
        parts = self._deal(state).parts(start, stop, self.rank)
        columns = ([part.place, part.start, part.length] for part in parts)
        places, starts, lengths = np.array(list(columns), np.int64).T
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
        """Return how the last ranks of a state share what those before them left."""
        shares = state.stage.shares
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
        """The sampler itself: frameworks look here for what wants to know the epoch."""
        return self

    def seek(self, batches: int, *, epoch: int | None = None) -> None:
        """Let the next iteration, once, begin behind so many batches of this rank."""
        self._seek(whole_number("batches", batches, 0), epoch)

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Return where it is, as JSON. After the last batch that is the start of the next epoch.

        Args:
            batches: What the training loop has taken of the last iteration. Without it everything
                that was asked for counts, also by a loader that reads ahead. torchdata's
                StatefulDataLoader counts by itself.
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
        raise OptionError(f"rank and world_size belong together, not {rank} and {world_size}")
    return rank, world_size


def _batch_sizes(given: BatchSize, buckets: Buckets) -> Int64Array:
    if not callable(given) and not isinstance(given, Mapping):
        return np.full(len(buckets.keys), whole_number("batch_size", given, 1), np.int64)
    chosen: Sequence[Any]
    if callable(given):
        chosen = [given(said) for said in buckets.shapes or buckets.keys]
    else:
        absent = [key for key in buckets.keys if key not in given]
        if absent:
            raise OptionError(f"batch_size says nothing of the bucket {absent[0]!r}")
        chosen = [given[key] for key in buckets.keys]
    sizes = [
        whole_number(f"batch_size of the bucket {key!r}", size, 1)
        for key, size in zip(buckets.keys, chosen, strict=True)
    ]
    return np.array(sizes, np.int64)


def _hash(numbers: Int64Array) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(numbers, "<i8").data).digest()
