"""One row of a published table: the arms that are compared, and the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Literal

__all__ = ["FIELDS", "Comparison", "Passes", "Verdict", "judge"]

Metric = Literal[
    "rate",
    "first_epoch_rate",
    "first_batch_seconds",
    "peak_bytes",
    "seconds",
    "growth_bytes",
    "fetched_rate",
    "fetched_per_needed",
]
Passes = dict[str, list[dict[str, float]]]
"""by arm: the measurements of each of its passes"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One row of the table."""

    key: str
    work: str
    arm: str
    against: tuple[str, ...] | float
    """arms, of which the fastest counts, or a limit in the unit of the metric"""
    against_what: str
    target: float | None = None
    """None: for information only"""
    metric: Metric = "rate"
    """for rates more is better, otherwise less is better"""
    resume: tuple[str, int] | None = None
    """for the table of resumes: the line, and the column in per cent of an epoch"""

    @property
    def rivals(self) -> tuple[str, ...]:
        """The arms that it is compared with."""
        return self.against if isinstance(self.against, tuple) else ()

    @property
    def goal(self) -> str:
        """The target in words."""
        if self.target is None:
            return ""
        return f"{'≥' if self.more_is_better else '≤'} {self.target:g}"

    @property
    def more_is_better(self) -> bool:
        """True if the metric is a rate."""
        return self.metric in ("rate", "first_epoch_rate", "fetched_rate")


@dataclass(frozen=True, slots=True)
class Verdict:
    """A row of the table with its figures."""

    comparison: Comparison
    rival: str | None
    """the fastest of the arms that it is compared with"""
    ratio: float
    """ratio of the medians"""
    low: float
    high: float
    """smallest and largest ratio of passes of the same round"""
    cpu_ratio: float | None
    """the same ratio for CPU-seconds; None where it has no meaning"""
    exact: bool = True
    """for resumes: whether the first batch is the correct one"""

    @property
    def reached(self) -> bool | None:
        """True if the target was reached; None without a target."""
        target = self.comparison.target
        if target is None:
            return None
        return self.ratio >= target if self.comparison.more_is_better else self.ratio <= target


def judge(comparison: Comparison, passes: Passes) -> Verdict:
    """Compute a row of the table from the passes of all arms."""
    own = passes[comparison.arm]
    metric = comparison.metric
    if not isinstance(comparison.against, tuple):
        limit = comparison.against
        ratios = [FIELDS[metric](one) / limit for one in own]
        return Verdict(comparison, None, median(ratios), min(ratios), max(ratios), None)
    rivals = [name for name in comparison.against if name in passes]
    rival = max(rivals, key=lambda name: _median(passes[name], "rate"))
    other = passes[rival]
    rounds = [FIELDS[metric](a) / FIELDS[metric](b) for a, b in zip(own, other, strict=False)]
    cpu_ratio = None
    if metric == "rate":
        cpu_ratio = _median(own, "cpu_rate") / _median(other, "cpu_rate")
    ratio = _median(own, metric) / _median(other, metric)
    exact = all(one["exact"] for one in own)
    return Verdict(comparison, rival, ratio, min(rounds), max(rounds), cpu_ratio, exact)


def _median(passes: list[dict[str, float]], field: str) -> float:
    return median(FIELDS[field](one) for one in passes)


FIELDS: dict[str, Callable[[dict[str, float]], float]] = {
    "rate": lambda one: one["rows"] / one["seconds"],
    "cpu_rate": lambda one: one["rows"] / one["cpu_seconds"],
    "first_epoch_rate": lambda one: one["first_epoch_rows"] / one["first_epoch_seconds"],
    "seconds": lambda one: one["seconds"],
    "first_batch_seconds": lambda one: one["first_batch_seconds"],
    "peak_bytes": lambda one: one["peak_bytes"],
    "growth_bytes": lambda one: one["peak_bytes"] - one["imports_bytes"],
    "fetched_rate": lambda one: one["fetched_bytes"] / one["seconds"],
    "fetched_per_needed": lambda one: one["fetched_bytes"] / one["needed_bytes"],
}
