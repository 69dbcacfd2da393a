"""Rows that were handed out against those that should have been: pure counting."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from headrace.testing.auditing.legs import Batch
from headrace.testing.auditing.report import Finding, Outcome
from headrace.testing.auditing.schedule import Schedule

__all__ = ["Comparison", "Judgement", "compare", "in_global_order", "in_rank_order", "outcome_of"]

_FINDINGS_OF_A_KIND = 5

Delivered = Sequence[tuple[Hashable, int]]
"""rows with the leg that brought them"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences between the rows of an epoch and the expected ones."""

    missing: tuple[tuple[Hashable, int | None], ...]
    """rows that never came, with the leg that should have brought them where that is known"""
    missing_at_end: bool
    """every missing row stands behind every row that came; taken for granted without an order"""
    surplus: tuple[tuple[Hashable, int], ...]
    """rows that came more often than expected, with the leg that brought them once too often"""
    moved: int
    """the fewest rows that would have to move for the others to be in order"""
    first_moved: tuple[Hashable, int] | None
    """the first row that stands where another should, and its leg"""


def in_rank_order(batches: Iterable[Batch], epoch: int) -> list[tuple[Hashable, int]]:
    """All rows of rank 0 as it was handed them, then those of rank 1, and so on."""
    return _rows(sorted(_of(batches, epoch), key=lambda b: (b.rank, b.leg, b.step)))


def in_global_order(
    batches: Iterable[Batch], epoch: int, expected: Sequence[Hashable]
) -> list[tuple[Hashable, int]]:
    """The first batches of all ranks, then the second ones, and so on.

    Which rank has which batch of a step is no matter: they are put in the expected order.
    """
    places = {row: place for place, row in reversed(list(enumerate(expected)))}

    def key(batch: Batch) -> tuple[int, int, int]:
        return batch.leg, batch.step, min((places.get(row, 0) for row in batch.rows), default=0)

    return _rows(sorted(_of(batches, epoch), key=key))


def _of(batches: Iterable[Batch], epoch: int) -> Iterable[Batch]:
    return (batch for batch in batches if batch.epoch == epoch)


def _rows(batches: Iterable[Batch]) -> list[tuple[Hashable, int]]:
    return [(row, batch.leg) for batch in batches for row in batch.rows]


def compare(delivered: Delivered, expected: Sequence[Hashable], *, ordered: bool) -> Comparison:
    """Match rows with expected ones, the first that came with the first expected."""
    places: defaultdict[Hashable, deque[int]] = defaultdict(deque)
    for place, row in enumerate(expected):
        places[row].append(place)
    came: list[tuple[int, int]] = []
    surplus = []
    for row, leg in delivered:
        if places[row]:
            came.append((places[row].popleft(), leg))
        else:
            surplus.append((row, leg))
    absent = sorted(place for left in places.values() for place in left)
    moved, first_moved = _moved(came) if ordered else (0, None)
    present = sorted(came) if ordered else []
    return Comparison(
        missing=tuple((expected[place], _leg_due(place, present)) for place in absent),
        missing_at_end=not absent or not present or absent[0] > present[-1][0],
        surplus=tuple(surplus),
        moved=moved,
        first_moved=None if first_moved is None else (expected[first_moved[0]], first_moved[1]),
    )


def _leg_due(place: int, present: Sequence[tuple[int, int]]) -> int | None:
    """The later one of the legs that brought the rows to both sides of a missing one.

    >>> _leg_due(3, [(1, 0), (2, 0), (5, 1)])
    1
    """
    at = bisect_left(present, (place, 0))
    return max((leg for _, leg in present[max(0, at - 1) : at + 1]), default=None)


def _moved(came: Sequence[tuple[int, int]]) -> tuple[int, tuple[int, int] | None]:
    """
    >>> _moved([(0, 0), (3, 1), (1, 1), (2, 1)])
    (1, (3, 1))
    """
    places = [place for place, _ in came]
    first = next((a for a, b in zip(came, sorted(places), strict=True) if a[0] != b), None)
    return len(places) - _longest_rising_run(places), first


def _longest_rising_run(places: Iterable[int]) -> int:
    """Return the length of the longest ascending subsequence."""
    lowest_ends: list[int] = []
    for place in places:
        at = bisect_left(lowest_ends, place)
        lowest_ends[at : at + 1] = [place]
    return len(lowest_ends)


@dataclass(frozen=True, slots=True)
class Judgement:
    """One epoch of one schedule."""

    epoch: int
    expected: int
    comparison: Comparison
    may_drop: int
    """rows that may be missing at the end"""
    left_out: int = 0
    """rows that a run of this size never brings, interrupted or not"""

    @property
    def lost(self) -> int:
        """Missing rows, all of them if one is too many or in the wrong place."""
        missing = len(self.comparison.missing)
        return 0 if missing <= self.may_drop and self.comparison.missing_at_end else missing

    @property
    def dropped(self) -> int:
        """Missing rows that may be."""
        return self.left_out + len(self.comparison.missing) - self.lost

    def findings(self) -> Iterator[Finding]:
        """Return what is wrong with single rows."""
        if self.lost:
            for row, leg in self.comparison.missing:
                yield Finding("lost", row, self.epoch, leg)
        for row, leg in self.comparison.surplus:
            yield Finding("duplicated", row, self.epoch, leg)
        if self.comparison.first_moved is not None:
            row, leg = self.comparison.first_moved
            yield Finding("reordered", row, self.epoch, leg)


def outcome_of(
    schedule: Schedule, judgements: Sequence[Judgement], *, unsaved: tuple[int, ...]
) -> Outcome:
    """The sums over all epochs, and the first few findings."""
    findings = [finding for judgement in judgements for finding in judgement.findings()]
    return Outcome(
        schedule,
        rows=sum(judgement.expected for judgement in judgements),
        lost=sum(judgement.lost for judgement in judgements),
        dropped=sum(judgement.dropped for judgement in judgements),
        duplicated=sum(len(judgement.comparison.surplus) for judgement in judgements),
        reordered=sum(judgement.comparison.moved for judgement in judgements),
        findings=tuple(_first_few(findings)),
        unsaved=unsaved,
    )


def _first_few(findings: Sequence[Finding]) -> Iterator[Finding]:
    for kind in ("lost", "duplicated", "reordered"):
        of_kind = (finding for finding in findings if finding.kind == kind)
        yield from islice(of_kind, _FINDINGS_OF_A_KIND)
