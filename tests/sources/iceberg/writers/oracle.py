"""The rows of a table by the rules of the specification, in plain Python and without any haste.

For what no other reader here can: equality deletes of one partition (DuckDB 1.5.5 applies them to
all partitions of a spec), of nested fields (DuckDB crashes), in ORC (DuckDB refuses; pyiceberg
refuses all equality deletes), and equality deletes beside data or position deletes in ORC.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table

from writers.committing import live_entries
from writers.deletion_vectors import is_vector, read_vector
from writers.second_readers import comparable


def rows_by_oracle(table: Table) -> pa.Table:
    """The live rows of the newest snapshot, under the current schema."""
    entries = live_entries(table)
    deletes = [one for one in entries if one.data_file.content != DataFileContent.DATA]
    parts = [table.schema().as_arrow().empty_table()]
    for entry in entries:
        if entry.data_file.content == DataFileContent.DATA:
            parts.append(_live_rows(table, entry, deletes))
    return pa.concat_tables(parts, promote_options="permissive")


def _live_rows(table: Table, entry: ManifestEntry, deletes: list[ManifestEntry]) -> pa.Table:
    everything = _every_field(table)
    rows = _physical_rows(table, entry.data_file, everything)
    gone = set(_deleted_positions(table, entry, deletes))
    plain = rows.to_pylist()
    for delete in deletes:
        if _is_equality_delete_of(table, delete, entry):
            ids = delete.data_file.equality_ids
            columns = [everything.find_column_name(one) for one in ids]
            wanted = _schema_of(everything, ids)
            keys = {
                _key(row, columns)
                for row in _physical_rows(table, delete.data_file, wanted).to_pylist()
            }
            gone |= {at for at, row in enumerate(plain) if _key(row, columns) in keys}
    kept = [at for at in range(rows.num_rows) if at not in gone]
    return rows.take(pa.array(kept, pa.int64())).select(table.schema().as_arrow().names)


def _deleted_positions(
    table: Table, entry: ManifestEntry, deletes: list[ManifestEntry]
) -> Iterator[int]:
    path = entry.data_file.file_path
    ours = [
        one
        for one in deletes
        if one.data_file.content == DataFileContent.POSITION_DELETES
        and one.sequence_number >= entry.sequence_number
    ]
    for delete in ours:
        if is_vector(delete.data_file) and delete.data_file._data[17] == path:
            # It stands for all that files of positions say of this data file.
            yield from read_vector(table, delete.data_file)
            return
    for delete in ours:
        if not is_vector(delete.data_file) and _same_partition(delete, entry):
            for row in _read(table, delete.data_file).to_pylist():
                if row["file_path"] == path:
                    yield row["pos"]


def _is_equality_delete_of(table: Table, delete: ManifestEntry, entry: ManifestEntry) -> bool:
    return (
        delete.data_file.content == DataFileContent.EQUALITY_DELETES
        and entry.sequence_number < delete.sequence_number
        and (not table.specs()[delete.data_file.spec_id].fields or _same_partition(delete, entry))
    )


def _same_partition(one: ManifestEntry, other: ManifestEntry) -> bool:
    return (one.data_file.spec_id, one.data_file.partition) == (
        other.data_file.spec_id,
        other.data_file.partition,
    )


def _physical_rows(table: Table, file: DataFile, schema: Schema) -> pa.Table:
    """All rows of one file in their order, its columns found and promoted by pyiceberg."""
    scan = ArrowScan(table.metadata, table.io, schema, AlwaysTrue())
    return scan.to_table([FileScanTask(file)])


def _read(table: Table, file: DataFile) -> pa.Table:
    with table.io.new_input(file.file_path).open() as stream:
        content = pa.BufferReader(stream.read())
    if file.file_format == FileFormat.ORC:
        return orc.ORCFile(content).read()
    return pq.ParquetFile(content).read()


def _every_field(table: Table) -> Schema:
    """The current schema, and what was dropped from it, for deletes may name that."""
    current = table.schema()
    known = {field.field_id for field in current.fields}
    dropped = {
        field.field_id: field.model_copy(update={"name": f"dropped {field.field_id}"})
        for schema in table.schemas().values()
        for field in schema.fields
        if field.field_id not in known
    }
    return Schema(*current.fields, *dropped.values())


def _schema_of(schema: Schema, ids: list[int]) -> Schema:
    return schema.select(*(schema.find_column_name(one) for one in ids))


def _key(row: dict[str, Any], columns: list[str]) -> tuple[Any, ...]:
    return tuple(comparable(_value(row, column.split("."))) for column in columns)


def _value(row: Any, names: list[str]) -> Any:
    for name in names:
        row = None if row is None else row[name]
    return row
