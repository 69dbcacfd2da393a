"""Data files in all the ways in which others write them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    _dataframe_to_data_files,
    _determine_partitions,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.typedef import Record

from writers.committing import as_version_3, commit_files, describe_file


def append_rows(table: Table, rows: pa.Table, *, branch: str = MAIN_BRANCH) -> list[str]:
    """As `Table.append`, in Parquet and for tables of version 3 too; the paths that were written.

    The property `write.parquet.row-group-limit` of the table says how many rows a group has.
    """
    return _commit(table, parquet_files(table, rows), branch)


def append_orc_data(table: Table, rows: pa.Table, *, stripe_rows: int | None = None) -> list[str]:
    """ORC with the ids of fields as attributes of its types, as Iceberg has it."""
    written = schema_to_pyarrow(table.schema(), file_format=FileFormat.ORC)

    def write(part: pa.Table, path: str) -> None:
        sizes = {} if stripe_rows is None else {"batch_size": stripe_rows, "stripe_size": 1024}
        with table.io.new_output(path).create() as stream:
            orc.write_table(part.cast(written), stream, **sizes)

    return _commit(table, _own_files(table, rows, "orc", write), MAIN_BRANCH)


def append_plain_parquet(table: Table, rows: pa.Table) -> list[str]:
    """Parquet with the ids of fields, and nulls where they are: pyiceberg empties null lists."""
    written = schema_to_pyarrow(table.schema())

    def write(part: pa.Table, path: str) -> None:
        with table.io.new_output(path).create() as stream:
            pq.write_table(part.cast(written), stream)

    return _commit(table, _own_files(table, rows, "parquet", write), MAIN_BRANCH)


def append_parquet_without_ids(table: Table, rows: pa.Table) -> list[str]:
    """Parquet as a writer that knows nothing of Iceberg leaves it, found through a name mapping.

    The mapping becomes a property of the table if it has none; renames keep it right after that.
    """
    if TableProperties.DEFAULT_NAME_MAPPING not in table.properties:
        mapping = table.schema().name_mapping.model_dump_json()
        with table.transaction() as changing:
            changing.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})

    def write(part: pa.Table, path: str) -> None:
        with table.io.new_output(path).create() as stream:
            pq.write_table(part.replace_schema_metadata(None), stream)

    return _commit(table, _own_files(table, rows, "parquet", write), MAIN_BRANCH)


def append_file(table: Table, path: str, *, file_format: str, rows: int, size: int) -> None:
    """An entry for a file that is said to be there: of any format, missing, or broken."""
    spec_id = table.metadata.default_spec_id
    described = describe_file(
        path=path, file_format=file_format, rows=rows, size=size, spec_id=spec_id
    )
    commit_files(table, added=[described])


def overwrite_rows(table: Table, rows: pa.Table, *, replaced: set[str]) -> list[str]:
    """New rows in the place of the data files at the paths `replaced`, in one snapshot."""
    files = parquet_files(table, rows) if rows.num_rows else []
    commit_files(table, added=files, removed=lambda file: file.file_path in replaced)
    return [file.file_path for file in files]


def parquet_files(table: Table, rows: pa.Table) -> list[DataFile]:
    """Files that pyiceberg writes, not yet in the table."""
    rows = rows.cast(table.schema().as_arrow())
    files = _dataframe_to_data_files(table.metadata, rows, table.io)
    return [as_version_3(_in_spec(file, table.metadata.default_spec_id)) for file in files]


def new_data_path(table: Table, extension: str) -> str:
    name = f"{uuid.uuid4()}.{extension}"
    return table.location_provider().new_data_location(data_file_name=name)


def _own_files(
    table: Table, rows: pa.Table, file_format: str, write: Callable[[pa.Table, str], None]
) -> Iterator[DataFile]:
    for partition, part in _parts(table, rows):
        path = new_data_path(table, file_format)
        write(part, path)
        yield describe_file(
            path=path,
            file_format=file_format,
            rows=part.num_rows,
            size=len(table.io.new_input(path)),
            partition=partition,
            spec_id=table.metadata.default_spec_id,
        )


def _parts(table: Table, rows: pa.Table) -> Iterator[tuple[Record, pa.Table]]:
    """The rows of each partition."""
    spec = table.spec()
    if spec.is_unpartitioned():
        yield Record(), rows
        return
    for part in _determine_partitions(spec, table.schema(), rows):
        yield part.partition_key.partition, part.arrow_table_partition


def _in_spec(file: DataFile, spec_id: int) -> DataFile:
    file.spec_id = spec_id
    return file


def _commit(table: Table, files: Iterator[DataFile] | list[DataFile], branch: str) -> list[str]:
    files = list(files)
    commit_files(table, added=files, branch=branch)
    return [file.file_path for file in files]
