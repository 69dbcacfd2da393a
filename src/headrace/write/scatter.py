"""The first pass: the source, in order, into sorted runs on the disk."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.write.journal import Journal
from headrace.write.memory import MemoryPlan
from headrace.write.ranges import parts_of_a_run
from headrace.write.runs import write_run
from headrace.write.source import SourceRows, read_in_order

__all__ = ["run_paths", "scatter"]


@dataclass(slots=True)
class _Place:
    """How far the source has been read: all that came before is in runs."""

    chunk: int = 0
    skip: int = 0
    """rows of that chunk that came before"""
    rows: int = 0
    size_bytes: int = 0
    runs: int = 0

    def as_entry(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _Place.__slots__}


def run_paths(journal: Journal) -> list[Path]:
    """The runs that are done, in the order of the source."""
    return [_run_path(journal, number) for number in range(len(journal.all("run")))]


def scatter(
    rows: SourceRows,
    journal: Journal,
    *,
    seed: int,
    memory: MemoryPlan,
    progress: Callable[[float], None],
) -> dict[str, int]:
    """Write what is missing of the runs; the rows and bytes there are in all.

    While a run is sorted and written by a thread, the rows of the next one are read.
    """
    done = journal.all("scattered")
    if done:
        return {"rows": done[0]["scattered"], "size_bytes": done[0]["size_bytes"]}
    place = _Place()
    for entry in journal.all("run"):
        place = _Place(**entry["run"])
    before = np.cumsum([0, *rows.weights])
    total = max(1, int(before[-1]))
    with (
        ThreadPoolExecutor(1, thread_name_prefix="headrace-run") as pool,
        closing(_loads(rows, place, memory)) as loads,
    ):
        writing: Future[None] | None = None
        for tables, after in loads:
            if writing is not None:
                writing.result()
            share = float(before[after.chunk] / total)
            expected = int(after.size_bytes / share) if share else total
            writing = pool.submit(
                _write, journal, tables, place, after, seed, max(expected, after.size_bytes), memory
            )
            del tables
            place = after
            progress(share)
        if writing is not None:
            writing.result()
    journal.note({"scattered": place.rows, "size_bytes": place.size_bytes})
    return {"rows": place.rows, "size_bytes": place.size_bytes}


def _write(
    journal: Journal,
    tables: list[pa.Table],
    before: _Place,
    after: _Place,
    seed: int,
    expected_bytes: int,
    memory: MemoryPlan,
) -> None:
    run_bytes = after.size_bytes - before.size_bytes
    parts = parts_of_a_run(run_bytes, expected_bytes, memory.range_bytes)
    path = _run_path(journal, before.runs)
    path.parent.mkdir(exist_ok=True)
    write_run(path, tables, seed=seed, first_row=before.rows, parts=parts)
    journal.note({"run": after.as_entry()})


def _loads(
    rows: SourceRows, start: _Place, memory: MemoryPlan
) -> Generator[tuple[list[pa.Table], _Place], None, None]:
    """Tables that make up a run together, and the place in the source behind them."""
    tables: list[pa.Table] = []
    loaded_bytes = 0
    chunk, taken = start.chunk, 0
    place = start
    skip = start.skip
    for number, table in read_in_order(
        rows, start.chunk, block_bytes=memory.block_bytes, ahead_bytes=memory.ahead_bytes
    ):
        if number != chunk:
            chunk, taken, skip = number, 0, 0
        taken += table.num_rows
        if taken <= skip:
            continue
        new = min(table.num_rows, taken - skip)
        table = table.slice(table.num_rows - new)
        tables.append(table)
        loaded_bytes += table.nbytes
        place = _Place(chunk, taken, place.rows + new, place.size_bytes + table.nbytes, start.runs)
        if loaded_bytes >= memory.run_bytes:
            start = place = _Place(chunk, taken, place.rows, place.size_bytes, start.runs + 1)
            yield tables, place
            tables, loaded_bytes = [], 0
    if tables:
        place.runs = start.runs + 1
        yield tables, place


def _run_path(journal: Journal, number: int) -> Path:
    return journal.directory / "runs" / f"{number:06d}.arrow"
