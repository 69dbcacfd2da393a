"""From files to lanes: the built-in strategies, and a check of what a user's own one returns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import index

import numpy as np

from headrace.errors import PlanError
from headrace.model import (
    ByteRange,
    DataFileInfo,
    FileList,
    FileSplit,
    Int64Array,
    RowRange,
    Split,
    SplitStrategy,
)
from headrace.options import checked_keywords, parse_bytes
from headrace.plan.chunks import BYTES, ROWS, WHOLE, Chunks, cut_chunks, share_of
from headrace.plan.lanes import LanePlan, deal_batches, deal_largest_first, deal_round_robin
from headrace.plan.permutations import CHUNK_ORDER, permutation

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


# --- strategies of users


_Piece = tuple[int, int, int, int]  # file index, offset, length, kind
_Extent = list[tuple[int, int, int]]  # runs (offset, length, kind): all there is to read of a file


def checked_plan(
    splits: Sequence[Split], files: FileList, lanes: int, strategy: object
) -> LanePlan:
    """The plan that ``splits`` describe, or a PlanError that names the file and rows at fault."""
    name = type(strategy).__name__
    if not isinstance(splits, Sequence) or not all(isinstance(s, Split) for s in splits):
        raise PlanError(f"{name}.generate must return a list of Split, got {splits!r:.200}")
    if len(splits) > lanes:
        raise PlanError(f"{name}.generate returned {len(splits)} splits for {lanes} lanes")
    places = {path: i for i, path in enumerate(files.paths)}
    extents = [list(_extent(file)) for file in files]
    pieces = [_pieces(split, extents, places, name) for split in splits]
    _check_coverage(files, extents, [piece for lane in pieces for piece in lane], name)
    bounds = np.zeros(lanes + 1, np.int64)
    bounds[1 : len(pieces) + 1] = np.cumsum([len(lane) for lane in pieces])
    bounds[len(pieces) + 1 :] = bounds[len(pieces)]
    return LanePlan.of(files, _columns([p for lane in pieces for p in lane], files), bounds)


def _pieces(
    split: Split, extents: list[_Extent], places: dict[str, int], name: str
) -> list[_Piece]:
    if not isinstance(split.file_splits, Iterable):
        raise PlanError(f"{name}: split {split.id} holds {split.file_splits!r:.200}, not a list")
    found: list[_Piece] = []
    for chunk in split.file_splits:
        if not isinstance(chunk, FileSplit) or not isinstance(chunk.file, DataFileInfo):
            raise PlanError(
                f"{name}: split {split.id} holds {chunk!r:.200}, not a FileSplit of a DataFileInfo"
            )
        place = places.get(chunk.file.path)
        if place is None:
            raise PlanError(f"{name}: {chunk.file.path} is not a file of the data set")
        found.extend(_bounded(chunk, place, extents[place], name))
    return [piece for piece in found if piece[2]]


def _bounded(chunk: FileSplit, place: int, extent: _Extent, name: str) -> Iterator[_Piece]:
    """A chunk with its bounds; one without a range stands for all there is to read of the file."""
    path, kind = chunk.file.path, extent[0][2] if extent else ROWS
    if chunk.row_range is not None and chunk.byte_range is not None:
        raise PlanError(f"{name}: {chunk} has a byte_range too; one range says what to read")
    if chunk.row_range is not None:
        if kind != ROWS:
            raise PlanError(f"{name}: the rows of {path} are not counted; use a byte_range")
        yield place, *_valid(chunk.row_range, RowRange, path, name), ROWS
    elif chunk.byte_range is not None:
        if kind != BYTES:
            raise PlanError(f"{name}: {path} cannot be cut by bytes")
        yield place, *_valid(chunk.byte_range, ByteRange, path, name), BYTES
    else:
        yield from ((place, *bounds) for bounds in extent)


def _valid(
    bounds: RowRange | ByteRange, wanted: type[RowRange | ByteRange], path: str, name: str
) -> tuple[int, int]:
    """Offset and length as ints; numpy's integers will do, fractions will not."""
    if not isinstance(bounds, wanted):
        raise PlanError(f"{name}: {bounds!r:.200} of {path} is not a {wanted.__name__}")
    try:
        offset, length = index(bounds.offset), index(bounds.length)
    except TypeError:
        raise PlanError(f"{name}: {bounds} of {path} is not made of integers") from None
    if offset < 0 or length < 0:
        raise PlanError(f"{name}: a negative range: {bounds} of {path}")
    return offset, length


def _extent(file: DataFileInfo) -> Iterator[tuple[int, int, int]]:
    """The runs (offset, length, kind) that make up what is to be read of a file."""
    if file.row_groups is not None:
        start, stop = None, 0
        for first, rows in zip(
            file.row_groups.start.tolist(), file.row_groups.rows.tolist(), strict=True
        ):
            if start is not None and first != stop:
                yield start, stop - start, ROWS
                start = None
            start = first if start is None else start
            stop = first + rows
        if start is not None and stop > start:
            yield start, stop - start, ROWS
    elif file.record_count is not None:
        yield 0, file.record_count, ROWS
    elif file.splittable and file.file_size is not None:
        yield file.body_offset, max(file.file_size - file.body_offset, 0), BYTES
    else:
        yield 0, 1 if file.file_size is None else file.file_size, WHOLE


def _check_coverage(
    files: FileList, extents: list[_Extent], pieces: list[_Piece], name: str
) -> None:
    by_file: dict[int, list[_Piece]] = {}
    for piece in pieces:
        by_file.setdefault(piece[0], []).append(piece)
    for place in range(len(files)):
        mine = sorted(by_file.get(place, []), key=lambda piece: piece[1])
        ranges = [(offset, offset + length) for _, offset, length, _ in mine]
        _check_file(files[place], extents[place], ranges, name)


def _check_file(
    file: DataFileInfo, runs: _Extent, ranges: list[tuple[int, int]], name: str
) -> None:
    extent = [(offset, offset + length, kind) for offset, length, kind in runs if length]
    unit = "bytes" if extent and extent[0][2] != ROWS else "rows"
    for (_, stop), (start, end) in pairwise(ranges):
        if start < stop:
            raise PlanError(f"{name} repeats {unit} {start}-{min(stop, end)} of {file.path}")
    for begin, end, _ in extent:
        at = begin
        for start, stop in ranges:
            if stop <= at or start >= end:
                continue
            if start > at:
                break
            at = stop
        if at < end:
            gap = min([start for start, _ in ranges if start > at] + [end])
            raise PlanError(f"{name} loses {unit} {at}-{gap} of {file.path}")
    limit = file.record_count if unit == "rows" else file.file_size
    if ranges and limit is not None and ranges[-1][1] > limit:
        raise PlanError(f"{name} reads {unit} up to {ranges[-1][1]} of {limit} of {file.path}")


def _columns(pieces: list[_Piece], files: FileList) -> Chunks:
    table: Int64Array = np.asarray(pieces, np.int64).reshape(-1, 4)
    file, offset, length, kind = table.T
    rows = np.maximum(files.counts[file], length)
    estimate = share_of(np.maximum(files.sizes[file], 0), length, rows)
    share = np.where(kind == ROWS, estimate, length)
    return Chunks(file, offset, length, kind.astype(np.int8), share)
