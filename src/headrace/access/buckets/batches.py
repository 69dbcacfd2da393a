"""Batches of one bucket each, such as images of one shape: every sample once, ranks in step."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch.distributed as dist
from torch.utils.data import Sampler

from headrace.access.buckets.order import BucketOrder, Deal
from headrace.access.buckets.sources import Buckets, buckets_of
from headrace.access.sampling import state_of, whole_number
from headrace.access.state_checksum import check_checksum, with_checksum
from headrace.errors import OptionError, StateMismatchError
from headrace.model import Int64Array, computed_once
from headrace.options import checked_keywords

__all__ = ["BucketBatchSampler"]

_AT_ONCE = 1 << 13
"""samples that are computed together while their batches are handed out one by one"""

BatchSize = int | Mapping[Any, int] | Callable[[Any], int]


@checked_keywords
class BucketBatchSampler(Sampler[list[int]]):
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
    that is left begins its epoch again. A state goes on with any number of ranks. Lightning wants
    ``use_distributed_sampler=False`` beside it, Accelerate a sampler of rank 0 of 1.
    """

    kind = "buckets"
    """in states"""
    _epoch: int
    _place: tuple[int, int]
    """where in it the next iteration begins: a batch, and how much of it is taken"""
    _running: Deal | None
    """what the last iteration goes through; its identity tells iterations apart"""
    _taken: int | None
    """how many batches that one has handed out; None: it has not begun, or has ended"""

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
        self.rank, self.world_size = _ranks(rank, world_size)
        self.num_replicas = self.world_size  # as torch calls it
        self.seed = whole_number("seed", seed)
        self.shuffle, self.drop_last = bool(shuffle), bool(drop_last)
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
        self._go_to(whole_number("epoch", epoch, 0), (0, 0))
        if type(self) is BucketBatchSampler and self.world_size > 1:
            self.__class__ = _BatchesOfRank

    # --- batches

    def __len__(self) -> int:
        """Steps of a whole epoch, the same on all ranks."""
        batches = self._order.num_batches
        steps = batches if self.drop_last else batches + self.world_size - 1
        return steps // self.world_size

    @property
    def num_samples(self) -> int:
        """Samples that are in a bucket, of all ranks."""
        return len(self._buckets.samples)

    def batch(self, step: int, *, epoch: int | None = None) -> list[int]:
        """What this rank takes at a step of an epoch: this one, or any other."""
        step = range(len(self))[step]
        deal = self._deal(self._epoch_or(epoch), (0, 0))
        return self._computed(deal, step, step + 1)[0]

    def __iter__(self) -> Iterator[list[int]]:
        deal = self._running = self._deal(self._epoch, self._place)
        self._place, self._taken = (0, 0), 0
        if deal.repeated:
            warnings.warn(
                f"{deal.repeated} samples come twice in this epoch, for {self.world_size} ranks "
                "take the same number of steps and there are too few samples",
                stacklevel=2,
            )
        at_once = max(1, _AT_ONCE // int(self._order.sizes.max(initial=1)))
        for start in range(0, deal.steps, at_once):
            stop = min(start + at_once, deal.steps)
            for taken, batch in enumerate(self._computed(deal, start, stop), start + 1):
                if self._running is deal:
                    self._taken = taken
                yield batch
        if self._running is deal:
            self._epoch, self._taken = deal.epoch + 1, None

    def _computed(self, deal: Deal, start: int, stop: int) -> list[list[int]]:
        parts = deal.parts(start, stop, self.rank)
        columns = ([part.place, part.start, part.length] for part in parts)
        places, starts, lengths = np.array(list(columns), np.int64).T
        buckets, begins, _ = self._order.batches(places, deal.epoch)
        found = self._order.samples(buckets, begins + starts, lengths, deal.epoch)
        rows = self._buckets.samples[found].tolist()
        ends = np.cumsum(lengths)
        edges = zip((ends - lengths).tolist(), ends.tolist(), strict=True)
        return [rows[begin:end] for begin, end in edges]

    def _deal(self, epoch: int, place: tuple[int, int]) -> Deal:
        return Deal(self._order, epoch, place, self.world_size)

    # --- epochs and places

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration is of; behind a loader that reads ahead, maybe soon."""
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.set_epoch(epoch)

    @property
    def sampler(self) -> BucketBatchSampler:
        """Where frameworks look for what wants to know the epoch."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration. A place in this same epoch stays."""
        epoch = whole_number("epoch", epoch, 0)
        if epoch != self._epoch:
            self._go_to(epoch, (0, 0))
        elif self._taken is None:  # what comes next is not of the last iteration
            self._running = None

    def seek(self, batches: int, *, epoch: int | None = None) -> None:
        """Let the next iteration, once, begin behind so many batches of this rank."""
        batches = whole_number("batches", batches, 0)
        deal = self._deal(self._epoch_or(epoch), (0, 0))
        self._go_to(deal.epoch, deal.after(batches))

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Where it is; the same on all ranks that are in step. After the last batch that is the
        start of the next epoch.

        ``batches``: what the training loop has taken of the last iteration. Without it everything
        that was asked for counts, also by a loader that reads ahead. torchdata's
        StatefulDataLoader counts by itself.
        """
        taken = self._taken if batches is None else whole_number("batches", batches, 0)
        epoch, place = self._epoch, self._place
        if taken is not None:
            deal = self._running or self._deal(epoch, place)
            epoch, place = self._or_next_epoch(deal.epoch, deal.after(taken))
        position, offset = place
        where = {"epoch": epoch, "position": position, "offset": offset}
        return with_checksum({**where, **self._identity})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration, once, go on from a state of any rank that was in step with this.

        An iteration that only looks at a first batch uses it up: load the state again after it.
        """
        names = self.state_dict().keys()
        plain = state_of(state, self._identity, names)
        try:
            epoch, position, offset = (
                whole_number(name, plain[name], 0) for name in ("epoch", "position", "offset")
            )
        except OptionError as error:
            raise StateMismatchError(f"a damaged state: {error}") from None
        self._check_place(epoch, position, offset)
        check_checksum(plain, names)
        self._go_to(epoch, (position, offset))

    def _check_place(self, epoch: int, position: int, offset: int) -> None:
        if (position, offset) == (0, 0):  # also where there is no batch at all
            return
        batches = self._order.num_batches
        if position >= batches:
            raise StateMismatchError(
                f"a damaged state: there is no batch {position} of {batches} in an epoch"
            )
        *_, lengths = self._order.batches(np.array([position], np.int64), epoch)
        if offset >= int(lengths[0]):
            raise StateMismatchError(
                f"a damaged state: batch {position} of epoch {epoch} has no sample {offset}"
            )

    @computed_once
    def _identity(self) -> dict[str, Any]:
        """What a state has to agree in, the kind first."""
        parts = (self._buckets.starts, self._buckets.samples, self._order.sizes)
        digest = hashlib.sha256(b"".join(_hash(part) for part in parts)).hexdigest()[:16]
        return {
            "kind": self.kind,
            "seed": self.seed,
            "samples": len(self._buckets.samples),
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
            "buckets": digest,
        }

    def _epoch_or(self, epoch: int | None) -> int:
        return self._epoch if epoch is None else whole_number("epoch", epoch, 0)

    def _go_to(self, epoch: int, place: tuple[int, int]) -> None:
        self._epoch, self._place = self._or_next_epoch(epoch, place)
        self._running = self._taken = None

    def _or_next_epoch(self, epoch: int, place: tuple[int, int]) -> tuple[int, tuple[int, int]]:
        least = self.world_size if self.drop_last else 1
        over = place > (0, 0) and self._order.num_batches - place[0] < least
        return (epoch + 1, (0, 0)) if over else (epoch, place)


class _BatchesOfRank(BucketBatchSampler):
    @property
    def generator(self) -> None:
        """What Accelerate looks for in the samplers whose batches it is about to share out."""
        raise OptionError(
            f"these batches are of rank {self.rank} of {self.world_size}, and Accelerate shares "
            "out batches itself: give it a BucketBatchSampler with rank=0, world_size=1"
        )


def _ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    if rank is None and world_size is None:
        if dist.is_available() and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
        return 0, 1
    if rank is None or world_size is None:
        raise OptionError(f"rank and world_size belong together, not {rank} and {world_size}")
    size = whole_number("world_size", world_size, 1)
    number = whole_number("rank", rank, 0)
    if number >= size:
        raise OptionError(f"rank {number} of {size}: ranks count from 0")
    return number, size


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
