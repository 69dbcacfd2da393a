"""A lane: chunks in order, in windows whose rows are brought into an order together."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from headrace.model import Int64Array
from headrace.plan.chunks import Chunks

__all__ = ["Grouping", "Lane", "Span"]

_GENERATION = 1 << 32


@dataclass(frozen=True, slots=True)
class Grouping:
    """How the chunks of a lane form windows, and whether their rows are permuted.

    Attributes:
        mix: Number of chunks in a window, whose rows are permuted together if there are several.
        interleave: Number of files that give one chunk each to a window, whose rows are taken in
            turn.
        permuted: Whether the rows of a window of a single chunk are permuted, too.
    """

    mix: int = 1
    interleave: int = 1
    permuted: bool = False

    @property
    def reorders(self) -> bool:
        """Whether the rows of a window come in another order than they stand in."""
        return self.permuted or self.mix > 1 or self.interleave > 1

    def of(self, file: Int64Array) -> tuple[Int64Array, Int64Array]:
        """For a run of chunks of these files: their order, and the window of each."""
        if self.interleave > 1:
            return _in_turn(file, self.interleave)
        places = np.arange(len(file))
        return places, places // self.mix


def _in_turn(file: Int64Array, width: int) -> tuple[Int64Array, Int64Array]:
    """Windows of the next chunks of up to ``width`` files; a file that ends makes room."""
    chunks_of: dict[int, deque[int]] = {}
    for place, index in enumerate(file.tolist()):
        chunks_of.setdefault(index, deque()).append(place)
    waiting = deque(chunks_of.values())
    order: list[int] = []
    window: list[int] = []
    opened: list[deque[int]] = []
    number = 0
    while waiting or opened:
        while waiting and len(opened) < width:
            opened.append(waiting.popleft())
        order.extend(chunks.popleft() for chunks in opened)
        window.extend([number] * len(opened))
        opened = [chunks for chunks in opened if chunks]
        number += 1
    return np.asarray(order, np.int64), np.asarray(window, np.int64)


@dataclass(frozen=True, slots=True)
class Span:
    """Which rows of a window are a lane's, and what puts them in order."""

    key: tuple[int, int]
    """coordinates of the window's permutation"""
    start: int = 0
    """rows that were delivered before the lane began"""
    stop: int | None = None
    """where it ends, if it is not the end of the window"""


@dataclass(frozen=True, slots=True)
class Lane:
    """One lane of an epoch's plan."""

    index: int
    chunks: Chunks
    window: Int64Array
    """of each chunk; ascending, without gaps"""
    spans: Mapping[int, Span]
    """by window, where it is not all of a window that nobody had before"""
    generation: int = 0
    """how often the epoch was planned anew"""

    @property
    def windows(self) -> int:
        """How many there are."""
        return int(self.window[-1]) + 1 if len(self.window) else 0

    @property
    def end(self) -> tuple[int, int]:
        """The cursor behind its last row."""
        return self.windows, 0

    def members(self, window: int) -> slice:
        """The chunks of a window."""
        first, last = np.searchsorted(self.window, [window, window + 1])
        return slice(int(first), int(last))

    def span(self, window: int) -> Span:
        """The lane's part of a window: all of it, unless it says otherwise."""
        known = self.spans.get(window)
        return known or Span((self.generation * _GENERATION + self.index, window))

    def rows_left(self, cursor: tuple[int, int] = (0, 0)) -> int:
        """Rows behind a cursor, where all rows are counted."""
        rows = int(self.chunks.length[np.searchsorted(self.window, cursor[0]) :].sum())
        for window, span in self.spans.items():
            if window >= cursor[0]:
                whole = int(self.chunks.length[self.members(window)].sum())
                rows -= whole - ((whole if span.stop is None else span.stop) - span.start)
        return rows - max(cursor[1] - self.span(cursor[0]).start, 0)

    def cursor_after(self, rows: int) -> tuple[int, int]:
        """The place behind so many rows, where all rows are counted."""
        if rows <= 0:
            return 0, 0
        first = np.flatnonzero(np.diff(self.window, prepend=-1))
        sizes = np.add.reduceat(self.chunks.length, first) if len(first) else first
        for window, span in self.spans.items():
            stop = int(sizes[window]) if span.stop is None else span.stop
            sizes[window] = stop - span.start
        ends = np.cumsum(sizes)
        window = int(np.searchsorted(ends, rows))
        if window >= len(ends):
            window = len(ends) - 1
        return window, rows - int(ends[window] - sizes[window]) + self.span(window).start
