"""Blocks of any length become batches of one length, each with the cursor after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from headrace.model import Cursor
from headrace.stream import Located, Run, cut


@dataclass(frozen=True)
class Rows:
    """A minimal block that can be cut; it knows whether it was copied."""

    values: list[int]
    copied: bool = False

    @property
    def num_rows(self) -> int:
        return len(self.values)

    def slice(self, start: int, length: int) -> Rows:
        assert start >= 0
        assert length > 0
        assert start + length <= len(self.values)
        return Rows(self.values[start : start + length], self.copied)


def concat(parts: Sequence[Rows]) -> Rows:
    return Rows([value for part in parts for value in part.values], True)


Lane = list[list[list[int]]]  # windows of blocks of rows


def located(lane: Lane, cursor: Cursor = (0, 0)) -> list[Located[Rows]]:
    """Return a lane's blocks after a cursor."""
    located_rows: list[Located[Rows]] = []
    for window, blocks in enumerate(lane):
        starts = accumulate((len(block) for block in blocks), initial=0)
        for start, block in zip(starts, blocks, strict=False):
            behind = 0
            if window < cursor[0]:
                continue
            if window == cursor[0]:
                behind = min(max(cursor[1] - start, 0), len(block))
            if behind < len(block) or not block:
                located_rows.append(Located(Rows(block[behind:]), window, start + behind))
    return located_rows


def batches(runs: list[Run[Rows]]) -> list[tuple[list[int], Cursor]]:
    """Return each batch with the cursor after it."""
    return [
        (run.block.values[at * run.batch_size : (at + 1) * run.batch_size], run.cursor(at + 1))
        for run in runs
        for at in range(run.batches)
    ]


@st.composite
def lanes(draw: st.DrawFn) -> Lane:
    lengths = draw(st.lists(st.lists(st.integers(0, 13), max_size=5), max_size=5))
    lane: Lane = []
    value = 0
    for window in lengths:
        blocks = []
        for length in window:
            blocks.append(list(range(value, value + length)))
            value += length
        lane.append(blocks)
    return lane


def place(lane: Lane, cursor: Cursor) -> int:
    """Return the number of rows before a cursor, which has to be inside its window."""
    lengths = [sum(len(block) for block in window) for window in lane]
    assert 0 <= cursor[1] <= lengths[cursor[0]]
    return sum(lengths[: cursor[0]]) + cursor[1]


@given(lane=lanes(), batch_size=st.integers(1, 11), drop_last=st.booleans())
def test_batches_and_cursors_of_any_blocks(lane: Lane, batch_size: int, drop_last: bool) -> None:
    rows = [value for window in lane for block in window for value in block]
    expected = [rows[at : at + batch_size] for at in range(0, len(rows), batch_size)]
    if drop_last and expected and len(expected[-1]) < batch_size:
        expected.pop()
    result = batches(list(cut(located(lane), batch_size, concat=concat, drop_last=drop_last)))
    assert [batch for batch, _ in result] == expected
    delivered = 0
    for batch, cursor in result:
        delivered += len(batch)
        assert place(lane, cursor) == delivered


@given(lane=lanes(), batch_size=st.integers(1, 11), drop_last=st.booleans())
def test_resuming_from_any_cursor_gives_the_remaining_batches(
    lane: Lane, batch_size: int, drop_last: bool
) -> None:
    whole = batches(list(cut(located(lane), batch_size, concat=concat, drop_last=drop_last)))
    for count, (_, cursor) in enumerate(whole, start=1):
        rest = cut(located(lane, cursor), batch_size, concat=concat, drop_last=drop_last)
        assert batches(list(rest)) == whole[count:]


@given(lane=lanes(), batch_size=st.integers(1, 11))
def test_only_rows_at_a_seam_are_copied(lane: Lane, batch_size: int) -> None:
    runs = list(cut(located(lane), batch_size, concat=concat))
    for run in runs[:-1]:
        assert run.block.num_rows % batch_size == 0
        assert not run.block.copied or run.batches == 1


def test_a_block_of_whole_batches_is_passed_on_as_it_is() -> None:
    block = Rows(list(range(12)))
    (run,) = cut([Located(block, 3, 7)], 4, concat=concat)
    assert run.block is block
    assert run.batches == 3
    assert [run.cursor(i) for i in range(4)] == [(3, 7), (3, 11), (3, 15), (3, 19)]


def test_a_batch_over_several_windows_ends_in_the_last_of_them() -> None:
    lane: Lane = [[[1, 2]], [[3]], [[4, 5, 6]]]
    result = batches(list(cut(located(lane), 5, concat=concat)))
    assert result == [([1, 2, 3, 4, 5], (2, 2)), ([6], (2, 3))]


def test_nothing_is_asked_for_before_it_is_needed() -> None:
    asked = []

    def blocks() -> object:
        for at in range(3):
            asked.append(at)
            yield Located(Rows([at] * 4), 0, at * 4)

    runs = cut(blocks(), 4, concat=concat)  # type: ignore[arg-type]
    assert asked == []
    next(runs)
    assert asked == [0]


def test_no_blocks_and_empty_blocks_give_no_batches() -> None:
    assert list(cut([], 4, concat=concat)) == []
    assert list(cut([Located(Rows([]), 0, 0)] * 3, 4, concat=concat)) == []
