"""Paimon tables of the benchmarks: made once, in a warehouse of their own beside the other data."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pypaimon import CatalogFactory, Schema

from data import FLOAT_COLUMNS, Data

__all__ = ["catalog_options", "load", "make_tables"]

FILES = 4
"""of each table, each one row group, as pypaimon writes them"""
FILE_ROWS = {"chunked": 2.5, "large": 10}
"""rows of a file, in those of a row group of the other data"""


def catalog_options(data: Data) -> dict[str, str]:
    """What a user gives to reach the tables."""
    return {"warehouse": str(_folder(data) / "warehouse")}


def _folder(data: Data) -> Path:
    return data.folder("paimon")


def load(data: Data, name: str) -> Any:
    """A table as pypaimon has it."""
    return CatalogFactory.create(catalog_options(data)).get_table(f"db.{name}")


def make_tables(data: Data) -> None:
    """Write the tables, unless they are there."""
    done = _folder(data) / "done"
    if done.exists():
        return
    shutil.rmtree(_folder(data), ignore_errors=True)
    catalog = CatalogFactory.create(catalog_options(data))
    catalog.create_database("db", True)
    for name, groups in FILE_ROWS.items():
        rows = round(groups * data.rows_per_group)
        schema = Schema.from_pyarrow_schema(_rows(0, 0).schema)
        catalog.create_table(f"db.{name}", schema, False)
        for number in range(FILES):
            _append(catalog.get_table(f"db.{name}"), _rows(number, rows))
    done.touch()


def _rows(number: int, rows: int) -> pa.Table:
    noise = np.random.default_rng(number)
    columns = {name: noise.standard_normal(rows, np.float32) for name in FLOAT_COLUMNS}
    return pa.table({**columns, "row": np.arange(number * rows, (number + 1) * rows)})


def _append(table: Any, rows: pa.Table) -> None:
    builder = table.new_batch_write_builder()
    writer, commit = builder.new_write(), builder.new_commit()
    writer.write_arrow(rows)
    commit.commit(writer.prepare_commit())
    writer.close()
    commit.close()
