"""Columns by their ids: a table's columns in files that were written under other names and types.

A file is matched to a table by the ids of fields, never by their names or places: columns may have
been renamed, added, dropped, widened and reordered since it was written, inside of structs too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import ReadError

__all__ = ["Column", "FileColumns", "NameMapping", "field_id", "match_columns", "nested_fields"]

NameMapping = Mapping[tuple[str, ...], int]
"""ids by the path of names, for files that have none; ``element``, ``key`` and ``value`` inside
of lists and maps"""

_ID_KEYS = (b"PARQUET:field_id", b"iceberg.id")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, or a field inside of one."""

    id: int
    name: str
    type: pa.DataType
    children: tuple[Column, ...] = ()
    """fields of a struct; the element of a list; key and value of a map"""
    default: Any = None
    """what rows have that were written before the column was there"""


@dataclass(frozen=True, slots=True)
class _Constant:
    """A column of one value, which is not in the file."""

    id: int
    value: pa.Scalar


@dataclass(frozen=True, slots=True)
class _Stored:
    """A column, or a field inside of one, that is in the file."""

    place: int
    """among the columns that are read, or the fields of the struct"""
    column: Column
    children: tuple[_Stored | _Constant, ...] = ()
    as_it_is: bool = True
    """true if it need not be touched"""
    within: tuple[int, ...] = ()
    """of a field inside of structs that is wanted as a column: the places that lead to it"""


@dataclass(frozen=True, slots=True)
class FileColumns:
    """The way in which wanted columns come from one file."""

    stored: pa.Schema
    """the columns to read, as the file calls them"""
    _wanted: pa.Schema
    _sources: tuple[_Stored | _Constant, ...] = field(repr=False)

    @property
    def missing(self) -> list[int]:
        """The ids of columns that the file lacks."""
        return [one.id for one in self._sources if isinstance(one, _Constant)]

    def aligned(self, table: pa.Table, where: str) -> pa.Table:
        """Return what was read of the file, in the columns that are wanted."""
        rows = table.num_rows
        by_name = [table.column(name) for name in self.stored.names]
        try:
            columns = [_whole(source, by_name, rows) for source in self._sources]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ReadError(f"{where}: not readable in the types of the table: {error}") from error
        if not columns:
            return table.select([])
        return pa.Table.from_arrays(columns, schema=self._wanted)


def match_columns(
    wanted: Sequence[Column],
    file_schema: pa.Schema,
    *,
    wanted_schema: pa.Schema,
    names: NameMapping | None = None,
    by_name: bool = False,
    constants: Mapping[int, Any],
    where: str,
) -> FileColumns:
    """Find columns in a file, which come out as ``wanted_schema`` calls them.

    One that the file lacks has the value that ``constants`` has for its id (the partition's), or
    its default, or is null.

    Args:
        wanted: The columns.
        file_schema: The schema of the file.
        wanted_schema: The columns as they come out.
        names: Ids by names, for a file without ids.
        by_name: Whether ids in the file do not count.
        constants: Values by id of columns that the file may lack.
        where: The path of the file, for messages.
    """
    ids = _Ids(file_schema, names, constants, where, by_name=by_name)
    places = dict(_places(list(file_schema), (), ids))
    read: dict[int, int] = {}  # where each column of the file is among those that are read
    sources: list[_Stored | _Constant] = []
    for column in wanted:
        if column.id not in places:
            sources.append(ids.missing(column))
            continue
        (top, *within), path, stored = places[column.id]
        found = _match(column, stored, read.setdefault(top, len(read)), path, ids)
        sources.append(replace(found, within=tuple(within)))
    stored_schema = pa.schema([file_schema.field(top) for top in read])
    return FileColumns(stored_schema, wanted_schema, tuple(sources))


def _places(
    fields: Sequence[pa.Field], path: tuple[str, ...], ids: _Ids, above: tuple[int, ...] = ()
) -> Iterator[tuple[int | None, tuple[tuple[int, ...], tuple[str, ...], pa.Field]]]:
    """Yield where each id is, in columns and in structs: places, names, and the field."""
    for at, one in enumerate(fields):
        names, places = (*path, one.name), (*above, at)
        yield ids.of(names, one), (places, names, one)
        if pa.types.is_struct(one.type):
            yield from _places(nested_fields(one.type), names, ids, places)


class _Ids:
    """The ids of a file's fields: its own, or those that a mapping gives to their names."""

    def __init__(
        self,
        schema: pa.Schema,
        names: NameMapping | None,
        constants: Mapping[int, Any],
        where: str,
        *,
        by_name: bool,
    ) -> None:
        self._names = None
        self._constants = constants
        if by_name or not any(field_id(column) is not None for column in _all_fields(schema)):
            if names is None and len(schema):
                raise ReadError(
                    f"{where}: its columns have no field ids, and the table has no name mapping "
                    "(the property schema.name-mapping.default) to find them by name"
                )
            self._names = names

    def of(self, path: tuple[str, ...], column: pa.Field) -> int | None:
        if self._names is not None:
            return self._names.get(path)
        return field_id(column)

    def missing(self, column: Column) -> _Constant:
        """Return what rows have in a column that the file lacks."""
        value = self._constants.get(column.id, column.default)
        return _Constant(column.id, pa.scalar(value, column.type))


def field_id(column: pa.Field) -> int | None:
    """Return the id that a file gives to a field, if it does."""
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


def _match(
    column: Column, stored: pa.Field, place: int, path: tuple[str, ...], ids: _Ids
) -> _Stored:
    """Return how a column comes from the field of a file that has its id."""
    inside = nested_fields(stored.type)
    if not column.children:
        return _Stored(place, column, as_it_is=stored.type == column.type)
    if pa.types.is_struct(column.type):
        found = {ids.of((*path, one.name), one): at for at, one in enumerate(inside)}
        places = [found.get(child.id) for child in column.children]
        steps = [one.name for one in inside]
    else:  # what is inside of lists and maps is there, whatever it is called
        places = list(range(len(inside)))
        steps = ["element"] if len(inside) == 1 else ["key", "value"]
    children = tuple(
        ids.missing(child) if at is None else _match(child, inside[at], at, (*path, steps[at]), ids)
        for child, at in zip(column.children, places, strict=True)
    )
    same = stored.type == column.type and all(
        isinstance(child, _Stored) and child.as_it_is and child.place == at
        for at, child in enumerate(children)
    )
    return _Stored(place, column, children, same)


def _whole(
    source: _Stored | _Constant, columns: Sequence[pa.ChunkedArray], rows: int
) -> pa.ChunkedArray:
    if isinstance(source, _Constant):
        return pa.chunked_array([_repeated(source.value, rows)])
    stored = columns[source.place]
    for place in source.within:
        stored = pc.struct_field(stored, place)
    if source.as_it_is:
        return stored
    if not source.children:
        return stored.cast(source.column.type)
    parts = [_shaped(source, part) for part in stored.chunks]
    return pa.chunked_array(parts, source.column.type)


def _repeated(value: pa.Scalar, rows: int) -> pa.Array:
    return pa.repeat(value, rows) if value.is_valid else pa.nulls(rows, value.type)


def _part(source: _Stored | _Constant, of: Sequence[pa.Array], rows: int) -> pa.Array:
    if isinstance(source, _Constant):
        return _repeated(source.value, rows)
    return _shaped(source, of[source.place])


def _shaped(source: _Stored, array: pa.Array) -> pa.Array:
    """Return an array in the type of the table."""
    if source.as_it_is:
        return array
    type_ = source.column.type
    if not source.children:
        return array.cast(type_)
    if pa.types.is_struct(type_):
        inside = [array.field(i) for i in range(array.type.num_fields)]
        parts = [_part(child, inside, len(array)) for child in source.children]
        return pa.StructArray.from_arrays(parts, fields=list(type_), mask=array.is_null())
    if pa.types.is_map(type_):
        inside = [array.keys, array.items]
        parts = [_part(child, inside, len(inside[0])) for child in source.children]
        return pa.MapArray.from_arrays(_offsets(array, np.int32), *parts, type=type_)
    if pa.types.is_fixed_size_list(array.type):
        array = array.cast(pa.list_(array.type.value_field))
    values = _part(source.children[0], [array.values], len(array.values))
    made = pa.LargeListArray if pa.types.is_large_list(type_) else pa.ListArray
    width = np.int64 if pa.types.is_large_list(type_) else np.int32
    return made.from_arrays(_offsets(array, width), values, type=type_)


def _offsets(array: pa.Array, width: type[np.signedinteger[Any]]) -> pa.Array:
    """Return where the values of lists begin; null for those that are null."""
    offsets = array.offsets.to_numpy(zero_copy_only=False).astype(width)
    missing = np.append(array.is_null().to_numpy(zero_copy_only=False), False)
    return pa.array(offsets, mask=missing if missing.any() else None)
