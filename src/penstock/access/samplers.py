"""Samplers whose order is arithmetic: any place of any epoch is computed when it is asked for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from penstock.access.backend import Backend
from penstock.errors import OptionError, StateMismatchError
from penstock.model import Int64Array
from penstock.plan.feistel import IndexPermutation

__all__ = ["GlobalShuffleSampler", "ShardShuffleSampler"]

_AT_ONCE = 1 << 13
"""indices that are computed together while they are handed out one by one"""


class _ShuffleSampler(Sampler[int]):
    """What both samplers have in common: ranks, epochs, and a place to go on from.

    An iteration that comes to its end goes on to the next epoch; ``set_epoch`` chooses one.
    """

    def __init__(
        self, n: int, seed: int, rank: int, world_size: int, epoch: int, even: str | bool
    ) -> None:
        super().__init__()
        _check_int("n", n, 0)
        _check_int("seed", seed)
        _check_int("world_size", world_size, 1)
        _check_int("rank", rank, 0)
        _check_int("epoch", epoch, 0)
        if rank >= world_size:
            raise OptionError(f"rank {rank} of {world_size}: ranks count from 0")
        if even not in ("drop", "pad") and even is not False:
            raise OptionError(f'even must be "drop", "pad" or False, not {even!r}')
        if n < world_size > 1:
            raise OptionError(f"{n} rows cannot be shared by {world_size} ranks")
        self.num_rows, self.seed, self.rank, self.world_size = n, seed, rank, world_size
        self.even = even
        self._epoch = epoch
        self._position = 0  # of the next iteration, as in a state
        self._running = (epoch, 0)  # where the last iteration began
        self._taken: int | None = None  # what it has handed out; None: it has not begun, or ended

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
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"samples {start} to {stop} of {len(self)}")
        return self._computed(start, stop, self._epoch if epoch is None else epoch, 0)

    def index(self, k: int, *, epoch: int | None = None) -> int:
        """Sample ``k`` of this rank in an epoch."""
        return int(self.indices(k, k + 1, epoch=epoch)[0])

    def _computed(self, start: int, stop: int, epoch: int, position: int) -> Int64Array:
        places = self._places(start, stop, position)
        if self.even == "pad" and len(places):
            places %= self.num_rows
        return self._order(places, epoch)

    def __len__(self) -> int:
        """Samples of this rank in a whole epoch."""
        return self._samples_from(0)

    def __iter__(self) -> Iterator[int]:
        epoch, position = self._running = (self._epoch, self._position)
        self._position, self._taken = 0, 0
        count = self._samples_from(position)
        for start in range(0, count, _AT_ONCE):
            stop = min(start + _AT_ONCE, count)
            found = self._computed(start, stop, epoch, position).tolist()
            for taken, index in enumerate(found, start + 1):
                self._taken = taken
                yield index
        if self._running == (epoch, position) and self._epoch == epoch:
            self._epoch, self._taken = epoch + 1, None

    # --- epochs and places

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration is of; behind a loader that reads ahead, maybe soon."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration. A place in this same epoch stays."""
        _check_int("epoch", epoch, 0)
        if epoch != self._epoch:
            self._epoch, self._position, self._taken = epoch, 0, None

    def seek(self, samples: int, *, epoch: int | None = None) -> None:
        """Let the next iteration begin behind so many samples of this rank.

        A loader with workers asks for samples long before it hands them out: behind one, say what
        the training loop has taken, which is steps × batch_size.
        """
        _check_int("samples", samples, 0)
        self._go_to(self._epoch if epoch is None else epoch, samples * self.world_size)

    def state_dict(self, samples: int | None = None) -> dict[str, int]:
        """Where it is; the same on all ranks that are in step.

        ``samples``: what the training loop has taken of the last iteration, which is steps ×
        batch_size. Without it everything that was asked for counts, also by a loader that reads
        ahead. torchdata's StatefulDataLoader counts by itself.
        """
        epoch, position = self._running
        if samples is not None:
            position += samples * self.world_size
        elif self._taken is not None:
            position += self._taken * self.world_size
        else:
            epoch, position = self._epoch, self._position
        return {
            "epoch": epoch,
            "position": position,
            "seed": self.seed,
            "rows": self.num_rows,
            "ranks": self.world_size,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on from a state, of any rank that was in step with this one."""
        if not self.state_dict().keys() <= state.keys():
            raise StateMismatchError(f"not a state of a sampler: it has only {list(state)}")
        for name, mine in (("seed", self.seed), ("rows", self.num_rows)):
            if state[name] != mine:
                raise StateMismatchError(f"the state has {name} {state[name]}, and this {mine}")
        self._check_ranks(state["ranks"])
        self._go_to(state["epoch"], state["position"])

    def _check_ranks(self, ranks: int) -> None:
        """Refuse the state of another number of ranks, where it cannot go on from it."""

    def _go_to(self, epoch: int, position: int) -> None:
        if position > 0 and self._samples_from(position) == 0:  # that epoch is over
            epoch, position = epoch + 1, 0
        self._epoch, self._position, self._taken = epoch, position, None


class GlobalShuffleSampler(_ShuffleSampler):
    """Every row once an epoch, in an order at random over all of them, in constant memory.

    Of the order of an epoch rank r of R takes the places r, r + R, …, so that all ranks together
    go through it in step. ``even``: each of them has the same number of samples, the last few rows
    left out ("drop") or the first ones repeated ("pad"); False leaves it uneven. A state is one
    number, and goes on with any number of ranks.
    """

    def __init__(
        self,
        n: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        *,
        epoch: int = 0,
        even: str | bool = "drop",
    ) -> None:
        super().__init__(n, seed, rank, world_size, epoch, even)

    def _order(self, places: Int64Array, epoch: int) -> Int64Array:
        return _permutation(self.num_rows, self.seed, epoch).at(places)

    def _places(self, start: int, stop: int, position: int) -> Int64Array:
        places = np.arange(start, stop, dtype=np.int64)
        places *= self.world_size
        places += position + self.rank
        return places

    def _samples_from(self, position: int) -> int:
        left = max(self.num_rows - position, 0)
        if self.even is False:
            left += self.world_size - 1 - self.rank
        elif self.even == "pad":
            left += self.world_size - 1
        return left // self.world_size


class ShardShuffleSampler(_ShuffleSampler):
    """Shard after shard in an order at random, and the rows of each in another, every epoch.

    For data of which a shard is dear to open or to hold. ``shards`` is a backend, or how many rows
    each shard has. Rank r of R takes the r-th of R equal runs of this order, so that a shard
    belongs to one rank or two; a state goes on with the same number of ranks. ``even`` is as in
    GlobalShuffleSampler.
    """

    def __init__(
        self,
        shards: Backend | Sequence[int],
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        *,
        epoch: int = 0,
        even: str | bool = "drop",
    ) -> None:
        given = shards.shard_rows if isinstance(shards, Backend) else shards
        self._counts = np.asarray(given, np.int64).reshape(-1)
        if len(self._counts) and int(self._counts.min()) < 0:
            raise OptionError(f"a shard cannot have {int(self._counts.min())} rows")
        self._starts = np.cumsum(self._counts) - self._counts
        self._known: tuple[int, Int64Array, Int64Array] | None = None
        super().__init__(int(self._counts.sum()), seed, rank, world_size, epoch, even)

    def _order(self, places: Int64Array, epoch: int) -> Int64Array:
        order, ends = self._dealt(epoch)
        turns = np.searchsorted(ends, places, side="right")
        rows = np.empty_like(places)
        for turn in np.unique(turns).tolist():
            shard, here = int(order[turn]), turns == turn
            count = int(self._counts[shard])
            within = places[here] - (int(ends[turn]) - count)
            mixed = _permutation(count, self.seed, epoch, 1 + shard).at(within)
            rows[here] = self._starts[shard] + mixed
        return rows

    def _dealt(self, epoch: int) -> tuple[Int64Array, Int64Array]:
        """The order of shards, and where each of them ends in that of their rows."""
        if self._known is None or self._known[0] != epoch:
            order = IndexPermutation(len(self._counts), self.seed, epoch)[:]
            self._known = epoch, order, np.cumsum(self._counts[order])
        return self._known[1:]

    def _places(self, start: int, stop: int, position: int) -> Int64Array:
        taken = position // self.world_size
        return np.arange(start, stop, dtype=np.int64) + (self._run[0] + taken)

    def _samples_from(self, position: int) -> int:
        first, behind = self._run
        return max(behind - first - position // self.world_size, 0)

    @property
    def _run(self) -> tuple[int, int]:
        """Where the run of this rank begins and ends; one that is padded goes on at the start."""
        rank, ranks = self.rank, self.world_size
        if self.even is False:
            return self.num_rows * rank // ranks, self.num_rows * (rank + 1) // ranks
        size = -(-self.num_rows // ranks) if self.even == "pad" else self.num_rows // ranks
        return rank * size, (rank + 1) * size

    def _check_ranks(self, ranks: int) -> None:
        if ranks != self.world_size:
            raise StateMismatchError(
                f"the state is of {ranks} ranks, and runs of shards are dealt to "
                f"{self.world_size} here: go on with as many, or from the next epoch"
            )


@lru_cache(maxsize=16)
def _permutation(count: int, seed: int, epoch: int, part: int = 0) -> IndexPermutation:
    """Kept for what they hold: keys, or a short table."""
    return IndexPermutation(count, seed, epoch, part)


def _check_int(name: str, value: object, least: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise OptionError(f"{name} must be an int, not {value!r}")
    if least is not None and value < least:
        raise OptionError(f"{name} must be an int of at least {least}, not {value!r}")
