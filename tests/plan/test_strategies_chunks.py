"""Files are cut into chunks."""

from __future__ import annotations

import numpy as np
import pytest
from file_makers import counted_files, grouped, mixed_files, rows_of, surviving, text
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OptionError
from headrace.model import DataFileInfo, FileList, RowGroups
from headrace.plan import Chunks, cut_chunks

MANY = 1 << 40


def cut(
    files: list[DataFileInfo], split_bytes: int = MANY, split_rows: int | None = None
) -> list[str]:
    listed = FileList(files)
    chunks = cut_chunks(listed, split_bytes=split_bytes, split_rows=split_rows)
    return [str(chunks.split(i, listed)) for i in range(len(chunks))]


def sizes(
    files: list[DataFileInfo], split_bytes: int = MANY, split_rows: int | None = None
) -> list[int]:
    chunks = cut_chunks(FileList(files), split_bytes=split_bytes, split_rows=split_rows)
    return chunks.size_bytes.tolist()


def test_consecutive_groups_are_packed_greedily() -> None:
    file = grouped("f", [1] * 7, [30, 30, 30, 50, 50, 10, 90])
    assert cut([file], 100) == ["f, rows 0-3", "f, rows 3-5", "f, rows 5-7"]
    assert sizes([file], 100) == [90, 100, 100]


def test_a_group_larger_than_asked_for_is_a_chunk_of_its_own() -> None:
    file = grouped("f", [10, 10, 10, 10], [10, 500, 10, 10])
    assert cut([file], 100) == ["f, rows 0-10", "f, rows 10-20", "f, rows 20-40"]
    assert cut([grouped("f", [10], [500])], 1) == ["f, rows 0-10"]


def test_files_are_never_packed_together() -> None:
    assert cut([grouped("a", [5], [1]), grouped("b", [5], [1])]) == ["a, rows 0-5", "b, rows 0-5"]


def test_pruned_groups_break_a_run() -> None:
    file = grouped("f", [10] * 6, [1] * 6, keep=[0, 1, 3, 5])
    assert cut([file]) == ["f, rows 0-20", "f, rows 30-40", "f, rows 50-60"]
    assert cut([file], split_rows=15) == [
        "f, rows 0-15",
        "f, rows 15-20",
        "f, rows 30-40",
        "f, rows 50-60",
    ]


def test_split_rows_cuts_through_groups_exactly() -> None:
    file = grouped("f", [10, 3, 12], [100, 30, 120])
    assert cut([file], split_rows=8) == [
        "f, rows 0-8",
        "f, rows 8-16",
        "f, rows 16-24",
        "f, rows 24-25",
    ]
    assert sizes([file], split_rows=8) == [80, 80, 80, 10]


def test_a_counted_file_without_groups_is_one_chunk_unless_split_rows_cuts_it() -> None:
    file = DataFileInfo("f", 1000, 10)
    assert cut([file], 1) == ["f, rows 0-10"]
    assert cut([file], split_rows=6) == ["f, rows 0-6", "f, rows 6-10"]
    assert sizes([file], split_rows=6) == [600, 400]


def test_what_has_no_rows_is_no_chunk() -> None:
    empty = [
        grouped("a", [], []),
        DataFileInfo("b", 100, 0),
        grouped("c", [0, 0], [7, 7]),
        grouped("d", [5], [5], keep=[]),
    ]
    assert cut(empty) == []
    assert cut([grouped("f", [5, 0, 5], [10, 10, 10])], 100) == ["f, rows 0-10"]


def test_no_files_at_all() -> None:
    chunks = cut_chunks(FileList(), split_bytes=1)
    assert len(chunks) == 0
    assert chunks.counted


def test_lines_are_cut_by_bytes_behind_the_header() -> None:
    assert cut([text("f", 100, 10)], 40) == ["f, bytes 10-50", "f, bytes 50-90", "f, bytes 90-100"]
    assert sizes([text("f", 100, 10)], 40) == [40, 40, 10]


def test_lines_without_a_body_are_no_chunk() -> None:
    assert cut([text("a", 0), text("b", 10, 10), text("c", 5, 10)], 40) == []


def test_what_cannot_be_cut_stays_whole() -> None:
    files = [text("a.gz", 1000, splittable=False), text("b.gz", 0, splittable=False)]
    assert cut(files, 10) == ["a.gz"]


def test_lines_of_unknown_size_are_read_whole_and_not_lost() -> None:
    assert cut([text("a", None), text("b.gz", None, splittable=False)], 10) == ["a", "b.gz"]


def test_kinds_keep_the_order_of_files() -> None:
    files = [
        text("a", 20),
        grouped("b", [5], [5]),
        text("c.gz", 9, splittable=False),
        DataFileInfo("d", 7, 3),
        text("e", 5),
    ]
    assert cut(files, 10) == [
        "a, bytes 0-10",
        "a, bytes 10-20",
        "b, rows 0-5",
        "c.gz",
        "d, rows 0-3",
        "e, bytes 0-5",
    ]


def test_split_rows_of_lines_names_the_file() -> None:
    with pytest.raises(OptionError, match=r"split_rows=5 .* t\.csv .*split_bytes"):
        cut([grouped("a", [5], [5]), text("t.csv", 100)], split_rows=5)


def test_files_that_cannot_be_cut_stay_whole_beside_runs_of_rows() -> None:
    merged = DataFileInfo("merged", 1000, splittable=False)
    assert cut([grouped("a", [6], [6]), merged], split_rows=5) == [
        "a, rows 0-5",
        "a, rows 5-6",
        "merged",
    ]


@pytest.mark.parametrize("rows", [0, -3])
def test_split_rows_that_would_lose_everything_is_refused(rows: int) -> None:
    with pytest.raises(OptionError, match="split_rows must be an int of at least 1"):
        cut([grouped("a", [5], [5])], split_rows=rows)


def test_absurdly_large_sizes_mean_do_not_cut() -> None:
    assert cut([grouped("a", [5, 5], [5, 5])], 10**30) == ["a, rows 0-10"]
    assert cut([text("a", 100)], 10**30) == ["a, bytes 0-100"]
    assert cut([grouped("a", [5, 5], [5, 5])], split_rows=10**30) == ["a, rows 0-10"]


def test_sizes_of_huge_files_do_not_overflow() -> None:
    file = DataFileInfo("f", 10**13, 10**10)
    assert sizes([file], split_rows=10**9) == [10**12] * 10


def test_planning_a_million_groups_takes_seconds() -> None:
    groups = RowGroups.of([1000] * 1_000_000, [1 << 20] * 1_000_000)
    chunks = cut_chunks(FileList([DataFileInfo("f", 1 << 40, 10**9, groups)]), split_bytes=4 << 20)
    assert len(chunks) == 250_000
    assert (chunks.length == 4000).all()


@given(files=counted_files(), split_bytes=st.integers(1, 200))
def test_chunks_hold_every_surviving_row_once_in_file_order(
    files: list[DataFileInfo], split_bytes: int
) -> None:
    listed = FileList(files)
    chunks = cut_chunks(listed, split_bytes=split_bytes)
    splits = [chunks.split(i, listed) for i in range(len(chunks))]
    assert rows_of(splits) == surviving(files)
    for place, split in enumerate(splits):
        groups = split.file.row_groups
        if groups is None or split.row_range is None:
            continue
        inside = (groups.start >= split.row_range.offset) & (groups.start < split.row_range.stop)
        inside &= groups.rows > 0
        assert groups.size_bytes[inside].sum() == chunks.size_bytes[place]
        assert chunks.size_bytes[place] <= split_bytes or inside.sum() == 1


@given(files=counted_files(), split_bytes=st.integers(1, 200))
def test_packing_is_greedy(files: list[DataFileInfo], split_bytes: int) -> None:
    """Check that no chunk has room for the first group of the chunk after it."""
    listed = FileList(files)
    chunks = cut_chunks(listed, split_bytes=split_bytes)
    for place in range(len(chunks) - 1):
        stop = int(chunks.offset[place] + chunks.length[place])
        groups = listed[int(chunks.file[place])].row_groups
        follows = chunks.file[place] == chunks.file[place + 1] and chunks.offset[place + 1] == stop
        if not follows or groups is None:
            continue
        after = np.flatnonzero((groups.start == stop) & (groups.rows > 0))[0]
        assert chunks.size_bytes[place] + groups.size_bytes[after] > split_bytes


@given(files=counted_files(), split_rows=st.integers(1, 20))
def test_split_rows_holds_every_row_once(files: list[DataFileInfo], split_rows: int) -> None:
    listed = FileList(files)
    chunks = cut_chunks(listed, split_bytes=1, split_rows=split_rows)
    assert rows_of(chunks.split(i, listed) for i in range(len(chunks))) == surviving(files)
    assert (chunks.length <= split_rows).all()
    for place in range(len(chunks) - 1):
        stop = chunks.offset[place] + chunks.length[place]
        follows = chunks.file[place] == chunks.file[place + 1] and chunks.offset[place + 1] == stop
        assert not follows or chunks.length[place] == split_rows


@given(files=mixed_files(), split_bytes=st.integers(1, 50))
def test_byte_ranges_partition_the_body(files: list[DataFileInfo], split_bytes: int) -> None:
    listed = FileList(files)
    chunks = cut_chunks(listed, split_bytes=split_bytes)
    splits = [chunks.split(i, listed) for i in range(len(chunks))]
    assert [s.file.path for s in splits] == sorted(
        (s.file.path for s in splits), key=listed.paths.index
    )
    for file in files:
        mine = [s for s in splits if s.file.path == file.path]
        if file.path.startswith("f"):
            assert rows_of(mine) == surviving([file])
        elif file.splittable and file.file_size is not None:
            covered = [b for s in mine for b in range(s.byte_range.offset, s.byte_range.stop)]
            assert covered == list(range(file.body_offset, file.file_size))
            assert all(s.byte_range.length <= split_bytes for s in mine)
        else:
            assert [(s.row_range, s.byte_range) for s in mine] == (
                [] if file.file_size == 0 else [(None, None)]
            )


def test_weights_are_rows_where_all_are_known_and_bytes_where_not() -> None:
    counted = cut_chunks(FileList([grouped("a", [5], [500])]), split_bytes=MANY)
    mixed = cut_chunks(
        FileList([grouped("a", [5], [500]), grouped("b", [5], [0]), text("c", 70)]),
        split_bytes=MANY,
    )
    assert counted.weights.tolist() == [5]
    assert mixed.weights.tolist() == [500, 1, 70]
    assert not mixed.counted
    assert len(Chunks.concat([counted, mixed])) == 4
