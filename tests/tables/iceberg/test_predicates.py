from __future__ import annotations

import math
import operator
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import reduce
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
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
    NotStartsWith,
    Or,
    StartsWith,
)
from pyiceberg.expressions.literals import LongLiteral, TimestampLiteral, UUIDLiteral
from pyiceberg.expressions.visitors import bind
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
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

from penstock.tables.iceberg.predicates import to_iceberg

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


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (F("long") == 5, EqualTo("long", 5)),
        (F("long") != 5, other_than("long", NotEqualTo("long", 5))),
        (F("long") < 5, LessThan("long", 5)),
        (F("long") <= 5, LessThanOrEqual("long", 5)),
        (F("long") > 5, GreaterThan("long", 5)),
        (F("long") >= 5, GreaterThanOrEqual("long", 5)),
        (pc.less(pc.scalar(5), F("long")), GreaterThan("long", 5)),
        (pc.less_equal(pc.scalar(5), F("long")), GreaterThanOrEqual("long", 5)),
        (pc.greater(pc.scalar(5), F("long")), LessThan("long", 5)),
        (pc.greater_equal(pc.scalar(5), F("long")), LessThanOrEqual("long", 5)),
        (pc.equal(pc.scalar(5), F("long")), EqualTo("long", 5)),
        (~(F("long") == 5), other_than("long", NotEqualTo("long", 5))),
        (~(F("long") != 5), EqualTo("long", 5)),
        (~(F("long") < 5), GreaterThanOrEqual("long", 5)),
        (~~(F("long") < 5), LessThan("long", 5)),
        (
            (F("long") >= 5) & (F("long") <= 9),
            And(GreaterThanOrEqual("long", 5), LessThanOrEqual("long", 9)),
        ),
        ((F("long") == 5) | F("flag"), Or(EqualTo("long", 5), EqualTo("flag", True))),
        (
            ~((F("long") < 5) & F("flag")),
            Or(GreaterThanOrEqual("long", 5), EqualTo("flag", False)),
        ),
        (
            ~((F("long") < 5) | F("flag")),
            And(GreaterThanOrEqual("long", 5), EqualTo("flag", False)),
        ),
        (
            pc.and_not_kleene(F("flag"), F("long") < 5),
            And(EqualTo("flag", True), GreaterThanOrEqual("long", 5)),
        ),
        (F("flag"), EqualTo("flag", True)),
        (~F("flag"), EqualTo("flag", False)),
        (F("flag") == False, EqualTo("flag", False)),  # noqa: E712
        (F("flag") < True, EqualTo("flag", False)),
        (F("flag") >= False, NotNull("flag")),
        (F("flag") > True, AlwaysFalse()),
        (pc.scalar(True), AlwaysTrue()),
        (~pc.scalar(True), AlwaysFalse()),
        (F("long") == pc.scalar(None), AlwaysFalse()),
        (~(F("long") == pc.scalar(None)), AlwaysFalse()),
        (F("long").is_null(), IsNull("long")),
        (~F("long").is_null(), NotNull("long")),
        (F("long").is_valid(), NotNull("long")),
        (~F("long").is_valid(), IsNull("long")),
        (F("double").is_null(nan_is_null=True), Or(IsNull("double"), IsNaN("double"))),
        (~F("double").is_null(nan_is_null=True), And(NotNull("double"), NotNaN("double"))),
        (F("long").is_null(nan_is_null=True), IsNull("long")),
        (F("double").is_nan(), IsNaN("double")),
        (~F("double").is_nan(), And(NotNull("double"), NotNaN("double"))),
        (F("long").is_nan(), AlwaysFalse()),
        (pc.starts_with(F("text"), 'a"\t\\'), StartsWith("text", 'a"\t\\')),
        (~pc.starts_with(F("text"), "a"), other_than("text", NotStartsWith("text", "a"))),
        (pc.starts_with(F("text"), ""), NotNull("text")),
    ],
    ids=str,
)
def test_operators(expression: ds.Expression, expected: BooleanExpression) -> None:
    check(expression, expected)


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


@pytest.mark.parametrize(
    ("expression", "name"),
    [
        (F("outer", "a b") == 5, "outer.a b"),
        (F(("outer", "a b")) == 5, "outer.a b"),
        (F("outer", "sure") == 5, "outer.sure"),
        (F("odd \"name'. é") == 5, "odd \"name'. é"),
    ],
)
def test_names(expression: ds.Expression, name: str) -> None:
    check(expression, EqualTo(name, 5))


def test_a_path_of_three_names() -> None:
    check(F("outer", "deep.er", "é") == "x", EqualTo("outer.deep.er.é", "x"))


def test_a_dotted_column_is_not_taken_for_a_field_of_a_struct() -> None:
    table_schema = Schema(
        NestedField(1, "a", StructType(NestedField(2, "b", LongType()))),
        NestedField(3, "a.c", LongType()),
    )
    schema = pa.schema([("a", pa.struct([("b", pa.int64())])), ("a.c", pa.int64())])
    assert to_iceberg(F("a.c") == 1, schema, table_schema).predicate == EqualTo("a.c", 1)
    assert to_iceberg(F("a", "c") == 1, schema, table_schema).predicate is None
    assert to_iceberg(F("a.b") == 1, schema, table_schema).predicate is None


@pytest.mark.parametrize(
    "expression",
    [
        F("int").cast(pa.int64()) == 5,
        F("int").cast(pa.float64()) == 5,
        F("int").cast(pa.int64()).cast(pa.int64()) == pc.scalar("5").cast(pa.int32()),
        pc.scalar(5).cast(pa.int8()) == F("int"),
    ],
    ids=str,
)
def test_casts_that_change_nothing_are_seen_through(expression: ds.Expression) -> None:
    check(expression, EqualTo("int", 5))


UNSAYABLE = [
    unsaid(),
    F("long") == F("int"),
    F("long").cast(pa.int32()) == 5,
    F("long").cast(pa.float64()) == 5,
    F("double").cast(pa.float32()) == 0.1,
    F("ts").cast(pa.date32()) == date(2020, 1, 1),
    F("text").cast(pa.int64()) == 5,
    F("int").cast(pa.int64(), safe=False) == 5,
    pc.starts_with(F("text"), "a", ignore_case=True),
    pc.match_substring(F("text"), "a"),
    pc.utf8_lower(F("text")) == "a",
    pc.is_null(unsaid()),
    pc.if_else(F("flag"), F("flag"), F("flag")),
    pc.xor(F("flag"), F("flag")),
    F("missing") == 1,
    F("outer", "missing") == 1,
    F("list").is_null(),
    F("outer").is_valid(),
    F("outer", "sure").is_null(),
    F("fixed") > b"ab",
    F("tz") > NEW_YEAR,
    F("date") == "2020-01-01",
    F("text") == b"a",
    F("date") < pc.scalar(pa.scalar(2**31 - 1, pa.date32())),
    F("ts") > pc.scalar(pa.scalar(2**40, pa.timestamp("s"))),
    F("decimal").isin([1e300]),
    F("long"),
    F(0) == 1,
]


@pytest.mark.parametrize("expression", UNSAYABLE, ids=str)
def test_what_cannot_be_said_is_dropped_and_named(expression: ds.Expression) -> None:
    said = to_iceberg(expression, SCHEMA, TABLE_SCHEMA)
    assert (said.predicate, said.whole) == (None, False)
    assert len(said.dropped) == 1
    assert said.dropped[0]


def test_a_dropped_part_only_ever_widens() -> None:
    told, dropped = F("int") == 5, "greater(add(long, 1), 3)"
    positive, negative = EqualTo("int", 5), other_than("int", NotEqualTo("int", 5))
    for expression, predicate, text in [
        (told & unsaid(), positive, dropped),
        (unsaid() & told & F("flag"), And(positive, EqualTo("flag", True)), dropped),
        (~(told | unsaid()), negative, f"not {dropped}"),
        (told | unsaid(), None, f"or_kleene(equal(int, 5), {dropped})"),
        (~(told & unsaid()), None, f"not and_kleene(equal(int, 5), {dropped})"),
        ((told | unsaid()) & told, positive, f"or_kleene(equal(int, 5), {dropped})"),
        ((told & unsaid()) | told, Or(positive, positive), dropped),
        (~(~told | ~unsaid()), positive, dropped),
    ]:
        said = to_iceberg(expression, SCHEMA, TABLE_SCHEMA)
        assert (said.predicate, said.whole, said.dropped) == (predicate, False, (text,))


def test_true_and_something_unsayable_says_nothing() -> None:
    said = to_iceberg(pc.scalar(True) & unsaid(), SCHEMA, TABLE_SCHEMA)
    assert (said.predicate, said.whole) == (None, False)


def test_a_chain_of_thousands_is_translated() -> None:
    chain = reduce(operator.or_, [F("long") == n for n in range(3000)])
    said = to_iceberg(chain, SCHEMA, TABLE_SCHEMA)
    assert said.whole
    assert said.predicate is not None
    bind(TABLE_SCHEMA, said.predicate, case_sensitive=True)


def test_a_column_that_is_read_as_a_narrower_type_is_not_compared() -> None:
    for narrow in (pa.int8(), pa.float32(), pa.string()):
        schema = pa.schema([("long", narrow)])
        assert to_iceberg(F("long") == 5, schema, TABLE_SCHEMA).predicate is None
    for wide in (pa.int64(), pa.float64(), pa.dictionary(pa.int8(), pa.int32())):
        schema = pa.schema([("int", wide)])
        assert to_iceberg(F("int") == 5, schema, TABLE_SCHEMA).predicate == EqualTo("int", 5)


def test_uuids_are_compared_unless_partitions_hold_them_plain() -> None:
    expression = F("uuid") == b"\1" * 16
    plain = PartitionSpec(PartitionField(10, 1000, IdentityTransform(), "p"))
    bucket = PartitionSpec(PartitionField(10, 1000, BucketTransform(4), "p"), spec_id=1)
    for specs, is_said in [([bucket], True), ([], True), ([bucket, plain], False), (None, False)]:
        said = to_iceberg(expression, SCHEMA, TABLE_SCHEMA, specs=specs)
        assert (said.predicate is not None) == is_said
