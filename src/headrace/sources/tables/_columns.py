"""Columns by their ids: a table's columns in files with other names and types.

A file is matched to a table by the ids of fields, never by their names or positions: columns may
have been renamed, added, dropped, widened and reordered since it was written, also inside structs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import ReadError, SchemaError, naming

NameMapping = Mapping[tuple[str, ...], int]
"""Ids by the path of names, for files without ids; with ``element``, ``key`` and ``value`` inside
lists and maps."""

_ID_KEYS = (b"PARQUET:field_id", b"iceberg.id")


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table, or a field inside a column."""

    id: int
    name: str
    type: pa.DataType
    children: tuple[TableColumn, ...] = ()
    """Fields of a struct; the element of a list; key and value of a map."""
    default: Any = None
    """Value of rows that were written before the column was added."""


def unknown_type(name: str, type_: object) -> SchemaError:
    """Return the error for a column whose type has no Arrow type."""
    return SchemaError(
        f"column {name!r} is {type_}, a type that is not supported; choose the other columns with "
        "columns="
    )


Convert = Callable[[pa.Array], pa.Array]
"""Function that converts an array of a file to the type of the table."""


@dataclass(frozen=True, slots=True)
class _ColumnPlace:
    """The place of a wanted column in a file.

    Attributes:
        places: Index of the column among those that are read, and indices in the structs inside it.
        convert: Converts the values.
        missing: The value of all rows, for a column that the file lacks.
    """

    places: tuple[int, ...] = ()
    convert: Convert | None = None
    missing: pa.Scalar | None = None


@dataclass(frozen=True, slots=True)
class FileColumns:
    """The way in which wanted columns come from one file.

    Attributes:
        stored: The columns to read, with their names in the file.
        missing: The ids of columns that the file lacks.
    """

    stored: pa.Schema
    missing: Sequence[int]
    _wanted: pa.Schema
    _sources: Sequence[_ColumnPlace] = field(repr=False)

    def aligned(self, table: pa.Table, where: str) -> pa.Table:
        """Return the data read from the file in the wanted columns."""
        by_name = [table.column(name) for name in self.stored.names]
        with naming(f"{where}: not readable in the types of the table"):
            columns = [
                _column_from(source, by_name, table.num_rows, kind)
                for source, kind in zip(self._sources, self._wanted.types, strict=True)
            ]
        if not columns:
            return table.select([])
        return pa.Table.from_arrays(columns, schema=self._wanted)


def _column_from(
    source: _ColumnPlace, columns: Sequence[pa.ChunkedArray], rows: int, type_: pa.DataType
) -> pa.ChunkedArray:
    if source.missing is not None:
        return pa.chunked_array([_repeated(source.missing, rows)])
    top, *within = source.places
    stored = pc.struct_field(columns[top], within) if within else columns[top]
    if source.convert is None:
        return stored
    return pa.chunked_array([source.convert(part) for part in stored.chunks], type_)


def match_columns(
    wanted: Sequence[TableColumn],
    file_schema: pa.Schema,
    *,
    wanted_schema: pa.Schema,
    names: NameMapping | None = None,
    by_name: bool = False,
    constants: Mapping[int, Any],
    where: str,
) -> FileColumns:
    """Find columns in a file and name them as in ``wanted_schema``.

    A column that the file lacks has the value of its id in ``constants`` (from the partition), or
    its default, or is null.

    Args:
        wanted: The columns.
        file_schema: The schema of the file.
        wanted_schema: The columns as they come out.
        names: Ids by names, for a file without ids.
        by_name: True if ids in the file are ignored.
        constants: Values by id of columns that the file may lack.
        where: The path of the file, for messages.
    """
    by_name = by_name or all(field_id(column) is None for column in _all_fields(file_schema))
    if by_name and names is None and len(file_schema):
        raise ReadError(
            f"{where}: its columns have no field ids, and the table has no name mapping (the "
            "property schema.name-mapping.default) to find them by name"
        )
    ids = _Ids(names if by_name else None, constants)
    places = dict(_field_places(list(file_schema), (), ids))
    read: dict[int, int] = {}  # index of each column of the file among those that are read
    sources = []
    for column in wanted:
        if column.id not in places:
            sources.append(_ColumnPlace(missing=ids.missing(column)))
            continue
        (top, *within), path, stored = places[column.id]
        place = read.setdefault(top, len(read))
        sources.append(_ColumnPlace((place, *within), _conversion(column, stored, path, ids)))
    stored_schema = pa.schema([file_schema.field(top) for top in read])
    missing = [column.id for column in wanted if column.id not in places]
    return FileColumns(stored_schema, missing, wanted_schema, sources)


def _field_places(
    fields: Sequence[pa.Field], path: tuple[str, ...], ids: _Ids, above: tuple[int, ...] = ()
) -> Iterator[tuple[int | None, tuple[tuple[int, ...], tuple[str, ...], pa.Field]]]:
    """Yield the place of each id, in columns and in structs: indices, names, and the field."""
    for at, one in enumerate(fields):
        names, places = (*path, one.name), (*above, at)
        yield ids.of(names, one), (places, names, one)
        if pa.types.is_struct(one.type):
            yield from _field_places(nested_fields(one.type), names, ids, places)


@dataclass(frozen=True, slots=True)
class _Ids:
    """The ids of a file's fields, and the values of columns that it lacks.

    Attributes:
        names: Ids by names; None if the file has ids of its own.
        constants: Values by id of columns that the file may lack.
    """

    names: NameMapping | None
    constants: Mapping[int, Any]

    def of(self, path: tuple[str, ...], column: pa.Field) -> int | None:
        return field_id(column) if self.names is None else self.names.get(path)

    def missing(self, column: TableColumn) -> pa.Scalar:
        """Return the value of all rows in a column that the file lacks."""
        return pa.scalar(self.constants.get(column.id, column.default), column.type)


def field_id(column: pa.Field) -> int | None:
    """Return the id that a file gives to a field, or None."""
    for key in _ID_KEYS:
        if column.metadata and key in column.metadata:
            return int(column.metadata[key])
    return None


def _all_fields(fields: Sequence[pa.Field] | pa.Schema) -> Iterator[pa.Field]:
    for column in fields:
        yield column
        yield from _all_fields(nested_fields(column.type))


def nested_fields(type_: pa.DataType) -> list[pa.Field]:
    """Return the fields of a nested type, in the order of ``Column.children``."""
    if pa.types.is_map(type_):
        return [type_.key_field, type_.item_field]
    if _is_list(type_):
        return [type_.value_field]
    return [type_.field(i) for i in range(type_.num_fields)] if pa.types.is_struct(type_) else []


def _is_list(type_: pa.DataType) -> bool:
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(is_kind(type_) for is_kind in kinds)


def _conversion(
    column: TableColumn, stored: pa.Field, path: tuple[str, ...], ids: _Ids
) -> Convert | None:
    """Return a function that makes a column from a field; None if it is used unchanged."""
    inside, type_ = nested_fields(stored.type), column.type
    if not column.children:
        return None if stored.type == type_ else lambda array: array.cast(type_)
    if pa.types.is_struct(type_):
        found = {ids.of((*path, one.name), one): at for at, one in enumerate(inside)}
        places = [found.get(child.id) for child in column.children]
        steps = [one.name for one in inside]
    else:  # fields inside lists and maps always exist, whatever their names
        places = list(range(len(inside)))
        steps = ["element"] if len(inside) == 1 else ["key", "value"]
    children = [
        _ColumnPlace(missing=ids.missing(child))
        if at is None
        else _ColumnPlace((at,), _conversion(child, inside[at], (*path, steps[at]), ids))
        for child, at in zip(column.children, places, strict=True)
    ]
    as_it_is = [_ColumnPlace((at,)) for at in range(len(children))]
    if stored.type == type_ and children == as_it_is:
        return None
    return lambda array: _rebuilt(array, type_, children)


def _repeated(value: pa.Scalar, rows: int) -> pa.Array:
    return pa.repeat(value, rows) if value.is_valid else pa.nulls(rows, value.type)


def _rebuilt(array: pa.Array, type_: pa.DataType, children: Sequence[_ColumnPlace]) -> pa.Array:
    """Return a nested array in the type of the table."""

    def parts(inside: Sequence[pa.Array]) -> Iterator[pa.Array]:
        for child in children:
            if child.missing is not None:
                yield _repeated(child.missing, len(array))
            else:
                part = inside[child.places[0]]
                yield part if child.convert is None else child.convert(part)

    # A mask, and not null offsets, because there may be values beneath nulls.
    missing = array.is_null() if array.null_count else None
    if pa.types.is_struct(type_):
        inside = [array.field(i) for i in range(array.type.num_fields)]
        return pa.StructArray.from_arrays(list(parts(inside)), fields=list(type_), mask=missing)
    if pa.types.is_map(type_):
        inside = [array.keys, array.items]
        offsets = _offsets(array, np.int32)
        return pa.MapArray.from_arrays(offsets, *parts(inside), type=type_, mask=missing)
    if pa.types.is_fixed_size_list(array.type):
        array = array.cast(pa.list_(array.type.value_field))
    large = pa.types.is_large_list(type_)
    made = pa.LargeListArray if large else pa.ListArray
    offsets = _offsets(array, np.int64 if large else np.int32)
    return made.from_arrays(offsets, *parts([array.values]), type=type_, mask=missing)


def _offsets(array: pa.Array, width: type[np.signedinteger[Any]]) -> pa.Array:
    """Return the offsets at which the values of lists begin."""
    return pa.array(array.offsets.to_numpy(zero_copy_only=False).astype(width))
