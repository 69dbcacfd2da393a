"""What a strategy returned, held to the promise that every row is read exactly once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
)
from headrace.plan.chunks import BYTES, ROWS, WHOLE, Chunks, share_of
from headrace.plan.lanes import LanePlan

__all__ = ["checked_plan"]

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
