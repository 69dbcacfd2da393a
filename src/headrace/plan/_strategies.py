"""The order of an epoch, from files to lanes.

``Order`` says what is permuted and how it is dealt: by a built-in strategy, or by one of the user's
own, whose splits are checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import index
from typing import Any

import numpy as np

from headrace.errors import OptionError, PlanError
from headrace.model import (
    ByteRange,
    DataFileInfo,
    FileList,
    FileSplit,
    RowRange,
    Split,
    SplitStrategy,
)
from headrace.options import check_int64_count, checked_keywords, parse_bytes
from headrace.plan._chunks import BYTES, ROWS, Chunks, cut_chunks
from headrace.plan._lanes import (
    Grouping,
    Plan,
    cut_evenly,
    deal_largest_first,
    deal_round_robin,
)
from headrace.plan.permutations import CHUNK_ORDER, permutation

DEFAULT_SPLIT_BYTES = 128 << 20
_AUTOMATIC = "automatic"
_MOST_LANES = 1 << 20
"""Number of lanes whose cursors a state can hold in reasonable memory."""


def plan_lanes(
    strategy: SplitStrategy, files: Sequence[DataFileInfo], *, lanes: int, epoch: int
) -> Plan:
    """Return the lanes of an epoch, checking those of a strategy that is not built in."""
    if not 1 <= lanes <= _MOST_LANES:
        raise OptionError(
            f"there must be from 1 to {_MOST_LANES:,} lanes, not {lanes:,}; choose a smaller "
            "lanes=, or, without it, fewer ranks or workers"
        )
    listed = files if isinstance(files, FileList) else FileList(files)
    made = strategy.generate(listed, lanes, epoch)
    if isinstance(made, Plan) and type(strategy) in _BUILT_IN:
        return made
    return _checked_plan(made, listed, lanes, type(strategy).__name__)


@checked_keywords
@dataclass(frozen=True, slots=True)
class EvenBatchesSplitStrategy:
    """Deals equal runs of whole batches, so that only the last batch of an epoch is short.

    Loaders use it where no ``split_strategy`` is given.

    Attributes:
        batch_size: Number of rows in a batch.
        split_bytes: Size of a chunk in bytes, where ``split_rows`` is not given.
        split_rows: Number of rows in a chunk.
        shuffle: If True, chunks are permuted.
        seed: The seed of the permutation.

    Examples:
        >>> files = [DataFileInfo("a", record_count=250), DataFileInfo("b", record_count=150)]
        >>> lanes = EvenBatchesSplitStrategy(batch_size=50).generate(files, 2, epoch=0)
        >>> [[str(chunk) for chunk in lane.file_splits] for lane in lanes]
        [['a, rows 0-200'], ['a, rows 200-250', 'b, rows 0-150']]
    """

    batch_size: int
    split_bytes: int | str = DEFAULT_SPLIT_BYTES
    split_rows: int | None = None
    shuffle: bool = False
    seed: int = 42

    def generate(self, files: Sequence[DataFileInfo], num_workers: int, epoch: int) -> Plan:
        """Cut files into chunks, permute them, deal them in runs of batches."""
        check_int64_count("batch_size", self.batch_size)
        listed, chunks = _ordered_chunks(self, files, epoch)
        return Plan.of(listed, *cut_evenly(chunks, num_workers, self.batch_size))


@checked_keywords
@dataclass(frozen=True, slots=True)
class TargetSizeSplitStrategy:
    """Deals chunks of about ``split_bytes``, the heaviest first, to the lane with the least.

    Attributes:
        split_bytes: Size of a chunk in bytes, where ``split_rows`` is not given.
        split_rows: Number of rows in a chunk.
        shuffle: If True, chunks are permuted.
        seed: The seed of the permutation.

    Examples:
        >>> files = [DataFileInfo("a", record_count=250), DataFileInfo("b", record_count=150)]
        >>> lanes = TargetSizeSplitStrategy(split_rows=100).generate(files, 2, epoch=0)
        >>> [lane.row_count for lane in lanes]
        [200, 200]
    """

    split_bytes: int | str = DEFAULT_SPLIT_BYTES
    split_rows: int | None = None
    shuffle: bool = False
    seed: int = 42

    def generate(self, files: Sequence[DataFileInfo], num_workers: int, epoch: int) -> Plan:
        """Cut files into chunks, permute them, balance them by rows (bytes where unknown)."""
        listed, chunks = _ordered_chunks(self, files, epoch)
        return deal_largest_first(listed, chunks, lanes=num_workers)


def _ordered_chunks(
    strategy: EvenBatchesSplitStrategy | TargetSizeSplitStrategy,
    files: Sequence[DataFileInfo],
    epoch: int,
) -> tuple[FileList, Chunks]:
    """Return the files as columns, and their chunks, permuted if the strategy says so."""
    listed = files if isinstance(files, FileList) else FileList(files)
    split_bytes = parse_bytes("split_bytes", strategy.split_bytes)
    chunks = cut_chunks(listed, split_bytes=split_bytes, split_rows=strategy.split_rows)
    if strategy.shuffle:
        order = permutation(len(chunks), seed=strategy.seed, epoch=epoch, purpose=CHUNK_ORDER)
        chunks = chunks[order]
    return listed, chunks


@checked_keywords
@dataclass(frozen=True, slots=True)
class RoundRobinSplitStrategy:
    """Deals whole files in turn, so that lanes have equal numbers of files.

    Attributes:
        shuffle: If True, files are permuted.
        seed: The seed of the permutation.

    Examples:
        >>> files = [DataFileInfo("a", record_count=250), DataFileInfo("b", record_count=150)]
        >>> lanes = RoundRobinSplitStrategy().generate(files, 2, epoch=0)
        >>> [[str(chunk) for chunk in lane.file_splits] for lane in lanes]
        [['a, rows 0-250'], ['b, rows 0-150']]
    """

    shuffle: bool = False
    seed: int = 42

    def generate(self, files: Sequence[DataFileInfo], num_workers: int, epoch: int) -> Plan:
        """Permute the files and give them to the lanes in turn."""
        listed = files if isinstance(files, FileList) else FileList(files)
        chunks = _file_chunks(listed)
        if self.shuffle:
            order = permutation(len(listed), seed=self.seed, epoch=epoch, purpose=CHUNK_ORDER)
            chunks = chunks[np.argsort(np.argsort(order)[chunks.file], kind="stable")]
        return deal_round_robin(listed, chunks, lanes=num_workers)


_BUILT_IN = (EvenBatchesSplitStrategy, TargetSizeSplitStrategy, RoundRobinSplitStrategy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The order of an epoch, as a function of files, seed and epoch.

    Attributes:
        batch_size: Number of rows in a batch.
        drop_last: True if the short batch at the end is left out.
        shuffle: True if chunks are permuted.
        seed: The seed of all permutations.
        split_bytes: Size of a chunk in bytes, where ``split_rows`` is not given.
        split_rows: Number of rows in a chunk.
        split_strategy: The user's own strategy to deal chunks to lanes.
        grouping: How the chunks of a lane form windows.
        lanes: Number of lanes, if the user has chosen it.
        automatic: True if the sizes of chunks and windows were chosen from files and memory.
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

    def plan(self, files: FileList, *, lanes: int, epoch: int, batch_size: int) -> Plan:
        """Return the lanes of an epoch from its start, for batches of any size."""
        strategy = self.split_strategy
        if strategy is None:
            strategy = EvenBatchesSplitStrategy(
                batch_size, self.split_bytes, self.split_rows, self.shuffle, self.seed
            )
        return plan_lanes(strategy, files, lanes=lanes, epoch=epoch).grouped(self.grouping)

    @property
    def has_own_strategy(self) -> bool:
        """True if the order is known only from the plan that ``split_strategy`` makes."""
        return type(self.split_strategy) not in (*_BUILT_IN, type(None))

    def describe(self) -> str:
        """Return what changes the order beside files, filters and seed, for fingerprints.

        The user's own strategy is only named: see ``has_own_strategy``.
        """
        grouping, strategy = self.grouping, self.split_strategy
        if self.automatic:
            rows, permuted = self.split_rows or 0, int(grouping.permuted)
            return f"{_AUTOMATIC} {rows} {self.split_bytes} {grouping.mix} {permuted}"
        way = f" mix {grouping.mix}" if grouping.mix > 1 else ""
        if grouping.interleave > 1:
            way = f" interleave {grouping.interleave}"
        if self.has_own_strategy:
            return f"{type(strategy).__name__}{way}"
        if isinstance(strategy, EvenBatchesSplitStrategy | TargetSizeSplitStrategy):
            size = parse_bytes("split_bytes", strategy.split_bytes)
            strategy = replace(strategy, split_bytes=size)
        if strategy is not None:
            return f"{strategy!r}{way}"
        cut = f"{self.split_rows}r" if self.split_rows else f"{self.split_bytes}b"
        return f"{'shuffled' if self.shuffle else 'in order'} {cut}{way}"

    def as_in(self, described: str) -> Order:
        """Return the order that a state describes, if sizes were chosen automatically in both.

        Another machine, or another number of workers, may have chosen other sizes.
        """
        word, *numbers = described.split(" ")
        if not self.automatic or word != _AUTOMATIC:
            return self
        rows, size, mix, permuted = map(int, numbers)
        grouping = Grouping(mix, permuted=bool(permuted))
        return replace(self, split_rows=rows or None, split_bytes=size, grouping=grouping)


def _file_chunks(files: FileList) -> Chunks:
    """Return one chunk for each file, or for each run of row groups that a filter left of it."""
    return cut_chunks(files, split_bytes=np.iinfo(np.int64).max // 4)


# --- strategies of users


def _checked_plan(splits: Sequence[Split], files: FileList, lanes: int, name: str) -> Plan:
    """Return the plan that splits describe, if together they have every row exactly once.

    Raises:
        PlanError: They do not; the message names the strategy, the file and the rows.
    """
    if not isinstance(splits, Sequence) or not all(isinstance(s, Split) for s in splits):
        raise PlanError(f"{name}.generate must return a list of Split, got {splits!r:.200}")
    if len(splits) > lanes:
        raise PlanError(f"{name}.generate returned {len(splits)} splits for {lanes} lanes")
    whole = _file_chunks(files)
    runs = np.searchsorted(whole.file, np.arange(len(files) + 1))
    numbers = {path: number for number, path in enumerate(files.paths)}
    found: list[Chunks] = [Chunks.empty()]
    counts = [0] * lanes
    for lane, split in enumerate(splits):
        held: Any = split.file_splits
        if not isinstance(held, Iterable):
            raise PlanError(f"{name}: split {split.id} holds {held!r:.200}, not a list")
        for chunk in held:
            if not isinstance(chunk, FileSplit) or not isinstance(chunk.file, DataFileInfo):
                raise PlanError(
                    f"{name}: split {split.id} holds {chunk!r:.200}, not a FileSplit of a "
                    "DataFileInfo"
                )
            number = numbers.get(chunk.file.path)
            if number is None:
                raise PlanError(f"{name}: {chunk.file.path} is not a file of the data set")
            part = _bounded(chunk, files, number, whole[runs[number] : runs[number + 1]], name)
            found.append(part)
            counts[lane] += len(part)
    chunks = Chunks.concat(found)
    _check_coverage(files, whole, chunks, name)
    return Plan.of(files, chunks, np.cumsum([0, *counts]))


def _bounded(chunk: FileSplit, files: FileList, number: int, whole: Chunks, name: str) -> Chunks:
    """Return a chunk as columns; without a range it is everything to read of the file."""
    given = [one for one in (chunk.row_range, chunk.byte_range) if one is not None]
    if not given:
        return whole
    path, kind = chunk.file.path, int(whole.kind[0]) if len(whole) else ROWS
    wanted = {ROWS: RowRange, BYTES: ByteRange}.get(kind)
    try:
        offset, length = index(given[0].offset), index(given[0].length)
    except (AttributeError, TypeError):
        offset, length = -1, -1
    is_range = offset >= 0 and length >= 0 and offset + length < 1 << 63
    if wanted is None or [*map(type, given)] != [wanted] or not is_range:
        known = "no range" if wanted is None else f"one {wanted.__name__} of integers from 0 on"
        raise PlanError(
            f"{name}: {path} is read by {known}, not {chunk.row_range!r:.200} and "
            f"{chunk.byte_range!r:.200}"
        )
    size = length
    if kind == ROWS:
        size = int(max(files.sizes[number], 0) * (length / max(files.counts[number], length, 1)))
    file, start, rows, stored = np.array([[number], [offset], [length], [size]], np.int64)
    made = Chunks(file, start, rows, np.array([kind], np.int8), stored)
    return made[: 1 if length else 0]


def _check_coverage(files: FileList, whole: Chunks, chunks: Chunks, name: str) -> None:
    """Raise a PlanError unless the chunks hold every row to read of all files, once."""
    ordered = chunks[np.lexsort((chunks.offset, chunks.file))]
    ranges: dict[int, list[tuple[int, int]]] = {}
    stops = (ordered.offset + ordered.length).tolist()
    for number, start, stop in zip(
        ordered.file.tolist(), ordered.offset.tolist(), stops, strict=True
    ):
        ranges.setdefault(number, []).append((start, stop))
    for run in range(len(whole)):
        number, unit = int(whole.file[run]), "rows" if whole.kind[run] == ROWS else "bytes"
        path, given = files.paths[number], ranges.get(number, [])
        for (_, stop), (start, end) in pairwise(given):
            if start < stop:
                raise PlanError(f"{name} repeats {unit} {start}-{min(stop, end)} of {path}")
        at, end = int(whole.offset[run]), int(whole.offset[run] + whole.length[run])
        for start, stop in given:
            if start <= at < stop:
                at = stop
        if at < end:
            gap = min([start for start, _ in given if start > at] + [end])
            raise PlanError(f"{name} loses {unit} {at}-{gap} of {path}")
        limit = int(files.counts[number] if unit == "rows" else files.sizes[number])
        if given and 0 <= limit < given[-1][1]:
            raise PlanError(f"{name} reads {unit} up to {given[-1][1]} of {limit} of {path}")
