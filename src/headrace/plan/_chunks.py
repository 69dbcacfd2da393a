"""Files cut into chunks: the runs of rows that are ordered, read and skipped as one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import OptionError
from headrace.model import ByteRange, FileList, FileSplit, Int64Array, RowRange
from headrace.options import check_count

ROWS, BYTES, WHOLE = 0, 1, 2
"""Kinds of chunks: bounded by rows, bounded by bytes of text, or a whole file."""

_UNBOUNDED = np.iinfo(np.int64).max // 4


@dataclass(frozen=True, slots=True)
class Chunks:
    """An ordered list of chunks, as columns."""

    file: Int64Array
    """Index of the file of each chunk in the file list."""
    offset: Int64Array
    """First row or byte of each chunk."""
    length: Int64Array
    """Number of rows or bytes of each chunk; for a whole file its size in bytes."""
    kind: npt.NDArray[np.int8]
    size_bytes: Int64Array
    """Uncompressed bytes of all columns, estimated where a chunk cuts through a row group."""

    def __len__(self) -> int:
        return len(self.file)

    def __getitem__(self, index: slice | Int64Array) -> Chunks:
        return Chunks(
            self.file[index],
            self.offset[index],
            self.length[index],
            self.kind[index],
            self.size_bytes[index],
        )

    @property
    def columns(self) -> tuple[npt.NDArray[Any], ...]:
        """The columns, in the order of the fields."""
        return self.file, self.offset, self.length, self.kind, self.size_bytes

    @property
    def counted(self) -> bool:
        """True if the number of rows of every chunk is known."""
        return bool((self.kind == ROWS).all())

    @property
    def weights(self) -> Int64Array:
        """Weights by which lanes are balanced: rows if all are known, else bytes."""
        if self.counted:
            return self.length
        return np.maximum(np.where(self.kind == ROWS, self.size_bytes, self.length), 1)

    def split(self, index: int, files: FileList) -> FileSplit:
        """Return one chunk as an object."""
        file = files[int(self.file[index])]
        offset, length = int(self.offset[index]), int(self.length[index])
        kind = self.kind[index]
        if kind == WHOLE:
            return FileSplit(file)
        if kind == BYTES:
            return FileSplit(file, byte_range=ByteRange(offset, length))
        return FileSplit(file, row_range=RowRange(offset, length))

    @classmethod
    def concat(cls, parts: list[Chunks]) -> Chunks:
        """Return the chunks of several lists, one list after the other."""
        return cls(*map(np.concatenate, zip(*(part.columns for part in parts), strict=True)))

    @classmethod
    def empty(cls) -> Chunks:
        """Return a list of no chunks."""
        none = np.empty(0, np.int64)
        return cls(none, none, none, np.empty(0, np.int8), none)


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


def share_of(size_bytes: Int64Array, part: Int64Array, whole: Int64Array) -> Int64Array:
    """Return the bytes of a part, computed in floats because integer products may overflow."""
    share: Int64Array = (size_bytes * (part / np.maximum(whole, 1))).astype(np.int64)
    return share


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
