"""Byte ranges that are wanted, and the requests that fetch them. Pure arithmetic."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from headrace.errors import OptionError

__all__ = ["Requests", "Span", "shares", "without"]

Span = tuple[int, int]
"""first byte, and the byte after the last"""

_WIDEST_GAP_BYTES = 1 << 20
_WASTE = 16
"""of so many bytes one may be fetched that nobody asked for, unless the user says otherwise"""


@dataclass(frozen=True, slots=True)
class Requests:
    """How wanted ranges become requests."""

    max_gap_bytes: int | None = None
    """bytes between two ranges that are fetched rather than asking twice; None: up to 1 MiB, as
    long as all of them together are a sixteenth of what is wanted"""
    max_request_bytes: int = 8 << 20

    def __post_init__(self) -> None:
        if self.max_gap_bytes is not None:
            _check("max_gap_bytes", self.max_gap_bytes, 0)
        _check("max_request_bytes", self.max_request_bytes, 1)

    def plan(self, wanted: Iterable[Span]) -> list[Span]:
        """Requests in the order of the file: ranges joined where that pays, and none too long.

        A range goes into one request unless it is itself longer than one may be.
        """
        spans = _joined_overlaps(wanted)
        joined: list[Span] = []
        gaps = self._worth_fetching(spans)
        for start, stop in spans:
            if joined and joined[-1][1] in gaps and stop - joined[-1][0] <= self.max_request_bytes:
                joined[-1] = joined[-1][0], stop
            else:
                joined.append((start, stop))
        return [part for span in joined for part in self._parts(span)]

    def _worth_fetching(self, spans: list[Span]) -> set[int]:
        """Where the gaps begin that are fetched: the smallest ones, as far as they may."""
        sizes = sorted((after[0] - before[1], before[1]) for before, after in pairwise(spans))
        if self.max_gap_bytes is not None:
            return {start for size, start in sizes if size <= self.max_gap_bytes}
        left = sum(stop - start for start, stop in spans) // _WASTE
        chosen: set[int] = set()
        for size, start in sizes:
            left -= size
            if left < 0 or size > _WIDEST_GAP_BYTES:
                break
            chosen.add(start)
        return chosen

    def _parts(self, span: Span) -> list[Span]:
        """A range in requests of about the same size."""
        start, stop = span
        count = -(-(stop - start) // self.max_request_bytes)
        cuts = [start + (stop - start) * i // count for i in range(count + 1)]
        return list(pairwise(cuts))


def shares(wanted: Iterable[Span], requests: Sequence[Span]) -> list[list[Span]]:
    """What each of some requests, which follow each other, holds of the wanted ranges."""
    found: list[list[Span]] = [[] for _ in requests]
    for start, stop in wanted:
        index = max(bisect_right(requests, start, key=lambda span: span[0]) - 1, 0)
        while index < len(requests) and requests[index][0] < stop:
            share = max(start, requests[index][0]), min(stop, requests[index][1])
            if share[0] < share[1]:
                found[index].append(share)
            index += 1
    return found


def without(spans: Iterable[Span], start: int, stop: int) -> list[Span]:
    """What is left of some ranges when one is taken away."""
    cut = [part for a, b in spans for part in ((a, min(b, start)), (max(a, stop), b))]
    return [(a, b) for a, b in cut if a < b]


def _check(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise OptionError(f"{name} must be an int, not {value!r}")
    if value < least:
        raise OptionError(f"{name} must be at least {least}, not {value!r}")


def _joined_overlaps(wanted: Iterable[Span]) -> list[Span]:
    """The same bytes in ranges that do not overlap; ranges that only touch stay apart."""
    spans: list[Span] = []
    for start, stop in sorted(span for span in wanted if span[1] > span[0]):
        if spans and start < spans[-1][1]:
            spans[-1] = spans[-1][0], max(stop, spans[-1][1])
        else:
            spans.append((start, stop))
    return spans
