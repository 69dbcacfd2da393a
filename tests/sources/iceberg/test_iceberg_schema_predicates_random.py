"""Random filters over random rows: what pyarrow keeps, pyiceberg must not prune."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyiceberg.conversions import to_bytes
from pyiceberg.expressions.visitors import (
    _InclusiveMetricsEvaluator,
    expression_evaluator,
    inclusive_projection,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.typedef import Record
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

from headrace.sources.files.filters import with_exact_integers
from headrace.sources.iceberg._schema import IcebergWords, prunable_columns
from headrace.sources.tables._predicates import Translator

INTS = [0, 1, -1, 2, 7, 2**24, 2**24 + 1, 2**31 - 1, -(2**31)]
LONGS = [*INTS, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)]
FLOATS = [0.0, -0.0, 1.0, 1.5, -2.5, 0.1, 1e-45, 3.4e38, math.inf, -math.inf, math.nan]
DOUBLES = [*FLOATS, 1e300, 5e-324, 0.30000000000000004, float(2**53)]
DECIMALS = ["0.00", "0.10", "1.50", "-2.50", "99999999.99", "-99999999.99", "0.01"]
TEXTS = ["", "a", "ab", "abc", 'q"\t\\', "é", "\U0001f600", "b" * 20]
DATES = [0, 1, -1, 18_262, 18_263, -719_162, 2_932_896]
MICROS = [0, 1, -1, 1_577_836_800_000_000, 1_577_836_800_000_001, -(10**15), 86_399_999_999]
TIMES = [0, 1, 3_600_000_000, 86_399_999_999]
NANOS = [0, 1, 999, 1000, -1, 1_577_836_800_000_000_001]


@dataclass(frozen=True)
class Kind:
    """A column of the table under test, with values that lie close together or at the ends."""

    iceberg: IcebergType
    arrow: pa.DataType
    values: list[Any]
    raw: pa.DataType | None = None
    """the integers that pyarrow keeps its values as, and pyiceberg too"""

    def array(self, values: list[Any]) -> pa.Array:
        if self.raw is None:
            return pa.array(values, self.arrow)
        return pa.array(values, self.raw).cast(self.arrow)


KINDS = {
    "int": Kind(IntegerType(), pa.int32(), INTS),
    "long": Kind(LongType(), pa.int64(), LONGS),
    "float": Kind(FloatType(), pa.float32(), [float(np.float32(v)) for v in FLOATS]),
    "double": Kind(DoubleType(), pa.float64(), DOUBLES),
    "decimal": Kind(DecimalType(10, 2), pa.decimal128(10, 2), [Decimal(d) for d in DECIMALS]),
    "flag": Kind(BooleanType(), pa.bool_(), [False, True]),
    "te xt.'": Kind(StringType(), pa.large_string(), TEXTS),
    "binary": Kind(BinaryType(), pa.binary(), [b"", b"a", b"ab", b"\xff", b"\xff\x00"]),
    "fixed": Kind(FixedType(2), pa.binary(2), [b"\0\0", b"ab", b"\xff\xff"]),
    "uuid": Kind(UUIDType(), pa.binary(16), [b"\0" * 16, b"\x80" + b"\0" * 15, b"\xff" * 16]),
    "date": Kind(DateType(), pa.date32(), DATES, pa.int32()),
    "time": Kind(TimeType(), pa.time64("us"), TIMES, pa.int64()),
    "ts": Kind(TimestampType(), pa.timestamp("us"), MICROS, pa.int64()),
    "tz": Kind(TimestamptzType(), pa.timestamp("us", "UTC"), MICROS, pa.int64()),
    "nano": Kind(TimestampNanoType(), pa.timestamp("ns"), NANOS, pa.int64()),
}
INNER = "in.ner"
"""a long in a struct that may be null"""
KINDS[INNER] = Kind(LongType(), pa.int64(), LONGS)
NAMES = list(KINDS)
TRANSFORMS: list[Transform[Any, Any]] = [
    IdentityTransform(),
    BucketTransform(5),
    TruncateTransform(2),
    YearTransform(),
    MonthTransform(),
    DayTransform(),
    HourTransform(),
]
NOT_COMPARED_BY_PYICEBERG = {("uuid", "identity")}
Row = dict[str, Any]


class TableOf:
    """A table with a few of the columns, partitioned by each in every way there is."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.ids = {name: n for n, name in enumerate(names, 1)}
        self.schema = Schema(*map(self._iceberg_field, names))
        self.arrow_schema = pa.schema([self._arrow_field(name) for name in names])
        self.spec = PartitionSpec(*self._partition_fields())
        self.partition_schema = Schema(*self.spec.partition_type(self.schema).fields)

    def _iceberg_field(self, name: str) -> NestedField:
        field = NestedField(self.ids[name], name, KINDS[name].iceberg)
        return NestedField(90, "outer", StructType(field)) if name == INNER else field

    def _arrow_field(self, name: str) -> pa.Field:
        field = pa.field(name, KINDS[name].arrow)
        return pa.field("outer", pa.struct([field])) if name == INNER else field

    def _partition_fields(self) -> Iterator[PartitionField]:
        numbers = itertools.count(1000)
        for name, transform in itertools.product(self.names, TRANSFORMS):
            said = (name, str(transform)) not in NOT_COMPARED_BY_PYICEBERG
            if said and transform.can_transform(KINDS[name].iceberg):
                number = next(numbers)
                yield PartitionField(self.ids[name], number, transform, f"p{number}")

    def arrow(self, rows: list[Row]) -> pa.Table:
        arrays = []
        for name in self.names:
            array = KINDS[name].array([row[name] for row in rows])
            if name == INNER:
                hidden = pa.array([row[name] is None and row["no outer"] for row in rows])
                array = pa.StructArray.from_arrays([array], names=[name], mask=hidden)
            arrays.append(array)
        return pa.table(arrays, schema=self.arrow_schema)

    def record(self, row: Row) -> Record:
        return Record(*(Record(row[n]) if n == INNER else row[n] for n in self.names))

    def partition(self, row: Row) -> Record:
        return Record(
            *(
                part.transform.transform(self.schema.find_type(part.source_id))(
                    row[self.names[part.source_id - 1]]
                )
                for part in self.spec.fields
            )
        )

    def file(self, rows: list[Row]) -> DataFile:
        """What a writer says of a file with these rows."""
        lower, upper, nulls, nans = {}, {}, {}, {}
        for name, number in self.ids.items():
            values = [row[name] for row in rows if row[name] is not None]
            numbers = [value for value in values if value == value]
            nulls[number] = len(rows) - len(values)
            nans[number] = len(values) - len(numbers)
            if numbers:
                lower[number] = to_bytes(KINDS[name].iceberg, min(numbers))
                upper[number] = to_bytes(KINDS[name].iceberg, max(numbers))
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path="x",
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=len(rows),
            file_size_in_bytes=1,
            value_counts=dict.fromkeys(nulls, len(rows)),
            null_value_counts=nulls,
            nan_value_counts=nans,
            lower_bounds=lower,
            upper_bounds=upper,
        )


NUMBERS = (
    st.sampled_from([*LONGS, *DOUBLES])
    | st.sampled_from([Decimal("1.5"), Decimal("0.105"), Decimal("-2.5"), Decimal(10**20)])
    | st.sampled_from(
        [
            pa.scalar(1.5, pa.float32()),
            pa.scalar(2, pa.uint8()),
            pa.scalar(2**63 + 5, pa.uint64()),
            pa.scalar(Decimal("1.500"), pa.decimal256(50, 3)),
        ]
    )
)
UNITS = ("s", "ms", "us", "ns")
SECONDS = st.sampled_from([0, 1, -1, 3600, 1_577_836_800])


def temporal(
    make: Callable[[str], pa.DataType], units: tuple[str, ...] = UNITS
) -> st.SearchStrategy[pa.Scalar]:
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
    return st.builds(
        lambda unit, seconds, ticks: pa.scalar(seconds * per_second[unit] + ticks, make(unit)),
        st.sampled_from(units),
        SECONDS,
        st.sampled_from([0, 0, 1, -1, 500]),
    )


CIVIL = (
    temporal(pa.timestamp)
    | st.sampled_from([date(2020, 1, 1), date(1970, 1, 1), date(1, 1, 1), date(9999, 12, 31)])
    | st.builds(lambda s: pa.scalar(s * 1000, pa.date64()), SECONDS)
)
TIME = st.sampled_from(
    [time(0), time(1), pa.scalar(3600, pa.time32("s")), pa.scalar(1, pa.time64("ns"))]
)
CONSTANTS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(["int", "long", "float", "double", "decimal", INNER], NUMBERS),
    **dict.fromkeys(["date", "ts", "nano"], CIVIL),
    "tz": temporal(lambda unit: pa.timestamp(unit, "UTC"))
    | temporal(lambda unit: pa.timestamp(unit, "Asia/Tokyo")),
    "time": TIME,
}


def constants(name: str) -> st.SearchStrategy[pa.Scalar]:
    own = st.sampled_from(list(KINDS[name].array(KINDS[name].values)))
    return own | CONSTANTS[name].map(pa.scalar) if name in CONSTANTS else own


def column_of(name: str) -> ds.Expression:
    return pc.field("outer", INNER) if name == INNER else pc.field(name)


WIDER = {
    "int": pa.int64(),
    "float": pa.float64(),
    "decimal": pa.decimal128(20, 4),
    "date": pa.timestamp("us"),
    "ts": pa.timestamp("ns"),
    "te xt.'": pa.string(),
    "double": pa.float32(),
    "long": pa.int32(),
}


@st.composite
def comparisons(draw: st.DrawFn, name: str) -> ds.Expression:
    column = column_of(name)
    if name in WIDER and draw(st.integers(0, 4)) == 0:
        column = column.cast(WIDER[name])
    # A null of its own type beside a text of another makes pyarrow 26 crash.
    nothing = pa.scalar(None)
    sides = [column, pc.scalar(draw(constants(name)) if draw(st.integers(0, 9)) else nothing)]
    if draw(st.booleans()):
        sides.reverse()
    functions = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
    return getattr(pc, draw(st.sampled_from(functions)))(*sides)


@st.composite
def listings(draw: st.DrawFn, name: str) -> ds.Expression:
    first = draw(constants(name))
    others = draw(st.lists(constants(name), max_size=4))
    members = [first, *(other for other in others if other.type == first.type)]
    nulls = draw(st.sampled_from([[], [], [None]]))
    values = pa.array(members + nulls, first.type)
    return pc.is_in(column_of(name), value_set=values, skip_nulls=draw(st.booleans()))


def conditions(name: str) -> st.SearchStrategy[ds.Expression]:
    """What can be asked of the column alone, with a few questions that Iceberg cannot be asked."""
    column = column_of(name)
    found = [column.is_valid(), column.is_null(), pc.equal(column, column)]
    if name in ("float", "double"):
        found += [column.is_null(nan_is_null=True), column.is_nan()]
    if name == "flag":
        found.append(column)
    if name == "te xt.'":
        found += [pc.starts_with(column, prefix) for prefix in TEXTS]
    return st.sampled_from([*found, pc.scalar(True), pc.scalar(False)])


def expressions(names: Sequence[str]) -> st.SearchStrategy[ds.Expression]:
    leaves = [
        strategy
        for name in names
        for strategy in (comparisons(name), comparisons(name), listings(name), conditions(name))
    ]
    return st.recursive(
        st.one_of(leaves),
        lambda inner: st.one_of(
            st.builds(lambda a, b: a & b, inner, inner),
            st.builds(lambda a, b: a | b, inner, inner),
            st.builds(pc.and_not_kleene, inner, inner),
            st.builds(pc.and_not, inner, inner),
            inner.map(lambda a: ~a),
        ),
        max_leaves=4,
    )


@st.composite
def filtered_tables(draw: st.DrawFn) -> tuple[TableOf, list[Row], ds.Expression]:
    """Every value of one or two columns, those of two side by side in some way."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=2, unique=True))
    values = {name: [*KINDS[name].values, None] for name in names}
    values["no outer"] = [False, True]
    shift = draw(st.integers(0, 20))

    def row(number: int) -> Row:
        places = enumerate(values.items())
        return {name: have[(number + shift * at) % len(have)] for at, (name, have) in places}

    rows = [row(number) for number in range(max(map(len, values.values())))]
    return TableOf(names), rows, draw(expressions(names))


def kept(rows: pa.Table, expression: ds.Expression) -> list[bool | None]:
    """Whether each row is; None where pyarrow cannot apply the expression to it."""
    numbered = rows.append_column("number of row", pa.array(range(len(rows))))
    try:
        found = set(numbered.filter(expression)["number of row"].to_pylist())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        if len(rows) == 1:
            return [None]
        return [kept(rows.slice(number, 1), expression)[0] for number in range(len(rows))]
    return [number in found for number in range(len(rows))]


def may_be_kept(row: Row) -> bool:
    """Whether a predicate may keep a row that the filter drops.

    Predicates have no nulls and no NaN, and do not tell the two zeros apart, as ``isin`` does.
    """
    return any(
        value is None or value != value or (isinstance(value, float) and value == 0)
        for value in row.values()
    )


SIGNED_ZEROS = (
    TableOf(["float"]),
    [{"float": 0.0, "no outer": False}, {"float": -0.0, "no outer": False}],
    ds.field("float").isin(pa.array([0.0], pa.float32())),
)


@settings(max_examples=300)
@given(filtered_tables())
@example(SIGNED_ZEROS)
def test_no_row_that_the_filter_keeps_is_pruned(
    case: tuple[TableOf, list[Row], ds.Expression],
) -> None:
    table, rows, expression = case
    translator = Translator(IcebergWords(), prunable_columns(table.schema))
    predicate = translator.predicate(with_exact_integers(expression, table.arrow_schema))
    if predicate is None:
        assert translator.dropped
        return
    holds = expression_evaluator(table.schema, predicate, True)
    projected = inclusive_projection(table.schema, table.spec, True)(predicate)
    holds_in_partition = expression_evaluator(table.partition_schema, projected, True)
    matching = []
    for row, wanted in zip(rows, kept(table.arrow(rows), expression), strict=True):
        if wanted:
            matching.append(row)
            assert holds(table.record(row))
            assert holds_in_partition(table.partition(row))
        elif wanted is False and not translator.dropped and not may_be_kept(row):
            assert not holds(table.record(row))
    may_match = _InclusiveMetricsEvaluator(table.schema, predicate, True).eval
    assert all(may_match(table.file([row])) for row in matching)
    assert may_match(table.file(rows)) or not matching
