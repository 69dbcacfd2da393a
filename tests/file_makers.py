"""Files for plans: small ones made by hand, and arbitrary ones made by Hypothesis."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from headrace.model import DataFileInfo, FileSplit, RowGroups

Row = tuple[str, int]


def grouped(path: str, rows: list[int], size_bytes: list[int], keep: Any = None) -> DataFileInfo:
    """Return a file with row groups, of which only those in ``keep`` are left by a filter."""
    groups = RowGroups.of(rows, size_bytes)
    kept = groups if keep is None else groups.keep(keep)
    return DataFileInfo(path, sum(size_bytes), sum(rows), kept)


def text(path: str, size: int | None, body_offset: int = 0, **options: Any) -> DataFileInfo:
    """Return a file of lines."""
    return DataFileInfo(path, size, body_offset=body_offset, **options)


def surviving(files: Iterable[DataFileInfo]) -> list[Row]:
    """Return every row that has to be read, in file order."""
    rows_: list[Row] = []
    for file in files:
        if file.row_groups is None:
            rows_ += [(file.path, row) for row in range(file.record_count or 0)]
        else:
            for start, rows in zip(file.row_groups.start, file.row_groups.rows, strict=True):
                rows_ += [(file.path, int(row)) for row in range(start, start + rows)]
    return rows_


def rows_of(splits: Iterable[FileSplit]) -> list[Row]:
    """Return the rows of chunks, in their order."""
    rows_: list[Row] = []
    for split in splits:
        assert split.row_range is not None
        assert split.row_range.length > 0
        rows_ += [(split.file.path, r) for r in range(split.row_range.offset, split.row_range.stop)]
    return rows_


@st.composite
def _grouped_files(draw: st.DrawFn, path: str) -> DataFileInfo:
    rows = draw(st.lists(st.integers(0, 12), max_size=6))
    sizes = draw(st.lists(st.integers(0, 60), min_size=len(rows), max_size=len(rows)))
    keep = [i for i in range(len(rows)) if draw(st.booleans())] if draw(st.booleans()) else None
    return grouped(path, rows, sizes, keep)


@st.composite
def counted_files(draw: st.DrawFn) -> list[DataFileInfo]:
    """Draw files whose rows are counted: with row groups, pruned ones too, or only with a count."""
    files = []
    for index in range(draw(st.integers(0, 5))):
        path = f"f{index}"
        if draw(st.booleans()):
            files.append(draw(_grouped_files(path)))
        else:
            size = draw(st.none() | st.integers(0, 100))
            files.append(DataFileInfo(path, size, draw(st.integers(0, 15))))
    return files


@st.composite
def mixed_files(draw: st.DrawFn) -> list[DataFileInfo]:
    """Draw files of every kind: counted, of lines, and those that stay whole."""
    files = draw(counted_files())
    for index in range(draw(st.integers(0, 4))):
        size = draw(st.none() | st.integers(0, 100))
        body = draw(st.integers(0, 30))
        files.append(text(f"t{index}", size, body, splittable=draw(st.booleans())))
    order = draw(st.permutations(range(len(files))))
    return [files[place] for place in order]
