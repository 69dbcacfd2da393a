"""Operators, names and casts of expressions, as predicates of Iceberg."""

from __future__ import annotations

import operator
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from predicates_said import SCHEMA, TABLE_SCHEMA, F, check, other_than
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    NotEqualTo,
    NotNaN,
    NotNull,
    NotStartsWith,
    Or,
    StartsWith,
)
from pyiceberg.expressions.visitors import bind
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField, StructType

from headrace.tables.iceberg.predicates import to_iceberg


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
