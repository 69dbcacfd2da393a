"""The columns of many files: one schema for all, and the conversion of tables to it.

pyarrow can store some types that it cannot take or filter: views of text and bytes (`string_view`,
`binary_view`, which polars writes) and run-end encoded columns, also inside lists, structs and
dictionaries. They are read as plain types.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.types as pt

from headrace.errors import OptionError, ReadError, SchemaError, no_column
from headrace.model import DataFileInfo
from headrace.sources.files.filters import nested_path
from headrace.sources.files.protocol import FileFacts

_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(r"-?\d{1,18}")


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
    columns = [_aligned_column(table, field, constants, where) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _aligned_column(
    table: pa.Table, field: pa.Field, constants: Mapping[str, Any], where: object
) -> pa.ChunkedArray:
    """Return a column in the wanted type: stored, the same value in all rows, or nulls."""
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
    return pa.schema([_narrowed_field(whole.field(name), within) for name, within in paths.items()])


def _narrowed_field(field: pa.Field, paths: list[tuple[str, ...]]) -> pa.Field:
    """Return a field with only some of the fields inside it; an empty path means all of it."""
    if () in paths:
        if len(paths) > 1:
            raise OptionError(f"columns names {field.name!r} and a field within it; name only one")
        return field
    chosen: dict[str, list[tuple[str, ...]]] = {}
    for first, *rest in paths:
        chosen.setdefault(first, []).append(tuple(rest))
    inside = [_narrowed_field(one, chosen[one.name]) for one in field.type if one.name in chosen]
    return field.with_type(pa.struct(inside))


# --- columns in paths


@dataclass(frozen=True, slots=True)
class PathColumns:
    """The columns in paths, and how to get their values from a path."""

    schema: pa.Schema
    roots: Sequence[str] = ()
    scheme: ds.Partitioning | None = None
    """How pyarrow parses a path; None for key=value."""

    def values(self, path: str) -> dict[str, Any]:
        """Return the value of each column for one file; None where the path has none."""
        relative = _below_root(path, self.roots)
        if self.scheme is not None:
            found: Mapping[str, Any] = ds.get_partition_keys(self.scheme.parse(relative))
        else:
            found = _key_values(relative)
        return {f.name: _typed(found.get(f.name), f.type) for f in self.schema}


NO_PATH_COLUMNS = PathColumns(pa.schema([]))


def path_columns(
    partitioning: str | ds.Partitioning | None,
    files: Sequence[DataFileInfo],
    roots: Sequence[str],
) -> PathColumns:
    """Return the columns in the paths of all files: integers if every value is one, else text."""
    if partitioning is None:
        return NO_PATH_COLUMNS
    if isinstance(partitioning, ds.Partitioning):
        return PathColumns(partitioning.schema, tuple(roots), partitioning)
    if partitioning != "hive":
        raise OptionError(
            f"partitioning must be None, 'hive' or a pyarrow Partitioning, not {partitioning!r}"
        )
    seen: dict[str, set[str | None]] = {}
    for file in files:
        for key, value in _key_values(_below_root(file.path, roots)).items():
            seen.setdefault(key, set()).add(value)
    fields = [pa.field(key, _type_in_paths(values)) for key, values in seen.items()]
    return PathColumns(pa.schema(fields), tuple(roots))


def _below_root(path: str, roots: Sequence[str]) -> str:
    """Return the path below the root, with the key=value parts at the end of the root itself."""
    root = max((r for r in roots if path.startswith(r.rstrip("/") + "/")), key=len, default="")
    parts = root.rstrip("/").split("/")
    kept = len(parts)
    while kept and "=" in parts[kept - 1]:
        kept -= 1
    return path[len("/".join(parts[:kept])) :]


def _key_values(relative: str) -> dict[str, str | None]:
    """Return the values of ``key=value`` parts of a path; None for a null."""
    pairs = (part.partition("=") for part in relative.split("/")[:-1] if "=" in part)
    return {
        unquote(key): None if value == _HIVE_NULL else unquote(value) for key, _, value in pairs
    }


def _type_in_paths(values: set[str | None]) -> pa.DataType:
    """Return the type of a column in paths: an integer if all of its values are."""
    known = [value for value in values if value is not None]
    return pa.int64() if known and all(map(_INTEGER.fullmatch, known)) else pa.string()


def _typed(value: Any, type_: pa.DataType) -> Any:
    """Return the text of a path in the type of its column."""
    if not isinstance(value, str):
        return value
    return pa.scalar(value).cast(type_).as_py()


# --- plain types


def plain_type(type_: pa.DataType) -> pa.DataType:
    """Return the type in which values are read; most types stay the same.

    >>> plain_type(pa.list_(pa.string_view()))
    ListType(list<item: large_string>)
    >>> plain_type(pa.run_end_encoded(pa.int32(), pa.int64()))
    DataType(int64)
    """
    if pt.is_string_view(type_):
        return pa.large_string()
    if pt.is_binary_view(type_):
        return pa.large_binary()
    if pt.is_run_end_encoded(type_):
        return plain_type(type_.value_type)
    if pt.is_dictionary(type_):
        return pa.dictionary(type_.index_type, plain_type(type_.value_type), type_.ordered)
    if pt.is_map(type_):
        key, item = plain_type(type_.key_type), plain_type(type_.item_type)
        return pa.map_(type_.key_field.with_type(key), type_.item_field.with_type(item))
    if pt.is_struct(type_):
        return pa.struct([field.with_type(plain_type(field.type)) for field in type_])
    if pt.is_list(type_) or pt.is_large_list(type_) or pt.is_fixed_size_list(type_):
        item = type_.value_field.with_type(plain_type(type_.value_type))
        if pt.is_fixed_size_list(type_):
            return pa.list_(item, type_.list_size)
        return pa.list_(item) if pt.is_list(type_) else pa.large_list(item)
    return type_


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema in which columns are read."""
    plain = [field.with_type(plain_type(field.type)) for field in schema]
    return pa.schema(plain, schema.metadata)


def plain_table(table: pa.Table, schema: pa.Schema | None = None) -> pa.Table:
    """Return a table in plain types, which are those of ``schema``, if that is known."""
    if schema is None:
        schema = plain_schema(table.schema)
    if schema.equals(table.schema):
        return table
    columns = [
        pa.chunked_array([_in_plain_type(chunk) for chunk in column.chunks], field.type)
        for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _in_plain_type(array: pa.Array) -> pa.Array:
    wanted = plain_type(array.type)
    if array.type == wanted:
        return array
    if pt.is_run_end_encoded(array.type):
        whole = pa.RunEndEncodedArray.from_arrays(array.run_ends, _in_plain_type(array.values))
        return pc.run_end_decode(whole.slice(array.offset, len(array)))
    return array.cast(wanted)
