"""Columns whose rows all have one width and lie one behind the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from headrace.access.arrow.gather_memory import LONG, copied, records, touch
from headrace.model import Int64Array

__all__ = ["Strides"]

_MOST_AT_ONCE = 4096
"""ends of rows that are looked at together: of more the first would be forgotten by then"""


@dataclass(frozen=True, slots=True, eq=False)
class Strides:
    """Which columns those are, and how their rows are copied. Never changed, but replaced."""

    widths: Int64Array
    """bytes of a row, below each other; 0 or less for columns whose rows lie otherwise"""
    columns: tuple[tuple[int, int], ...]
    """those whose rows do, and their widths"""
    long: Int64Array
    """those of them whose rows are long, twice"""
    ends: Int64Array
    """from where such a row begins to its first byte, and to its last"""

    @classmethod
    def of(cls, widths: Int64Array) -> Self:
        """The columns by their widths."""
        columns = tuple((n, width) for n, width in enumerate(widths.tolist()) if width > 0)
        long = np.flatnonzero(widths >= LONG)
        ends = np.concatenate([np.zeros_like(long), widths[long] - 1])
        return cls(widths[:, None], columns, np.tile(long, 2), ends[:, None])

    def cells(self, bases: Int64Array, rows: Int64Array) -> list[tuple[int, npt.NDArray[Any]]]:
        """The bytes of some rows, of each of the columns.

        ``bases``: where the first of all rows would be, for each column and row.
        """
        addresses = bases + self.widths * rows
        copy = records
        if 0 < len(self.long) * len(rows) <= _MOST_AT_ONCE:
            touch(addresses.take(self.long, axis=0) + self.ends)
            copy = copied
        return [(column, copy(addresses[column], width)) for column, width in self.columns]
