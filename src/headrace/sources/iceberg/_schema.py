"""The columns of an Iceberg table, as ids, names and Arrow types, and predicates over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyiceberg import types
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
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.name_mapping import MappedField

from headrace.sources.tables._columns import NameMapping, TableColumn, unknown_type

_PLAIN: dict[Any, pa.DataType] = {
    types.BooleanType: pa.bool_(),
    types.IntegerType: pa.int32(),
    types.LongType: pa.int64(),
    types.FloatType: pa.float32(),
    types.DoubleType: pa.float64(),
    types.DateType: pa.date32(),
    types.TimeType: pa.time64("us"),
    types.TimestampType: pa.timestamp("us"),
    types.TimestamptzType: pa.timestamp("us", "UTC"),
    types.TimestampNanoType: pa.timestamp("ns"),
    types.TimestamptzNanoType: pa.timestamp("ns", "UTC"),
    types.StringType: pa.string(),
    types.BinaryType: pa.binary(),
    types.UUIDType: pa.binary(16),
    types.UnknownType: pa.null(),
}
_PREDICATES = {
    "equal": EqualTo,
    "not_equal": NotEqualTo,
    "less": LessThan,
    "less_equal": LessThanOrEqual,
    "greater": GreaterThan,
    "greater_equal": GreaterThanOrEqual,
}
_NOT_COMPARED = (types.TimestampNanoType, types.TimestamptzNanoType, types.UUIDType)
"""Types not compared: pyiceberg has no literals of nanoseconds, and compares UUIDs wrongly."""
_MOST_LISTED = 200
"""Largest number of values that pyiceberg compares with bounds; for longer lists only the ends."""


def column_of(field: types.NestedField) -> TableColumn:
    """Return a column, or a field inside a column."""
    children = tuple(map(column_of, _inside(field.field_type)))
    type_ = _arrow_type(field, children)
    default = arrow_value(field.initial_default)
    return TableColumn(field.field_id, field.name, type_, children, default)


def _inside(type_: types.IcebergType) -> tuple[types.NestedField, ...]:
    if isinstance(type_, types.StructType):
        return tuple(type_.fields)
    if isinstance(type_, types.ListType):
        return (type_.element_field,)
    if isinstance(type_, types.MapType):
        return (type_.key_field, type_.value_field)
    return ()


def _arrow_type(field: types.NestedField, children: tuple[TableColumn, ...]) -> pa.DataType:
    type_ = field.field_type
    if isinstance(type_, types.StructType):
        return pa.struct([pa.field(child.name, child.type) for child in children])
    if isinstance(type_, types.ListType):
        return pa.list_(pa.field("element", children[0].type))
    if isinstance(type_, types.MapType):
        return pa.map_(*(child.type for child in children))
    if isinstance(type_, types.DecimalType):
        return pa.decimal128(type_.precision, type_.scale)
    if isinstance(type_, types.FixedType):
        return pa.binary(len(type_))
    if isinstance(type_, types.GeometryType | types.GeographyType):
        return pa.binary()
    plain = _PLAIN.get(type(type_))
    if plain is None:
        raise unknown_type(field.name, type_)
    return plain


def arrow_value(value: Any) -> Any:
    """Return a value of pyiceberg as a value for Arrow."""
    return value.bytes if isinstance(value, UUID) else value


def name_mapping(metadata: TableMetadata) -> NameMapping | None:
    """Return the ids of columns for files without ids, if the table has such a mapping."""
    mapping = metadata.name_mapping()
    return None if mapping is None else dict(_paths(mapping.root, ()))


def _paths(
    fields: list[MappedField], above: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], int]]:
    for field in fields:
        for name in field.names:
            if field.field_id is not None:
                yield (*above, name), field.field_id
            yield from _paths(field.fields, (*above, name))


# --- predicates


def prunable_columns(schema: Schema) -> dict[str, pa.DataType]:
    """Return the Arrow types of the columns of a table that predicates may name."""
    return {
        field.name: column_of(field).type
        for field in schema.fields
        if isinstance(field.field_type, types.PrimitiveType)
        and not isinstance(field.field_type, _NOT_COMPARED)
        # A field of a struct may have the same dotted name.
        and schema.find_field(field.name).field_id == field.field_id
    }


class IcebergWords:
    """Makes predicates of pyiceberg."""

    def literal(self, value: Any, type_: pa.DataType) -> Any | None:
        """Return a value of a column for pyiceberg; None if pyiceberg cannot handle it."""
        if isinstance(value, date):
            day = value.date() if isinstance(value, datetime) else value
            # pyiceberg projects times onto partitions with ``datetime``, and steps one further.
            return value if date.min < day < date.max else None
        return value + 0.0 if isinstance(value, float) else value  # 0.0 for -0.0

    def compared(self, name: str, function: str, value: Any) -> BooleanExpression:
        """Return a comparison of a column."""
        return _PREDICATES[function](name, value)

    def listed(self, name: str, values: Sequence[Any]) -> BooleanExpression:
        """Return a predicate that is true if a column has one of some values."""
        found = In(name, values)
        if len(values) <= _MOST_LISTED:
            return found
        return And(found, GreaterThanOrEqual(name, min(values)), LessThanOrEqual(name, max(values)))

    def null(self, name: str, wanted: bool) -> BooleanExpression:
        """Return a predicate that is true if a column is null, or if it is not."""
        return IsNull(name) if wanted else NotNull(name)

    def joined(self, parts: Sequence[BooleanExpression], all_needed: bool) -> BooleanExpression:
        """Return a predicate that is true if all parts are, or one of them."""
        return And(*parts) if all_needed else Or(*parts)
