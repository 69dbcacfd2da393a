"""Tables whose rows are spread over several files: updated columns, and blobs."""

from __future__ import annotations

import pyarrow as pa
import pytest
from paimon_tables import Warehouse, arrow_rows, in_order, numbered, write
from pypaimon.schema.schema_change import SchemaChange
from pypaimon.table.file_store_table import FileStoreTable
from pypaimon.table.row.blob import BlobDescriptor

from headrace import OptionError, ReadError

EVOLVING = {
    "row-tracking.enabled": "true",
    "data-evolution.enabled": "true",
    "deletion-vectors.enabled": "true",
}
BLOBS = pa.schema([("id", pa.int64()), ("image", pa.large_binary())])


def update(table: FileStoreTable, columns: pa.Table) -> None:
    """New values of some columns, for rows by their row id."""
    builder = table.new_batch_write_builder()
    names = [name for name in columns.column_names if name != "_ROW_ID"]
    messages = builder.new_update().with_update_type(names).update_by_arrow_with_row_id(columns)
    builder.new_commit().commit(messages)


def delete_ids(table: FileStoreTable, row_ids: list[int]) -> None:
    builder = table.new_batch_write_builder()
    builder.new_commit().commit(builder.new_update().delete_by_row_id(row_ids))


def evolving(warehouse: Warehouse, **options: str) -> FileStoreTable:
    table = warehouse.make("groups", numbered(0, 0).schema, **EVOLVING, **options)
    for start in (0, 100, 200):
        write(table, numbered(start, 100))
    return table


@pytest.mark.parametrize("file_format", ["parquet", "orc", "avro", "row"])
def test_updated_columns_have_their_new_values(warehouse: Warehouse, file_format: str) -> None:
    table = evolving(warehouse, **{"file.format": file_format})
    ids = pa.array(range(100, 200), pa.int64())
    update(table, pa.table({"_ROW_ID": ids, "name": [f"new {i}" for i in range(100, 200)]}))
    expected = in_order(arrow_rows(table))
    assert expected[150]["name"] == "new 150"
    loader, dataset = warehouse.load("groups")
    assert dataset.num_rows == 300
    assert in_order(row for batch in loader for row in batch.to_pylist()) == expected
    assert in_order(warehouse.read("groups", chunk_size=17, shuffle=True)) == expected


def test_deleted_rows_of_groups_do_not_come_out(warehouse: Warehouse) -> None:
    table = evolving(warehouse)
    delete_ids(table, [0, 1, 150, 299])
    ids = pa.array(range(100, 200), pa.int64())
    update(table, pa.table({"_ROW_ID": ids, "name": ["new"] * 100}))
    delete_ids(table, [160, 161])
    expected = in_order(arrow_rows(table))
    assert len(expected) == 294
    loader, dataset = warehouse.load("groups", chunk_size=17, shuffle=True)
    assert dataset.num_rows == 294
    assert in_order(row for batch in loader for row in batch.to_pylist()) == expected


def test_an_update_before_a_rename_is_refused_where_it_would_be_lost(
    warehouse: Warehouse,
) -> None:
    table = evolving(warehouse)
    ids = pa.array(range(100), pa.int64())
    update(table, pa.table({"_ROW_ID": ids, "name": ["new"] * 100}))
    warehouse.alter("groups", SchemaChange.rename_column("name", "title"))
    with pytest.raises(ReadError, match=r"'name'.*renamed.*columns="):
        warehouse.load("groups")
    assert len(warehouse.read("groups", columns=["id"])) == 300


def blobs(warehouse: Warehouse) -> FileStoreTable:
    table = warehouse.make("blobs", BLOBS, **EVOLVING)
    for start in (0, 50):
        ids = range(start, start + 50)
        images = [None if i % 10 == 3 else bytes([i]) * i for i in ids]
        write(table, pa.table({"id": ids, "image": images}, schema=BLOBS))
    return table


@pytest.mark.parametrize("chunk_size", [None, 7])
def test_blobs_come_as_bytes(warehouse: Warehouse, chunk_size: int | None) -> None:
    table = blobs(warehouse)
    delete_ids(table, [4, 60])
    expected = in_order(arrow_rows(table))
    loader, dataset = warehouse.load("blobs", chunk_size=chunk_size, shuffle=True)
    assert dataset.num_rows == 98
    assert in_order(row for batch in loader for row in batch.to_pylist()) == expected
    assert [row["image"] for row in expected][5] == bytes([6]) * 6


def test_blobs_come_as_descriptors(warehouse: Warehouse) -> None:
    blobs(warehouse)
    rows = in_order(warehouse.read("blobs", blobs="descriptors"))
    assert [row["image"] is None for row in rows] == [i % 10 == 3 for i in range(100)]
    descriptor = BlobDescriptor.deserialize(rows[42]["image"])
    with open(descriptor.uri.removeprefix("file://"), "rb") as stored:
        stored.seek(descriptor.offset)
        assert stored.read(descriptor.length) == bytes([42]) * 42
    with pytest.raises(OptionError, match="blobs"):
        warehouse.load("blobs", blobs="files")


def test_columns_beside_blobs_are_read_without_them(warehouse: Warehouse) -> None:
    table = blobs(warehouse)
    for split in table.new_read_builder().new_scan().plan().splits():
        for file in split.files:
            if file.file_name.endswith(".blob"):
                table.file_io.delete_quietly(file.file_path)
    rows = warehouse.read("blobs", columns=["id"], chunk_size=7)
    assert [row["id"] for row in in_order(rows)] == list(range(100))


def test_an_update_after_a_rename_is_read(warehouse: Warehouse) -> None:
    evolving(warehouse)
    table = warehouse.alter("groups", SchemaChange.rename_column("name", "title"))
    ids = pa.array(range(100), pa.int64())
    update(table, pa.table({"_ROW_ID": ids, "x": pa.array([0.5] * 100, pa.float32())}))
    rows = in_order(warehouse.read("groups", chunk_size=40))
    assert [row["title"] for row in rows] == [f"row {i}" for i in range(300)]
    assert [row["x"] for row in rows] == [0.5] * 100 + [i / 4 for i in range(100, 300)]
