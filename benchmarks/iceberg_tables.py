"""Iceberg tables of the benchmarks: written once, in their own catalog beside the other data."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from data import FLOAT_COLUMNS, Data

_TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path += [str(_TESTS), str(_TESTS / "sources" / "iceberg")]

from writers.catalogs import local_catalog  # noqa: E402  (from the tests: pyiceberg cannot)
from writers.committing import commit_files, describe_file  # noqa: E402
from writers.delete_files import append_position_deletes  # noqa: E402

__all__ = ["MANY_FILES", "catalog_config", "load", "make_tables"]

GROUPS = 20
DELETED_OF = 100
"""one row in this many is deleted"""
MANY_FILES = 10_000


def _folder(data: Data) -> Path:
    return data.folder("iceberg")


def catalog_config(data: Data) -> dict[str, Any]:
    """Return the catalog options that a user would give."""
    return dict(_catalog(data).properties_for_users)


def _catalog(data: Data) -> Any:
    return local_catalog(_folder(data), name="bench")


def load(data: Data, name: str) -> Any:
    """Return a table of pyiceberg."""
    return _catalog(data).load_table(f"db.{name}")


def make_tables(data: Data) -> None:
    """Write the tables, unless they exist."""
    folder = _folder(data)
    done = folder / "done"
    if done.exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    catalog = _catalog(data)
    catalog.create_namespace("db")
    _make_plain(catalog, data)
    _make_with_deletes(catalog, data)
    _make_many(catalog)
    done.touch()


def _make_plain(catalog: Any, data: Data) -> None:
    """Add the same files that the other benchmarks read."""
    files = data.files("parquet")
    table = catalog.create_table("db.plain", pq.read_schema(files[0]))
    table.add_files([f"file://{path}" for path in files])


def _make_with_deletes(catalog: Any, data: Data) -> None:
    """Add one file of twenty row groups, of whose rows one in a hundred is deleted by position."""
    rows = GROUPS * data.rows_per_group
    noise = np.random.default_rng(0)
    columns = {name: noise.standard_normal(rows, np.float32) for name in FLOAT_COLUMNS}
    written = pa.table({**columns, "row": np.arange(rows)})
    limit = {"write.parquet.row-group-limit": str(data.rows_per_group)}
    table = catalog.create_table("db.deletes", written.schema, properties=limit)
    table.append(written)
    (file,) = [task.file.file_path for task in table.scan().plan_files()]
    gone = np.sort(noise.choice(rows, rows // DELETED_OF, replace=False))
    append_position_deletes(table, {file: gone.tolist()})


def _make_many(catalog: Any) -> None:
    """Add files that do not exist, and are only planned."""
    table = catalog.create_table("db.many", pa.schema([("row", pa.int64())]))
    files = [
        describe_file(
            path=f"{table.location()}/data/part-{number:06d}.parquet",
            file_format="parquet",
            rows=100_000,
            size=100 << 20,
            split_offsets=[4],
        )
        for number in range(MANY_FILES)
    ]
    commit_files(table, added=files)
