"""The Paimon table of the benchmarks: written once, in a warehouse beside the other data."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from data import FLOAT_COLUMNS, Data
from pypaimon import CatalogFactory, Schema

__all__ = ["catalog_options", "load", "make_tables"]

FILES = 4
"""each has one row group, as pypaimon writes them"""


def catalog_options(data: Data) -> dict[str, str]:
    """Return the catalog options that a user would give."""
    return {"warehouse": str(_folder(data) / "warehouse")}


def _folder(data: Data) -> Path:
    return data.folder("paimon")


def load(data: Data, name: str) -> Any:
    """Return a table of pypaimon."""
    return CatalogFactory.create(catalog_options(data)).get_table(f"db.{name}")


def make_tables(data: Data) -> None:
    """Write the table, unless it exists."""
    done = _folder(data) / "done"
    if done.exists():
        return
    shutil.rmtree(_folder(data), ignore_errors=True)
    catalog = CatalogFactory.create(catalog_options(data))
    catalog.create_database("db", True)
    catalog.create_table("db.chunked", Schema.from_pyarrow_schema(_rows(0, 0).schema), False)
    for number in range(FILES):
        _append(load(data, "chunked"), _rows(number, 10 * data.rows_per_group // FILES))
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
