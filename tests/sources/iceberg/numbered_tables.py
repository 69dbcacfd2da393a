"""Tables whose rows count up in the column id, and loaders over them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from writers.data_files import append_rows

from headrace import IcebergDataset, StatefulLoader

# Else every worker of every test imports torch for itself.
multiprocessing.get_context("forkserver").set_forkserver_preload(["headrace.loader"])

SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.float64())])
SETTINGS: Mapping[str, Any] = {
    "batch_size": 10,
    "num_workers": 0,
    "output_format": "numpy",
    "retries": 1,
}


def numbers(start: int, rows: int) -> pa.Table:
    """Rows whose ids count up from `start`, with halves of them beside."""
    ids = range(start, start + rows)
    return pa.table({"id": list(ids), "x": [0.5 * one for one in ids]}, schema=SCHEMA)


def make_table(
    catalog: Catalog,
    name: str = "db.t",
    *,
    files: int = 3,
    rows: int = 40,
    group_rows: int | None = None,
    **properties: str,
) -> Table:
    """A table of some files of so many rows each."""
    if group_rows is not None:
        properties["write.parquet.row-group-limit"] = str(group_rows)
    table = catalog.create_table(name, SCHEMA, properties=properties)
    for number in range(files):
        append_rows(table, numbers(number * rows, rows))
    return table


def loader_of(name: str, config: Any, **options: Any) -> tuple[StatefulLoader, IcebergDataset]:
    return IcebergDataset.create_dataloader(name, catalog_config=config, **{**SETTINGS, **options})


def ids_in(batches: Iterable[Any]) -> list[int]:
    """The ids of some batches, in their order."""
    return [int(one) for batch in batches for one in batch["id"]]


def all_ids(name: str, config: Any, **options: Any) -> list[int]:
    """The ids of an epoch, ascending."""
    return sorted(ids_in(loader_of(name, config, **options)[0]))
