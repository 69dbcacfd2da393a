"""Position deletes and equality deletes, as engines that merge on read write them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, StringType

from writers.committing import commit_files, data_files, describe_file
from writers.data_files import new_data_path

FILE_PATH_ID, POSITION_ID = 2147483546, 2147483545
POSITION_DELETES = Schema(
    NestedField(FILE_PATH_ID, "file_path", StringType(), required=True),
    NestedField(POSITION_ID, "pos", LongType(), required=True),
)


def append_position_deletes(
    table: Table, positions: Mapping[str, Sequence[int]], **how: Any
) -> list[str]:
    """Delete rows by path and position, as in `position_deletes`; the paths of the delete files."""
    written = position_deletes(table, positions, data_files(table), **how)
    commit_files(table, added=written)
    return [file.file_path for file in written]


def append_equality_deletes(
    table: Table,
    column_names: Sequence[str],
    rows: pa.Table | Sequence[tuple[Any, ...]],
    **how: Any,
) -> str:
    """Delete the rows that have these values, as in `equality_deletes`; the delete file's path."""
    written = equality_deletes(table, column_names, rows, **how)
    commit_files(table, added=[written])
    return written.file_path


def position_deletes(
    table: Table,
    positions: Mapping[str, Sequence[int]],
    files: Iterable[DataFile],
    *,
    file_format: str = "parquet",
    one_file: bool = True,
    bounds: bool = True,
    referenced: bool = False,
    row_group_rows: int | None = None,
) -> list[DataFile]:
    """Delete files for rows of some of the data files `files`, not yet in the table.

    One delete file for all data files of a partition, or one a data file. `bounds` are those of
    the column file_path in the manifest; `referenced` names the data file of a delete file there.
    """
    known = {file.file_path: file for file in files}
    groups = defaultdict(list)
    for path in sorted(positions):
        file = known[path]
        place = (file.spec_id, tuple(file.partition))
        groups[place if one_file else (*place, path)].append(path)
    written = []
    for paths in groups.values():
        rows = _rows_of_positions({path: positions[path] for path in paths})
        more: dict[str, Any] = {}
        if bounds:
            more["lower_bounds"] = {FILE_PATH_ID: paths[0].encode()}
            more["upper_bounds"] = {FILE_PATH_ID: paths[-1].encode()}
        if referenced and len(paths) == 1:
            more["referenced_data_file"] = paths[0]
        path = _write(table, rows, POSITION_DELETES, file_format, row_group_rows)
        like = known[paths[0]]
        written.append(
            describe_file(
                path=path,
                file_format=file_format,
                rows=rows.num_rows,
                size=len(table.io.new_input(path)),
                content=DataFileContent.POSITION_DELETES,
                partition=like.partition,
                spec_id=like.spec_id,
                **more,
            )
        )
    return written


def equality_deletes(
    table: Table,
    column_names: Sequence[str],
    rows: pa.Table | Sequence[tuple[Any, ...]],
    *,
    file_format: str = "parquet",
    partition: Record | None = None,
    spec_id: int | None = None,
) -> DataFile:
    """A file that deletes the rows with these values in these columns, not yet in the table.

    Without a partition the delete is for the whole table, and the table has to have a partition
    spec without fields (its only one, or an earlier one). With one it is for that partition of
    the current spec, or of `spec_id`. A column of a struct is named with dots ("point.x").
    """
    schema = table.schema().select(*column_names)
    fields = [table.schema().find_field(name) for name in column_names]
    if not isinstance(rows, pa.Table):
        types = [schema_to_pyarrow(field.field_type) for field in fields]
        columns = zip(*rows, strict=True) if rows else [[] for _ in types]
        arrays = [pa.array(values, kind) for values, kind in zip(columns, types, strict=True)]
        rows = pa.table(arrays, names=list(column_names))
    path = _write(table, _nested(rows, schema), schema, file_format, None)
    if spec_id is None:
        spec_id = _spec_without_fields(table) if partition is None else table.spec().spec_id
    return describe_file(
        path=path,
        file_format=file_format,
        rows=rows.num_rows,
        size=len(table.io.new_input(path)),
        content=DataFileContent.EQUALITY_DELETES,
        partition=partition,
        spec_id=spec_id,
        equality_ids=[field.field_id for field in fields],
    )


def append_delete_file(table: Table, described: DataFile) -> None:
    """Any delete file as it is described, also a missing or a wrong one."""
    commit_files(table, added=[described])


def _rows_of_positions(positions: Mapping[str, Sequence[int]]) -> pa.Table:
    return pa.table(
        {
            "file_path": [path for path in positions for _ in positions[path]],
            "pos": [place for path in positions for place in sorted(positions[path])],
        },
        schema=pa.schema([("file_path", pa.string()), ("pos", pa.int64())]),
    )


def _write(
    table: Table, rows: pa.Table, schema: Schema, file_format: str, row_group_rows: int | None
) -> str:
    path = new_data_path(table, file_format)
    kind = FileFormat[file_format.upper()]
    rows = rows.cast(schema_to_pyarrow(schema, file_format=kind))
    with table.io.new_output(path).create() as stream:
        if kind == FileFormat.ORC:
            orc.write_table(rows, stream)
        else:
            pq.write_table(rows, stream, row_group_size=row_group_rows)
    return path


def _nested(rows: pa.Table, schema: Schema) -> pa.Table:
    """Columns named with dots as the structs that they are in files."""
    arrays = []
    for field in schema_to_pyarrow(schema):
        if field.name in rows.column_names:
            arrays.append(rows.column(field.name))
            continue
        inner = [rows.column(f"{field.name}.{child.name}").combine_chunks() for child in field.type]
        arrays.append(pa.StructArray.from_arrays(inner, fields=list(field.type)))
    return pa.table(arrays, names=[field.name for field in schema_to_pyarrow(schema)])


def _spec_without_fields(table: Table) -> int:
    for spec_id, spec in table.specs().items():
        if not spec.fields:
            return spec_id
    raise ValueError("this table has no partition spec without fields: give a partition")
