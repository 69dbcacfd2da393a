"""Ranks, epochs, and places to go on from: what samplers whose order is arithmetic share."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
from torch.utils.data import DistributedSampler, Sampler

from headrace.access.state_checksum import check_checksum, plain_state, with_checksum
from headrace.errors import OptionError, StateMismatchError
from headrace.model import Int64Array

__all__ = ["OneOfRanks", "ShuffleSampler", "state_of", "whole_number"]

_AT_ONCE = 1 << 13
"""indices that are computed together while they are handed out one by one"""


class ShuffleSampler(Sampler[int]):
    """What both samplers have in common.

    An iteration that comes to its end goes on to the next epoch; ``set_epoch`` chooses one. One
    that is left begins its epoch again, also if it went on from a state.
    """

    kind: str
    """in states"""
    _epoch: int
    _position: int
    """where in it the next iteration begins, as in a state"""
    _running: tuple[int, int]
    """where the last iteration began; its identity tells iterations apart"""
    _taken: int | None
    """what that one has handed out; None: it has not begun, or has ended"""

    def __init__(
        self, n: int, seed: int, rank: int, world_size: int, epoch: int, even: str | bool
    ) -> None:
        self.num_rows = whole_number("n", n, 0)
        self.seed = whole_number("seed", seed)
        self.world_size = whole_number("world_size", world_size, 1)
        self.num_replicas = self.world_size  # as torch calls it
        self.rank = whole_number("rank", rank, 0)
        if self.rank >= self.world_size:
            raise OptionError(f"rank {rank} of {world_size}: ranks count from 0")
        if even not in ("drop", "pad") and even is not False:
            raise OptionError(f'even must be "drop", "pad" or False, not {even!r}')
        if self.num_rows < self.world_size > 1:
            raise OptionError(f"{n} rows cannot be shared by {world_size} ranks")
        self.even = even
        self._go_to(whole_number("epoch", epoch, 0), 0)

    # --- the order

    @abstractmethod
    def _order(self, places: Int64Array, epoch: int) -> Int64Array:
        """Which rows are at these places of the order that all ranks share."""

    @abstractmethod
    def _places(self, start: int, stop: int, position: int) -> Int64Array:
        """Where the samples of this rank are in it, if an iteration begins at ``position``."""

    @abstractmethod
    def _samples_from(self, position: int) -> int:
        """How many samples this rank has left there."""

    def indices(self, start: int, stop: int, *, epoch: int | None = None) -> Int64Array:
        """Samples ``start`` to ``stop`` of this rank in an epoch: this one, or any other."""
        start, stop = operator.index(start), operator.index(stop)
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"samples {start} to {stop} of {len(self)}")
        return self._computed(start, stop, self._epoch_or(epoch), 0)

    def index(self, k: int, *, epoch: int | None = None) -> int:
        """Sample ``k`` of this rank in an epoch."""
        k = operator.index(k)
        return int(self.indices(k, k + 1, epoch=epoch)[0])

    def _epoch_or(self, epoch: int | None) -> int:
        return self._epoch if epoch is None else whole_number("epoch", epoch, 0)

    def _computed(self, start: int, stop: int, epoch: int, position: int) -> Int64Array:
        places = self._places(start, stop, position)
        if self.even == "pad" and len(places):
            places %= self.num_rows
        return self._order(places, epoch)

    def __len__(self) -> int:
        """Samples of this rank in a whole epoch."""
        return self._samples_from(0)

    def __iter__(self) -> Iterator[int]:
        epoch, position = mine = self._running = (self._epoch, self._position)
        self._position, self._taken = 0, 0
        count = self._samples_from(position)
        for start in range(0, count, _AT_ONCE):
            stop = min(start + _AT_ONCE, count)
            found = self._computed(start, stop, epoch, position).tolist()
            for taken, index in enumerate(found, start + 1):
                if self._running is mine:
                    self._taken = taken
                yield index
        if self._running is mine:
            self._epoch, self._taken = epoch + 1, None

    # --- epochs and places

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration is of; behind a loader that reads ahead, maybe soon."""
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.set_epoch(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration. A place in this same epoch stays."""
        epoch = whole_number("epoch", epoch, 0)
        if epoch != self._epoch:
            self._go_to(epoch, 0)
        elif self._taken is None:  # what comes next is not of the last iteration
            self._running = epoch, self._position

    def seek(self, samples: int, *, epoch: int | None = None) -> None:
        """Let the next iteration, once, begin behind so many samples of this rank.

        A loader with workers asks for samples long before it hands them out: behind one, say what
        the training loop has taken, which is steps × batch_size.
        """
        samples = whole_number("samples", samples, 0)
        self._go_to(self._epoch_or(epoch), samples * self.world_size)

    def state_dict(self, samples: int | None = None) -> dict[str, Any]:
        """Where it is; the same on all ranks that are in step. After the last sample that is the
        start of the next epoch.

        ``samples``: what the training loop has taken of the last iteration, which is steps ×
        batch_size. Without it everything that was asked for counts, also by a loader that reads
        ahead. torchdata's StatefulDataLoader counts by itself.
        """
        epoch, position = self._running
        if samples is not None:
            position += whole_number("samples", samples, 0) * self.world_size
        elif self._taken is not None:
            position += self._taken * self.world_size
        else:
            epoch, position = self._epoch, self._position
        epoch, position = self._or_next_epoch(epoch, position)
        where = {"epoch": epoch, "position": position}
        return with_checksum({**where, **self._identity(), "ranks": self.world_size})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration, once, go on from a state of any rank that was in step with this.

        An iteration that only looks at a first batch uses it up: load the state again after it.
        """
        names = self.state_dict().keys()
        plain = state_of(state, self._identity(), names)
        try:
            epoch, position = (whole_number(name, plain[name], 0) for name in ("epoch", "position"))
        except OptionError as error:
            raise StateMismatchError(f"a damaged state: {error}") from None
        self._check_ranks(plain["ranks"])
        check_checksum(plain, names)
        self._go_to(epoch, position)

    def _identity(self) -> dict[str, Any]:
        """What a state has to agree in, the kind first."""
        return {"kind": self.kind, "seed": self.seed, "rows": self.num_rows}

    def _check_ranks(self, ranks: int) -> None:
        """Refuse the state of another number of ranks, where it cannot go on from it."""

    def _go_to(self, epoch: int, position: int) -> None:
        self._epoch, self._position = self._or_next_epoch(epoch, position)
        self._running, self._taken = (self._epoch, self._position), None

    def _or_next_epoch(self, epoch: int, position: int) -> tuple[int, int]:
        """Decided for all ranks alike, also where some have a sample left and others none."""
        step = self.world_size if self.even == "drop" else 1
        over = position > 0 and self.num_rows - position < step
        return (epoch + 1, 0) if over else (epoch, position)


class OneOfRanks(DistributedSampler[int]):
    """Tells frameworks that a sampler is of one of several ranks, so that they do not share out
    its samples a second time.

    Lightning leaves every DistributedSampler alone. Accelerate does not: it shares out the batches
    of any sampler, and has this one refused instead.
    """

    @property
    def generator(self) -> None:
        """What Accelerate looks for in the samplers whose batches it is about to share out."""
        raise OptionError(
            f"this sampler is of rank {self.rank} of {self.num_replicas}, and Accelerate shares "
            "out batches itself: give it a sampler without rank and world_size"
        )


def state_of(state: object, identity: Mapping[str, Any], names: AbstractSet[str]) -> dict[str, Any]:
    """Return the items with these names of a sampler's state, as JSON has them.

    Raises:
        StateMismatchError: It is the state of something else than ``identity`` says.
    """
    plain = plain_state(state, names)
    missing = names - plain.keys()
    if "kind" in missing or (missing and plain["kind"] == identity["kind"]):
        raise StateMismatchError(f"not a state of a sampler: it has only {list(plain)}")
    for name, mine in identity.items():
        if plain.get(name) != mine:
            raise StateMismatchError(f"the state has {name} {plain.get(name)}, and this {mine}")
    return plain


def whole_number(name: str, value: object, least: int | None = None) -> int:
    """Of any integer type: those of numpy are equal to Python's, but overflow."""
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        raise OptionError(f"{name} must be an int, not {value!r}")
    number = operator.index(value)
    if least is not None and number < least:
        raise OptionError(f"{name} must be an int of at least {least}, not {value!r}")
    return number
