"""Views: some rows in some order, as arithmetic over the rows of the view below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from headrace.model import Int64Array
from headrace.options import whole_number
from headrace.plan.permutations import IndexPermutation
from headrace.sources.backend import checked_indices


class _Step(Protocol):
    """Maps places in a view to places in the view below it."""

    @property
    def count(self) -> int: ...
    def at(self, places: Int64Array) -> Int64Array: ...


@dataclass(frozen=True, slots=True)
class _Stride:
    """Every ``step``-th place from ``start`` on."""

    start: int
    step: int
    count: int

    def at(self, places: Int64Array) -> Int64Array:
        return places * self.step + self.start


@dataclass(frozen=True, slots=True, eq=False)
class _Chosen:
    """Any positions, in any order; a position may occur several times."""

    indices: Int64Array

    @property
    def count(self) -> int:
        return len(self.indices)

    def at(self, places: Int64Array) -> Int64Array:
        return self.indices[places]


@dataclass(frozen=True, slots=True)
class View:
    """Some of ``total`` rows in some order, as steps that are computed when rows are requested.

    Only lists of indices that the user gave take memory.

    Attributes:
        total: Number of rows below all steps.
        steps: The steps; the last one made comes first.
    """

    total: int
    steps: tuple[_Step, ...] = ()

    @property
    def count(self) -> int:
        """Number of rows of the view."""
        return self.steps[0].count if self.steps else self.total

    def at(self, places: Int64Array) -> Int64Array:
        """Return the rows at some positions, all of which must exist."""
        for step in self.steps:
            places = step.at(places)
        return places

    def row(self, place: int) -> int:
        """Return the row at a place; a negative place counts from the end.

        Raises:
            IndexError: The position does not exist.
        """
        count = self.count
        if not 0 <= place < count:
            (place,) = checked_indices([place], count).tolist()
        return int(self.at(np.array([place]))[0]) if self.steps else place

    def sliced(self, part: slice) -> View:
        """Return the view of a slice of this one."""
        return self._strided(range(*part.indices(self.count)))

    def _strided(self, places: range) -> View:
        start, step, below = places.start, places.step, self.steps
        if below and isinstance(below[0], _Stride):
            start, step = below[0].start + start * below[0].step, step * below[0].step
            below = below[1:]
        return View(self.total, (_Stride(start, step, len(places)), *below))

    def selected(self, indices: Sequence[int] | npt.NDArray[np.integer[Any]] | range) -> View:
        """Return the view of some positions of this one."""
        if isinstance(indices, range):
            checked_indices([*indices[:1], *indices[-1:]], self.count)
            if not indices or min(indices[0], indices[-1]) >= 0:
                return self._strided(indices)
        given = np.asarray(indices)
        chosen = checked_indices(given, self.count)
        if np.may_share_memory(chosen, given):
            chosen = np.array(chosen)  # or the view would change with it
        return View(self.total, (_Chosen(chosen), *self.steps))

    def shuffled(self, seed: int) -> View:
        """Return the view of all positions of this one in a random order."""
        order = IndexPermutation(self.count, whole_number("seed", seed))
        return View(self.total, (order, *self.steps))

    @property
    def is_run(self) -> bool:
        """True if these are consecutive rows, or all rows."""
        if not self.steps:
            return True
        only = self.steps[0]
        return len(self.steps) == 1 and isinstance(only, _Stride) and only.step == 1

    @property
    def start(self) -> int:
        """First row of the view."""
        return int(self.at(np.zeros(1, np.int64))[0])
