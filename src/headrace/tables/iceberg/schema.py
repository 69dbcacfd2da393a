"""The columns of an Iceberg table in words that go to workers: ids, names and Arrow types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyiceberg import types
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.name_mapping import MappedField

from headrace.errors import SchemaError
from headrace.tables.columns import Column, NameMapping

__all__ = ["arrow_value", "column_of", "name_mapping", "table_columns"]

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


def table_columns(schema: Schema) -> tuple[Column, ...]:
    """The columns, in the order of the table."""
    return tuple(map(column_of, schema.fields))


def column_of(field: types.NestedField) -> Column:
    """A column, or a field inside of one."""
    children = tuple(map(column_of, _inside(field.field_type)))
    type_ = _arrow_type(field, children)
    default = arrow_value(field.initial_default)
    return Column(field.field_id, field.name, type_, children, default)


def _inside(type_: types.IcebergType) -> tuple[types.NestedField, ...]:
    if isinstance(type_, types.StructType):
        return tuple(type_.fields)
    if isinstance(type_, types.ListType):
        return (type_.element_field,)
    if isinstance(type_, types.MapType):
        return (type_.key_field, type_.value_field)
    return ()


def _arrow_type(field: types.NestedField, children: tuple[Column, ...]) -> pa.DataType:
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
        raise SchemaError(
            f"column {field.name!r} is {type_}, a type that is not read here; choose the other "
            "columns with columns="
        )
    return plain


def arrow_value(value: Any) -> Any:
    """A value as pyiceberg gives it, for Arrow."""
    return value.bytes if isinstance(value, UUID) else value


def name_mapping(metadata: TableMetadata) -> NameMapping | None:
    """The ids of columns in files that have none, if the table says so."""
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
