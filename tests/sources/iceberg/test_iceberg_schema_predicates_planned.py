"""Files of real tables: none is pruned that holds a row that the filter keeps."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
)
from writers.catalogs import WritingCatalog

from headrace.sources.files.filters import with_exact_integers
from headrace.sources.iceberg._schema import IcebergWords, prunable_columns
from headrace.sources.iceberg.table import plan_files
from headrace.sources.tables._catalog import PinnedSnapshot
from headrace.sources.tables._predicates import Translator

TABLE_SCHEMA = Schema(
    NestedField(1, "number", IntegerType()),
    NestedField(2, "long", LongType()),
    NestedField(3, "float", FloatType()),
    NestedField(4, "double", DoubleType()),
    NestedField(5, "decimal", DecimalType(9, 2)),
    NestedField(6, "flag", BooleanType()),
    NestedField(7, "text", StringType()),
    NestedField(8, "binary", BinaryType()),
    NestedField(9, "fixed", FixedType(2)),
    NestedField(10, "date", DateType()),
    NestedField(11, "time", TimeType()),
    NestedField(12, "ts", TimestampType()),
    NestedField(13, "tz", TimestamptzType()),
    NestedField(14, "outer", StructType(NestedField(15, "inner", LongType()))),
)
SCHEMA = pa.schema(
    [
        ("number", pa.int32()),
        ("long", pa.int64()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("decimal", pa.decimal128(9, 2)),
        ("flag", pa.bool_()),
        ("text", pa.string()),
        ("binary", pa.binary()),
        ("fixed", pa.binary(2)),
        ("date", pa.date32()),
        ("time", pa.time64("us")),
        ("ts", pa.timestamp("us")),
        ("tz", pa.timestamp("us", "UTC")),
        ("outer", pa.struct([("inner", pa.int64())])),
    ]
)
FLOATS = [0.0, 1.5, math.inf, -math.inf, math.nan, 0.1]
EMPTY = dict.fromkeys(SCHEMA.names)


def row(n: int) -> dict[str, Any]:
    """Rows of one n are alike, and n orders all columns but those of floats."""
    return {
        "number": n,
        "long": n * 10**12,
        "float": FLOATS[n],
        "double": FLOATS[n],
        "decimal": Decimal(n) / 4,
        "flag": n % 2 == 1,
        "text": "ab" * 10 + f"\"'\t\\ é {n}",
        "binary": b"\xff" * 20 + bytes([n]),
        "fixed": bytes([n, 255]),
        "date": date(2020, 1, 1 + n),
        "time": time(n),
        "ts": datetime(2020, 1, 1, n),
        "tz": datetime(2020, 1, 1, n, tzinfo=UTC),
        "outer": {"inner": n},
    }


FILES = [[row(n)] for n in range(6)] + [[row(1), row(4), EMPTY], [EMPTY], [row(5), EMPTY]]


def made_table(catalog: WritingCatalog, name: str, spec: PartitionSpec) -> Table:
    table = catalog.create_table(f"db.{name}", TABLE_SCHEMA, partition_spec=spec)
    for rows in FILES:
        # pyiceberg cannot write a partition of NaN.
        written = [r for r in rows if not spec.fields or r["float"] == r["float"]]
        if written:
            table.append(pa.Table.from_pylist(written, SCHEMA))
    return table


PARTITIONED_BY = ["float", "decimal", "text", "flag", "fixed", "date", "time", "tz"]


def plain_partitions(*names: str) -> PartitionSpec:
    return PartitionSpec(
        *(
            PartitionField(
                TABLE_SCHEMA.find_field(name).field_id, 1000 + n, IdentityTransform(), f"p_{name}"
            )
            for n, name in enumerate(names)
        )
    )


F = pc.field


def own_filters() -> list[ds.Expression]:
    """Each column compared in each way with values that it has, beside it, and with a list."""
    filters: list[ds.Expression] = []
    for name in SCHEMA.names:
        column = F("outer", "inner") if name == "outer" else F(name)
        for n in (1, 4):
            value = n if name == "outer" else row(n)[name]
            constant = pc.scalar(pa.scalar(value, pa.int64() if name == "outer" else None))
            for compare in (pc.equal, pc.less, pc.greater_equal):
                filters += [compare(column, constant), ~compare(column, constant)]
        values = [n if name == "outer" else row(n)[name] for n in (1, 2, 4)]
        for listed in (column.isin(values), column.isin([*values, None])):
            filters += [listed, ~listed]
        filters += [column.is_null(), column.is_valid()]
    return filters


ODD_FILTERS = [
    F("float") == math.inf,
    F("float") > 1e300,
    F("float") <= -math.inf,
    F("float") < 0.1,
    F("float").isin([0.1, -0.0]),
    ~F("double").isin([0.0, 1.5, math.inf, -math.inf, 0.1]),
    F("double").is_nan(),
    ~F("double").is_nan(),
    ~(F("double") < 100),
    F("double").is_null(nan_is_null=True),
    F("number") > 1.5,
    F("number") < 2**40,
    F("decimal") < Decimal("0.251"),
    F("decimal") == 0.25,
    F("ts") > pc.scalar(pa.scalar(1_577_836_800_000_000_001, pa.timestamp("ns"))),
    F("date") < datetime(2020, 1, 1, 5),
    pc.starts_with(F("text"), "ab" * 10 + "\"'\t\\ é 3"),
    pc.starts_with(F("text"), "ab"),
    ~pc.starts_with(F("text"), "ab"),
    F("flag"),
    ~F("flag"),
    (F("number") == 3) & (pc.add(F("long"), 1) > 0),
    ~((F("number") > 3) | (pc.add(F("long"), 1) < 0)),
]


def plan(table: Table, predicate: BooleanExpression) -> set[str]:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    version = snapshot.snapshot_id, table.schema().schema_id
    planned = plan_files(PinnedSnapshot("t", table.location(), table, snapshot, version), predicate)
    return {file.written_path for file in planned}


def rows_by_file(table: Table) -> dict[str, pa.Table]:
    return {
        path: pq.ParquetFile(path.removeprefix("file://")).read().cast(SCHEMA)
        for path in plan(table, AlwaysTrue())
    }


def planned(table: Table, expression: ds.Expression, files: dict[str, pa.Table]) -> set[str]:
    """The files that are planned for the filter, among them all with rows that it keeps."""
    translator = Translator(IcebergWords(), prunable_columns(table.schema()))
    predicate = translator.predicate(with_exact_integers(expression, SCHEMA))
    if predicate is None:
        return set(files)
    found = plan(table, predicate)
    assert {path for path, rows in files.items() if rows.filter(expression)} <= found
    return found


@pytest.mark.parametrize("names", [[], *([name] for name in PARTITIONED_BY)], ids=str)
def test_every_file_with_a_matching_row_is_planned(
    catalog: WritingCatalog, names: list[str]
) -> None:
    table = made_table(catalog, "t", plain_partitions(*names))
    files = rows_by_file(table)
    filters = own_filters() + ODD_FILTERS
    if names:
        filters = [e for e in filters if names[0] in str(e)]
    pruned = sum(len(files) - len(planned(table, expression, files)) for expression in filters)
    assert pruned > len(filters)


def test_files_without_a_matching_row_are_pruned(catalog: WritingCatalog) -> None:
    table = made_table(catalog, "t", PartitionSpec())
    files = rows_by_file(table)
    for expression, count in [
        (F("number") == 3, 2),
        (F("number") > 4.5, 2),
        (F("long").isin([0, 10**12]), 3),
        (F("long").isin(range(300)), 1),
        (F("text") < "b", 8),
        (F("date") < date(2020, 1, 2), 1),
        (F("ts") < date(2020, 1, 1), 0),
        (F("date") == datetime(2020, 1, 3), 2),
        (F("number").is_null(), 3),
        ((F("number") == 5) & (pc.add(F("long"), 1) > 0), 2),
        (F("number") == 2.5, 0),
    ]:
        assert len(planned(table, expression, files)) == count, str(expression)
