"""A shared board on which the parent writes, for its workers, who reads what from where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.loader.pipeline import LaneStart
from penstock.loader.shared import shared_integers
from penstock.model import Int64Array
from penstock.plan import Chunks, LanePlan
from penstock.stream import Cursor

__all__ = ["Board"]

_HEADER = 3  # epoch, lanes, chunks
_COLUMNS = 5


class Board:
    """One tensor in shared memory, mapped by every worker: a worker copies its own lanes only.

    Written while no worker reads: before they start, or before they are told to start anew.
    """

    def __init__(self, plan: LanePlan) -> None:
        size = _HEADER + 3 * len(plan) + 1 + _COLUMNS * self._room(len(plan.chunks))
        self._memory = shared_integers(size)
        self._lanes = len(plan)

    @staticmethod
    def _room(chunks: int) -> int:
        """Another epoch's cuts fall elsewhere and may make a few chunks more."""
        return chunks + chunks // 8 + 64

    def holds(self, plan: LanePlan) -> bool:
        """Whether there is room for this plan."""
        used = _HEADER + 3 * len(plan) + 1 + _COLUMNS * len(plan.chunks)
        return len(plan) == self._lanes and used <= len(self._memory)

    def post(self, epoch: int, plan: LanePlan, cursors: Sequence[Cursor]) -> None:
        """Write an epoch's lanes and where to begin in them."""
        lanes, chunks = len(plan), len(plan.chunks)
        memory = self._memory.numpy()
        memory[:_HEADER] = epoch, lanes, chunks
        memory[_HEADER : _HEADER + lanes + 1] = plan.bounds
        at = _HEADER + lanes + 1
        memory[at : at + 2 * lanes] = np.asarray(cursors, np.int64).reshape(-1)
        table = memory[at + 2 * lanes :][: _COLUMNS * chunks].reshape(_COLUMNS, chunks)
        for row, name in enumerate(Chunks.__slots__):
            table[row] = getattr(plan.chunks, name)

    def read(self, index: int, consumers: int) -> tuple[int, list[LaneStart]]:
        """The epoch, and copies of the lanes of one consumer."""
        memory: Int64Array = self._memory.numpy()
        epoch, lanes, chunks = (int(value) for value in memory[:_HEADER])
        bounds = memory[_HEADER : _HEADER + lanes + 1]
        at = _HEADER + lanes + 1
        cursors = memory[at : at + 2 * lanes].reshape(lanes, 2)
        table = memory[at + 2 * lanes :][: _COLUMNS * chunks].reshape(_COLUMNS, chunks)
        starts = []
        for lane in range(index, lanes, consumers):
            columns: list[Any] = list(table[:, bounds[lane] : bounds[lane + 1]].copy())
            columns[3] = columns[3].astype(np.int8)
            cursor = (int(cursors[lane, 0]), int(cursors[lane, 1]))
            starts.append(LaneStart(lane, Chunks(*columns), cursor))
        return epoch, starts
