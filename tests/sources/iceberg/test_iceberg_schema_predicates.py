"""Filters as predicates of pyiceberg: what is translated, and what is left to the rows."""

from __future__ import annotations

import operator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from pyiceberg.expressions import (
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
    NotEqualTo,
    NotNull,
    Or,
)
from pyiceberg.expressions.literals import TimestampLiteral
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
    IcebergType,
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

from headrace.sources.iceberg._schema import IcebergWords, prunable_columns
from headrace.sources.tables._predicates import Translator

F = pc.field
TYPES: dict[str, IcebergType] = {
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "decimal": DecimalType(9, 2),
    "flag": BooleanType(),
    "text": StringType(),
    "binary": BinaryType(),
    "fixed": FixedType(4),
    "uuid": UUIDType(),
    "date": DateType(),
    "time": TimeType(),
    "ts": TimestampType(),
    "tz": TimestamptzType(),
    "nano": TimestampNanoType(),
    "odd \"name'. é": LongType(),
    "list": ListType(99, LongType(), element_required=False),
    "outer": StructType(NestedField(98, "a", LongType())),
}
TABLE = Schema(*(NestedField(n, name, type_) for n, (name, type_) in enumerate(TYPES.items(), 1)))
MICROS = 1_577_836_800_000_000
NEW_YEAR = datetime(2020, 1, 1)


def translated(expression: ds.Expression) -> tuple[BooleanExpression | None, list[str]]:
    translator = Translator(IcebergWords(), prunable_columns(TABLE))
    return translator.predicate(expression), translator.dropped


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (F("long") == 5, EqualTo("long", 5)),
        (F("long") != 5, NotEqualTo("long", 5)),
        (F("long") < 5, LessThan("long", 5)),
        (F("long") <= 5, LessThanOrEqual("long", 5)),
        (F("long") > 5, GreaterThan("long", 5)),
        (F("long") >= 5, GreaterThanOrEqual("long", 5)),
        (pc.less(pc.scalar(5), F("long")), GreaterThan("long", 5)),
        (~(F("long") == 5), NotEqualTo("long", 5)),
        (~(F("long") < 5), GreaterThanOrEqual("long", 5)),
        (~~(F("long") < 5), LessThan("long", 5)),
        (F("odd \"name'. é") == 5, EqualTo("odd \"name'. é", 5)),
        ((F("long") == 5) | F("flag"), Or(EqualTo("long", 5), EqualTo("flag", True))),
        (
            ~((F("long") < 5) & F("flag")),
            Or(GreaterThanOrEqual("long", 5), EqualTo("flag", False)),
        ),
        (
            ~((F("long") < 5) | F("flag")),
            And(GreaterThanOrEqual("long", 5), EqualTo("flag", False)),
        ),
        (F("long").is_null(), IsNull("long")),
        (~F("long").is_null(), NotNull("long")),
        (~F("long").is_valid(), IsNull("long")),
        (F("long").isin([1, 2]), In("long", {1, 2})),
        (F("text").isin(["a'", 'b"\t\\']), In("text", {"a'", 'b"\t\\'})),
    ],
    ids=str,
)
def test_what_is_translated(expression: ds.Expression, expected: BooleanExpression) -> None:
    assert translated(expression) == (expected, [])
    bind(TABLE, expected, case_sensitive=True)


@pytest.mark.parametrize(
    ("column", "constant", "literal"),
    [
        ("int", pa.scalar(5, pa.uint8()), 5),
        ("long", 2**62, 2**62),
        ("float", 1.5, 1.5),
        ("double", 0.1, 0.1),
        ("double", 3, 3.0),
        ("double", -0.0, 0.0),
        ("decimal", Decimal("1.5"), Decimal("1.50")),
        ("decimal", 3, Decimal("3.00")),
        ("text", "quotes \"' tab\t backslash\\ é \U0001f600 \0", None),
        ("binary", b"\0\xff", None),
        ("fixed", b"abcd", None),
        ("date", date(2020, 1, 1), None),
        ("date", NEW_YEAR, date(2020, 1, 1)),
        ("time", time(1, 2, 3, 4), None),
        ("ts", NEW_YEAR, TimestampLiteral(MICROS)),
        ("ts", date(2020, 1, 1), TimestampLiteral(MICROS)),
        ("ts", pa.scalar(MICROS * 1000, pa.timestamp("ns")), TimestampLiteral(MICROS)),
        ("tz", NEW_YEAR.replace(tzinfo=UTC), TimestampLiteral(MICROS)),
        (
            "tz",
            pa.scalar(MICROS // 1000, pa.timestamp("ms", "Asia/Tokyo")),
            TimestampLiteral(MICROS),
        ),
    ],
)
def test_constants_of_every_type(column: str, constant: Any, literal: Any) -> None:
    expected = LessThan(column, constant if literal is None else literal)
    assert translated(F(column) < pc.scalar(constant)) == (expected, [])
    bind(TABLE, expected, case_sensitive=True)


@pytest.mark.parametrize(
    "expression",
    [
        pc.add(F("long"), 1) > 3,
        F("long") == F("int"),
        F("int").cast(pa.int64()) == 5,
        F("int") == 2**40,
        F("float") == 0.1,
        F("double") == float("inf"),
        F("double") == float("nan"),
        F("double") != 1.5,
        ~(F("double") < 1.5),
        F("double").is_null(nan_is_null=True),
        F("decimal") == 1.5,
        F("decimal") == Decimal("0.105"),
        F("ts") > pc.scalar(pa.scalar(1001, pa.timestamp("ns"))),
        F("tz") > NEW_YEAR,
        F("ts") > pc.scalar(pa.scalar(2**40, pa.timestamp("s"))),
        F("date") < datetime(2020, 1, 1, 5),
        F("date") < pc.scalar(pa.scalar(2**31 - 1, pa.date32())),
        F("date") == "2020-01-01",
        F("text") == b"a",
        F("fixed") > b"ab",
        F("uuid") == b"\1" * 16,
        F("nano") == NEW_YEAR,
        F("long") == pc.scalar(None),
        F("long").isin([]),
        F("long").isin([1, None]),
        ~F("long").isin([1, 2]),
        pc.starts_with(F("text"), "a"),
        F("outer", "a") == 5,
        F("list").is_null(),
        F("missing") == 1,
        F("missing").is_null(),
        F("long"),
        F(0) == 1,
        pc.scalar(True),
    ],
    ids=lambda value: str(value).replace("\n", ""),
)
def test_what_is_left_to_the_rows(expression: ds.Expression) -> None:
    predicate, dropped = translated(expression)
    assert predicate is None
    assert len(dropped) == 1
    assert dropped[0]


def test_a_dropped_part_only_ever_widens() -> None:
    unsaid = pc.add(F("long"), 1) > 3
    told, dropped = F("int") == 5, "greater(add(long, 1), 3)"
    positive, negative = EqualTo("int", 5), NotEqualTo("int", 5)
    for expression, predicate, text in [
        (told & unsaid, positive, dropped),
        (unsaid & told & F("flag"), And(positive, EqualTo("flag", True)), dropped),
        (~(told | unsaid), negative, f"not {dropped}"),
        (told | unsaid, None, f"or_kleene(equal(int, 5), {dropped})"),
        (~(told & unsaid), None, f"not and_kleene(equal(int, 5), {dropped})"),
        ((told | unsaid) & told, positive, f"or_kleene(equal(int, 5), {dropped})"),
        ((told & unsaid) | told, Or(positive, positive), dropped),
    ]:
        assert translated(expression) == (predicate, [text])


def test_the_ends_of_a_long_list_are_said_too() -> None:
    values = set(range(7, 10_007))
    ends = GreaterThanOrEqual("long", 7), LessThanOrEqual("long", 10_006)
    predicate, _ = translated(F("long").isin(sorted(values)))
    assert predicate == And(In("long", values), *ends)


def test_a_chain_of_thousands_is_translated() -> None:
    predicate, dropped = translated(reduce(operator.or_, [F("long") == n for n in range(3000)]))
    assert predicate is not None
    assert not dropped
    bind(TABLE, predicate, case_sensitive=True)


def test_a_dotted_column_is_not_taken_for_a_field_of_a_struct() -> None:
    inner = NestedField(2, "b", LongType())
    for name, is_known in (("a.c", True), ("a.b", False)):
        try:
            schema = Schema(
                NestedField(1, "a", StructType(inner)), NestedField(3, name, LongType())
            )
            found = name in prunable_columns(schema)
        except ValueError:  # pyiceberg refuses two fields of one name
            found = False
        assert found == is_known
