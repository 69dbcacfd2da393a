"""What others read in a table, to compare with.

DuckDB 1.5.5 reads Parquet only, in versions 1 to 3: position deletes, deletion vectors, equality
deletes. Of these it has wrong: those scoped to a partition (it applies them to every partition of
the spec), rows with nulls in the columns (it deletes them all), columns that were promoted (it
fails), nested or dropped columns (these end the process with a segmentation fault).
`duckdb_can_read` tells. pyiceberg reads ORC too, and refuses every equality delete.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import duckdb_extension_avro
import duckdb_extension_httpfs
import duckdb_extension_iceberg
import pyarrow as pa
from pyiceberg.manifest import DataFileContent, FileFormat, ManifestEntry
from pyiceberg.table import Table

from writers.committing import live_entries

EXTENSIONS = {
    "avro": duckdb_extension_avro,
    "httpfs": duckdb_extension_httpfs,
    "iceberg": duckdb_extension_iceberg,
}


class DuckDB:
    """A DuckDB with its Iceberg extension, which is loaded from the installed packages.

    `s3` is an S3 server of the tests; `attach` a REST catalog, in which then SQL writes too.
    """

    def __init__(self, *, s3: Any = None) -> None:
        self.connection = duckdb.connect(config={"threads": "2"})
        version = self.connection.sql("PRAGMA version").fetchone()[0]
        for name, module in EXTENSIONS.items():
            folder = Path(module.__path__[0], "extensions", version)
            self.connection.execute(f"LOAD '{folder / name}.duckdb_extension'")
        if s3 is not None:
            self.connection.execute(
                f"CREATE SECRET s3 (TYPE s3, KEY_ID '{s3.key}', SECRET '{s3.secret}', "
                f"REGION '{s3.region}', ENDPOINT '127.0.0.1:{s3.port}', URL_STYLE 'path', "
                "USE_SSL false)"
            )

    def attach(self, url: str, *, name: str = "rest", token: str | None = None) -> None:
        """A REST catalog as the database `name`; its tables are name."namespace"."table"."""
        who = f"TOKEN '{token}'" if token else "AUTHORIZATION_TYPE 'none'"
        self.connection.execute(
            f"ATTACH '' AS {name} (TYPE iceberg, ENDPOINT '{url}', {who}, "
            "ACCESS_DELEGATION_MODE 'none')"
        )

    def execute(self, sql: str) -> None:
        self.connection.execute(sql)

    def query(self, sql: str) -> pa.Table:
        return self.connection.execute(sql).to_arrow_table()

    def rows(self, table: Table, *, snapshot_id: int | None = None) -> pa.Table:
        """All rows of the table as it is now, or was at a snapshot."""
        then = f", snapshot_from_id={snapshot_id}" if snapshot_id is not None else ""
        return self.query(f"SELECT * FROM iceberg_scan('{table.metadata_location}'{then})")

    def close(self) -> None:
        self.connection.close()


def rows_by_duckdb(table: Table, *, s3: Any = None, snapshot_id: int | None = None) -> pa.Table:
    reader = DuckDB(s3=s3)
    try:
        return reader.rows(table, snapshot_id=snapshot_id)
    finally:
        reader.close()


def duckdb_can_read(table: Table) -> bool:
    """Whether DuckDB reads the newest snapshot, and reads it right."""
    entries = live_entries(table)
    if any(entry.data_file.file_format == FileFormat.ORC for entry in entries):
        return False
    data = [entry for entry in entries if entry.data_file.content == DataFileContent.DATA]
    return all(
        _is_plain_delete(table, entry, data)
        for entry in entries
        if entry.data_file.content == DataFileContent.EQUALITY_DELETES
    )


def _is_plain_delete(table: Table, delete: ManifestEntry, data: list[ManifestEntry]) -> bool:
    """For the whole table, of columns that are still what they were, and without nulls in them."""
    ids = delete.data_file.equality_ids
    types = {
        (field.field_id, str(field.field_type))
        for schema in table.schemas().values()
        for field in schema.fields
        if field.field_id in ids
    }
    current = {field.field_id for field in table.schema().fields}
    older = [one.data_file for one in data if one.sequence_number < delete.sequence_number]
    return (
        not table.specs()[delete.data_file.spec_id].fields
        and len(types) == len(ids)
        and current.issuperset(ids)
        and not any((file.null_value_counts or {}).get(one, 1) for file in older for one in ids)
    )


def rows_by_pyiceberg(table: Table, *, snapshot_id: int | None = None) -> pa.Table:
    """Not where there are equality deletes: pyiceberg refuses those."""
    return table.scan(snapshot_id=snapshot_id).to_arrow()


def multiset(rows: pa.Table) -> Counter[tuple[Any, ...]]:
    """How often each row is there, whatever their order and how Arrow holds the values."""
    columns = [column.to_pylist() for column in rows.columns]
    return Counter(tuple(map(comparable, row)) for row in zip(*columns, strict=True))


def comparable(value: Any) -> Any:
    """A value that can be hashed, and equals itself."""
    if isinstance(value, float) and value != value:
        return "NaN"
    if isinstance(value, UUID):
        return value.bytes
    if isinstance(value, dict):
        return tuple((key, comparable(inner)) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(comparable, value))
    return value
