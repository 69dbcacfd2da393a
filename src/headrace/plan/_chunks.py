"""Files cut into chunks: the runs of rows that are ordered, read and skipped as one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.errors import OptionError
from headrace.model import ByteRange, FileList, FileSplit, Int64Array, RowGroups, RowRange

__all__ = ["BYTES", "ROWS", "WHOLE", "Chunks", "cut_chunks", "decode_factor", "share_of"]

ROWS, BYTES, WHOLE = 0, 1, 2
"""how a chunk is bounded: by rows, by bytes of text, or not at all"""

_UNBOUNDED = np.iinfo(np.int64).max // 4


@dataclass(frozen=True, slots=True)
class Chunks:
    """An ordered list of chunks, as columns."""

    file: Int64Array
    """index into the file list"""
    offset: Int64Array
    """first row or byte"""
    length: Int64Array
    """rows or bytes; of a whole file its size in bytes"""
    kind: npt.NDArray[np.int8]
    size_bytes: Int64Array
    """uncompressed bytes of all columns, estimated where a chunk cuts through a row group"""

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
    def counted(self) -> bool:
        """True if the rows of every chunk are known."""
        return bool((self.kind == ROWS).all())

    @property
    def weights(self) -> Int64Array:
        """The numbers by which lanes are balanced: rows where all are known, else bytes."""
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
        return cls(
            np.concatenate([part.file for part in parts]),
            np.concatenate([part.offset for part in parts]),
            np.concatenate([part.length for part in parts]),
            np.concatenate([part.kind for part in parts]),
            np.concatenate([part.size_bytes for part in parts]),
        )

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
    if split_rows is not None and split_rows < 1:
        raise OptionError(f"split_rows must be at least 1, got {split_rows}")
    by_rows = (files.counts >= 0) | (files.group_bounds[:, 1] >= 0)
    whole = ~by_rows & (~files.splittable | (files.sizes < 0))
    by_bytes = ~by_rows & ~whole
    if split_rows is not None and by_bytes.any():
        raise OptionError(
            f"split_rows={split_rows} needs files whose rows are counted, and "
            f"{files.paths[int(np.argmax(by_bytes))]} is not; use split_bytes"
        )
    split_bytes = min(split_bytes, _UNBOUNDED)
    split_rows = None if split_rows is None else min(split_rows, _UNBOUNDED)
    parts: list[Chunks] = []
    if by_rows.any():
        parts.append(_row_chunks(files, np.flatnonzero(by_rows), split_bytes, split_rows))
    if by_bytes.any():
        parts.append(_byte_chunks(files, np.flatnonzero(by_bytes), split_bytes))
    if whole.any():
        parts.append(_whole_chunks(files, np.flatnonzero(whole)))
    if len(parts) == 1:
        return parts[0]
    chunks = Chunks.concat(parts) if parts else Chunks.empty()
    return chunks[np.argsort(chunks.file, kind="stable")]


def _row_chunks(
    files: FileList, indices: Int64Array, split_bytes: int, split_rows: int | None
) -> Chunks:
    owner, groups = _all_groups(files, indices)
    if len(owner) == 0:
        return Chunks.empty()
    follows = (owner[1:] == owner[:-1]) & (groups.start[1:] == (groups.start + groups.rows)[:-1])
    first = np.concatenate([[0], np.flatnonzero(~follows) + 1])  # first group of each run
    if split_rows is None:
        first = _pack(first, groups.size_bytes, split_bytes)
    rows = np.add.reduceat(groups.rows, first)
    size = np.add.reduceat(groups.size_bytes, first)
    chunks = _rows(owner[first], groups.start[first], rows, size)
    return chunks if split_rows is None else _cut_runs(chunks, split_rows)


def _all_groups(files: FileList, indices: Int64Array) -> tuple[Int64Array, RowGroups]:
    """Return every group that holds rows, and its file; a file without groups is one group."""
    counts = files.group_bounds[indices, 1]
    listed = np.repeat(indices[counts > 0], counts[counts > 0])
    lone = indices[counts < 0]
    owner = np.concatenate([listed, lone])
    start = np.concatenate([files.groups.start, np.zeros(len(lone), np.int64)])
    rows = np.concatenate([files.groups.rows, files.counts[lone]])
    size = np.concatenate([files.groups.size_bytes, np.maximum(files.sizes[lone], 0)])
    order = np.argsort(owner, kind="stable")
    order = order[rows[order] > 0]
    unproven = np.zeros(len(order), bool)
    return owner[order], RowGroups(start[order], rows[order], size[order], unproven)


def _pack(first: Int64Array, size_bytes: Int64Array, split_bytes: int) -> Int64Array:
    """Return the starts of chunks: runs of groups are cut where one more would be too much."""
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


def _cut_runs(runs: Chunks, split_rows: int) -> Chunks:
    """Cut each run of rows at multiples of ``split_rows`` from its start."""
    pieces = -(-runs.length // split_rows)
    parent = np.repeat(np.arange(len(runs)), pieces)
    place = np.arange(len(parent)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    skipped = place * split_rows
    length = np.minimum(runs.length[parent] - skipped, split_rows)
    size = share_of(runs.size_bytes[parent], length, runs.length[parent])
    return _rows(runs.file[parent], runs.offset[parent] + skipped, length, size)


def share_of(size_bytes: Int64Array, part: Int64Array, whole: Int64Array) -> Int64Array:
    """Return the bytes of a part of a whole; in floats, for the product may be huge."""
    share: Int64Array = (size_bytes * (part / np.maximum(whole, 1))).astype(np.int64)
    return share


def _rows(file: Int64Array, offset: Int64Array, length: Int64Array, size: Int64Array) -> Chunks:
    return Chunks(file, offset, length, np.full(len(file), ROWS, np.int8), size)


def _byte_chunks(files: FileList, indices: Int64Array, split_bytes: int) -> Chunks:
    start = files.body_offsets[indices]
    length = np.maximum(files.sizes[indices] - start, 0)
    some = length > 0
    runs = _rows(indices[some], start[some], length[some], length[some])
    cut = _cut_runs(runs, split_bytes)
    return Chunks(cut.file, cut.offset, cut.length, np.full(len(cut), BYTES, np.int8), cut.length)


def _whole_chunks(files: FileList, indices: Int64Array) -> Chunks:
    indices = indices[files.sizes[indices] != 0]
    size = np.maximum(files.sizes[indices], 1)
    kind = np.full(len(indices), WHOLE, np.int8)
    return Chunks(indices, np.zeros(len(indices), np.int64), size, kind, size)


def decode_factor(files: FileList, chunks: Chunks) -> float:
    """Return how many rows are decoded for each row that is wanted, if nothing is kept.

    Most formats decode whole row groups for however few rows.
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
