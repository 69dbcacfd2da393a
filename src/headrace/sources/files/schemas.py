"""Find one schema for many files, and convert tables to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.errors import OptionError, ReadError, SchemaError, no_column
from headrace.model import DataFileInfo
from headrace.sources.files.filters import nested_path
from headrace.sources.files.protocol import FileFacts


def unify(
    files: Sequence[DataFileInfo],
    facts: Sequence[FileFacts],
    *,
    is_needed: Callable[[str], bool] = lambda name: True,
    given: pa.Schema | None = None,
) -> pa.Schema:
    """Return the columns of all files by name, in the order of their first appearance.

    Types are widened if one holds the values of the other. Values that do not survive the wider
    type (an int64 beyond 2**53 in a column that is float64 in other files) are an error when they
    are read, never rounded.

    Args:
        files: The files.
        facts: The schema of each file, among other facts.
        is_needed: Tells if a column is needed. Others are left out if their types have nothing in
            common.
        given: Columns with types that the user has chosen, whatever their types in files.

    Raises:
        SchemaError: A column has two types with no type for the values of both.
    """
    merged: dict[str, pa.Field] = {}
    first_of: dict[str, str] = {}
    left_out: set[str] = set()
    chosen = {} if given is None else {field.name: field for field in given}
    last: pa.Schema | None = None
    for file, fact in zip(files, facts, strict=True):
        path, schema = file.path, fact.schema
        if last is not None and schema.equals(last):
            continue
        last = schema
        try:
            counts = Counter(schema.names)
        except UnicodeDecodeError as error:
            raise SchemaError(f"{path} has a column whose name is not UTF-8: {error}") from error
        for stored in schema:
            name = stored.name
            if name in left_out:
                continue
            field = chosen.get(name, stored)
            first = first_of.setdefault(name, path)
            known = merged.setdefault(name, field)
            if known.type == field.type and counts[name] == 1:
                continue
            try:
                merged[name] = _common_field(known, field, first, path, counts[name])
            except SchemaError:
                if is_needed(name):
                    raise
                left_out.add(name)
                del merged[name]
    return pa.schema(list(merged.values()))


def _common_field(known: pa.Field, field: pa.Field, first: str, path: str, times: int) -> pa.Field:
    """Return a field for the values of two files; the second may have it several times."""
    if times > 1:
        raise SchemaError(f"{path} has two columns named {field.name!r}; columns are read by name")
    common = _common_type(known.type, field.type)
    if common is None:
        raise SchemaError(
            f"column {field.name!r} is {known.type} in {first} and {field.type} in {path}, and "
            "neither holds the values of the other; give schema= to say which it is, or leave "
            "that column out of columns="
        )
    return pa.field(field.name, common)


def _common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return a type for the values of both; different dictionaries become plain values."""
    plain = [t.value_type if pa.types.is_dictionary(t) else t for t in (one, other)]
    for pair in ((one, other), plain):
        try:
            sides = [pa.schema([("", type_)]) for type_ in pair]
            return pa.unify_schemas(sides, promote_options="permissive").field(0).type
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            continue
    return None


def align(
    table: pa.Table, schema: pa.Schema, constants: Mapping[str, Any], where: object
) -> pa.Table:
    """Return a table with exactly the columns of ``schema``: cast, filled with nulls, in order.

    Args:
        table: The table.
        schema: The wanted columns.
        constants: Columns that have one value for the whole file.
        where: The chunk or file that errors name.
    """
    if table.schema.equals(schema):
        return table
    columns = [_column(table, field, constants, where) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _column(
    table: pa.Table, field: pa.Field, constants: Mapping[str, Any], where: object
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
    """Return the columns that the user names, in that order; None for all.

    A name such as ``s.a`` means the column s with only the field a of its struct, unless there is a
    column of that name.
    """
    if columns is None:
        return whole
    if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
        raise OptionError(f"columns must be a list of names, not {columns!r}")
    if not columns:
        raise OptionError("columns is empty; leave it out to read all columns")
    if len(set(columns)) < len(columns):
        raise OptionError(f"columns names a column twice: {list(columns)}")
    paths: dict[str, list[tuple[str, ...]]] = {}
    for name in columns:
        path = (name,) if name in whole.names else nested_path(name, whole)
        if not path:
            raise no_column(name, whole.names)
        paths.setdefault(path[0], []).append(path[1:])
    return pa.schema([_narrowed(whole.field(name), within) for name, within in paths.items()])


def _narrowed(field: pa.Field, paths: list[tuple[str, ...]]) -> pa.Field:
    """Return a field with only some of the fields inside it; an empty path means all of it."""
    if () in paths:
        if len(paths) > 1:
            raise OptionError(f"columns names {field.name!r} and a field within it; name only one")
        return field
    chosen: dict[str, list[tuple[str, ...]]] = {}
    for first, *rest in paths:
        chosen.setdefault(first, []).append(tuple(rest))
    inside = [_narrowed(one, chosen[one.name]) for one in field.type if one.name in chosen]
    return field.with_type(pa.struct(inside))
