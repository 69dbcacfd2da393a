"""Rows of append tables, compared with those that pypaimon reads."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from paimon_tables import Warehouse, arrow_rows, delete, files, in_order, numbered, write
from pypaimon.schema.data_types import AtomicType
from pypaimon.schema.schema_change import Move, SchemaChange

from headrace import FileSplit, OptionError, RowRange, StructuredDataset

FORMATS = ["parquet", "orc", "avro", "row"]
WIDE = pa.schema(
    [
        ("id", pa.int64()),
        ("i8", pa.int8()),
        ("i16", pa.int16()),
        ("i32", pa.int32()),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("b", pa.bool_()),
        ("s", pa.string()),
        ("raw", pa.binary()),
        ("money", pa.decimal128(12, 3)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us")),
        ("at_ms", pa.timestamp("ms")),
        ("seen", pa.timestamp("us", "UTC")),
        ("noon", pa.time32("ms")),
        ("list", pa.list_(pa.int32())),
        ("st", pa.struct([("a", pa.int32()), ("deep", pa.struct([("z", pa.string())]))])),
        ("structs", pa.list_(pa.struct([("k", pa.string()), ("n", pa.int64())]))),
    ]
)
MAPS = pa.schema([*WIDE, ("m", pa.map_(pa.string(), pa.int64()))])


def value(i: int) -> dict[str, Any]:
    return {
        "id": i,
        "i8": i % 100,
        "i16": i,
        "i32": i * 1000,
        "f": i / 8,
        "d": i / 3,
        "b": i % 3 == 0,
        "s": f"row {i} \u00fc",
        "raw": bytes([i % 256, 0]),
        "money": Decimal(i).scaleb(-3),
        "day": dt.date(2020, 1, 1) + dt.timedelta(i),
        "at": dt.datetime(2020, 1, 1, microsecond=i),
        "at_ms": dt.datetime(2020, 1, 1, microsecond=1000 * i),
        "seen": dt.datetime(2021, 1, 1, microsecond=i, tzinfo=dt.UTC),
        "noon": dt.time(12, 0, i % 60),
        "list": list(range(i % 4)),
        "st": {"a": i, "deep": {"z": str(i)}},
        "structs": [{"k": "x", "n": i}] * (i % 3),
        "m": [("k", i)],
    }


def typed(schema: pa.Schema, rows: int) -> pa.Table:
    """Rows of every type; every seventh value of a row is null."""
    made = [
        {
            n: None if n != "id" and (i + place) % 7 == 0 else value(i)[n]
            for place, n in enumerate(schema.names)
        }
        for i in range(rows)
    ]
    return pa.Table.from_pylist(made, schema=schema)


@pytest.mark.parametrize("chunk_size", [None, 37])
@pytest.mark.parametrize("file_format", FORMATS)
def test_every_type_is_read_as_pypaimon_reads_it(
    warehouse: Warehouse, file_format: str, chunk_size: int | None
) -> None:
    schema = WIDE if file_format == "avro" else MAPS  # pypaimon writes no maps into Avro
    table = warehouse.make("wide", schema, **{"file.format": file_format})
    write(table, typed(schema, 200))
    loader, dataset = warehouse.load("wide", chunk_size=chunk_size, shuffle=chunk_size is not None)
    rows = [row for batch in loader for row in batch.to_pylist()]
    assert in_order(rows) == in_order(arrow_rows(table)) == typed(schema, 200).to_pylist()
    assert dataset.schema == schema
    assert dataset.num_rows == 200
    assert (rows == in_order(rows)) is (chunk_size is None)


@pytest.mark.parametrize("file_format", FORMATS)
def test_columns_are_found_by_their_ids(warehouse: Warehouse, file_format: str) -> None:
    schema = pa.schema(
        [
            ("id", pa.int32()),
            ("a", pa.string()),
            ("b", pa.float32()),
            ("gone", pa.int64()),
            ("st", pa.struct([("x", pa.int32()), ("y", pa.string())])),
        ]
    )
    table = warehouse.make("evolving", schema, **{"file.format": file_format})
    first = [
        {"id": i, "a": f"a{i}", "b": i / 2, "gone": i, "st": {"x": i, "y": "y"}} for i in range(50)
    ]
    write(table, pa.Table.from_pylist(first, schema=schema))
    table = warehouse.alter(
        "evolving",
        SchemaChange.update_column_type("id", AtomicType("BIGINT")),
        SchemaChange.update_column_type("b", AtomicType("DOUBLE")),
        SchemaChange.rename_column("a", "aa"),
        SchemaChange.drop_column("gone"),
        SchemaChange.rename_column(["st", "x"], "xx"),
    )
    table = warehouse.alter(
        "evolving",
        SchemaChange.add_column("gone", AtomicType("STRING"), None, None),
        SchemaChange.add_column("a", AtomicType("INT"), None, Move.first("a")),
    )
    second = [
        {"a": i, "id": i, "aa": "new", "b": 0.5, "st": {"xx": 1, "y": "z"}, "gone": "back"}
        for i in range(50, 80)
    ]
    now = pa.schema(
        [
            ("a", pa.int32()),
            ("id", pa.int64()),
            ("aa", pa.string()),
            ("b", pa.float64()),
            ("st", pa.struct([("xx", pa.int32()), ("y", pa.string())])),
            ("gone", pa.string()),
        ]
    )
    write(table, pa.Table.from_pylist(second, schema=now))
    expected = [
        {
            "a": None,
            "id": row["id"],
            "aa": row["a"],
            "b": row["b"],
            "st": {"xx": row["st"]["x"], "y": "y"},
            "gone": None,
        }
        for row in first
    ] + second
    assert in_order(arrow_rows(table)) == expected
    assert in_order(warehouse.read("evolving")) == expected
    assert in_order(warehouse.read("evolving", chunk_size=7, shuffle=True)) == expected
    some = warehouse.read("evolving", columns=["gone", "id"])
    assert in_order(some) == [{"gone": row["gone"], "id": row["id"]} for row in expected]
    assert warehouse.load("evolving")[1].schema == now


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_changes_of_type_beyond_widening_are_those_of_pypaimon(
    warehouse: Warehouse, file_format: str
) -> None:
    schema = pa.schema([("id", pa.int64()), ("n", pa.string()), ("x", pa.float64())])
    table = warehouse.make("cast", schema, **{"file.format": file_format})
    rows = [{"id": i, "n": str(i), "x": i + 0.75} for i in range(40)]
    write(table, pa.Table.from_pylist(rows, schema=schema))
    table = warehouse.alter(
        "cast",
        SchemaChange.update_column_type("n", AtomicType("INT")),
        SchemaChange.update_column_type("x", AtomicType("INT")),
    )
    expected = [{"id": i, "n": i, "x": i} for i in range(40)]
    assert in_order(arrow_rows(table)) == expected
    assert in_order(warehouse.read("cast")) == expected
    assert in_order(warehouse.read("cast", chunk_size=9, shuffle=True)) == expected


HOLES = [[0, 1, 2, 50, 98, 99], [], list(range(100)), [7], list(range(0, 100, 2))]


@pytest.mark.parametrize("chunk_size", [None, 1, 13, 1000])
@pytest.mark.parametrize("file_format", FORMATS)
def test_deleted_rows_never_come_out_and_chunks_count_the_others(
    warehouse: Warehouse, file_format: str, chunk_size: int | None
) -> None:
    table = warehouse.make(
        "holed",
        numbered(0, 0).schema,
        **{"file.format": file_format, "deletion-vectors.enabled": "true"},
    )
    for start in range(0, 500, 100):
        write(table, numbered(start, 100))
    names = {names: holes for names, holes in zip(files(table), HOLES, strict=True) if holes}
    delete(table, names)
    _, dataset = loaded = warehouse.load("holed", chunk_size=chunk_size)
    rows = [row for batch in loaded[0] for row in batch.to_pylist()]
    assert in_order(rows) == in_order(arrow_rows(table))
    assert len(rows) == dataset.num_rows == 500 - sum(map(len, HOLES))
    if chunk_size is not None:
        chunks = [c for split in dataset.plan() for c in split.file_splits]
        sizes = [chunk.row_range.length for chunk in chunks]
        left = [100 - len(holes) for holes in HOLES]
        assert sorted(sizes) == sorted(
            size
            for rows_left in left
            for size in [chunk_size] * (rows_left // chunk_size)
            + [rows_left % chunk_size] * (rows_left % chunk_size > 0)
        )


def test_deletes_hold_when_the_table_has_stopped_writing_them(warehouse: Warehouse) -> None:
    table = warehouse.make("off", numbered(0, 0).schema, **{"deletion-vectors.enabled": "true"})
    write(table, numbered(0, 20))
    delete(table, {files(table)[0]: [3, 4]})
    table = warehouse.alter("off", SchemaChange.set_option("deletion-vectors.enabled", "false"))
    assert len(arrow_rows(table)) == 20, "pypaimon has learnt it: compare with it again"
    assert [row["id"] for row in warehouse.read("off")] == [0, 1, 2, *range(5, 20)]


def test_the_rows_are_those_of_the_chunk_shuffle_of_pypaimon(warehouse: Warehouse) -> None:
    table = warehouse.make("peer", numbered(0, 0).schema, **{"deletion-vectors.enabled": "true"})
    for start in (0, 300):
        write(table, numbered(start, 300))
    delete(table, {files(table)[0]: range(100, 160)})
    builder = table.new_read_builder()
    theirs = []
    for shard in range(2):
        scan = builder.new_scan().with_chunk_shuffle(7, 50).with_shard(shard, 2)
        theirs += builder.new_read().to_arrow(scan.plan().splits()).to_pylist()
    ours = warehouse.read("peer", chunk_size=50, shuffle=True, shuffle_seed=7)
    assert in_order(ours) == in_order(theirs)
    assert ours != in_order(ours)


def test_shards_of_a_plan_share_out_all_rows(warehouse: Warehouse) -> None:
    table = warehouse.make("shards", numbered(0, 0).schema)
    write(table, numbered(0, 1000))
    _, dataset = warehouse.load("shards", chunk_size=100, shuffle=True)
    plan = dataset.plan(lanes=4)
    shards = [plan.shard(index, 2) for index in range(2)]
    assert [shard.row_count for shard in shards] == [500, 500]
    chunks = [(c.row_range.offset, c.row_range.stop) for s in shards for c in s.file_splits]
    assert [i for start, stop in sorted(chunks) for i in range(start, stop)] == list(range(1000))


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (pa.string(), ["a", "x=y/z ü", "", None]),
        (pa.date32(), [dt.date(2020, 1, 1), dt.date(1969, 12, 31), None]),
        (pa.int32(), [1, -5, None]),
        (pa.bool_(), [True, False]),
        (pa.decimal128(5, 2), [Decimal("1.50"), Decimal("-3.25")]),
    ],
)
def test_partitions_are_chosen_by_their_values(
    warehouse: Warehouse, type_: pa.DataType, values: list[Any]
) -> None:
    schema = pa.schema([("id", pa.int64()), ("dataset", type_)])
    table = warehouse.make("parts", schema, partition_keys=["dataset"])
    rows = [
        {"id": 10 * place + i, "dataset": v} for place, v in enumerate(values) for i in range(5)
    ]
    write(table, pa.Table.from_pylist(rows, schema=schema))
    assert in_order(warehouse.read("parts")) == in_order(arrow_rows(table))
    for one in values:
        got = warehouse.read("parts", partition_filter={"dataset": one})
        assert in_order(got) == [row for row in rows if row["dataset"] == one]
    two = warehouse.read("parts", partition_filter=[{"dataset": v} for v in values[:2]])
    assert in_order(two) == [row for row in rows if row["dataset"] in values[:2]]


@pytest.mark.parametrize("file_format", FORMATS)
def test_rows_are_counted_without_their_columns(warehouse: Warehouse, file_format: str) -> None:
    table = warehouse.make("counted", numbered(0, 0).schema, **{"file.format": file_format})
    write(table, numbered(0, 100))
    delete(table, {files(table)[0]: [3, 50]})
    dataset = warehouse.load("counted")[1]
    counting = dataset.epochs.pipeline.reader.counting()
    [file] = dataset.files
    for rows in (None, RowRange(2, 50)):
        tables = list(counting.read(FileSplit(file, rows), 1 << 20))
        assert sum(table.num_rows for table in tables) == (98 if rows is None else 50)
        assert all(not table.num_columns for table in tables)


def test_the_folder_of_a_table_is_no_plain_files(warehouse: Warehouse) -> None:
    table = warehouse.make("plain", numbered(0, 1).schema)
    write(table, numbered(0, 10))
    for place in (table.table_path, f"{table.table_path}/bucket-0"):
        with pytest.raises(OptionError, match=r"plain is a table of Paimon.*PaimonDataset"):
            StructuredDataset(place)
        assert StructuredDataset(place, as_files=True).num_rows == 10
