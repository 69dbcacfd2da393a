"""Which parts of an object are on disk, as this process last saw its folder."""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

__all__ = ["Segment", "Segments", "segments_in"]

_FOLDERS_KNOWN = 1024


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """Bytes of an object; the name of its file says which, and their checksum."""

    start: int
    stop: int
    checksum: int

    @property
    def name(self) -> str:
        return f"{self.start}-{self.stop}-{self.checksum:08x}"

    @classmethod
    def named(cls, name: str) -> Segment | None:
        try:
            start, stop, checksum = name.split("-")
            return cls(int(start), int(stop), int(checksum, 16))
        except ValueError:
            return None


class Segments:
    """Segments by where they begin; they may overlap. Never changes."""

    __slots__ = ("_all", "_furthest", "_starts")

    def __init__(self, segments: Iterable[Segment] = ()) -> None:
        self._all = sorted(segments)
        self._starts = [segment.start for segment in self._all]
        stops = ((segment.stop, place) for place, segment in enumerate(self._all))
        self._furthest = list(accumulate(stops, max))

    def at(self, byte: int) -> Segment | None:
        """The segment that holds a byte and reaches furthest beyond it."""
        before = bisect_right(self._starts, byte)
        if not before:
            return None
        stop, place = self._furthest[before - 1]
        return self._all[place] if stop > byte else None

    def next_start(self, byte: int) -> int | None:
        """Where the first segment begins behind a byte."""
        after = bisect_right(self._starts, byte)
        return self._starts[after] if after < len(self._starts) else None

    def without(self, segment: Segment) -> Segments:
        return Segments(one for one in self._all if one != segment)


_seen: OrderedDict[str, tuple[int, Segments]] = OrderedDict()
"""by folder, with the time of its last change: listing thousands for each read takes too long"""
_SETTLED_NS = 2_000_000_000
"""since its last change: within a tick of the clock a folder may change again and not show it"""


def segments_in(folder: str) -> Segments:
    """The segments of an object; none if there is no such folder."""
    try:
        modified = os.stat(folder).st_mtime_ns
        known = _seen.get(folder)
        if known is not None and known[0] == modified:
            return known[1]
        names = os.listdir(folder)
    except OSError:
        return Segments()
    found = Segments(one for name in names if (one := Segment.named(name)) is not None)
    if abs(time.time_ns() - modified) > _SETTLED_NS:
        _remember(folder, modified, found)
    return found


def _remember(folder: str, modified: int, segments: Segments) -> None:
    _seen[folder] = modified, segments
    if len(_seen) > _FOLDERS_KNOWN:
        _seen.popitem(last=False)
