"""The order of an epoch: what is permuted, and how it is dealt to lanes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.model import FileList, SplitStrategy
from headrace.plan.lanes import Grouping, LanePlan
from headrace.plan.strategies import (
    EvenBatchesSplitStrategy,
    describe_strategy,
    plan_lanes,
    same_in_every_epoch,
)

__all__ = ["Order"]

_AUTOMATIC = "automatic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The order of an epoch, as a function of files, seed and epoch.

    Attributes:
        batch_size: Number of rows in a batch.
        drop_last: Whether the short batch at the end is left out.
        shuffle: Whether chunks are permuted.
        seed: The seed of all permutations.
        split_bytes: Size of a chunk in bytes, where ``split_rows`` is not given.
        split_rows: Number of rows in a chunk.
        split_strategy: The user's own way to deal chunks to lanes.
        grouping: How the chunks of a lane form windows.
        lanes: Number of lanes, if the user has chosen it.
        automatic: Whether chunks and windows were chosen from files and memory.
    """

    batch_size: int
    drop_last: bool
    shuffle: bool
    seed: int
    split_bytes: int
    split_rows: int | None
    split_strategy: SplitStrategy | None
    grouping: Grouping
    lanes: int | None
    automatic: bool = False

    def plan(self, files: FileList, *, lanes: int, epoch: int, batch_size: int) -> LanePlan:
        """Return the lanes of an epoch from its start, for batches of any size."""
        strategy = self.split_strategy
        if strategy is None:
            strategy = EvenBatchesSplitStrategy(
                batch_size, self.split_bytes, self.split_rows, self.shuffle, self.seed
            )
        return plan_lanes(strategy, files, lanes=lanes, epoch=epoch).grouped(self.grouping)

    @property
    def same_in_every_epoch(self) -> bool:
        """Whether chunks and lanes are the same in every epoch."""
        strategy = self.split_strategy
        return not self.shuffle if strategy is None else same_in_every_epoch(strategy)

    @property
    def deals_evenly(self) -> bool:
        """Whether lanes get equal numbers of batches, to one."""
        return isinstance(self.split_strategy, EvenBatchesSplitStrategy | None)

    @property
    def has_own_strategy(self) -> bool:
        """Whether only the plan of ``split_strategy`` tells what order it makes."""
        strategy = self.split_strategy
        return strategy is not None and describe_strategy(strategy) is None

    def describe(self) -> str:
        """Return all that changes the order beside files, filters and seed, for fingerprints.

        A strategy of the user's own is only named: see ``has_own_strategy``.
        """
        grouping, strategy = self.grouping, self.split_strategy
        if self.automatic:
            rows, permuted = self.split_rows or 0, int(grouping.permuted)
            return f"{_AUTOMATIC} {rows} {self.split_bytes} {grouping.mix} {permuted}"
        way = f" mix {grouping.mix}" if grouping.mix > 1 else ""
        if grouping.interleave > 1:
            way = f" interleave {grouping.interleave}"
        if strategy is not None:
            return f"{describe_strategy(strategy) or type(strategy).__name__}{way}"
        cut = f"{self.split_rows}r" if self.split_rows else f"{self.split_bytes}b"
        return f"{'shuffled' if self.shuffle else 'in order'} {cut}{way}"

    def as_in(self, described: str) -> Order:
        """Return the order that a state describes, if both chose their sizes automatically.

        Another machine, or another number of workers, may have chosen other sizes.
        """
        word, *numbers = described.split(" ")
        if not self.automatic or word != _AUTOMATIC:
            return self
        rows, size, mix, permuted = map(int, numbers)
        grouping = Grouping(mix, permuted=bool(permuted))
        return replace(self, split_rows=rows or None, split_bytes=size, grouping=grouping)
