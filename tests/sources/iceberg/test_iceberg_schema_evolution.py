"""Schemas that changed: rows come out as others read them, by the ids of fields."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform, IdentityTransform, MonthTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from writers.catalogs import WritingCatalog
from writers.committing import commit_files, describe_file
from writers.data_files import (
    append_orc_data,
    append_parquet_without_ids,
    append_plain_parquet,
    append_rows,
    new_data_path,
)
from writers.delete_files import append_equality_deletes
from writers.second_readers import DuckDB, multiset, rows_by_pyiceberg

from headrace import IcebergDataset

UTC = dt.UTC
TYPES: dict[str, tuple[Any, Any]] = {
    "flag": (BooleanType(), True),
    "int": (IntegerType(), -7),
    "long": (LongType(), 1 << 40),
    "float": (FloatType(), 0.25),
    "double": (DoubleType(), -1.5e300),
    "decimal": (DecimalType(20, 3), Decimal("-12345678901234.567")),
    "date": (DateType(), dt.date(1969, 12, 31)),
    "time": (TimeType(), dt.time(23, 59, 59, 999999)),
    "timestamp": (TimestampType(), dt.datetime(1960, 1, 2, 3, 4, 5, 6)),
    "timestamptz": (TimestamptzType(), dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)),
    "string": (StringType(), "a\tb'c\\ä"),
    "binary": (BinaryType(), b"\x00\xff"),
    "fixed": (FixedType(3), b"abc"),
    "uuid": (UUIDType(), uuid.UUID(int=5)),
}


def read(table: Table, **options: Any) -> pa.Table:
    config = table.catalog.properties_for_users
    dataset = IcebergDataset(
        ".".join(("tests", *table.name())), config, output_format="arrow", batch_size=3, **options
    )
    batches = [
        batch if isinstance(batch, pa.Table) else pa.Table.from_batches([batch])
        for batch in dataset
    ]
    return pa.concat_tables([dataset.schema.empty_table(), *batches])


def same_as_pyiceberg(table: Table) -> pa.Table:
    rows = read(table)
    expected = rows_by_pyiceberg(table)
    assert rows.column_names == expected.column_names
    assert multiset(rows) == multiset(expected)
    return rows


def schema_of(types: dict[str, tuple[Any, Any]]) -> Schema:
    return Schema(*(NestedField(at + 1, name, types[name][0]) for at, name in enumerate(types)))


def rows_of(schema: Schema, rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=schema.as_arrow())


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_every_type(catalog: WritingCatalog, file_format: str) -> None:
    # ORC of pyarrow has no time of day and no UUID.
    names = [name for name in TYPES if file_format == "parquet" or name not in ("time", "uuid")]
    types = {name: TYPES[name] for name in names}
    schema = schema_of(types)
    table = catalog.create_table("db.t", schema)
    stored = {
        name: value.bytes if isinstance(value, uuid.UUID) else value
        for name, (_, value) in types.items()
    }
    rows = rows_of(schema, [stored, dict.fromkeys(stored)])
    (append_rows if file_format == "parquet" else append_orc_data)(table, rows)
    # pyiceberg takes what ORC has of fixed lengths for any binary, and refuses it.
    read_rows = same_as_pyiceberg(table) if file_format == "parquet" else read(table)
    assert multiset(read_rows) == multiset(rows)


@pytest.mark.parametrize("name", sorted(TYPES))
def test_initial_defaults_of_every_type(catalog: WritingCatalog, duck: DuckDB, name: str) -> None:
    kind, value = TYPES[name]
    table = catalog.create_table(
        "db.t", pa.schema([("key", pa.int64())]), properties={"format-version": "3"}
    )
    append_rows(table, pa.table({"key": [1, 2]}))
    with table.update_schema() as changing:
        changing.add_column("late", kind, default_value=value)
    append_rows(table, rows_of(table.schema(), [{"key": 3, "late": None}]))
    late = value.bytes if isinstance(value, uuid.UUID) else value
    assert multiset(read(table)) == {(1, late): 1, (2, late): 1, (3, None): 1}
    kept = read(table, filters=pc.field("late").is_valid(), columns=["key"])
    assert sorted(kept.column("key").to_pylist()) == [1, 2]


@pytest.mark.parametrize("append", [append_plain_parquet, append_orc_data])
def test_changes_inside_of_nested_columns(
    catalog: WritingCatalog, append: Callable[[Table, pa.Table], object]
) -> None:
    point = StructType(NestedField(10, "x", IntegerType()), NestedField(11, "y", FloatType()))
    schema = Schema(
        NestedField(1, "key", LongType()),
        NestedField(2, "point", point),
        NestedField(
            3,
            "points",
            ListType(12, StructType(NestedField(13, "x", IntegerType())), element_required=False),
        ),
        NestedField(
            4,
            "named",
            MapType(
                14,
                StringType(),
                15,
                StructType(NestedField(16, "x", IntegerType())),
                value_required=False,
            ),
        ),
    )
    rows = [
        {
            "key": 1,
            "point": {"x": 1, "y": 0.5},
            "points": [{"x": 1}, None, {"x": None}],
            "named": [("a", {"x": 1}), ("b", None)],
        },
        {"key": 2, "point": None, "points": None, "named": None},
        {"key": 3, "point": {"x": None, "y": None}, "points": [], "named": []},
    ]
    table = catalog.create_table("db.t", schema)
    written = rows_of(table.schema(), rows)
    append(table, written)
    with table.update_schema() as changing:
        changing.rename_column("point.x", "abscissa")
        changing.update_column("point.y", DoubleType())
        changing.move_first("point.y")
        changing.update_column("points.x", LongType())
        changing.rename_column("named.x", "z")
    assert read(table).to_pylist() == [
        {
            "key": 1,
            "point": {"y": 0.5, "abscissa": 1},
            "points": [{"x": 1}, None, {"x": None}],
            "named": [("a", {"z": 1}), ("b", None)],
        },
        {"key": 2, "point": None, "points": None, "named": None},
        {"key": 3, "point": {"y": None, "abscissa": None}, "points": [], "named": []},
    ]
    with table.update_schema() as changing:
        # Under the names of others that were there.
        changing.add_column(("point", "x"), StringType())
        changing.add_column(("points", "new"), IntegerType())
        changing.add_column(("named", "x"), StringType())
        changing.move_first("named")
        changing.delete_column("point.abscissa")
        changing.delete_column("key")
    assert read(table).to_pylist() == [
        {
            "named": [("a", {"z": 1, "x": None}), ("b", None)],
            "point": {"y": 0.5, "x": None},
            "points": [{"x": 1, "new": None}, None, {"x": None, "new": None}],
        },
        {"named": None, "point": None, "points": None},
        {"named": [], "point": {"y": None, "x": None}, "points": []},
    ]


def test_a_name_that_was_dropped_and_came_back_is_another_column(
    catalog: WritingCatalog, duck: DuckDB
) -> None:
    rows = pa.table({"key": [1, 2], "x": ["old", "older"]})
    table = catalog.create_table("db.t", rows.schema)
    append_rows(table, rows)
    with table.update_schema() as changing:
        changing.delete_column("x")
    with table.update_schema() as changing:
        changing.add_column("x", StringType())
    append_rows(table, pa.table({"key": [3], "x": ["new"]}))
    assert multiset(same_as_pyiceberg(table)) == multiset(duck.rows(table))
    assert read(table, filters=pc.field("x") == "old").num_rows == 0
    assert read(table, filters=pc.field("x").is_null()).num_rows == 2


def test_names_that_were_swapped(catalog: WritingCatalog, duck: DuckDB) -> None:
    rows = pa.table({"a": [1, 2], "b": [10, 20]})
    table = catalog.create_table("db.t", rows.schema)
    append_rows(table, rows)
    for old, new in (("a", "c"), ("b", "a"), ("c", "b")):
        with table.update_schema() as changing:
            changing.rename_column(old, new)
    append_rows(table, pa.table({"b": [3], "a": [30]}))
    expected = {(1, 10): 1, (2, 20): 1, (3, 30): 1}
    assert read(table).column_names == ["b", "a"]
    assert multiset(read(table)) == multiset(duck.rows(table)) == expected
    kept = read(table, filters=pc.field("a") >= 20, columns=["b"])
    assert multiset(kept) == {(2,): 1, (3,): 1}


@pytest.mark.parametrize("version", [1, 2, 3])
def test_files_without_ids_by_the_mapping_of_names(catalog: WritingCatalog, version: int) -> None:
    rows = pa.table({"key": [1, 2], "inner": [{"a": 1, "b": "x"}, None], "many": [[1], []]})
    table = catalog.create_table("db.t", rows.schema, properties={"format-version": str(version)})
    append_parquet_without_ids(table, rows)
    with table.update_schema() as changing:
        changing.rename_column("inner", "outer")
        changing.rename_column("inner.a", "c")
        changing.delete_column("many")
    append_rows(table, rows_of(table.schema(), [{"key": 3, "outer": {"c": 5, "b": "y"}}]))
    assert multiset(same_as_pyiceberg(table)) == {
        (1, (("c", 1), ("b", "x"))): 1,
        (2, None): 1,
        (3, (("c", 5), ("b", "y"))): 1,
    }


def test_values_of_partitions_that_files_leave_out(catalog: WritingCatalog) -> None:
    """As in tables that came from Hive: the column is in the path, and not in the file."""
    schema = Schema(NestedField(1, "key", LongType()), NestedField(2, "day", DateType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "day"))
    table = catalog.create_table("db.t", schema, partition_spec=spec)
    day = dt.date(2026, 1, 2)
    append_rows(table, rows_of(table.schema(), [{"key": 1, "day": day}]))
    place = new_data_path(table, "parquet")
    metadata = {"PARQUET:field_id": "1"}
    written = pa.schema([pa.field("key", pa.int64(), metadata=metadata)])
    with table.io.new_output(place).create() as stream:
        pq.write_table(pa.table({"key": [2, 3]}, schema=written), stream)
    days = (dt.date(2026, 1, 3) - dt.date(1970, 1, 1)).days
    described = describe_file(
        path=place,
        file_format="parquet",
        rows=2,
        size=len(table.io.new_input(place)),
        partition=Record(days),
        spec_id=table.spec().spec_id,
    )
    commit_files(table, added=[described])
    expected = {(1, day): 1, (2, dt.date(2026, 1, 3)): 1, (3, dt.date(2026, 1, 3)): 1}
    assert multiset(read(table)) == expected
    assert read(table, filters=pc.field("day") > day).num_rows == 2
    append_equality_deletes(
        table, ["day", "key"], [(dt.date(2026, 1, 3), 3)], partition=Record(days)
    )
    assert multiset(read(table)) == {(1, day): 1, (2, dt.date(2026, 1, 3)): 1}


def test_hidden_partitions_prune_and_evolve(catalog: WritingCatalog) -> None:
    schema = Schema(NestedField(1, "key", LongType()), NestedField(2, "at", TimestampType()))
    table = catalog.create_table("db.t", schema)
    start = dt.datetime(2026, 1, 1)
    rows = [{"key": one, "at": start + dt.timedelta(hours=7 * one)} for one in range(40)]
    append_rows(table, rows_of(table.schema(), rows[:20]))
    for transform, name in ((MonthTransform(), "month"), (DayTransform(), "day")):
        with table.update_spec() as changing:
            for one in table.spec().fields:
                changing.remove_field(one.name)
            changing.add_field("at", transform, name)
        append_rows(table, rows_of(table.schema(), rows[20:]))
    every = [*rows, *rows[20:]]
    since = dt.datetime(2026, 1, 9, 12)
    keep = pc.field("at") >= pa.scalar(since, pa.timestamp("us"))
    expected = sorted(row["key"] for row in every if row["at"] >= since)
    config = catalog.properties_for_users
    dataset = IcebergDataset("tests.db.t", config, filters=keep)
    assert len(dataset.files) < len(IcebergDataset("tests.db.t", config).files)
    assert sorted(read(table, filters=keep).column("key").to_pylist()) == expected
    assert {file.snapshot_id for file in dataset.files} == {table.current_snapshot().snapshot_id}
    assert any("day" in file.partition for file in dataset.files)


@pytest.mark.parametrize("file_format", ["parquet", "orc"])
def test_equality_deletes_by_columns_that_changed(
    catalog: WritingCatalog, file_format: str
) -> None:
    """Promoted, renamed, and dropped since; values that are null because the column is new."""
    schema = Schema(
        NestedField(1, "key", LongType()),
        NestedField(2, "i", IntegerType()),
        NestedField(3, "s", StructType(NestedField(4, "k", StringType()))),
    )
    table = catalog.create_table("db.t", schema)
    rows = [{"key": at, "i": at, "s": {"k": str(at)}} for at in range(6)]
    append_rows(table, rows_of(table.schema(), [*rows, {"key": 6, "i": 6, "s": None}]))
    append_equality_deletes(table, ["i"], [(0,)], file_format=file_format)
    append_equality_deletes(table, ["s.k"], [("2",)], file_format=file_format)
    with table.update_schema() as changing:
        changing.update_column("i", LongType())
        changing.rename_column("i", "wide")
    append_equality_deletes(table, ["wide"], [(1,), (1 << 40,)], file_format=file_format)
    with table.update_schema() as changing:
        changing.add_column("late", IntegerType())
    append_rows(
        table,
        rows_of(
            table.schema(),
            [
                {"key": 7, "wide": 1 << 40, "s": None, "late": 1},
                {"key": 8, "wide": 8, "s": None, "late": None},
            ],
        ),
    )
    assert sorted(read(table).column("key").to_pylist()) == [3, 4, 5, 6, 7, 8]
    append_equality_deletes(table, ["s.k", "wide"], [(None, 6), ("4", 4)], file_format=file_format)
    assert sorted(read(table).column("key").to_pylist()) == [3, 5, 7, 8]
    with table.update_schema() as changing:
        changing.delete_column("wide")
        changing.delete_column("s")
    assert sorted(read(table).column("key").to_pylist()) == [3, 5, 7, 8]
    append_equality_deletes(table, ["late"], [(None,)], file_format=file_format)
    assert read(table).column("key").to_pylist() == [7]


def test_a_snapshot_of_the_past_is_read_in_its_schema(catalog: WritingCatalog) -> None:
    rows = pa.table({"key": [1, 2], "x": ["a", "b"]})
    table = catalog.create_table("db.t", rows.schema)
    append_rows(table, rows)
    old = table.current_snapshot().snapshot_id
    with table.update_schema() as changing:
        changing.rename_column("x", "y")
        changing.add_column("z", IntegerType())
    append_equality_deletes(table, ["y"], [("a",)])
    assert multiset(read(table)) == {(2, "b", None): 1}
    past = read(table, snapshot_id=old)
    assert past.column_names == ["key", "x"]
    assert multiset(past) == multiset(rows)
    assert read(table, snapshot_id=old, filters=pc.field("x") == "a").num_rows == 1
