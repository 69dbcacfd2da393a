"""A shared board on which the parent writes, for its workers, who reads what from where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace.convert.shared import shared_integers
from headrace.loader.streams import LaneStart
from headrace.model import Int64Array
from headrace.plan import Chunks, Lane, LanePlan, Span
from headrace.stream import Cursor

__all__ = ["Board"]

_HEADER = 5  # epoch, lanes, chunks, spans, generation
_COLUMNS = 6  # those of chunks, and the window
_SPAN = 6  # lane, window, key, start, stop
_LANE = 4  # first chunk, chunk after the last, cursor


class Board:
    """One tensor in shared memory, mapped by every worker: a worker copies its own lanes only.

    Written while no worker reads: before they start, or before they are told to start anew.
    """

    def __init__(self, plan: LanePlan) -> None:
        chunks = len(plan.chunks)
        # Another epoch's cuts fall elsewhere and may make a few chunks more.
        self._memory = shared_integers(_size(plan, chunks + chunks // 8 + 64))

    def holds(self, plan: LanePlan) -> bool:
        """Whether there is room for this plan."""
        return _size(plan, len(plan.chunks)) <= len(self._memory)

    def post(self, epoch: int, plan: LanePlan, cursors: Mapping[int, Cursor]) -> None:
        """Write an epoch's lanes, and where to begin in those that are to be read here."""
        lanes, chunks, spans = len(plan), len(plan.chunks), len(plan.spans)
        memory = self._memory.numpy()
        memory[:_HEADER] = epoch, lanes, chunks, spans, plan.generation
        table = _lanes(memory, lanes)
        table[:, 0], table[:, 1] = plan.bounds[:-1], plan.bounds[1:]
        table[:, 2:] = -1
        for lane, cursor in cursors.items():
            table[lane, 2:] = cursor
        rows = _spans(memory, lanes, spans)
        for row, (place, span) in zip(rows, plan.spans.items(), strict=True):
            row[:] = *place, *span.key, span.start, -1 if span.stop is None else span.stop
        columns = _columns(memory, lanes, spans, chunks)
        columns[-1] = plan.window
        for row, name in enumerate(Chunks.__slots__):
            columns[row] = getattr(plan.chunks, name)

    @property
    def epoch(self) -> int:
        """The epoch that is posted."""
        return int(self._memory[0])

    def starts(self, worker: int, workers: int) -> list[LaneStart]:
        """Copies of the lanes of one of the workers, and where to begin."""
        table = _lanes(self._memory.numpy(), int(self._memory[1]))
        mine = np.flatnonzero(table[:, 2] >= 0)[worker::workers].tolist()
        return [LaneStart(self.lane(index), tuple(table[index, 2:].tolist())) for index in mine]

    def lane(self, index: int) -> Lane:
        """A copy of one lane."""
        memory: Int64Array = self._memory.numpy()
        _, lanes, chunks, spans, generation = (int(value) for value in memory[:_HEADER])
        first, last = _lanes(memory, lanes)[index, :2].tolist()
        *own, window = _columns(memory, lanes, spans, chunks)[:, first:last].copy()
        own[3] = own[3].astype(np.int8)
        mine = _spans_of(index, _spans(memory, lanes, spans))
        return Lane(index, Chunks(*own), window, mine, generation)


def _size(plan: LanePlan, chunks: int) -> int:
    return _HEADER + _LANE * len(plan) + _SPAN * len(plan.spans) + _COLUMNS * chunks


def _lanes(memory: Int64Array, lanes: int) -> Int64Array:
    return memory[_HEADER:][: _LANE * lanes].reshape(lanes, _LANE)


def _spans(memory: Int64Array, lanes: int, spans: int) -> Int64Array:
    return memory[_HEADER + _LANE * lanes :][: _SPAN * spans].reshape(spans, _SPAN)


def _columns(memory: Int64Array, lanes: int, spans: int, chunks: int) -> Any:
    rest = memory[_HEADER + _LANE * lanes + _SPAN * spans :]
    return rest[: _COLUMNS * chunks].reshape(_COLUMNS, chunks)


def _spans_of(index: int, table: Int64Array) -> dict[int, Span]:
    mine = table[table[:, 0] == index].tolist()
    return {row[1]: Span((row[2], row[3]), row[4], None if row[5] < 0 else row[5]) for row in mine}
