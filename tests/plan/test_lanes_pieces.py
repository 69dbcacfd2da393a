"""The pieces of a lane from any cursor on: exactly the rest, in pieces that fit a block."""

from __future__ import annotations

import pytest
from file_makers import counted_files, grouped, rows_of, text
from hypothesis import given
from hypothesis import strategies as st

from headrace.model import DataFileInfo, FileList
from headrace.plan import (
    Chunks,
    EvenBatchesSplitStrategy,
    Grouping,
    Lane,
    Piece,
    Reading,
    RowCost,
    cut_chunks,
    lane_pieces,
)

COST = RowCost(fixed_bytes=8, variable=False)


def lane_of(chunks: Chunks, mix: int) -> Lane:
    return Lane(5, chunks, Grouping(mix).of(chunks.file)[1], {})


def pieces(
    files: FileList,
    chunks: Chunks,
    *,
    mix: int = 1,
    cursor: tuple[int, int] = (0, 0),
    block_bytes: int = 100,
    counted: bool = True,
    cost: RowCost = COST,
) -> list[Piece]:
    reading = Reading(mix > 1, counted, block_bytes, cost)
    return list(lane_pieces(lane_of(chunks, mix), cursor, files, reading))


@given(
    files=counted_files(),
    lanes=st.integers(1, 3),
    split_rows=st.none() | st.integers(1, 20),
    mix=st.integers(1, 4),
    block_bytes=st.integers(1, 150),
    data=st.data(),
)
def test_pieces_cover_exactly_what_is_behind_a_cursor(
    files: list[DataFileInfo],
    lanes: int,
    split_rows: int | None,
    mix: int,
    block_bytes: int,
    data: st.DataObject,
) -> None:
    listed = FileList(files)
    strategy = EvenBatchesSplitStrategy(3, 80, split_rows, shuffle=True, seed=1)
    plan = strategy.generate(listed, lanes, 0)
    for lane in range(lanes):
        chunks = plan.lane(lane).chunks
        windows = [
            rows_of(chunks.split(i, listed) for i in range(at, min(at + mix, len(chunks))))
            for at in range(0, len(chunks), mix)
        ]
        window = data.draw(st.integers(0, len(windows)))
        row = data.draw(st.integers(0, len(windows[window]))) if window < len(windows) else 0
        result = pieces(
            listed,
            chunks,
            mix=mix,
            cursor=(window, row),
            block_bytes=block_bytes,
        )
        expected = [r for w in windows[window:] for r in w]
        skipped = row if mix == 1 else 0
        assert rows_of(c for piece in result for c in piece.chunks) == expected[skipped:]
        assert lane_of(chunks, mix).rows_left((window, row)) == len(expected) - row
        assert [piece.window for piece in result] == sorted(piece.window for piece in result)
        assert {piece.lane for piece in result} <= {5}
        for piece in result:
            inside = windows[piece.window].index(rows_of(piece.chunks)[0])
            assert piece.row == (inside if mix == 1 else None)


def test_pieces_end_where_groups_do() -> None:
    files = FileList([grouped("f", [10] * 6, [30, 30, 30, 30, 200, 30])])
    chunks = cut_chunks(files, split_bytes=10_000)
    result = pieces(files, chunks, block_bytes=100)
    assert [str(piece.chunks[0]) for piece in result] == [
        "f, rows 0-30",
        "f, rows 30-40",
        "f, rows 40-50",
        "f, rows 50-60",
    ]
    assert [piece.row for piece in result] == [0, 30, 40, 50]
    assert [piece.cost_bytes for piece in result] == [240, 80, 80, 80]


def test_rows_before_the_cursor_are_not_read() -> None:
    files = FileList([grouped("f", [10] * 3, [60] * 3)])
    chunks = cut_chunks(files, split_bytes=10_000)
    result = pieces(files, chunks, cursor=(0, 13))
    assert [str(piece.chunks[0]) for piece in result] == ["f, rows 13-20", "f, rows 20-30"]
    assert [piece.row for piece in result] == [13, 20]


def test_rows_that_are_not_counted_are_read_from_the_start_of_their_window() -> None:
    files = FileList([grouped("f", [10] * 3, [60] * 3)])
    chunks = cut_chunks(files, split_bytes=60)
    result = pieces(files, chunks, cursor=(1, 7), counted=False)
    assert [str(piece.chunks[0]) for piece in result] == ["f, rows 10-20", "f, rows 20-30"]
    assert [piece.row for piece in result] == [None, None]


@pytest.mark.parametrize("file", [grouped("f", [10], [60]), DataFileInfo("f", 60, 10)])
def test_a_cursor_at_the_end_of_a_window_reads_nothing_of_it(file: DataFileInfo) -> None:
    files = FileList([file])
    chunks = cut_chunks(files, split_bytes=60)
    assert pieces(files, chunks, cursor=(0, 10)) == []
    assert pieces(files, chunks, cursor=(1, 0)) == []


def test_a_window_of_several_chunks_is_one_piece_with_their_cost() -> None:
    files = FileList([grouped("f", [10] * 5, [60] * 5), text("t", 90)])
    chunks = cut_chunks(files, split_bytes=60)
    result = pieces(files, chunks, mix=2, cursor=(1, 3), cost=RowCost(8, True))
    assert [[str(c) for c in piece.chunks] for piece in result] == [
        ["f, rows 20-30", "f, rows 30-40"],
        ["f, rows 40-50", "t, bytes 0-60"],
        ["t, bytes 60-90"],
    ]
    assert [piece.cost_bytes for piece in result] == [2 * 140, 140 + 60, 30]
    assert [piece.window for piece in result] == [1, 2, 3]


def test_lines_in_pieces_of_a_block() -> None:
    files = FileList([text("t", 250, 10), text("w.gz", 999, splittable=False)])
    chunks = cut_chunks(files, split_bytes=1000)
    result = pieces(files, chunks, counted=False, cursor=(0, 30))
    assert [str(piece.chunks[0]) for piece in result] == [
        "t, bytes 10-110",
        "t, bytes 110-210",
        "t, bytes 210-250",
        "w.gz",
    ]
    assert all(piece.row is None for piece in result)
    assert [piece.cost_bytes for piece in result] == [100, 100, 40, 200]


def test_positions_run_from_0_to_1() -> None:
    files = FileList([grouped("f", [10] * 4, [60] * 4)])
    chunks = cut_chunks(files, split_bytes=60)
    assert [piece.position for piece in pieces(files, chunks)] == [0.0, 0.25, 0.5, 0.75]
    assert [piece.position for piece in pieces(files, chunks, mix=2)] == [0.0, 0.5]


def test_a_lane_without_chunks() -> None:
    assert pieces(FileList(), Chunks.empty()) == []
    assert lane_of(Chunks.empty(), 1).rows_left((0, 0)) == 0


def test_cost_of_rows() -> None:
    assert RowCost(8, False).of(10, 500) == 80
    assert RowCost(8, True).of(10, 500) == 580
