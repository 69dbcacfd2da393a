"""Iceberg tables, with and without deletes, under the contracts of every loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from contract_cases import CrossedLoaderContract
from pyiceberg.transforms import IdentityTransform
from writers.catalogs import local_catalog
from writers.committing import data_files
from writers.data_files import append_rows
from writers.delete_files import append_position_deletes

from headrace import IcebergDataset, StatefulLoader
from headrace.testing import ResumeContract


def write_partitioned(directory: Path, *, deletes: bool = False) -> None:
    """A file for each partition, whose folders sort as their ids do. 1,154 rows are left."""
    sizes = [301, 2, 400, 150, 301]
    gone = 5 if deletes else 0
    with local_catalog(directory) as catalog:
        catalog.create_namespace("db")
        schema = pa.schema([("id", pa.int64()), ("part", pa.int32()), ("s", pa.string())])
        table = catalog.create_table(
            "db.t", schema, properties={"write.parquet.row-group-limit": "64"}
        )
        with table.update_spec() as change:
            change.add_field("part", IdentityTransform(), "part")
        parts = [part for part, size in enumerate(sizes) for _ in range(size + gone)]
        ids, at = [], 0
        for size in sizes:
            ids += [*range(at, at + size), *range(-gone, 0)]
            at += size
        rows = {"id": ids, "part": parts, "s": [f"row {one}" for one in ids]}
        append_rows(table, pa.table(rows, schema=schema))
        if deletes:
            by_path = {f.file_path: sizes[f.partition[0]] for f in data_files(table)}
            append_position_deletes(
                table, {path: range(size, size + gone) for path, size in by_path.items()}
            )


def create_over(directory: Path, **options: Any) -> tuple[StatefulLoader, IcebergDataset]:
    config = {
        "type": "sql",
        "uri": f"sqlite:///{directory}/catalog.db",
        "warehouse": f"file://{directory}/warehouse",
    }
    return IcebergDataset.create_dataloader("tests.db.t", catalog_config=config, **options)


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
class TestIcebergLoader(CrossedLoaderContract):
    rows = 1154

    @classmethod
    def write(cls, directory: Path) -> None:
        write_partitioned(directory)

    @classmethod
    def create(cls, directory: Path, **options: Any) -> tuple[StatefulLoader, IcebergDataset]:
        if options.get("shuffle") or options.get("mix", 1) > 1:
            options["split_rows"] = 70
        return create_over(directory, **options)


class IcebergResume(ResumeContract):
    @classmethod
    def write(cls, directory: Path) -> None:
        write_partitioned(directory, deletes=True)

    @classmethod
    def create(cls, directory: Path, **options: Any) -> StatefulLoader:
        settings = {"batch_size": 100, "num_workers": 0, **options}
        return create_over(directory, **settings)[0]


class TestIcebergDeletes(IcebergResume):
    options: ClassVar = {"split_rows": 100}


class TestIcebergDeletesMixed(IcebergResume):
    options: ClassVar = {"shuffle": True, "split_rows": 70, "mix": 3}


class TestIcebergDeletesFiltered(IcebergResume):
    options: ClassVar = {"shuffle": True, "split_rows": 70, "filters": [("id", "!=", 77)]}
