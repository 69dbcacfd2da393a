"""The order of an epoch, from files to lanes.

Files are cut into chunks, the runs of rows that are ordered, read and skipped as one. Chunks are
permuted and dealt to lanes. ``Order`` says how: in runs of whole batches, or by a strategy. Splits
of the user's own strategies are checked.
"""

from __future__ import annotations

import heapq
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
    Int64Array,
    RowRange,
    Split,
    SplitStrategy,
)
from headrace.options import check_count, check_int64_count, checked_keywords, parse_bytes
from headrace.plan._lanes import BYTES, ROWS, WHOLE, Chunks, Grouping, Plan, share_of
from headrace.plan.permutations import CHUNK_ORDER, permutation

DEFAULT_SPLIT_BYTES = 128 << 20
_AUTOMATIC = "automatic"
_MOST_LANES = 1 << 20
"""Number of lanes whose cursors a state can hold in reasonable memory."""
_UNBOUNDED = np.iinfo(np.int64).max // 4


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
        if self.split_strategy is not None:
            made = plan_lanes(self.split_strategy, files, lanes=lanes, epoch=epoch)
        else:
            _check_lanes(lanes)
            chunks = _ordered_chunks(self, files, epoch)
            made = Plan.of(files, *cut_evenly(chunks, lanes, batch_size))
        return made.grouped(self.grouping)

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


# --- strategies


def plan_lanes(
    strategy: SplitStrategy, files: Sequence[DataFileInfo], *, lanes: int, epoch: int
) -> Plan:
    """Return the lanes of an epoch, checking those of a strategy that is not built in."""
    _check_lanes(lanes)
    listed = _listed(files)
    made = strategy.generate(listed, lanes, epoch)
    if isinstance(made, Plan) and type(strategy) in _BUILT_IN:
        return made
    return _checked_plan(made, listed, lanes, type(strategy).__name__)


def _check_lanes(lanes: int) -> None:
    if not 1 <= lanes <= _MOST_LANES:
        raise OptionError(
            f"there must be from 1 to {_MOST_LANES:,} lanes, not {lanes:,}; choose a smaller "
            "lanes=, or, without it, fewer ranks or workers"
        )


def _listed(files: Sequence[DataFileInfo]) -> FileList:
    return files if isinstance(files, FileList) else FileList(files)


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
        listed = _listed(files)
        chunks = _ordered_chunks(self, listed, epoch)
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
        listed = _listed(files)
        chunks = _ordered_chunks(self, listed, epoch)
        return Plan.of(listed, *_deal_largest_first(chunks, num_workers))


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
        listed = _listed(files)
        chunks = _file_chunks(listed)
        if self.shuffle:
            order = permutation(len(listed), seed=self.seed, epoch=epoch, purpose=CHUNK_ORDER)
            chunks = chunks[np.argsort(np.argsort(order)[chunks.file], kind="stable")]
        # In turn by file: the parts that a filter left of a file stay together.
        turn = np.cumsum(np.diff(chunks.file, prepend=chunks.file[:1]) != 0)
        return Plan.of(listed, *_by_owner(chunks, turn % num_workers, num_workers))


_BUILT_IN = (EvenBatchesSplitStrategy, TargetSizeSplitStrategy, RoundRobinSplitStrategy)


# --- files cut into chunks


def _ordered_chunks(
    order: Order | EvenBatchesSplitStrategy | TargetSizeSplitStrategy, files: FileList, epoch: int
) -> Chunks:
    """Return the chunks of files, permuted if the order says so."""
    split_bytes = parse_bytes("split_bytes", order.split_bytes)
    chunks = cut_chunks(files, split_bytes=split_bytes, split_rows=order.split_rows)
    if not order.shuffle:
        return chunks
    return chunks[permutation(len(chunks), seed=order.seed, epoch=epoch, purpose=CHUNK_ORDER)]


def _file_chunks(files: FileList) -> Chunks:
    """Return one chunk for each file, or for each run of row groups that a filter left of it."""
    return cut_chunks(files, split_bytes=_UNBOUNDED)


def cut_chunks(files: FileList, *, split_bytes: int, split_rows: int | None = None) -> Chunks:
    """Return all chunks in file order.

    Files with row groups are cut into runs of consecutive groups of up to ``split_bytes``, or
    into runs of exactly ``split_rows`` rows (the last of a run of groups may be shorter); files
    of lines into byte ranges; files that cannot be cut, or of unknown size, stay whole. So do
    files that cannot be cut and whose rows are not counted, whatever ``split_rows`` is.
    """
    if split_rows is not None:
        check_count("split_rows", split_rows)
    by_rows = (files.counts >= 0) | (files.group_bounds[:, 1] >= 0)
    whole = ~by_rows & (~files.splittable | (files.sizes < 0))
    by_bytes = ~by_rows & ~whole
    if split_rows is not None and by_bytes.any():
        raise OptionError(
            f"split_rows={split_rows} needs files whose rows are counted, and "
            f"{files.paths[int(np.argmax(by_bytes))]} is not; use split_bytes"
        )
    split_bytes = min(split_bytes, _UNBOUNDED)
    parts: list[Chunks] = []
    if by_rows.any():
        parts.append(_row_chunks(files, np.flatnonzero(by_rows), split_bytes, split_rows))
    if by_bytes.any():
        start = files.body_offsets[by_bytes]
        length = np.maximum(files.sizes[by_bytes] - start, 0)
        bodies = _of_kind(BYTES, np.flatnonzero(by_bytes), start, length, length)
        ranges = _cut_runs(bodies[length > 0], split_bytes)
        parts.append(replace(ranges, size_bytes=ranges.length))
    whole &= files.sizes != 0
    if whole.any():
        size = np.maximum(files.sizes[whole], 1)
        parts.append(_of_kind(WHOLE, np.flatnonzero(whole), np.zeros_like(size), size, size))
    if len(parts) == 1:
        return parts[0]
    chunks = Chunks.concat(parts) if parts else Chunks.empty()
    return chunks[np.argsort(chunks.file, kind="stable")]


def _of_kind(
    kind: int, file: Int64Array, offset: Int64Array, length: Int64Array, size: Int64Array
) -> Chunks:
    return Chunks(file, offset, length, np.full(len(file), kind, np.int8), size)


def _row_chunks(
    files: FileList, indices: Int64Array, split_bytes: int, split_rows: int | None
) -> Chunks:
    """Return runs of the row groups of some files; a file without groups is one group."""
    counts = files.group_bounds[indices, 1]
    lone = indices[counts < 0]
    owner = np.concatenate([np.repeat(indices, np.maximum(counts, 0)), lone])
    start = np.concatenate([files.groups.start, np.zeros(len(lone), np.int64)])
    rows = np.concatenate([files.groups.rows, files.counts[lone]])
    size = np.concatenate([files.groups.size_bytes, np.maximum(files.sizes[lone], 0)])
    in_order = np.argsort(owner, kind="stable")
    in_order = in_order[rows[in_order] > 0]
    if not len(in_order):
        return Chunks.empty()
    groups = _of_kind(ROWS, owner, start, rows, size)[in_order]
    stop = groups.offset + groups.length
    follows = (groups.file[1:] == groups.file[:-1]) & (groups.offset[1:] == stop[:-1])
    first = np.concatenate([[0], np.flatnonzero(~follows) + 1])  # first group of each run
    if split_rows is None:
        first = _pack(first, groups.size_bytes, split_bytes)
    length = np.add.reduceat(groups.length, first)
    runs = replace(
        groups[first], length=length, size_bytes=np.add.reduceat(groups.size_bytes, first)
    )
    return runs if split_rows is None else _cut_runs(runs, min(split_rows, _UNBOUNDED))


def _pack(first: Int64Array, size_bytes: Int64Array, split_bytes: int) -> Int64Array:
    """Return the starts of chunks, which hold as many groups as fit into ``split_bytes``."""
    total = np.add.reduceat(size_bytes, first)
    large = np.flatnonzero(total > split_bytes)
    if len(large) == 0:
        return first
    before = np.concatenate([[0], np.cumsum(size_bytes)])
    reach = np.searchsorted(before, before[:-1] + split_bytes, side="right") - 1
    following = np.maximum(reach, np.arange(1, len(size_bytes) + 1)).tolist()
    ends = np.append(first[1:], len(size_bytes)).tolist()
    breaks: list[int] = []
    for run in large.tolist():
        at, end = following[first[run]], ends[run]
        while at < end:
            breaks.append(at)
            at = following[at]
    begins = np.zeros(len(size_bytes), bool)
    begins[first] = True
    begins[breaks] = True
    return np.flatnonzero(begins)


def _cut_runs(runs: Chunks, length: int) -> Chunks:
    """Cut each run at multiples of ``length`` rows or bytes from its start."""
    pieces = -(-runs.length // length)
    whole = runs[np.repeat(np.arange(len(runs)), pieces)]
    place = np.arange(len(whole)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    skipped = place * length
    part = np.minimum(whole.length - skipped, length)
    size = share_of(whole.size_bytes, part, whole.length)
    return replace(whole, offset=whole.offset + skipped, length=part, size_bytes=size)


def decode_factor(files: FileList, chunks: Chunks) -> float:
    """Return the number of rows decoded for each row wanted, if no decoded group is kept.

    Most formats decode a whole row group even for a single row.
    """
    rows = chunks[chunks.kind == ROWS]
    grouped = np.maximum(files.group_bounds[:, 1], 0)
    if not len(rows) or not grouped.sum() or len(files.groups) != grouped.sum():
        return 1.0
    owner = np.repeat(np.arange(len(files)), grouped)
    # Every file gets a range of positions of its own, wide enough for its last row.
    ends = files.groups.start + files.groups.rows
    spans = np.zeros(len(files), np.int64)
    np.maximum.at(spans, owner, ends)
    base = np.cumsum(spans + 1) - (spans + 1)
    starts = base[owner] + files.groups.start
    total = np.concatenate([[0], np.cumsum(files.groups.rows)])
    begin = base[rows.file] + rows.offset
    first = np.searchsorted(starts, begin, side="right") - 1
    last = np.searchsorted(starts, begin + rows.length, side="left")
    return float((total[last] - total[np.maximum(first, 0)]).sum() / max(rows.length.sum(), 1))


# --- chunks dealt to lanes


def cut_evenly(chunks: Chunks, lanes: int, batch_size: int) -> tuple[Chunks, Int64Array]:
    """Lay chunks end to end and cut them into consecutive runs; return the pieces and bounds.

    Lane l gets as many rows as the batches l, l + lanes, l + 2 * lanes, … of the epoch have, so
    that taking one batch from each lane in turn gives full batches to the end. A cut may fall
    inside a chunk. Where rows are not counted the runs are of equal weight.
    """
    weights = chunks.weights
    total = int(weights.sum())
    if chunks.counted:
        batches = -(-total // batch_size)
        owned = np.maximum((batches - np.arange(lanes) + lanes - 1) // lanes, 0)
        cuts = np.cumsum(owned) * batch_size
        if batches:  # the lane of the epoch's last batch has that much less
            cuts[(batches - 1) % lanes :] -= batches * batch_size - total
        cuts = cuts[:-1]
    else:
        cuts = _snap(chunks, total * np.arange(1, lanes) // lanes)
    return cut_at(chunks, cuts)


def _snap(chunks: Chunks, cuts: Int64Array) -> Int64Array:
    """Move each cut that falls into an indivisible chunk to the nearer end of the chunk."""
    unit = ROWS if chunks.counted else BYTES
    ends = np.cumsum(chunks.weights)
    snapped: Int64Array = cuts.astype(np.int64)
    for i, cut in enumerate(snapped):
        inside = int(np.searchsorted(ends, cut, side="right"))
        if inside < len(chunks) and chunks.kind[inside] != unit:
            start = ends[inside] - chunks.weights[inside]
            snapped[i] = start if cut - start <= ends[inside] - cut else ends[inside]
    return np.maximum.accumulate(snapped) if len(snapped) else snapped


def cut_at(chunks: Chunks, cuts: Int64Array) -> tuple[Chunks, Int64Array]:
    """Return the lanes between cuts: ascending positions in the chunks laid end to end."""
    weights = chunks.weights
    ends = np.cumsum(weights)
    starts = ends - weights
    total = int(ends[-1]) if len(ends) else 0
    # Without np.unique and np.isin: the first time, they import numpy.ma, which takes 10 ms.
    inner = cuts[(cuts > 0) & (cuts < total)]
    inner = inner[np.diff(inner, prepend=0) > 0]
    place = np.searchsorted(starts, inner)
    is_new = np.append(starts, total)[place] != inner
    inner, place = inner[is_new], place[is_new]
    at = np.insert(starts, place, inner)
    parent = np.insert(np.arange(len(starts)), place, place - 1)
    length = np.diff(np.append(at, total))
    cuttable = chunks.kind[parent] == (ROWS if chunks.counted else BYTES)
    inside = at - starts[parent]
    pieces = Chunks(
        chunks.file[parent],
        chunks.offset[parent] + np.where(cuttable, inside, 0),
        np.where(cuttable, length, chunks.length[parent]),
        chunks.kind[parent],
        share_of(chunks.size_bytes[parent], length, weights[parent]),
    )
    edges = np.concatenate([[0], cuts, [total]])
    return pieces, np.append(np.searchsorted(at, edges[:-1]), len(at))


def _deal_largest_first(chunks: Chunks, lanes: int) -> tuple[Chunks, Int64Array]:
    """Give each chunk, the heaviest first, to the lane with the least so far (LPT)."""
    weights = chunks.weights
    loads = [(0, lane) for lane in range(lanes)]
    owner = np.empty(len(chunks), np.int64)
    values = weights.tolist()
    for chunk in np.argsort(-weights, kind="stable").tolist():
        load, lane = loads[0]
        owner[chunk] = lane
        heapq.heapreplace(loads, (load + values[chunk], lane))
    return _by_owner(chunks, owner, lanes)


def _by_owner(chunks: Chunks, owner: Int64Array, lanes: int) -> tuple[Chunks, Int64Array]:
    """Return the chunks of each lane in their original order, whatever order they were dealt in."""
    order = np.argsort(owner, kind="stable")
    return chunks[order], np.searchsorted(owner[order], np.arange(lanes + 1))


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
