"""Delete files that apply to the same data files but for their age and the paths they name."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from headrace.errors import ReadError
from headrace.tables.iceberg.deletes import (
    WAY_OUT,
    EqualityDeleteFile,
    PositionDeleteFile,
    Selection,
    plain_path,
)

__all__ = ["ALL_PATHS", "DeleteGroup", "plain_bounds"]

T = TypeVar("T", PositionDeleteFile, EqualityDeleteFile)
Bounds = tuple[bytes, bytes]

ALL_PATHS: Bounds = b"", b"\xff"
"""no UTF-8 has the latter"""
_BYTES_A_FILE = 8


def plain_bounds(lower: bytes | None, upper: bytes | None) -> Bounds:
    """Between which paths those are that a delete file names, as ``plain_path`` has them.

    Bounds may be cut short: a lower one is then a prefix, an upper one a prefix whose end is
    raised, so that comparing them as they are is right. Of paths of this machine that are written
    in different ways they say nothing, for those are in another order when they are plain.
    """
    low, high = lower or ALL_PATHS[0], upper or ALL_PATHS[1]
    if low.startswith(b"file:///") and high.startswith(b"file:///"):
        return low[7:], high[7:]
    if (
        low.startswith(b"file:/")
        and high.startswith(b"file:/")
        and not _hold(low, high, b"file://")
    ):
        return low[5:], high[5:]
    return ALL_PATHS if low > high or _hold(low, high, b"file:/") else (low, high)


def _hold(low: bytes, high: bytes, prefix: bytes) -> bool:
    """Whether a path that begins like this may lie between two."""
    return low < prefix[:-1] + bytes([prefix[-1] + 1]) and high >= prefix


class DeleteGroup(Generic[T]):
    """Delete files of one partition, or of one data file, by age."""

    def __init__(self) -> None:
        self._added: list[tuple[int, T, Bounds]] = []
        self._files: tuple[T, ...] = ()
        self._ages: list[int] = []
        self._avro = False
        self._paths: _Intervals | None = None
        self._selected: dict[tuple[int, bytes], Selection[T]] = {}

    def add(self, age: int, file: T, bounds: Bounds = ALL_PATHS) -> None:
        """Bounds are those of the paths that the file names; all are added before any is asked."""
        self._added.append((age, file, bounds))

    def from_age(self, age: int, path: str = "") -> Selection[T] | None:
        """Those of this age or younger, less those that cannot name the path; None: there is none.

        The same object for the same ones.
        """
        if self._added:
            self._settle()
        start = bisect_left(self._ages, age)
        bits = b""
        if start < len(self._files) and self._paths is not None:
            within = self._paths.holding(plain_path(path).encode(), start)
            if not within.any():
                return None
            bits = b"" if within.all() else np.packbits(within).tobytes()
        key = start, bits
        if start < len(self._files) and key not in self._selected:
            self._selected[key] = self._select(start, bits)
        return self._selected.get(key)

    def _select(self, start: int, bits: bytes) -> Selection[T]:
        """Bits where they are less than a list of those that are meant."""
        selection = Selection(self._files, start, bits)
        if self._avro:
            _refuse_avro(selection)
        few = bits and len(selection) * _BYTES_A_FILE < len(bits)
        return Selection(tuple(selection)) if few else selection

    def _settle(self) -> None:
        self._added.sort(key=lambda added: added[0])
        self._ages = [age for age, _, _ in self._added]
        self._files = tuple(file for _, file, _ in self._added)
        self._avro = any(file.format == "avro" for file in self._files)
        bounds = [bounds for _, _, bounds in self._added]
        self._paths = _Intervals(bounds) if set(bounds) != {ALL_PATHS} else None
        self._added.clear()


class _Intervals:
    """Bounds of paths, compared all at once: by their places among all bounds."""

    def __init__(self, bounds: Sequence[Bounds]) -> None:
        self._sorted = sorted({bound for pair in bounds for bound in pair})
        place = {bound: at for at, bound in enumerate(self._sorted)}
        self._low = np.fromiter((place[low] for low, _ in bounds), np.int32)
        self._high = np.fromiter((place[high] for _, high in bounds), np.int32)

    def holding(self, path: bytes, start: int) -> npt.NDArray[np.bool_]:
        """Which of them, from a place on, hold the path."""
        above = self._low[start:] < bisect_right(self._sorted, path)
        return above & (self._high[start:] >= bisect_left(self._sorted, path))


def _refuse_avro(files: Iterable[PositionDeleteFile | EqualityDeleteFile]) -> None:
    for file in files:
        if file.format == "avro":
            raise ReadError(f"{file.path}: delete files in Avro are not supported; {WAY_OUT}")
