"""One schema for many files, and tables brought to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.errors import OptionError, ReadError, SchemaError
from headrace.formats.filters import near_names

__all__ = ["align", "project", "unify"]


def unify(schemas: Iterable[tuple[str, pa.Schema]]) -> pa.Schema:
    """Columns of all files by name, in the order of their first appearance.

    Types are widened where one holds the values of the other; values that do not survive the
    wider type (an int64 beyond 2**53 in a column that is float64 elsewhere) are an error when
    they are read, never rounded.
    """
    merged = pa.schema([])
    first_of: dict[str, str] = {}
    last: pa.Schema | None = None
    for path, schema in schemas:
        if last is not None and schema.equals(last):
            continue
        last = schema
        _check_names(path, schema)
        for column in schema:
            first_of.setdefault(column.name, path)
        merged = _merge(merged, schema, path, first_of)
    return merged


def _check_names(path: str, schema: pa.Schema) -> None:
    try:
        names = schema.names
    except UnicodeDecodeError as error:
        raise SchemaError(f"{path} has a column whose name is not UTF-8: {error}") from error
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SchemaError(f"{path} has two columns named {twice!r}; columns are read by name")


def _merge(
    merged: pa.Schema, schema: pa.Schema, path: str, first_of: Mapping[str, str]
) -> pa.Schema:
    fields = {field.name: field for field in merged}
    for field in schema:
        known = fields.get(field.name)
        if known is None or known.type == field.type:
            fields.setdefault(field.name, field)
            continue
        common = _common_type(known.type, field.type)
        if common is None:
            raise SchemaError(
                f"column {field.name!r} is {known.type} in {first_of[field.name]} and "
                f"{field.type} in {path}, and neither holds the values of the other; give "
                "schema= to say which it is, or leave that column out of schema="
            )
        fields[field.name] = pa.field(field.name, common)
    return pa.schema(list(fields.values()))


def _common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """A type for the values of both; dictionaries of different kinds become plain values."""
    plain = [t.value_type if pa.types.is_dictionary(t) else t for t in (one, other)]
    for pair in ((one, other), plain):
        try:
            sides = [pa.schema([("", type_)]) for type_ in pair]
            return pa.unify_schemas(sides, promote_options="permissive").field(0).type
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            continue
    return None


def align(table: pa.Table, schema: pa.Schema, constants: Mapping[str, Any], where: str) -> pa.Table:
    """The table with exactly the columns of ``schema``: cast, filled with nulls, in order.

    ``constants`` are columns that have one value for the whole file.
    """
    if table.schema.equals(schema):
        return table
    columns = [_column(table, field, constants, where) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _column(
    table: pa.Table, field: pa.Field, constants: Mapping[str, Any], where: str
) -> pa.ChunkedArray:
    if field.name in constants:
        value = pa.scalar(constants[field.name], field.type)
        return pa.chunked_array([pa.repeat(value, table.num_rows)])
    place = table.schema.get_field_index(field.name)
    if place < 0:
        return pa.chunked_array([pa.nulls(table.num_rows, field.type)])
    column = table.column(place)
    if column.type == field.type:
        return column
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ReadError(
            f"{where}: column {field.name!r} is {column.type} here and cannot be read as "
            f"{field.type} without loss: {error}; give schema= with a type that holds both"
        ) from error


def project(whole: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """The columns that a user names, in that order; None: all."""
    if columns is None:
        return whole
    if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
        raise OptionError(f"columns must be a list of names, not {columns!r}")
    if not columns:
        raise OptionError("columns is empty; leave it out to read all columns")
    if len(set(columns)) < len(columns):
        raise OptionError(f"columns names a column twice: {list(columns)}")
    for name in columns:
        if name not in whole.names:
            raise SchemaError(f"there is no column {name!r}; {near_names(name, whole.names)}")
    return pa.schema([whole.field(name) for name in columns])
