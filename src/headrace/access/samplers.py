"""Samplers whose order is arithmetic: any place of any epoch is computed when it is asked for."""

from __future__ import annotations

import hashlib
import operator
from abc import abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Self

import numpy as np
from torch.utils.data import DistributedSampler

from headrace.access.backend import Backend
from headrace.access.rows.dataset import RowDataset
from headrace.access.sampling import ResumableSampler, whole_number
from headrace.errors import OptionError
from headrace.model import Int64Array
from headrace.options import checked_keywords
from headrace.plan import State
from headrace.plan.permutations import IndexPermutation

__all__ = ["GlobalShuffleSampler", "ShardShuffleSampler"]


class ShuffleSampler(ResumableSampler[int]):
    """Every row once an epoch, in an order that all ranks share."""

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Make a DistributedSampler of a sampler of several ranks.

        Lightning replaces the sampler of any other class by one that shares out its samples.
        """
        world_size = args[3] if len(args) > 3 else options.get("world_size", 1)
        return super().__new__(cls if world_size == 1 else _DISTRIBUTED.get(cls, cls))

    def __init__(
        self, n: int, seed: int, rank: int, world_size: int, epoch: int, even: str | bool
    ) -> None:
        self.num_rows = whole_number("n", n, 0)
        if even not in ("drop", "pad") and even is not False:
            raise OptionError(f'even must be "drop", "pad" or False, not {even!r}')
        self.even = even
        super().__init__(seed, rank, world_size, epoch, even or "")
        if self.num_rows < self.world_size > 1:
            raise OptionError(f"{n} rows cannot be shared by {world_size} ranks")

    @abstractmethod
    def _order(self, places: Int64Array, epoch: int) -> Int64Array:
        """Return the rows at these places of the order that all ranks share."""

    @abstractmethod
    def _places(self, start: int, stop: int, taken: int) -> Int64Array:
        """Return the places of samples of this rank, if ranks share what is behind ``taken``."""

    def indices(self, start: int, stop: int, *, epoch: int | None = None) -> Int64Array:
        """Return the samples ``start`` to ``stop`` of this rank in an epoch, or in this one."""
        start, stop = operator.index(start), operator.index(stop)
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"samples {start} to {stop} of {len(self)}")
        return self._rows(start, stop, self._epoch_or(epoch), 0)

    def index(self, k: int, *, epoch: int | None = None) -> int:
        """Return sample ``k`` of this rank in an epoch."""
        k = operator.index(k)
        return int(self.indices(k, k + 1, epoch=epoch)[0])

    def _computed(self, state: State, start: int, stop: int) -> list[int]:
        rows: list[int] = self._rows(start, stop, state.epoch, state.stage.taken).tolist()
        return rows

    def _rows(self, start: int, stop: int, epoch: int, taken: int) -> Int64Array:
        places = self._places(start, stop, taken)
        if self.even == "pad" and len(places):
            places %= self.num_rows
        return self._order(places, epoch)

    def _is_over(self, state: State) -> bool:
        least = self.world_size if self.even == "drop" else 1
        return state.taken > 0 and self.num_rows - state.taken < least

    def seek(self, samples: int, *, epoch: int | None = None) -> None:
        """Let the next iteration, once, begin behind so many samples of this rank.

        A loader with workers asks for samples long before it hands them out: behind one, say what
        the training loop has taken, which is steps × batch_size.
        """
        self._seek(whole_number("samples", samples, 0), epoch)

    def state_dict(self, samples: int | None = None) -> dict[str, Any]:
        """Return where it is, as JSON. After the last sample that is the start of the next epoch.

        Args:
            samples: What the training loop has taken of the last iteration, which is steps ×
                batch_size. Without it everything that was asked for counts, also by a loader that
                reads ahead. torchdata's StatefulDataLoader counts by itself.
        """
        if samples is not None:
            samples = whole_number("samples", samples, 0)
        return self.as_json(self._position(samples))


@checked_keywords
class GlobalShuffleSampler(ShuffleSampler):
    """Every row once an epoch, in an order at random over all of them, in constant memory.

    Of the order of an epoch rank r of R takes the places r, r + R, …, so that all ranks together
    go through it in step. ``even``: each of them has the same number of samples, the last few rows
    left out ("drop") or the first ones repeated ("pad"); False leaves it uneven. Any number of
    ranks goes on from a state.
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

    def _describe(self) -> str:
        return f"global shuffle of {self.num_rows} rows"

    def _order(self, places: Int64Array, epoch: int) -> Int64Array:
        return _permutation(self.num_rows, self.seed, epoch).at(places)

    def _places(self, start: int, stop: int, taken: int) -> Int64Array:
        places = np.arange(start, stop, dtype=np.int64)
        places *= self.world_size
        places += taken + self.rank
        return places

    def _steps_from(self, state: State) -> int:
        left = max(self.num_rows - state.stage.taken, 0)
        if self.even is False:
            left += self.world_size - 1 - self.rank
        elif self.even == "pad":
            left += self.world_size - 1
        return left // self.world_size


@checked_keywords
class ShardShuffleSampler(ShuffleSampler):
    """Shard after shard in an order at random, and the rows of each in another, every epoch.

    For data whose shards are expensive to open or to hold. ``shards`` is a backend, all the rows of
    one, or the number of rows of each shard. Rank r of R takes the r-th of R equal runs of this
    order, so that a shard belongs to one rank or two; in the middle of an epoch only the same
    number of ranks goes on from a state. ``even`` is as in GlobalShuffleSampler. With
    ``within_shard="sequential"`` the rows of a shard stay in their own order.
    """

    _dealt_in_turn = False

    def __init__(
        self,
        shards: Backend | RowDataset | Sequence[int],
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        *,
        epoch: int = 0,
        even: str | bool = "drop",
        within_shard: str = "random",
    ) -> None:
        if within_shard not in ("random", "sequential"):
            raise OptionError(
                f'within_shard must be "random" or "sequential", not {within_shard!r}'
            )
        self._mixes = within_shard == "random"
        self._counts = _rows_by_shard(shards)
        self._starts = np.cumsum(self._counts) - self._counts
        self._known: tuple[int, Int64Array, Int64Array] | None = None
        super().__init__(int(self._counts.sum()), seed, rank, world_size, epoch, even)

    def _describe(self) -> str:
        counts = hashlib.sha256(self._counts.astype("<i8").tobytes()).hexdigest()[:16]
        kind = "shuffle" if self._mixes else "sequential shuffle"
        return f"{kind} of {len(self._counts)} shards {counts} even {self.even}"

    def _order(self, places: Int64Array, epoch: int) -> Int64Array:
        order, ends = self._dealt(epoch)
        turns = np.searchsorted(ends, places, side="right")
        rows = np.empty_like(places)
        for turn in np.unique(turns).tolist():
            shard, here = int(order[turn]), turns == turn
            count = int(self._counts[shard])
            within = places[here] - (int(ends[turn]) - count)
            if self._mixes:
                within = _permutation(count, self.seed, epoch, 1 + shard).at(within)
            rows[here] = self._starts[shard] + within
        return rows

    def _dealt(self, epoch: int) -> tuple[Int64Array, Int64Array]:
        """Return the order of shards, and where each of them ends in that of their rows."""
        if self._known is None or self._known[0] != epoch:
            order = IndexPermutation(len(self._counts), self.seed, epoch)[:]
            self._known = epoch, order, np.cumsum(self._counts[order])
        return self._known[1:]

    def _places(self, start: int, stop: int, taken: int) -> Int64Array:
        return np.arange(start, stop, dtype=np.int64) + self._run[0]

    def _steps_from(self, state: State) -> int:
        first, behind = self._run
        return max(behind - first, 0)

    @property
    def _run(self) -> tuple[int, int]:
        """Where the run of this rank begins and ends; one that is padded goes on at the start."""
        rank, ranks = self.rank, self.world_size
        if self.even is False:
            return self.num_rows * rank // ranks, self.num_rows * (rank + 1) // ranks
        size = -(-self.num_rows // ranks) if self.even == "pad" else self.num_rows // ranks
        return rank * size, (rank + 1) * size


class _GlobalOfRank(GlobalShuffleSampler, DistributedSampler[int]):
    pass


class _ShardsOfRank(ShardShuffleSampler, DistributedSampler[int]):
    pass


_DISTRIBUTED: dict[type, type] = {
    GlobalShuffleSampler: _GlobalOfRank,
    ShardShuffleSampler: _ShardsOfRank,
}
"""the classes of samplers of several ranks"""


def _rows_by_shard(shards: Any) -> Int64Array:
    if isinstance(shards, RowDataset):
        if len(shards) != shards.backend.num_rows:
            raise OptionError(
                f"a view of {len(shards)} of {shards.backend.num_rows} rows has no shards: "
                "give the rows of which it is a view"
            )
        shards = shards.backend
    given = np.asarray(getattr(shards, "shard_rows", shards))
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise TypeError(
            "shards must be a backend with shard_rows, all the rows of one, or how many rows each "
            f"shard has, not {shards!r}"
        )
    if given.size and int(given.min()) < 0:
        raise OptionError(f"a shard cannot have {int(given.min())} rows")
    return given.astype(np.int64)


@lru_cache(maxsize=16)
def _permutation(count: int, seed: int, epoch: int, part: int = 0) -> IndexPermutation:
    """Return a permutation, kept because it holds keys or a short table."""
    return IndexPermutation(count, seed, epoch, part)
