"""The loader and save/resume contracts, for tables with and without deleted rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from contract_cases import CrossedLoaderContract
from paimon_tables import Warehouse, delete, files, numbered, write

from headrace import PaimonDataset, StatefulLoader
from headrace.testing import ResumeContract

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

ROWS = 1154
SIZES = (400, 1, 300, 250, 203)


def write_table(directory: Path, **options: str) -> None:
    """A file a partition, so that the order of files is known."""
    warehouse = Warehouse(str(directory / "warehouse"))
    schema = pa.schema([*numbered(0, 0).schema, ("part", pa.int32())])
    table = warehouse.make("numbers", schema, partition_keys=["part"], **options)
    start = 0
    for part, rows in enumerate(SIZES):
        data = numbered(start, rows)
        write(table, data.append_column("part", pa.array([part] * rows, pa.int32())))
        start += rows


def write_holed_table(directory: Path) -> None:
    """The same rows among as many others, which are deleted."""
    warehouse = Warehouse(str(directory / "warehouse"))
    schema = pa.schema([*numbered(0, 0).schema, ("part", pa.int32())])
    table = warehouse.make("numbers", schema, partition_keys=["part"])
    start = 0
    gone = {}
    for part, rows in enumerate(SIZES):
        data = numbered(start, rows)
        holes = pa.array(sorted({0, *range(rows // 3, rows // 2), rows - 1}))
        doubled = pa.concat_tables([data, numbered(-1, 1)]).take(
            pa.array(
                [i for row in range(rows) for i in ([rows] * (row in holes.to_pylist())) + [row]]
            )
        )
        places = [i for i, value in enumerate(doubled["id"].to_pylist()) if value == -1]
        write(table, doubled.append_column("part", pa.array([part] * len(doubled), pa.int32())))
        gone[next(name for name in files(table) if name not in gone)] = places
        start += rows
    delete(table, gone)


def create(directory: Path, **options: Any) -> tuple[StatefulLoader, PaimonDataset]:
    options = {"num_workers": 0, "batch_size": 100, **options}
    return PaimonDataset.create_dataloader(
        "db.numbers", catalog_options={"warehouse": str(directory / "warehouse")}, **options
    )


class TestPaimonLoader(CrossedLoaderContract):
    rows = ROWS

    @classmethod
    def write(cls, directory: Path) -> None:
        write_holed_table(directory)

    @classmethod
    def create(cls, directory: Path, **options: Any) -> tuple[StatefulLoader, PaimonDataset]:
        if options.get("shuffle") or options.get("mix", 1) > 1:
            options["chunk_size"] = 70
        return create(directory, **options)


class PaimonResume(ResumeContract):
    @classmethod
    def write(cls, directory: Path) -> None:
        write_holed_table(directory)

    @classmethod
    def create(cls, directory: Path, **options: Any) -> StatefulLoader:
        return create(directory, **options)[0]


class TestPaimonInOrder(PaimonResume):
    options: ClassVar = {}


class TestPaimonChunksShuffled(PaimonResume):
    options: ClassVar = {"shuffle": True, "chunk_size": 70}


class TestPaimonRowsMixedInFourLanes(PaimonResume):
    options: ClassVar = {"shuffle": True, "chunk_size": 70, "mix": 3, "lanes": 4}


class TestPaimonFiltered(PaimonResume):
    options: ClassVar = {
        "filters": (ds.field("id") < 300) | (ds.field("id") > 450),
        "shuffle": True,
        "chunk_size": 60,
    }


class TestPaimonFilesThatPypaimonReads(PaimonResume):
    options: ClassVar = {"shuffle": True, "chunk_size": 70, "mix": 2}

    @classmethod
    def write(cls, directory: Path) -> None:
        write_table(directory, **{"file.format": "row"})
