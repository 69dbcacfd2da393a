"""A column of every type, and a check of what an expression over them says to Iceberg."""

from __future__ import annotations

import math
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyiceberg.expressions import And, BooleanExpression, NotNull
from pyiceberg.expressions.visitors import bind
from pyiceberg.schema import Schema
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
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from headrace.tables.iceberg.predicates import to_iceberg

INNER = StructType(
    NestedField(22, "a b", LongType()),
    NestedField(23, "sure", LongType(), required=True),
    NestedField(24, "deep.er", StructType(NestedField(25, "é", StringType()))),
)
TABLE_SCHEMA = Schema(
    NestedField(1, "int", IntegerType()),
    NestedField(2, "long", LongType()),
    NestedField(3, "float", FloatType()),
    NestedField(4, "double", DoubleType()),
    NestedField(5, "decimal", DecimalType(9, 2)),
    NestedField(6, "flag", BooleanType()),
    NestedField(7, "text", StringType()),
    NestedField(8, "binary", BinaryType()),
    NestedField(9, "fixed", FixedType(4)),
    NestedField(10, "uuid", UUIDType()),
    NestedField(11, "date", DateType()),
    NestedField(12, "time", TimeType()),
    NestedField(13, "ts", TimestampType()),
    NestedField(14, "tz", TimestamptzType()),
    NestedField(15, "nano", TimestampNanoType()),
    NestedField(16, "sure", LongType(), required=True),
    NestedField(17, "odd \"name'. é", LongType()),
    NestedField(18, "list", ListType(19, LongType(), element_required=False)),
    NestedField(20, "wide", DecimalType(38, 10)),
    NestedField(21, "outer", INNER),
)
SCHEMA = pa.schema(
    [
        ("int", pa.int32()),
        ("long", pa.int64()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("decimal", pa.decimal128(9, 2)),
        ("flag", pa.bool_()),
        ("text", pa.large_string()),
        ("binary", pa.large_binary()),
        ("fixed", pa.binary(4)),
        ("uuid", pa.binary(16)),
        ("date", pa.date32()),
        ("time", pa.time64("us")),
        ("ts", pa.timestamp("us")),
        ("tz", pa.timestamp("us", "UTC")),
        ("nano", pa.timestamp("ns")),
        ("sure", pa.int64()),
        ("odd \"name'. é", pa.int64()),
        ("list", pa.list_(pa.int64())),
        ("wide", pa.decimal128(38, 10)),
        (
            "outer",
            pa.struct(
                [
                    ("a b", pa.int64()),
                    ("sure", pa.int64()),
                    ("deep.er", pa.struct([("é", pa.string())])),
                ]
            ),
        ),
    ]
)

FLOAT_MAX, DOUBLE_MAX = 3.4028234663852886e38, 1.7976931348623157e308
MICROS = 1_577_836_800_000_000
NEW_YEAR = datetime(2020, 1, 1)
NAN, INF = math.nan, math.inf
F = pc.field


def unsaid(name: str = "long") -> ds.Expression:
    return pc.add(F(name), 1) > 3


def other_than(name: str, predicate: BooleanExpression) -> BooleanExpression:
    return And(predicate, NotNull(name))


def ns(value: int, zone: str | None = None) -> ds.Expression:
    return pc.scalar(pa.scalar(value, pa.timestamp("ns", zone)))


def check(expression: ds.Expression, expected: BooleanExpression) -> None:
    said = to_iceberg(expression, SCHEMA, TABLE_SCHEMA, specs=[])
    assert said.predicate == expected
    assert said.whole
    assert said.dropped == ()
    bind(TABLE_SCHEMA, expected, case_sensitive=True)
