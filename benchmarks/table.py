"""The rows of the published table: which arm is held against which, and what is to be reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Literal

__all__ = ["COMPARISONS", "FIELDS", "Comparison", "Passes", "Verdict", "judge"]

Metric = Literal[
    "rate", "first_epoch_rate", "first_batch_seconds", "peak_bytes", "seconds", "growth_bytes"
]
Passes = dict[str, list[dict[str, float]]]
"""by arm: what each of its passes took"""

_TDU_HERE = ("tdu.workers-0", "tdu.round-robin-workers-0")
_TDU_ONE = ("tdu.workers-1", "tdu.round-robin-workers-1")
_TDU_TWO = ("tdu.workers-2", "tdu.round-robin-workers-2")
_TDU = "torch-dataloader-utils"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One row of the table."""

    key: str
    work: str
    arm: str
    against: tuple[str, ...] | float
    """arms of which the fastest counts, or a limit in the unit of the metric"""
    against_what: str
    target: float | None = None
    """None: for information"""
    metric: Metric = "rate"
    """with rates more is better, with all else less is"""

    @property
    def rivals(self) -> tuple[str, ...]:
        """The arms that it is held against."""
        return self.against if isinstance(self.against, tuple) else ()

    @property
    def goal(self) -> str:
        """The target in words."""
        if self.target is None:
            return ""
        return f"{'≥' if self.more_is_better else '≤'} {self.target:g}"

    @property
    def more_is_better(self) -> bool:
        """Whether the metric is a rate."""
        return self.metric in ("rate", "first_epoch_rate")


@dataclass(frozen=True, slots=True)
class Verdict:
    """A row of the table with its figures."""

    comparison: Comparison
    rival: str | None
    """the arm it was held against in the end"""
    ratio: float
    """ratio of the medians"""
    low: float
    high: float
    """smallest and largest ratio of passes of the same round"""
    cpu_ratio: float | None
    """the same with CPU-seconds in place of seconds; None where it means nothing"""

    @property
    def reached(self) -> bool | None:
        """Whether the target was reached; None without a target."""
        target = self.comparison.target
        if target is None:
            return None
        return self.ratio >= target if self.comparison.more_is_better else self.ratio <= target


def judge(comparison: Comparison, passes: Passes) -> Verdict:
    """Fill in a row of the table from the passes of all arms."""
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
    return Verdict(comparison, rival, ratio, min(rounds), max(rounds), cpu_ratio)


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
}

_FORMATS = (
    ("csv", "CSV", "pyarrow.csv.read_csv"),
    ("jsonl", "JSONL", "pyarrow.json.read_json"),
    ("orc", "ORC", "pyarrow.orc.ORCFile.read"),
    ("arrow", "Arrow IPC", "pyarrow.ipc.open_file(...).read_all"),
)
_PLAN = "planning 1,000,000 row groups of 100,000 files and sending a worker its lanes"

COMPARISONS = (
    Comparison(
        "sequential-peer",
        "sequential, torch output",
        "library.parquet",
        (*_TDU_HERE, *_TDU_ONE, *_TDU_TWO),
        f"{_TDU}, its best setting",
        5,
    ),
    Comparison(
        "sequential-floor",
        "sequential, torch output, through the loader",
        "library.parquet",
        ("floor.parquet",),
        "`pyarrow.parquet.read_table` (decode alone)",
        0.8,
    ),
    Comparison(
        "shuffled",
        "row-shuffled, `split_rows=100_000, mix=4`",
        "library.shuffled",
        ("floor.shuffled",),
        "decode and one `index_select` a column, bare",
        0.8,
    ),
    Comparison(
        "workers",
        "2 process workers, torch output",
        "library.workers-2",
        _TDU_TWO,
        f"{_TDU} with 2 workers",
        30,
    ),
    Comparison(
        "filter",
        "filter that keeps 1 row group in 20, 2 of 21 columns",
        "library.filter",
        ("floor.filter",),
        "`pyarrow.dataset` scanner to batches",
        0.8,
    ),
    Comparison(
        "lists",
        "fixed-size list of 64 floats, to torch",
        "library.lists",
        ("floor.lists",),
        "flatten + `from_numpy` of the decoded column",
        0.9,
    ),
    *(
        Comparison(
            key,
            f"{title}, sequential",
            f"library.{key}",
            (f"floor.{key}",),
            f"`{reader}`",
            0.8,
        )
        for key, title, reader in _FORMATS
    ),
    Comparison(
        "first-batch",
        "time to first batch, after imports",
        "library.parquet",
        _TDU_HERE,
        f"{_TDU}, its best setting",
        1,
        "first_batch_seconds",
    ),
    Comparison(
        "memory",
        "peak memory of the process",
        "library.parquet",
        _TDU_HERE,
        f"{_TDU}, its best setting",
        1,
        "peak_bytes",
    ),
    *(
        Comparison(
            f"{key}-first-epoch",
            f"{title}: the first epoch alone, with the start of the loader",
            f"library.{key}",
            (f"floor.{key}",),
            f"`{reader}`, the first time",
            None,
            "first_epoch_rate",
        )
        for key, title, reader in (("filter", "filter", "scanner"), *_FORMATS)
    ),
    Comparison(
        "sequential-peer-plain",
        "sequential, torch output",
        "library.parquet",
        ("tdu.workers-0",),
        f"{_TDU}, `num_workers=0`, its default strategy",
    ),
    Comparison(
        "memory-growth",
        "peak memory above what imports take",
        "library.parquet",
        _TDU_HERE,
        f"{_TDU}, its best setting",
        None,
        "growth_bytes",
    ),
    Comparison("plan-time", _PLAN, "planning.whole", 5.0, "5 s", 1, "seconds"),
    Comparison(
        "plan-memory",
        f"memory of {_PLAN}",
        "planning.whole",
        500 * 2.0**20,
        "500 MiB",
        1,
        "growth_bytes",
    ),
    Comparison(
        "plan-linear",
        f"{_PLAN}, time",
        "planning.whole",
        ("planning.half",),
        "half as many files",
        2.3,
        "seconds",
    ),
    Comparison(
        "workers-plain",
        "2 process workers, no code of the user's",
        "library.workers-2",
        ("library.parquet",),
        "`num_workers=0`",
    ),
    Comparison(
        "chosen-plain",
        "`num_workers=None`, no code of the user's",
        "library.chosen",
        ("library.parquet",),
        "`num_workers=0`",
    ),
    Comparison(
        "workers-transform",
        "2 process workers, a transform of 1 ms of Python a batch",
        "library.transform-workers-2",
        ("library.transform-workers-0",),
        "`num_workers=0`",
    ),
    Comparison(
        "chosen-transform",
        "`num_workers=None`, a transform of 1 ms of Python a batch",
        "library.transform-chosen",
        ("library.transform-workers-0",),
        "`num_workers=0`",
    ),
)
