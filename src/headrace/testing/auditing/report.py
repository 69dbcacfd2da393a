"""Rows that were handed out against those that should have been, and the report of an audit."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from headrace.testing.auditing.schedule import Schedule

__all__ = ["AuditReport", "Comparison", "Finding", "Outcome", "compare"]

_COLUMNS = ("schedule", "rows", "lost", "dropped", "duplicated", "reordered", "verdict", "legs")


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences between the rows of an epoch and the expected ones.

    Attributes:
        missing: Rows that never came, with the leg that should have brought them where that is
            known.
        missing_at_end: Whether every missing row stands behind every row that came; taken for
            granted without an order.
        surplus: Rows that came more often than expected, with the leg that brought them once too
            often.
        moved: The fewest rows that would have to move for the others to be in order.
        first_moved: The first row that stands where another should, and its leg.
    """

    missing: tuple[tuple[Hashable, int | None], ...]
    missing_at_end: bool
    surplus: tuple[tuple[Hashable, int], ...]
    moved: int
    first_moved: tuple[Hashable, int] | None


def compare(
    delivered: Iterable[tuple[Hashable, int]], expected: Sequence[Hashable], *, ordered: bool
) -> Comparison:
    """Match rows, each with its leg, with expected ones: the first that came with the first."""
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
    moved, first_moved, present = 0, None, []
    if ordered:
        present = sorted(came)
        moved = len(came) - _longest_rising_run([place for place, _ in came])
        wrong = (one for one, right in zip(came, present, strict=True) if one[0] != right[0])
        first_moved = next(((expected[place], leg) for place, leg in wrong), None)
    return Comparison(
        missing=tuple((expected[place], _leg_due(place, present)) for place in absent),
        missing_at_end=not absent or not present or absent[0] > present[-1][0],
        surplus=tuple(surplus),
        moved=moved,
        first_moved=first_moved,
    )


def _leg_due(place: int, present: Sequence[tuple[int, int]]) -> int | None:
    """Return the later one of the legs that brought the rows to both sides of a missing one.

    >>> _leg_due(3, [(1, 0), (2, 0), (5, 1)])
    1
    """
    at = bisect_left(present, (place, 0))
    return max((leg for _, leg in present[max(0, at - 1) : at + 1]), default=None)


def _longest_rising_run(places: Iterable[int]) -> int:
    """Return the length of the longest ascending subsequence."""
    lowest_ends: list[int] = []
    for place in places:
        at = bisect_left(lowest_ends, place)
        lowest_ends[at : at + 1] = [place]
    return len(lowest_ends)


@dataclass(frozen=True, slots=True)
class Finding:
    """One row that should not be where it is, or is nowhere; ``leg`` is None if not known."""

    kind: Literal["lost", "duplicated", "reordered"]
    row: Hashable
    epoch: int
    leg: int | None

    def __str__(self) -> str:
        """Return it in words.

        >>> print(Finding("lost", 17, epoch=1, leg=2))
        row 17 lost (epoch 1, leg 2)
        """
        where = f"epoch {self.epoch}" if self.leg is None else f"epoch {self.epoch}, leg {self.leg}"
        return f"row {self.row!r} {self.kind} ({where})"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one schedule. Nothing is counted of one that hung or failed.

    Attributes:
        schedule: The schedule.
        rows: Number of rows that are expected, over all epochs.
        lost: Number of rows that are missing.
        dropped: Number of rows that are missing, but may be dropped at the end of an epoch.
        duplicated: Number of rows that came once too often, unknown ones included.
        reordered: The fewest rows that would have to move.
        findings: The first few of each kind.
        unsaved: Legs whose save did not count, since the ranks had not all come as far.
        trouble: "hung" or "failed".
        detail: Of what hung or failed: the leg, the rank, and stacks or a traceback.
    """

    schedule: Schedule
    rows: int = 0
    lost: int = 0
    dropped: int = 0
    duplicated: int = 0
    reordered: int = 0
    findings: tuple[Finding, ...] = ()
    unsaved: tuple[int, ...] = ()
    trouble: Literal["", "hung", "failed"] = ""
    detail: str = ""

    @property
    def verdict(self) -> Literal["ok", "wrong", "hung", "failed"]:
        """``ok`` if every row came once, in order where there is one."""
        if self.trouble:
            return self.trouble
        return "wrong" if self.lost or self.duplicated or self.reordered else "ok"

    def cells(self) -> tuple[str, ...]:
        """Return its line of the table."""
        counts = (self.rows, self.lost, self.dropped, self.duplicated, self.reordered)
        counted = ["–" if self.trouble else f"{count:,}" for count in counts]
        return (self.schedule.name, *counted, self.verdict, str(self.schedule))

    def remarks(self) -> Iterator[str]:
        """Yield what does not fit into the table."""
        for leg in self.unsaved:
            yield f"leg {leg}: not all ranks came as far as the save, so it did not count"
        yield from map(str, self.findings)
        yield from self.detail.splitlines()


@dataclass(frozen=True, slots=True)
class AuditReport:
    """All outcomes of an audit; ``str`` makes a table of them.

    Attributes:
        rows: Number of rows of one epoch.
        epochs: Number of epochs.
        outcomes: First each size without an interruption, then the schedules.
    """

    rows: int
    epochs: int
    outcomes: tuple[Outcome, ...]

    @property
    def ok(self) -> bool:
        """True if nothing was lost, came twice, was out of order, hung or failed."""
        return all(outcome.verdict == "ok" for outcome in self.outcomes)

    @property
    def lost(self) -> int:
        """Number of rows lost, over all schedules."""
        return sum(outcome.lost for outcome in self.outcomes)

    @property
    def duplicated(self) -> int:
        """Number of rows that came once too often, over all schedules."""
        return sum(outcome.duplicated for outcome in self.outcomes)

    @property
    def reordered(self) -> int:
        """Number of rows out of order, over all schedules."""
        return sum(outcome.reordered for outcome in self.outcomes)

    def summary(self) -> str:
        """Return in one line what was done to the loader, and what it did."""
        schedules = [outcome.schedule for outcome in self.outcomes]
        legs = [leg for schedule in schedules for leg in schedule.legs]
        resizes = sum(a.size != b.size for one in schedules for a, b in pairwise(one.legs))
        done = (
            f"{len(schedules)} runs of {self.epochs} × {self.rows:,} rows, {len(legs)} legs, "
            f"{sum(bool(leg.victims) for leg in legs)} kills, {resizes} resizes"
        )
        if self.ok:
            return f"{done}: nothing lost, nothing twice, nothing out of order"
        verdicts = [outcome.verdict for outcome in self.outcomes]
        counted = {verdict: verdicts.count(verdict) for verdict in ("wrong", "hung", "failed")}
        bad = ", ".join(f"{count} {verdict}" for verdict, count in counted.items() if count)
        return (
            f"{done}: {bad}; {self.lost:,} rows lost, {self.duplicated:,} duplicated, "
            f"{self.reordered:,} reordered"
        )

    def __str__(self) -> str:
        table = [_COLUMNS, *(outcome.cells() for outcome in self.outcomes)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = []
        for cells in table:
            # Counts to the right, words to the left.
            counts = [
                cell.rjust(width) for cell, width in zip(cells[1:-2], widths[1:], strict=False)
            ]
            name, verdict = cells[0].ljust(widths[0]), cells[-2].ljust(widths[-2])
            lines.append("  ".join([name, *counts, verdict, cells[-1]]).rstrip())
        for outcome in self.outcomes:
            remarks = list(outcome.remarks())
            if remarks:
                lines += ["", f"{outcome.schedule.name}:", *(f"  {one}" for one in remarks)]
        return "\n".join([*lines, "", self.summary()])
