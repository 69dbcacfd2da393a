"""Audit this library's own loaders: formats, orders, filters, ranks and workers.

Writes small files, then kills, resumes and resizes loaders over them. Exit code 1 if a row was
lost, came twice or, where an order is promised, came out of order.
"""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq

from headrace.cli.audit import LocationLoaders
from headrace.loader import StatefulLoader, merge_states
from headrace.testing import AuditReport, audit
from headrace.testing.auditing import ColumnIds

ROWS_OF_FILES = (260, 1, 90, 170, 0, 133)
ROW_GROUP = 64
SIZES = ((1, 0), (1, 2), (2, 2), (3, 1))
SIZES_THAT_DIVIDE_FOUR = ((1, 0), (1, 2), (2, 2), (4, 1))


@dataclass(frozen=True, slots=True)
class Case:
    """Loaders that are audited together."""

    name: str
    format: str
    options: Mapping[str, Any] = field(default_factory=dict)
    sizes: tuple[tuple[int, int], ...] = SIZES
    order: Any = "rank"
    batch_sizes: bool = False
    """whether each number of ranks and workers has its own batch size"""
    merge: Callable[[list[Any]], Any] | None = None
    """returns the state that all ranks load, if it is not the merged one"""
    rounds: int = 1
    """number of batches of each rank that may be left out"""


@dataclass(frozen=True, slots=True)
class OtherBatches(LocationLoaders):
    """Loaders whose batch size depends on the number of ranks and workers."""

    def __call__(self, rank: int, world_size: int, num_workers: int) -> StatefulLoader:
        options = {**self.options, "batch_size": 3 + 7 * world_size + 2 * num_workers}
        return LocationLoaders(self.location, self.format, options)(rank, world_size, num_workers)


def state_of_one_rank(states: list[Any]) -> Any:
    """Return the state of the last rank, which is enough for all if they took the same steps.

    Without ``even``, a rank may have had one batch fewer in the epoch before, and be ahead in this
    one. The states of all ranks are needed then.
    """
    steps = {(state["epoch"], state["steps"]) for state in states}
    return states[-1] if len(steps) == 1 else merge_states(states)


SHUFFLED = {"batch_size": 16, "shuffle": True, "split_rows": 40}
CASES = (
    Case("parquet in file order", "parquet", {"batch_size": 16}),
    Case("parquet, chunks shuffled, rows mixed", "parquet", {**SHUFFLED, "mix": 3}),
    Case(
        "parquet, four lanes, order independent of size",
        "parquet",
        {**SHUFFLED, "mix": 2, "lanes": 4},
        SIZES_THAT_DIVIDE_FOUR,
        "global",
    ),
    Case("arrow, chunks interleaved", "arrow", {**SHUFFLED, "interleave": 3}),
    Case("orc, more lanes than consumers", "orc", {**SHUFFLED, "lanes": 12}),
    Case(
        "parquet, filtered",
        "parquet",
        {**SHUFFLED, "mix": 2, "even": False, "filters": [("part", "!=", 1)]},
    ),
    Case(
        "parquet, filtered, ranks in step",
        "parquet",
        {"batch_size": 16, "shuffle": True, "filters": [("part", "!=", 1)]},
        rounds=2,
    ),
    Case(
        "parquet, filtered, other batches, the state of one rank",
        "parquet",
        {**SHUFFLED, "mix": 2, "even": False, "filters": [("part", "!=", 1)]},
        batch_sizes=True,
        merge=state_of_one_rank,
    ),
    Case(
        "parquet, counted rows, other batches",
        "parquet",
        {**SHUFFLED, "mix": 2, "even": False},
        batch_sizes=True,
    ),
    Case("csv", "csv", {"batch_size": 16, "shuffle": True, "split_bytes": 700, "even": False}),
    Case(
        "csv, other batches, the state of one rank",
        "csv",
        {"shuffle": True, "split_bytes": 700, "even": False},
        batch_sizes=True,
        merge=state_of_one_rank,
    ),
    Case("jsonl, mixed", "jsonl", {"batch_size": 16, "shuffle": True, "mix": 2, "even": False}),
)


def main() -> int:
    """Audit the cases, print a summary, and return the exit code."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=200, help="in all (default: 200)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    reports = []
    with tempfile.TemporaryDirectory(prefix="headrace-audit-") as folder:
        for number, case in enumerate(CASES):
            share = len(range(number, arguments.schedules, len(CASES)))
            report = audit_case(case, Path(folder), schedules=share, seed=arguments.seed + number)
            print(f"== {case.name}\n{report}\n", flush=True)
            reports.append(report)
    print("\n".join(summary(reports)))
    return 0 if all(report.ok for report in reports) else 1


def audit_case(case: Case, folder: Path, *, schedules: int, seed: int) -> AuditReport:
    """Write the files of a case, and audit its loaders."""
    location = write_files(folder / case.format, case.format)
    kind = OtherBatches if case.batch_sizes else LocationLoaders
    loaders = kind(str(location), case.format, case.options)
    return audit(
        loaders,
        schedules=schedules,
        seed=seed,
        sizes=case.sizes,
        row_id=ColumnIds("id"),
        may_drop=lambda ranks: case.rounds * loaders.may_drop(ranks),
        order=case.order,
        merge=case.merge,
        timeout_s=600.0,
        start_method="forkserver",
    )


def summary(reports: list[AuditReport]) -> Iterator[str]:
    """Yield one line for each case, and one for all."""
    for case, report in zip(CASES, reports, strict=True):
        yield f"{'ok   ' if report.ok else 'WRONG'}  {case.name}: {report.summary()}"
    runs = sum(len(report.outcomes) for report in reports)
    lost, twice, moved = (
        sum(getattr(report, kind) for report in reports)
        for kind in ("lost", "duplicated", "reordered")
    )
    yield f"{runs} runs: {lost} rows lost, {twice} duplicated, {moved} out of order"


def write_files(folder: Path, format: str) -> Path:
    """Write files of different lengths, one of them empty, whose ``id`` counts up through all."""
    folder.mkdir(exist_ok=True)
    start = 0
    for part, rows in enumerate(ROWS_OF_FILES):
        ids = range(start, start + rows)
        table = pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "part": pa.array([i % 3 for i in ids], pa.int64()),
                "name": pa.array([f"row {i}" for i in ids], pa.string()),
            }
        )
        if rows or format == "parquet":
            WRITERS[format](table, folder / f"part-{part}.{format}")
        start += rows
    return folder


def _write_parquet(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path, row_group_size=ROW_GROUP)


def _write_arrow(table: pa.Table, path: Path) -> None:
    pa.feather.write_feather(table, path, chunksize=ROW_GROUP, compression="uncompressed")


def _write_lines(table: pa.Table, path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))


WRITERS: dict[str, Callable[[pa.Table, Path], None]] = {
    "parquet": _write_parquet,
    "arrow": _write_arrow,
    "orc": lambda table, path: pa.orc.write_table(table, path),
    "csv": lambda table, path: pa.csv.write_csv(table, path),
    "jsonl": _write_lines,
}

if __name__ == "__main__":
    sys.exit(main())
