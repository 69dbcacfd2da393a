"""Writes Paimon tables with pypaimon, and what pypaimon does not write by itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pypaimon import CatalogFactory, Schema
from pypaimon.read.split import DataSplit
from pypaimon.schema.schema_change import SchemaChange
from pypaimon.table.file_store_table import FileStoreTable
from pypaimon.write.table_delete import TableDeleteByRowId
from servers.s3 import S3Server

from headrace import PaimonDataset, StatefulLoader

Positions = Mapping[str, Iterable[int]]
"""rows by the name of their data file"""


class Warehouse:
    """A catalog of files, with a database "db"."""

    def __init__(self, path: str, **options: str) -> None:
        self.options = {"warehouse": path, **options}
        self.catalog = CatalogFactory.create(dict(self.options))
        self.catalog.create_database("db", True)

    def make(
        self,
        name: str,
        schema: pa.Schema,
        *,
        partition_keys: Sequence[str] = (),
        primary_keys: Sequence[str] = (),
        **options: str,
    ) -> FileStoreTable:
        """An empty table; options with underscores for their points and dashes as they are."""
        made = Schema.from_pyarrow_schema(
            schema,
            partition_keys=list(partition_keys) or None,
            primary_keys=list(primary_keys) or None,
            options=options or None,
        )
        self.catalog.create_table(f"db.{name}", made, False)
        return self.table(name)

    def table(self, name: str) -> FileStoreTable:
        return self.catalog.get_table(f"db.{name}")

    def alter(self, name: str, *changes: SchemaChange) -> FileStoreTable:
        self.catalog.alter_table(f"db.{name}", list(changes), False)
        return self.table(name)

    def load(self, name: str, **options: Any) -> tuple[StatefulLoader, PaimonDataset]:
        """A loader over a table, without workers unless they are asked for."""
        settings = {"batch_size": 100, "num_workers": 0, "output_format": "arrow", **options}
        return PaimonDataset.create_dataloader(
            f"db.{name}", catalog_options=self.options, **settings
        )

    def read(self, name: str, **options: Any) -> list[dict[str, Any]]:
        """The rows of a table as our loader gives them."""
        return [row for batch in self.load(name, **options)[0] for row in batch.to_pylist()]


def s3_options(server: S3Server) -> dict[str, str]:
    """Options of a catalog whose tables are there."""
    return {
        "s3.access-key": server.key,
        "s3.secret-key": server.secret,
        "s3.endpoint": server.url,
        "s3.region": server.region,
        "s3.path-style-access": "true",
    }


def write(
    table: FileStoreTable,
    data: pa.Table,
    *,
    level: int | None = None,
    overwrite: bool = False,
) -> None:
    """Commit rows; at a ``level`` as if they had been compacted."""
    builder = table.new_batch_write_builder()
    if overwrite:
        builder.overwrite({})
    writer, commit = builder.new_write(), builder.new_commit()
    try:
        writer.write_arrow(data)
        messages = writer.prepare_commit()
        for file in (one for message in messages for one in message.new_files):
            file.level = file.level if level is None else level
        commit.commit(messages)
    finally:
        writer.close()
        commit.close()


def splits(table: FileStoreTable) -> list[DataSplit]:
    """What pypaimon reads."""
    return table.new_read_builder().new_scan().plan().splits()


def files(table: FileStoreTable) -> list[str]:
    """Names of the data files, in the order in which they were written."""
    found = [file for split in splits(table) for file in split.files]
    found.sort(key=lambda file: (file.creation_time_epoch_millis(), file.min_sequence_number))
    return [file.file_name for file in found]


def delete(table: FileStoreTable, positions: Positions) -> None:
    """Write deletion vectors, also for tables for which pypaimon does not."""
    where: dict[tuple[Any, int], dict[str, set[int]]] = {}
    for split in splits(table):
        for file in split.files:
            if file.file_name in positions:
                key = tuple(split.partition.values), split.bucket
                where.setdefault(key, {})[file.file_name] = set(positions[file.file_name])
    assert sum(map(len, where.values())) == len(positions), "no such file"
    deleter = TableDeleteByRowId.__new__(TableDeleteByRowId)
    deleter.table, deleter.file_io = table, table.file_io
    latest = table.snapshot_manager().get_latest_snapshot().id
    messages = [
        deleter._build_commit_message(partition, bucket, named, latest)
        for (partition, bucket), named in where.items()
    ]
    table.new_batch_write_builder().new_commit().commit(messages)


def arrow_rows(table: FileStoreTable, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The rows of a table as pypaimon itself reads them."""
    builder = table.new_read_builder()
    if columns is not None:
        builder.with_projection(list(columns))
    found = builder.new_scan().plan().splits()
    return builder.new_read().to_arrow(found).to_pylist()


def in_order(rows: Iterable[dict[str, Any]], key: str = "id") -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row[key])


def numbered(start: int, rows: int) -> pa.Table:
    """Rows whose ``id`` counts up from ``start``."""
    ids = range(start, start + rows)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "x": pa.array([i / 4 for i in ids], pa.float32()),
            "name": pa.array([f"row {i}" for i in ids], pa.string()),
        }
    )
