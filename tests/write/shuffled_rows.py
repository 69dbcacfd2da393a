"""Sources to shuffle, and the contents of their copies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ipc


def write_numbered(folder: Path, files: int = 3, rows: int = 1_000, group: int = 100) -> int:
    """Write Parquet files whose column ``id`` counts from 0, and return the number of rows."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in range(files):
        ids = np.arange(file * rows, (file + 1) * rows)
        table = pa.table({"id": ids, "text": [f"row {i}" for i in ids], "x": ids / 7})
        pq.write_table(table, folder / f"{file:03d}.parquet", row_group_size=group)
    return files * rows


def copied(folder: Path) -> pa.Table:
    """Return all rows of a copy, in the order of its files."""
    tables = []
    for path in sorted(folder.glob("part-*")):
        if path.suffix == ".parquet":
            file = pq.ParquetFile(path)
            groups = range(
                file.num_row_groups
            )  # one by one, because dictionaries in lists cannot be read otherwise
            tables += [file.schema_arrow.empty_table(), *map(file.read_row_group, groups)]
        else:
            tables.append(ipc.open_file(path).read_all())
    return pa.concat_tables(tables)


def ids_of(folder: Path) -> list[int]:
    return copied(folder)["id"].to_pylist()


def beside(target: Path) -> list[str]:
    """Return the hidden names beside a target, which unfinished work has left."""
    return sorted(path.name for path in target.parent.iterdir() if path.name.startswith("."))
