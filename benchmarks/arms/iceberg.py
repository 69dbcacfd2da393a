"""Iceberg tables: through the library, and through pyiceberg alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from data import Data
from iceberg_tables import catalog_config, load, make_tables
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan

import headrace.sources.iceberg.table  # noqa: F401  (or the first table would be timed with imports)
from arms.registry import Arm, Mark, Pieces, register
from arms.touch import count_rows
from headrace import IcebergDataset, StructuredDataset


def _loader(data: Data, table: str, **options: Any) -> Any:
    loader, _ = IcebergDataset.create_dataloader(
        f"bench.db.{table}",
        catalog_config=catalog_config(data),
        batch_size=1024,
        num_workers=0,
        **options,
    )
    return loader


def _plain(data: Data) -> Pieces:
    """Start the clock when the loader exists: the answer of a catalog is not part of reading."""
    loader = _loader(data, "plain")
    yield Mark.CLOCK_STARTS
    yield from count_rows(loader, columns=21)


def _files(data: Data) -> Pieces:
    loader, _ = StructuredDataset.create_dataloader(
        data.folder("parquet"), batch_size=1024, num_workers=0
    )
    yield Mark.CLOCK_STARTS
    yield from count_rows(loader, columns=21)


def _deletes(data: Data) -> Iterator[int]:
    yield from count_rows(_loader(data, "deletes", lanes=2), columns=21)


def _arrow_scan(data: Data) -> Iterator[int]:
    table = load(data, "deletes")
    scan = table.scan()
    arrow = ArrowScan(table.metadata, table.io, scan.projection(), AlwaysTrue())
    for batch in arrow.to_record_batches(list(scan.plan_files())):
        yield batch.num_rows


def _plan(data: Data) -> Iterator[int]:
    dataset = IcebergDataset("bench.db.many", catalog_config(data))
    yield len(dataset.files)


def _plan_files(data: Data) -> Iterator[int]:
    yield len(list(load(data, "many").scan().plan_files()))


for _name, _run in (
    ("plain", _plain),
    ("files", _files),
    ("deletes", _deletes),
    ("arrow-scan", _arrow_scan),
    ("plan", _plan),
    ("plan-files", _plan_files),
):
    register(Arm(f"iceberg.{_name}", "parquet", _run, beforehand=make_tables))
