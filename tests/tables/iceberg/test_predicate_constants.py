"""Constants of every type, between the values of a column, and in lists."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from predicates_said import (
    FLOAT_MAX,
    INF,
    MICROS,
    NAN,
    NEW_YEAR,
    SCHEMA,
    TABLE_SCHEMA,
    F,
    check,
    ns,
    other_than,
)
from pyiceberg.expressions import (
    AlwaysFalse,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    NotEqualTo,
    NotIn,
    NotNaN,
    NotNull,
    Or,
)
from pyiceberg.expressions.literals import LongLiteral, TimestampLiteral, UUIDLiteral
from pyiceberg.expressions.visitors import bind

from headrace.tables.iceberg.predicates import to_iceberg


@pytest.mark.parametrize(
    ("column", "constant", "literal"),
    [
        ("int", 5, 5),
        ("int", pa.scalar(5, pa.uint8()), 5),
        ("long", 2**62, 2**62),
        ("long", Decimal("5.00"), 5),
        ("long", 5.0, 5),
        ("float", 1.5, 1.5),
        ("float", pa.scalar(0.1, pa.float32()), 0.10000000149011612),
        ("double", 0.1, 0.1),
        ("double", 3, 3.0),
        ("double", -0.0, 0.0),
        ("double", Decimal("0.1"), 0.1),
        ("decimal", Decimal("1.5"), Decimal("1.50")),
        ("decimal", Decimal("1.500"), Decimal("1.50")),
        ("decimal", 3, Decimal("3.00")),
        ("wide", Decimal("1234567890123456789012345678.9012345678"), None),
        ("text", "", ""),
        ("text", "quotes \"' tab\t backslash\\ é \U0001f600 \0", None),
        ("binary", b"\0\xff", b"\0\xff"),
        ("fixed", b"abcd", b"abcd"),
        ("uuid", UUID(int=5).bytes, UUIDLiteral(UUID(int=5).bytes)),
        ("date", date(2020, 1, 1), date(2020, 1, 1)),
        ("date", NEW_YEAR, date(2020, 1, 1)),
        ("date", pa.scalar(date(2020, 1, 1), pa.date64()), date(2020, 1, 1)),
        ("time", time(1, 2, 3, 4), time(1, 2, 3, 4)),
        ("time", pa.scalar(3600, pa.time32("s")), time(1)),
        ("ts", NEW_YEAR, TimestampLiteral(MICROS)),
        ("ts", date(2020, 1, 1), TimestampLiteral(MICROS)),
        ("ts", pa.scalar(MICROS // 10**6, pa.timestamp("s")), TimestampLiteral(MICROS)),
        ("ts", pa.scalar(MICROS * 1000, pa.timestamp("ns")), TimestampLiteral(MICROS)),
        ("tz", NEW_YEAR.replace(tzinfo=UTC), TimestampLiteral(MICROS)),
        (
            "tz",
            datetime(2020, 1, 1, 9, tzinfo=timezone(timedelta(hours=9))),
            TimestampLiteral(MICROS),
        ),
        ("tz", pa.scalar(MICROS // 1000, pa.timestamp("ms", "UTC")), TimestampLiteral(MICROS)),
        ("nano", pa.scalar(7, pa.timestamp("ns")), LongLiteral(7)),
        ("nano", NEW_YEAR, LongLiteral(MICROS * 1000)),
    ],
)
@pytest.mark.parametrize(
    ("function", "predicate"),
    [("equal", EqualTo), ("less", LessThan), ("greater_equal", GreaterThanOrEqual)],
)
def test_constants_of_every_type(
    column: str, constant: Any, literal: Any, function: str, predicate: type[EqualTo]
) -> None:
    expected = constant if literal is None else literal
    said = to_iceberg(
        getattr(pc, function)(F(column), pc.scalar(constant)), SCHEMA, TABLE_SCHEMA, specs=[]
    )
    assert said.predicate == predicate(column, expected)
    assert said.whole
    bind(TABLE_SCHEMA, said.predicate, case_sensitive=True)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (F("int") > 1.5, GreaterThanOrEqual("int", 2)),
        (F("int") >= 1.5, GreaterThanOrEqual("int", 2)),
        (F("int") < 1.5, LessThanOrEqual("int", 1)),
        (F("int") <= 1.5, LessThanOrEqual("int", 1)),
        (F("int") > -1.5, GreaterThanOrEqual("int", -1)),
        (F("int") < -1.5, LessThanOrEqual("int", -2)),
        (F("int") == 1.5, AlwaysFalse()),
        (F("int") != 1.5, NotNull("int")),
        (~(F("int") == 1.5), NotNull("int")),
        (~(F("int") > 1.5), LessThanOrEqual("int", 1)),
        (F("int") < 2**40, LessThanOrEqual("int", 2**31 - 1)),
        (F("int") > 2**40, AlwaysFalse()),
        (F("int") > -(2**40), GreaterThanOrEqual("int", -(2**31))),
        (F("int") == 2**40, AlwaysFalse()),
        (F("int") != 2**40, NotNull("int")),
        (F("long") < INF, LessThanOrEqual("long", 2**63 - 1)),
        (F("long") > INF, AlwaysFalse()),
        (F("long") > -INF, GreaterThanOrEqual("long", -(2**63))),
        (F("float") == 0.1, AlwaysFalse()),
        (F("float") < 0.1, LessThanOrEqual("float", 0.09999999403953552)),
        (F("float") > 0.1, GreaterThanOrEqual("float", 0.10000000149011612)),
        (F("float") < 1e300, LessThanOrEqual("float", FLOAT_MAX)),
        (F("float") > 1e300, GreaterThan("float", FLOAT_MAX)),
        (F("float") == INF, GreaterThan("float", FLOAT_MAX)),
        (F("float") >= INF, GreaterThan("float", FLOAT_MAX)),
        (F("float") > INF, AlwaysFalse()),
        (F("float") < INF, LessThanOrEqual("float", FLOAT_MAX)),
        (F("float") <= INF, And(NotNull("float"), NotNaN("float"))),
        (F("float") == -INF, LessThan("float", -FLOAT_MAX)),
        (F("float") > -INF, GreaterThanOrEqual("float", -FLOAT_MAX)),
        (~(F("double") < 5), Or(GreaterThanOrEqual("double", 5.0), IsNaN("double"))),
        (~(F("double") <= INF), IsNaN("double")),
        (
            F("double") != INF,
            Or(LessThanOrEqual("double", 1.7976931348623157e308), IsNaN("double")),
        ),
        (F("double") == NAN, AlwaysFalse()),
        (F("double") < NAN, AlwaysFalse()),
        (F("double") != NAN, NotNull("double")),
        (~(F("double") < NAN), NotNull("double")),
        (F("long") > NAN, AlwaysFalse()),
        (F("decimal") < Decimal("0.105"), LessThanOrEqual("decimal", Decimal("0.10"))),
        (F("decimal") > Decimal("0.105"), GreaterThanOrEqual("decimal", Decimal("0.11"))),
        (F("decimal") > Decimal("-0.105"), GreaterThanOrEqual("decimal", Decimal("-0.10"))),
        (F("decimal") == Decimal("0.105"), AlwaysFalse()),
        (F("decimal") < 10**9, LessThanOrEqual("decimal", Decimal("9999999.99"))),
        (F("ts") > ns(1001), GreaterThanOrEqual("ts", TimestampLiteral(2))),
        (F("ts") < ns(-1), LessThanOrEqual("ts", TimestampLiteral(-1))),
        (F("ts") == ns(1001), AlwaysFalse()),
        (F("tz") <= ns(1999, "UTC"), LessThanOrEqual("tz", TimestampLiteral(1))),
        (F("date") < datetime(2020, 1, 1, 5), LessThanOrEqual("date", date(2020, 1, 1))),
        (F("date") > datetime(2020, 1, 1, 5), GreaterThanOrEqual("date", date(2020, 1, 2))),
        (
            F("time") > pc.scalar(pa.scalar(1, pa.time64("ns"))),
            GreaterThanOrEqual("time", time(0, 0, 0, 1)),
        ),
    ],
    ids=str,
)
def test_constants_between_the_values_of_a_column(
    expression: ds.Expression, expected: BooleanExpression
) -> None:
    check(expression, expected)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (F("long").isin([1, 2]), In("long", {1, 2})),
        (F("long").isin([1, 1]), EqualTo("long", 1)),
        (F("long").isin([1, 2, None]), Or(In("long", {1, 2}), IsNull("long"))),
        (F("long").isin(pa.array([None], pa.int64())), IsNull("long")),
        (F("long").isin(pa.array([], pa.int64())), AlwaysFalse()),
        (F("long").isin([]), AlwaysFalse()),
        (F("long").isin([1.5, 2.0]), EqualTo("long", 2)),
        (F("int").isin([1, 2**40]), EqualTo("int", 1)),
        (F("float").isin([0.1]), EqualTo("float", 0.10000000149011612)),
        (F("double").isin([1.0, NAN]), Or(EqualTo("double", 1.0), IsNaN("double"))),
        (F("decimal").isin([Decimal("1.5")]), EqualTo("decimal", Decimal("1.50"))),
        (F("text").isin(["a'", 'b"\t\\']), In("text", {"a'", 'b"\t\\'})),
        (F("text").isin(pa.array(["a", "b"]).dictionary_encode()), In("text", {"a", "b"})),
        (F("flag").isin([True]), EqualTo("flag", True)),
        (F("flag").isin([True, False, None]), Or(NotNull("flag"), IsNull("flag"))),
        (F("date").isin([NEW_YEAR]), EqualTo("date", date(2020, 1, 1))),
        (F("ts").isin(pa.array([1, 1000], pa.timestamp("ns"))), EqualTo("ts", TimestampLiteral(1))),
        (
            ~F("long").isin([1, 2]),
            Or(other_than("long", NotIn("long", {1, 2})), IsNull("long")),
        ),
        (~F("long").isin([1, 2, None]), other_than("long", NotIn("long", {1, 2}))),
        (
            ~pc.is_in(F("long"), value_set=pa.array([1, 2, None]), skip_nulls=True),
            Or(other_than("long", NotIn("long", {1, 2})), IsNull("long")),
        ),
        (pc.is_in(F("long"), value_set=pa.array([1, None]), skip_nulls=True), EqualTo("long", 1)),
        (~F("long").isin(pa.array([], pa.int64())), Or(NotNull("long"), IsNull("long"))),
    ],
    ids=lambda value: str(value).replace("\n", ""),
)
def test_lists(expression: ds.Expression, expected: BooleanExpression) -> None:
    check(expression, expected)


def test_the_ends_of_a_long_list_are_said_too() -> None:
    values = set(range(7, 10_007))
    expected = And(
        In("long", values), GreaterThanOrEqual("long", 7), LessThanOrEqual("long", 10_006)
    )
    check(F("long").isin(sorted(values)), expected)


def test_zeros_in_a_list_of_floats_are_taken_as_one() -> None:
    table = pa.table({"double": [0.0, -0.0, 1.0]})
    assert table.filter(~F("double").isin([0.0])).num_rows == 2
    said = to_iceberg(~F("double").isin([0.0, 1.0]), SCHEMA, TABLE_SCHEMA)
    assert said.predicate == Or(And(NotEqualTo("double", 1.0), NotNull("double")), IsNull("double"))
    assert not said.whole


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (F("decimal") > 1.5, GreaterThanOrEqual("decimal", Decimal("1.50"))),
        (F("decimal") <= 1.5, LessThanOrEqual("decimal", Decimal("1.50"))),
        (F("decimal") != 1.5, NotNull("decimal")),
        (
            F("decimal") == 0.1,
            And(
                GreaterThanOrEqual("decimal", Decimal("0.10")),
                LessThanOrEqual("decimal", Decimal("0.10")),
            ),
        ),
    ],
    ids=str,
)
def test_a_decimal_beside_a_float_is_compared_widely(
    expression: ds.Expression, expected: BooleanExpression
) -> None:
    said = to_iceberg(expression, SCHEMA, TABLE_SCHEMA)
    assert (said.predicate, said.whole, said.dropped) == (expected, False, ())


def test_decimals_that_one_double_stands_for_are_all_kept() -> None:
    values = [Decimal(f"1234567890123456.{n:010}") for n in (0, 1, 1_000_000_000, 2_500_000_000)]
    table = pa.table({"wide": pa.array(values, pa.decimal128(38, 10))})
    for comparison in (pc.equal, pc.greater_equal, pc.less_equal):
        expression = comparison(F("wide"), 1234567890123456.0)
        found = to_iceberg(expression, SCHEMA, TABLE_SCHEMA).predicate
        assert isinstance(found, BooleanExpression)
        lowest, highest = Decimal("1234567890123455"), Decimal("1234567890123457")
        kept = table.filter(expression)["wide"].to_pylist()
        assert len(kept) > 1
        assert all(lowest < value < highest for value in kept)
        limits = [leaf.literal.value for leaf in _leaves(found)]
        assert not any(min(kept) < limit < max(kept) for limit in limits)


def _leaves(predicate: Any) -> list[Any]:
    if isinstance(predicate, And | Or):
        return _leaves(predicate.left) + _leaves(predicate.right)
    return [predicate]
