"""Shuffled copies of Paimon tables, and tables of many row groups."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from paimon_tables import Warehouse, arrow_rows, delete, files, in_order, numbered, write

from headrace import PaimonDataset, StructuredDataset, shuffle_into


@pytest.mark.parametrize("chunk_size", [None, 7, 130])
def test_many_row_groups_with_deleted_rows(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, chunk_size: int | None
) -> None:
    # pypaimon itself makes one row group of a file.
    monkeypatch.setattr(pq, "write_table", partial(pq.write_table, row_group_size=100))
    table = warehouse.make("grouped", numbered(0, 0).schema, **{"deletion-vectors.enabled": "true"})
    write(table, numbered(0, 1500))
    write(table, numbered(1500, 1500))
    one, other = files(table)
    delete(table, {one: [*range(50, 420), 999], other: range(1500 - 100, 1500)})
    _, dataset = loaded = warehouse.load("grouped", chunk_size=chunk_size, shuffle=True, lanes=3)
    assert [pq.read_metadata(file.path).num_row_groups for file in dataset.files] == [15, 15]
    rows = [row for batch in loaded[0] for row in batch.to_pylist()]
    assert in_order(rows) == in_order(arrow_rows(table))
    assert dataset.num_rows == len(rows) == 3000 - 471


def test_a_table_with_deleted_rows_into_files(warehouse: Warehouse, tmp_path: Path) -> None:
    table = warehouse.make("holed", numbered(0, 0).schema, **{"deletion-vectors.enabled": "true"})
    write(table, numbered(0, 500))
    delete(table, {files(table)[0]: range(100)})
    dataset = PaimonDataset("db.holed", warehouse.options)
    shuffle_into(dataset, tmp_path / "out")
    copy = StructuredDataset(tmp_path / "out", output_format="arrow")
    rows = [row for batch in copy for row in batch.to_pylist()]
    assert in_order(rows) == in_order(arrow_rows(table))
    assert rows != in_order(rows)


def test_rows_that_are_merged_into_files(warehouse: Warehouse, tmp_path: Path) -> None:
    fields = [one.with_nullable(one.name != "id") for one in numbered(0, 0).schema]
    table = warehouse.make("merged", pa.schema(fields), primary_keys=["id"], bucket="1")
    for start in (0, 50):
        write(table, numbered(start, 100).cast(pa.schema(fields)))
    assert shuffle_into(warehouse.load("merged")[1], tmp_path / "out").rows == 150
    assert in_order(pq.read_table(tmp_path / "out").to_pylist()) == in_order(arrow_rows(table))


def test_blobs_into_files(warehouse: Warehouse, tmp_path: Path) -> None:
    tracked = {"row-tracking.enabled": "true", "data-evolution.enabled": "true"}
    blobs = pa.array([b"x" * i for i in range(10)], pa.large_binary())
    rows = pa.table({"id": pa.array(range(10), pa.int64()), "blob": blobs})
    write(warehouse.make("blobs", rows.schema, **tracked), rows)
    shuffle_into(warehouse.load("blobs")[1], tmp_path / "out")
    assert in_order(pq.read_table(tmp_path / "out").to_pylist()) == rows.to_pylist()
