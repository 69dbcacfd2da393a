"""What a strategy returned, held to the promise that every row is read exactly once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from penstock.errors import PlanError
from penstock.model import DataFileInfo, FileList, FileSplit, Int64Array, Split
from penstock.plan.chunks import BYTES, ROWS, WHOLE, Chunks
from penstock.plan.lanes import LanePlan

__all__ = ["checked_plan"]

_Piece = tuple[int, int, int, int]  # file index, offset, length, kind


def checked_plan(
    splits: Sequence[Split], files: FileList, lanes: int, strategy: object
) -> LanePlan:
    """The plan that ``splits`` describe, or a PlanError that names the file and rows at fault."""
    name = type(strategy).__name__
    if not isinstance(splits, Sequence) or not all(isinstance(s, Split) for s in splits):
        raise PlanError(f"{name}.generate must return a list of Split, got {splits!r:.200}")
    if len(splits) > lanes:
        raise PlanError(f"{name}.generate returned {len(splits)} splits for {lanes} lanes")
    index = {path: i for i, path in enumerate(files.paths)}
    pieces = [_pieces(split, files, index, name) for split in splits]
    _check_coverage(files, [piece for lane in pieces for piece in lane], name)
    bounds = np.zeros(lanes + 1, np.int64)
    bounds[1 : len(pieces) + 1] = np.cumsum([len(lane) for lane in pieces])
    bounds[len(pieces) + 1 :] = bounds[len(pieces)]
    return LanePlan(files, _columns([p for lane in pieces for p in lane], files), bounds)


def _pieces(split: Split, files: FileList, index: dict[str, int], name: str) -> list[_Piece]:
    found: list[_Piece] = []
    for chunk in split.file_splits:
        if not isinstance(chunk, FileSplit):
            raise PlanError(f"{name}: split {split.id} holds {chunk!r:.200}, not a FileSplit")
        place = index.get(chunk.file.path)
        if place is None:
            raise PlanError(f"{name}: {chunk.file.path} is not a file of the data set")
        found.extend(_bounded(chunk, place, files[place], name))
    return found


def _bounded(chunk: FileSplit, place: int, file: DataFileInfo, name: str) -> Iterator[_Piece]:
    """A chunk with its bounds; one without a range stands for all there is to read of the file."""
    extent = list(_extent(file))
    counted = not extent or extent[0][2] == ROWS
    if chunk.row_range is not None:
        if not counted:
            raise PlanError(f"{name}: the rows of {file.path} are not counted; use a byte_range")
        yield place, *_valid(chunk.row_range, chunk, name), ROWS
    elif chunk.byte_range is not None:
        if counted or extent[0][2] == WHOLE:
            raise PlanError(f"{name}: {file.path} cannot be cut by bytes")
        yield place, *_valid(chunk.byte_range, chunk, name), BYTES
    else:
        yield from ((place, *bounds) for bounds in extent)


def _valid(bounds: Any, chunk: FileSplit, name: str) -> tuple[int, int]:
    if bounds.offset < 0 or bounds.length < 0:
        raise PlanError(f"{name}: a negative range: {chunk}")
    return int(bounds.offset), int(bounds.length)


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
    elif file.splittable:
        yield file.body_offset, max((file.file_size or 0) - file.body_offset, 0), BYTES
    else:
        yield 0, max(file.file_size or 0, 1), WHOLE


def _check_coverage(files: FileList, pieces: list[_Piece], name: str) -> None:
    by_file: dict[int, list[_Piece]] = {}
    for piece in pieces:
        if piece[2] > 0:
            by_file.setdefault(piece[0], []).append(piece)
    for place in range(len(files)):
        mine = sorted(by_file.get(place, []), key=lambda piece: piece[1])
        _check_file(files[place], [(o, o + n) for _, o, n, _ in mine], name)


def _check_file(file: DataFileInfo, ranges: list[tuple[int, int]], name: str) -> None:
    extent = [(o, o + n, kind) for o, n, kind in _extent(file) if n]
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
    rows = np.maximum(files.counts[file], 1)
    share = np.where(kind == ROWS, np.maximum(files.sizes[file], 0) * length // rows, length)
    return Chunks(file, offset, length, kind.astype(np.int8), share)
