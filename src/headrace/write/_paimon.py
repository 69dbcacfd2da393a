"""Paimon tables as targets: a part is a data file, which a commit makes a snapshot of the table."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import MissingExtraError, OptionError
from headrace.write._copier import Receipt, TargetOptions
from headrace.write._places import not_empty, writing

_FAILURES = (ValueError, RuntimeError, TypeError)
_DATABASE = ".db"
_NO_STATISTICS = {"metadata.stats-mode": "none"}
"""Written without statistics: pypaimon would compute them from the only row of a file that it
sees."""


@dataclass(frozen=True, slots=True)
class PaimonTarget:
    """A table at ``warehouse/database.db/table``; its earlier content stays available as snapshots.

    ``target_options`` are options of pypaimon's catalog.
    """

    options: TargetOptions

    def __post_init__(self) -> None:
        try:
            import pypaimon  # noqa: F401
        except ImportError:
            raise MissingExtraError.for_extra("paimon", "pypaimon") from None
        if callable(self.options.storage_options):
            raise OptionError("target_options must be a mapping for Paimon")
        self._names  # noqa: B018  (refuse a wrong location now)

    @property
    def _names(self) -> tuple[str, str, str]:
        """The names of the warehouse, the database and the table."""
        above, _, table = self.options.location.rpartition("/")
        warehouse, _, database = above.rpartition("/")
        if not (warehouse and table and database.endswith(_DATABASE) and database != _DATABASE):
            raise OptionError(
                f"{self.options.location} is not the location of a Paimon table, such as "
                "warehouse/database.db/table"
            )
        return warehouse, database.removesuffix(_DATABASE), table

    @property
    def _name(self) -> str:
        return ".".join(self._names[1:])

    def refuse(self, schema: pa.Schema) -> None:
        location = self.options.location
        wanted = self._paimon_schema(schema)
        existing = self._existing()
        if existing is None:
            if os.path.isdir(location) and os.listdir(location):
                raise OptionError(f"{location} is not empty and not a Paimon table")
        elif not self.options.overwrite:
            raise not_empty(location, "write a new snapshot of that table")
        else:
            self._check(existing, wanted)

    def write(
        self, part: int, parts: int | None, schema: pa.Schema, groups: Iterator[pa.Table]
    ) -> Receipt:
        with writing(self.options.location, *_FAILURES):
            return self._written(self._made(schema), groups)

    def _written(self, table: Any, groups: Iterator[pa.Table]) -> Receipt:
        """Write one file, in the given row groups; pypaimon would write a single group.

        To get a name and a description, pypaimon writes a file of one row, which is then replaced.
        """
        from pypaimon.schema.data_types import PyarrowFieldParser
        from pypaimon.write.commit_message_serializer import serialize_commit_message

        first = next(groups, None)
        if first is None:
            return {"rows": 0, "messages": [], "files": []}
        stored = PyarrowFieldParser.from_paimon_schema(table.fields).remove_metadata()
        writer = table.copy(_NO_STATISTICS).new_batch_write_builder().new_write()
        try:
            writer.write_arrow(first.slice(0, 1).cast(stored))
            messages = writer.prepare_commit()
        finally:
            writer.close()
        [message] = messages
        [file] = message.new_files
        if file.extra_files:
            raise OptionError(
                f"{self.options.location} is a table that keeps other files beside its data files, "
                "which headrace cannot write; choose another target, or drop the table"
            )
        how = {"compression": self.options.compression or "zstd"}
        rows = 0
        with (
            table.file_io.new_output_stream(file.file_path) as stream,
            pq.ParquetWriter(stream, stored, **how) as parquet,
        ):
            for group in chain([first], groups):
                parquet.write_table(group.cast(stored), row_group_size=max(len(group), 1))
                rows += len(group)
        file.file_size = table.file_io.get_file_size(file.file_path)
        file.row_count = rows
        file.max_sequence_number = file.min_sequence_number + rows - 1
        written = base64.b64encode(serialize_commit_message(message, [])).decode()
        return {"rows": rows, "messages": [written], "files": [file.file_path]}

    def holds(self, receipt: Receipt, run: str) -> bool:
        table = self._existing()
        return table is not None and all(map(table.file_io.exists, receipt["files"]))

    def commit(
        self, schema: pa.Schema, receipts: Sequence[Receipt], facts: Mapping[str, Any]
    ) -> None:
        with writing(self.options.location, *_FAILURES):
            self._committed(self._made(schema), receipts, facts["run"])

    def _committed(self, table: Any, receipts: Sequence[Receipt], run: str) -> None:
        from pypaimon.write.commit_message_serializer import deserialize_commit_message

        from headrace.sources.paimon.native import write_builder

        snapshots = table.snapshot_manager().list_snapshots()
        if any(snapshot.commit_user == run for snapshot in snapshots):
            return
        builder = write_builder(table, run)
        if snapshots:
            builder.overwrite({})
        messages = [
            deserialize_commit_message(base64.b64decode(written), [], [])
            for receipt in receipts
            for written in receipt["messages"]
        ]
        commit = builder.new_commit()
        try:
            commit.commit(messages)
        finally:
            commit.close()

    def _catalog(self) -> Any:
        from pypaimon import CatalogFactory

        given = self.options.storage_options
        assert isinstance(given, Mapping)
        return CatalogFactory.create({**given, "warehouse": self._names[0]})

    def _existing(self) -> Any:
        """Return the existing table, or None."""
        from pypaimon.catalog.catalog_exception import (
            DatabaseNotExistException,
            TableNotExistException,
        )

        with writing(self.options.location, *_FAILURES):
            try:
                return self._catalog().get_table(self._name)
            except (TableNotExistException, DatabaseNotExistException):
                return None

    def _made(self, schema: pa.Schema) -> Any:
        """Return the table; create it if it does not exist."""
        from pypaimon import Schema

        wanted = self._paimon_schema(schema)
        catalog = self._catalog()
        catalog.create_database(self._names[1], True)
        catalog.create_table(
            self._name,
            Schema(
                fields=wanted,
                options={"file.format": "parquet", **_NO_STATISTICS},
            ),
            True,
        )
        table = catalog.get_table(self._name)
        self._check(table, wanted)
        return table

    def _check(self, table: Any, wanted: Sequence[Any]) -> None:
        """Refuse a table that cannot hold the files written here."""
        there = [(field.name, str(field.type)) for field in table.fields]
        if there != [(field.name, str(field.type)) for field in wanted] or (
            table.primary_keys or table.partition_keys
        ):
            raise OptionError(
                f"{self.options.location} is a table with other columns, keys or partitions; "
                "choose another target, or drop the table"
            )
        bucket, format_ = table.options.bucket(), table.options.file_format()
        if bucket != -1 or format_.lower() != "parquet":
            raise OptionError(
                f"{self.options.location} is a table with bucket={bucket} and "
                f"file.format={format_}; headrace writes only Parquet files without buckets "
                "(bucket=-1): choose another target, or drop the table"
            )

    def _paimon_schema(self, schema: pa.Schema) -> list[Any]:
        from pypaimon import Schema
        from pypaimon.schema.data_types import PyarrowFieldParser

        plain = pa.schema([pa.field(one.name, one.type) for one in schema])
        try:
            fields = list(Schema.from_pyarrow_schema(plain).fields)
            PyarrowFieldParser.from_paimon_schema(fields)
            for field in fields:
                if "BLOB" in str(field.type):  # pypaimon keeps such columns in files of their own
                    raise ValueError(f"{field.name!r} would be a {field.type}, not binary")
            return fields
        except ValueError as error:
            raise OptionError(
                f"a Paimon table cannot hold these columns: {error}; cast them, or choose others "
                "with columns="
            ) from None
