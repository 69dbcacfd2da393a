"""Samplers whose order is arithmetic: any place of any epoch is computed when it is asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from headrace.access.backend import Backend
from headrace.access.rows.dataset import RowDataset
from headrace.access.sampling import OneOfRanks, ShuffleSampler
from headrace.errors import OptionError, StateMismatchError
from headrace.model import Int64Array
from headrace.options import checked_keywords
from headrace.plan.feistel import IndexPermutation

__all__ = ["GlobalShuffleSampler", "ShardShuffleSampler"]


@checked_keywords
class GlobalShuffleSampler(ShuffleSampler):
    """Every row once an epoch, in an order at random over all of them, in constant memory.

    Of the order of an epoch rank r of R takes the places r, r + R, …, so that all ranks together
    go through it in step. ``even``: each of them has the same number of samples, the last few rows
    left out ("drop") or the first ones repeated ("pad"); False leaves it uneven. A state is one
    number, and goes on with any number of ranks.
    """

    kind = "global"

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
        if type(self) is GlobalShuffleSampler and self.world_size > 1:
            self.__class__ = _GlobalOfRank

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


@checked_keywords
class ShardShuffleSampler(ShuffleSampler):
    """Shard after shard in an order at random, and the rows of each in another, every epoch.

    For data of which a shard is dear to open or to hold. ``shards`` is a backend, all the rows of
    one, or how many rows each shard has. Rank r of R takes the r-th of R equal runs of this order,
    so that a shard belongs to one rank or two; a state goes on with the same number of ranks.
    ``even`` is as in GlobalShuffleSampler.
    """

    kind = "shards"

    def __init__(
        self,
        shards: Backend | RowDataset | Sequence[int],
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        *,
        epoch: int = 0,
        even: str | bool = "drop",
    ) -> None:
        self._counts = _rows_by_shard(shards)
        self._starts = np.cumsum(self._counts) - self._counts
        self._known: tuple[int, Int64Array, Int64Array] | None = None
        super().__init__(int(self._counts.sum()), seed, rank, world_size, epoch, even)
        if type(self) is ShardShuffleSampler and self.world_size > 1:
            self.__class__ = _ShardsOfRank

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

    def _identity(self) -> dict[str, Any]:
        counts = hashlib.sha256(self._counts.astype("<i8").tobytes()).hexdigest()[:16]
        return {**super()._identity(), "shards": counts, "even": self.even}

    def _check_ranks(self, ranks: int) -> None:
        if ranks != self.world_size:
            raise StateMismatchError(
                f"the state is of {ranks} ranks, and runs of shards are dealt to "
                f"{self.world_size} here: go on with as many, or from the next epoch"
            )


class _GlobalOfRank(GlobalShuffleSampler, OneOfRanks):
    pass


class _ShardsOfRank(ShardShuffleSampler, OneOfRanks):
    pass


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
    """Kept for what they hold: keys, or a short table."""
    return IndexPermutation(count, seed, epoch, part)
