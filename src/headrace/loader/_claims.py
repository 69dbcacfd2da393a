"""Adaptive balance: workers take windows one by one, so that none waits for a slower worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing.context import BaseContext

import numpy as np

from headrace.convert.shared import shared_integers
from headrace.loader._pipeline import Stream
from headrace.model import Cursor, FileList, Int64Array
from headrace.plan import DONE, Lane, Piece, Reading, WindowRow, window_pieces

_LANE, _WINDOW, _ROW, _TAKER, _PLACE = range(5)
_WINDOWS_AHEAD = 2


def units_left(
    lanes: Sequence[Lane], cursors: Mapping[int, Cursor], loose: tuple[WindowRow, ...]
) -> list[list[WindowRow]]:
    """Return the windows of each lane that are still to be read, in order."""
    begun = {(lane, window): row for lane, window, row in loose}
    left: list[list[WindowRow]] = []
    for lane in lanes:
        window, row = cursors.get(lane.index, (0, 0))
        rows = {window: row}
        units = [
            WindowRow(lane.index, place, begun.get((lane.index, place), rows.get(place, 0)))
            for place in range(window, lane.windows)
        ]
        left.append([unit for unit in units if unit.row != DONE])
    return left


def claimed_stream(worker: int, claims: Claims, lane: Callable[[int], Lane]) -> Stream:
    """Return the windows that one worker takes; its cursors hold window numbers of the table.

    A window is taken when its first piece is asked for. Few windows are read ahead, because no
    other worker can take a window that was begun.
    """

    def pieces(files: FileList, reading: Reading) -> Iterator[Piece]:
        for number, unit in claims.taken_by(worker):
            its_lane = lane(unit.lane)
            span = its_lane.span(unit.window)
            mine = replace(span, start=max(span.start, unit.row))
            for piece in window_pieces(
                files, its_lane, unit.window, reading, skip=unit.row, position=0.0
            ):
                yield replace(piece, lane=worker, window=number, span=mine)

    return Stream(worker, pieces, jobs_ahead=_WINDOWS_AHEAD)


class Claims:
    """A table in shared memory of the windows, and of the worker that took each.

    A worker takes its own windows from the front. When it has none left, it takes the last window
    of the worker that has the most.
    """

    def __init__(self, workers: int, room: int, context: BaseContext) -> None:
        self._workers = workers
        self._lock = context.Lock()
        self._memory = shared_integers(1 + 2 * workers + 5 * room)

    def holds(self, units: int) -> bool:
        """Return True if there is room for ``units`` windows."""
        return 1 + 2 * self._workers + 5 * units <= len(self._memory)

    def post(self, lanes: Sequence[Sequence[WindowRow]]) -> None:
        """Write the windows; those of lane l belong to worker l % workers until they are taken."""
        owned: list[list[WindowRow]] = [[] for _ in range(self._workers)]
        for index, units in enumerate(lanes):
            owned[index % self._workers].extend(units)
        flat = [unit for units in owned for unit in units]
        self._memory.numpy()[0] = len(flat)
        ends = np.cumsum([len(units) for units in owned])
        self._fronts[:], self._backs[:] = ends - [len(units) for units in owned], ends
        table = self._table
        table[:, _LANE] = [unit.lane for unit in flat]
        table[:, _WINDOW] = [unit.window for unit in flat]
        table[:, _ROW] = [unit.row for unit in flat]
        table[:, _TAKER] = -1

    def taken_by(self, worker: int) -> Iterator[tuple[int, WindowRow]]:
        """Take one window after the other until none is left; yield each with its number."""
        place = 0
        while (number := self._take(worker, place)) is not None:
            place += 1
            lane, window, row = (int(value) for value in self._table[number, : _ROW + 1])
            yield number, WindowRow(lane, window, row)

    def progress(
        self, lanes: Sequence[Lane], streams: Sequence[Cursor]
    ) -> tuple[dict[int, Cursor], tuple[WindowRow, ...]]:
        """Return the cursor of every lane, and the unfinished windows beyond it.

        Args:
            lanes: The lanes.
            streams: For each worker, the number of the window that it delivered last, and how many
                of its rows it delivered.
        """
        # A copy, because workers take windows meanwhile: a window that is taken between two looks
        # at the table would count as neither taken nor left, and its rows would be lost.
        table = self._table.copy()
        rows: dict[tuple[int, int], int] = {}
        for worker, (number, row) in enumerate(streams):
            mine = table[table[:, _TAKER] == worker]
            here = int(table[number, _PLACE]) if number >= 0 else -1
            for lane, window, start, _, place in mine.tolist():
                rows[lane, window] = DONE if place < here else row if place == here else start
        for lane, window, start, taker, _ in table.tolist():
            if taker < 0:
                rows[lane, window] = start
        cursors: dict[int, Cursor] = {}
        loose: list[WindowRow] = []
        for lane in lanes:
            cursors[lane.index], holes = _lane_progress(lane, rows)
            loose += holes
        return cursors, tuple(loose)

    def _take(self, worker: int, place: int) -> int | None:
        with self._lock:
            fronts, backs = self._fronts, self._backs
            if fronts[worker] < backs[worker]:
                number = int(fronts[worker])
                fronts[worker] += 1
            else:
                victim = int(np.argmax(backs - fronts))
                if fronts[victim] == backs[victim]:
                    return None
                backs[victim] -= 1
                number = int(backs[victim])
            self._table[number, _PLACE] = place
            self._table[number, _TAKER] = worker
            return number

    @property
    def _fronts(self) -> Int64Array:
        return self._memory.numpy()[1 : 1 + self._workers]

    @property
    def _backs(self) -> Int64Array:
        return self._memory.numpy()[1 + self._workers : 1 + 2 * self._workers]

    @property
    def _table(self) -> Int64Array:
        memory: Int64Array = self._memory.numpy()
        units = int(memory[0])
        return memory[1 + 2 * self._workers :][: 5 * units].reshape(units, 5)


def _lane_progress(
    lane: Lane, rows: Mapping[tuple[int, int], int]
) -> tuple[Cursor, list[WindowRow]]:
    """Return the cursor at the first unfinished window, and the windows begun after it."""
    at = [rows.get((lane.index, window), DONE) for window in range(lane.windows)]
    first = next((window for window, row in enumerate(at) if row != DONE), lane.windows)
    cursor = Cursor(first, at[first] if first < lane.windows else 0)
    loose = [
        WindowRow(lane.index, window, row)
        for window, row in enumerate(at[first + 1 :], start=first + 1)
        if row != 0
    ]
    return cursor, loose
