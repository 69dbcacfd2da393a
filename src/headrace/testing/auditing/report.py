"""The report of an audit, for programs and for people."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from headrace.testing.auditing.schedule import Schedule

__all__ = ["AuditReport", "Finding", "Outcome"]

Verdict = Literal["ok", "wrong", "hung", "failed"]
_COLUMNS = ("schedule", "rows", "lost", "dropped", "duplicated", "reordered", "verdict", "legs")


@dataclass(frozen=True, slots=True)
class Finding:
    """One row that should not be where it is, or is nowhere."""

    kind: Literal["lost", "duplicated", "reordered"]
    row: Hashable
    epoch: int
    leg: int | None
    """counted from 0; None where it is not known"""

    def __str__(self) -> str:
        """
        >>> print(Finding("lost", 17, epoch=1, leg=2))
        row 17 lost (epoch 1, leg 2)
        """
        where = f"epoch {self.epoch}" if self.leg is None else f"epoch {self.epoch}, leg {self.leg}"
        return f"row {self.row!r} {self.kind} ({where})"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one schedule. Nothing is counted of one that hung or failed."""

    schedule: Schedule
    rows: int = 0
    """expected, over all epochs"""
    lost: int = 0
    dropped: int = 0
    """missing, but as many as may be dropped at the end of an epoch"""
    duplicated: int = 0
    """rows that came once too often, unknown ones included"""
    reordered: int = 0
    """the fewest rows that would have to move"""
    findings: tuple[Finding, ...] = ()
    """the first few of each kind"""
    unsaved: tuple[int, ...] = ()
    """legs whose save did not count, since the ranks had not all come as far"""
    trouble: Literal["", "hung", "failed"] = ""
    detail: str = ""
    """of what hung or failed: the leg, the rank, and stacks or a traceback"""

    @property
    def verdict(self) -> Verdict:
        """``ok`` if every row came once, in order where there is one."""
        if self.trouble:
            return self.trouble
        return "wrong" if self.lost or self.duplicated or self.reordered else "ok"

    def cells(self) -> tuple[str, ...]:
        """One line of the table."""
        counts = (self.rows, self.lost, self.dropped, self.duplicated, self.reordered)
        counted = ["–" if self.trouble else f"{count:,}" for count in counts]
        return (self.schedule.name, *counted, self.verdict, str(self.schedule))

    def remarks(self) -> Iterator[str]:
        """Return what does not fit into the table."""
        for leg in self.unsaved:
            yield f"leg {leg}: not all ranks came as far as the save, so it did not count"
        yield from map(str, self.findings)
        yield from self.detail.splitlines()


@dataclass(frozen=True, slots=True)
class AuditReport:
    """All outcomes of an audit; ``str`` makes a table of them."""

    rows: int
    """of one epoch"""
    epochs: int
    outcomes: tuple[Outcome, ...]
    """first each size without an interruption, then the schedules"""

    @property
    def ok(self) -> bool:
        """Nothing lost, nothing twice, nothing out of order, nothing hung, nothing failed."""
        return all(outcome.verdict == "ok" for outcome in self.outcomes)

    @property
    def lost(self) -> int:
        """Rows lost, over all schedules."""
        return sum(outcome.lost for outcome in self.outcomes)

    @property
    def duplicated(self) -> int:
        """Rows that came once too often, over all schedules."""
        return sum(outcome.duplicated for outcome in self.outcomes)

    @property
    def reordered(self) -> int:
        """Rows out of order, over all schedules."""
        return sum(outcome.reordered for outcome in self.outcomes)

    def __str__(self) -> str:
        return "\n".join([*self._table(), *self._remarks(), "", self.summary()])

    def summary(self) -> str:
        """One line: what was done to the loader, and what it did."""
        legs = [leg for outcome in self.outcomes for leg in outcome.schedule.legs]
        kills = sum(bool(leg.victims) for leg in legs)
        resizes = sum(_resizes(outcome.schedule) for outcome in self.outcomes)
        done = (
            f"{len(self.outcomes)} runs of {self.epochs} × {self.rows:,} rows, "
            f"{len(legs)} legs, {kills} kills, {resizes} resizes"
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

    def _table(self) -> Iterator[str]:
        lines = [_COLUMNS, *(outcome.cells() for outcome in self.outcomes)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            yield _aligned(line, widths)

    def _remarks(self) -> Iterator[str]:
        for outcome in self.outcomes:
            remarks = list(outcome.remarks())
            if remarks:
                yield ""
                yield f"{outcome.schedule.name}:"
                yield from (f"  {remark}" for remark in remarks)


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Counts to the right, words to the left."""
    sided = [
        cell.rjust(width) if 0 < column < len(cells) - 2 else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(sided).rstrip()


def _resizes(schedule: Schedule) -> int:
    sizes = [leg.size for leg in schedule.legs]
    return sum(a != b for a, b in pairwise(sizes))
