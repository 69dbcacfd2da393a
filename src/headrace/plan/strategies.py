"""The built-in ways from files to lanes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.model import DataFileInfo, FileList, SplitStrategy
from headrace.options import checked_keywords, parse_bytes
from headrace.plan.chunks import Chunks, cut_chunks
from headrace.plan.lanes import LanePlan, deal_batches, deal_largest_first, deal_round_robin
from headrace.plan.order import CHUNK_ORDER, permutation
from headrace.plan.validate import checked_plan

__all__ = [
    "EvenBatchesSplitStrategy",
    "RoundRobinSplitStrategy",
    "TargetSizeSplitStrategy",
    "describe_strategy",
    "plan_lanes",
    "same_in_every_epoch",
]

DEFAULT_SPLIT_BYTES = 128 << 20


def plan_lanes(
    strategy: SplitStrategy, files: Sequence[DataFileInfo], *, lanes: int, epoch: int
) -> LanePlan:
    """The lanes of an epoch; those of a strategy that is not built in are checked row by row."""
    listed = files if isinstance(files, FileList) else FileList(files)
    made = strategy.generate(listed, lanes, epoch)
    if isinstance(made, LanePlan) and type(strategy) in _BUILT_IN:
        return made
    return checked_plan(made, listed, lanes, strategy)


@checked_keywords
@dataclass(frozen=True, slots=True)
class EvenBatchesSplitStrategy:
    """The default: equal runs of whole batches, so that only the epoch's last batch is short."""

    batch_size: int
    split_bytes: int | str = DEFAULT_SPLIT_BYTES
    split_rows: int | None = None
    shuffle: bool = False
    seed: int = 42

    def generate(self, files: Sequence[DataFileInfo], num_workers: int, epoch: int) -> LanePlan:
        """Cut files into chunks, permute them, deal them in runs of batches."""
        listed, chunks = _ordered_chunks(self, files, epoch)
        return deal_batches(listed, chunks, lanes=num_workers, batch_size=self.batch_size)


@checked_keywords
@dataclass(frozen=True, slots=True)
class TargetSizeSplitStrategy:
    """Chunks of about ``split_bytes``, the heaviest given first to the lane with the least."""

    split_bytes: int | str = DEFAULT_SPLIT_BYTES
    split_rows: int | None = None
    shuffle: bool = False
    seed: int = 42

    def generate(self, files: Sequence[DataFileInfo], num_workers: int, epoch: int) -> LanePlan:
        """Cut files into chunks, permute them, balance them by rows (bytes where unknown)."""
        listed, chunks = _ordered_chunks(self, files, epoch)
        return deal_largest_first(listed, chunks, lanes=num_workers)


@checked_keywords
@dataclass(frozen=True, slots=True)
class RoundRobinSplitStrategy:
    """Whole files in turn: lanes with equal numbers of files."""

    shuffle: bool = False
    seed: int = 42

    def generate(self, files: Sequence[DataFileInfo], num_workers: int, epoch: int) -> LanePlan:
        """Permute the files and give them to the lanes in turn."""
        listed = files if isinstance(files, FileList) else FileList(files)
        chunks = _permuted(_file_chunks(listed), self.shuffle, self.seed, epoch, listed)
        return deal_round_robin(listed, chunks, lanes=num_workers)


_BUILT_IN = (EvenBatchesSplitStrategy, TargetSizeSplitStrategy, RoundRobinSplitStrategy)


def describe_strategy(strategy: SplitStrategy) -> str | None:
    """Return a built-in strategy with all that decides its lanes; None for a user's own one."""
    if type(strategy) not in _BUILT_IN:
        return None
    if isinstance(strategy, EvenBatchesSplitStrategy | TargetSizeSplitStrategy):
        strategy = replace(strategy, split_bytes=parse_bytes("split_bytes", strategy.split_bytes))
    return repr(strategy)


def same_in_every_epoch(strategy: SplitStrategy) -> bool:
    """Whether lanes are known not to depend on the epoch."""
    return isinstance(strategy, _BUILT_IN) and type(strategy) in _BUILT_IN and not strategy.shuffle


def _ordered_chunks(
    strategy: EvenBatchesSplitStrategy | TargetSizeSplitStrategy,
    files: Sequence[DataFileInfo],
    epoch: int,
) -> tuple[FileList, Chunks]:
    listed = files if isinstance(files, FileList) else FileList(files)
    split_bytes = parse_bytes("split_bytes", strategy.split_bytes)
    chunks = cut_chunks(listed, split_bytes=split_bytes, split_rows=strategy.split_rows)
    return listed, _permuted(chunks, strategy.shuffle, strategy.seed, epoch, None)


def _file_chunks(files: FileList) -> Chunks:
    """One chunk a file, or one for each run of row groups that a filter left of it."""
    return cut_chunks(files, split_bytes=np.iinfo(np.int64).max // 4)


def _permuted(
    chunks: Chunks, shuffle: bool, seed: int, epoch: int, whole_files: FileList | None
) -> Chunks:
    if not shuffle:
        return chunks
    if whole_files is None:
        return chunks[permutation(len(chunks), seed=seed, epoch=epoch, purpose=CHUNK_ORDER)]
    place = permutation(len(whole_files), seed=seed, epoch=epoch, purpose=CHUNK_ORDER)
    return chunks[np.argsort(np.argsort(place)[chunks.file], kind="stable")]
