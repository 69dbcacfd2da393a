"""Shared code of the scripts of all engines: data on disk, an orderly end, and results."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from torch import distributed as dist

KEPT = ds.field("kept") == 1
"""a filter that keeps more rows in some parts of the data than in others"""


def write_rows(folder: Path, rows: int = 1037, files: int = 4) -> list[int]:
    """Write Parquet files of ``id``, ``x`` and ``kept``, and return the ids of rows to keep."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = [int(i % 3 == 0 or i > rows * 0.6) for i in range(rows)]
    table = pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "x": pa.array([i / rows for i in range(rows)], pa.float32()),
            "kept": pa.array(kept, pa.int64()),
        }
    )
    step = -(-rows // files)
    for number in range(files):
        part = table.slice(number * step, step)
        pq.write_table(part, folder / f"part-{number}.parquet", row_group_size=64)
    return [i for i in range(rows) if kept[i]]


def leave_together() -> None:
    """End the process group when all ranks are done: gloo may abort a process left behind."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def write_results(folder: Path, results: Any) -> None:
    """Write the results of this rank for the test."""
    rank = int(os.environ.get("RANK", "0"))
    (folder / f"rank-{rank}.json").write_text(json.dumps(results))
