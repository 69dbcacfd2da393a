"""The columns of a Paimon table in words that go to workers: ids, names and Arrow types."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa
from pypaimon.schema.data_types import (
    ArrayType,
    AtomicType,
    DataField,
    DataType,
    MapType,
    PyarrowFieldParser,
    RowType,
    VectorType,
    is_blob_file_type,
)

from headrace.errors import SchemaError
from headrace.tables.columns import Column, NameMapping

__all__ = [
    "VALUE_KIND",
    "is_blob",
    "is_readable_as",
    "is_variant",
    "name_mapping",
    "table_columns",
]

VALUE_KIND = Column(-2, "_VALUE_KIND", pa.int8())
"""in files of tables with a key: whether a row is there, or takes one away"""

_INSIDE = -1
"""what is inside of lists and maps has no id"""
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())


def table_columns(fields: Sequence[DataField], wanted: Collection[str] | None) -> dict[str, Column]:
    """The columns by name, in the order of the table; those of unknown types only if unwanted."""
    columns: dict[str, Column] = {}
    for field in fields:
        try:
            columns[field.name] = _column(field.id, field.name, field.type)
        except ValueError:
            if wanted is None or field.name in wanted:
                raise SchemaError(
                    f"column {field.name!r} is {field.type}, a type that is not read here; choose "
                    "the other columns with columns="
                ) from None
    return columns


def _column(id_: int, name: str, type_: DataType) -> Column:
    if isinstance(type_, RowType):
        children = tuple(_column(one.id, one.name, one.type) for one in type_.fields)
        arrow = pa.struct([pa.field(child.name, child.type) for child in children])
    elif isinstance(type_, ArrayType):
        children = (_column(_INSIDE, "element", type_.element),)
        arrow = pa.list_(children[0].type)
    elif isinstance(type_, MapType):
        key, value = _inside_of_map(type_)
        children = (_column(_INSIDE, "key", key), _column(_INSIDE, "value", value))
        arrow = pa.map_(children[0].type, children[1].type)
    elif is_variant(type_):
        children = ()
        arrow = pa.struct([("value", pa.binary()), ("metadata", pa.binary())])
    else:
        children = ()
        arrow = PyarrowFieldParser.from_paimon_type(type_)
    return Column(id_, name, arrow, children)


def _inside_of_map(type_: MapType) -> tuple[DataType, DataType]:
    return type_.key, type_.value


def is_variant(type_: DataType) -> bool:
    """Whether values may be stored in parts."""
    return isinstance(type_, AtomicType) and type_.type.upper() == "VARIANT"


def is_blob(type_: DataType) -> bool:
    """Whether values are in files of their own."""
    return bool(is_blob_file_type(type_))


def name_mapping(fields: Sequence[DataField], *, without: Collection[str]) -> NameMapping:
    """The ids of columns in a file that was written in a schema.

    Columns by which the table is partitioned are left ``out``: what a file says of them does not
    count.
    """
    counting = [field for field in fields if field.name not in without]
    return {(VALUE_KIND.name,): VALUE_KIND.id, **dict(_paths(counting, ()))}


def _paths(
    fields: Sequence[DataField], above: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], int]]:
    for field in fields:
        yield (*above, field.name), field.id
        yield from _inside(field.type, (*above, field.name))


def _inside(type_: DataType, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    if isinstance(type_, RowType):
        yield from _paths(type_.fields, path)
    elif isinstance(type_, ArrayType):
        yield from _inside(type_.element, (*path, "element"))
    elif isinstance(type_, MapType):
        key, value = _inside_of_map(type_)
        yield from _inside(key, (*path, "key"))
        yield from _inside(value, (*path, "value"))


def is_readable_as(stored: DataType, wanted: DataType) -> bool:
    """Whether values of one type become those of another by nothing but widening."""
    if isinstance(stored, RowType) and isinstance(wanted, RowType):
        before = {field.id: field.type for field in stored.fields}
        return all(
            field.id not in before or is_readable_as(before[field.id], field.type)
            for field in wanted.fields
        )
    if isinstance(stored, ArrayType) and isinstance(wanted, ArrayType):
        return is_readable_as(stored.element, wanted.element)
    if isinstance(stored, MapType) and isinstance(wanted, MapType):
        return all(map(is_readable_as, _inside_of_map(stored), _inside_of_map(wanted)))
    if isinstance(stored, VectorType) and isinstance(wanted, VectorType):
        return stored.length == wanted.length and is_readable_as(stored.element, wanted.element)
    if isinstance(stored, AtomicType) and isinstance(wanted, AtomicType):
        return _widens(_column(0, "", stored).type, _column(0, "", wanted).type)
    return False


def _widens(stored: pa.DataType, wanted: pa.DataType) -> bool:
    if stored == wanted:
        return True
    if stored in _INTEGERS and wanted in _INTEGERS:
        return bool(stored.bit_width < wanted.bit_width)
    if pa.types.is_decimal128(stored) and pa.types.is_decimal128(wanted):
        return bool(stored.scale == wanted.scale and stored.precision <= wanted.precision)
    return bool(stored == pa.float32() and wanted == pa.float64())
