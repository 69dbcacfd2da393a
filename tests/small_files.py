"""Small data sets on disk whose batches cross the borders of row groups, chunks and files."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

ROWS = 1154
FILES = ((400, 128), (1, 1), (300, 100), (250, 250), (0, 1), (203, 64))
"""rows of each file, and of its row groups"""


def table(start: int, rows: int) -> pa.Table:
    """Return rows whose ``id`` counts up from ``start``."""
    ids = range(start, start + rows)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "x": pa.array([i / 4 for i in ids], pa.float32()),
            "name": pa.array([f"row {i}" for i in ids], pa.string()),
        }
    )


def write_parquet(directory: Path, files: Sequence[tuple[int, int]] = FILES) -> Path:
    """Write numbered files; each has the given number of rows, in row groups of the given size."""
    directory.mkdir(parents=True, exist_ok=True)
    start = 0
    for number, (rows, group) in enumerate(files):
        path = directory / f"part-{number:02}.parquet"
        pq.write_table(table(start, rows), path, row_group_size=group)
        start += rows
    return directory


def write_csv(directory: Path, files: Sequence[tuple[int, int]] = FILES) -> Path:
    """Write the same rows as lines of text, which are not counted before they are read."""
    directory.mkdir(parents=True, exist_ok=True)
    start = 0
    for number, (rows, _) in enumerate(file for file in files if file[0]):
        pa.csv.write_csv(table(start, rows), directory / f"part-{number:02}.csv")
        start += rows
    return directory


def all_ids(batches: Any) -> list[int]:
    """Return the ids of all rows of torch batches, in order."""
    return [row for batch in batches for row in batch["id"].tolist()]


def eventually(condition: Any, patience_s: float = 60.0) -> bool:
    """Return True if a condition becomes true within the given time."""
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def is_running(pid: int) -> bool:
    """Return True if a process exists and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone before or while it was read
        return False


def descriptors() -> int:
    """Return the number of open file descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))
