"""Rows of the data files of an Iceberg table: columns by field id, deleted rows left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from headrace.errors import FileChangedError, ReadError
from headrace.formats import FileFacts, Format
from headrace.formats.cache import BoundedCache
from headrace.formats.orc import OrcFormat
from headrace.formats.parquet import ParquetFormat
from headrace.model import DataFileInfo, FileSplit, Int64Array, RowGroups
from headrace.storage import Store
from headrace.tables.columns import Column, FileColumns, NameMapping, match_columns
from headrace.tables.iceberg.deletes import DeletesOf
from headrace.tables.iceberg.live_rows import LiveRows
from headrace.tables.vectors import live_groups, live_rows, stored_range

__all__ = ["EQUALITY_COLUMN", "FORMATS", "LISTED", "CountedRows", "FileKind", "IcebergRows"]

EQUALITY_COLUMN = "\0equality {}"
"""name under which a column is read that decides which rows are deleted, by its field id"""

FORMATS: Mapping[str, Format] = {
    # Spark writes timestamps in a way that tells no unit, and a table's are microseconds.
    "parquet": ParquetFormat({"coerce_int96_timestamp_unit": "us"}),
    "orc": OrcFormat(),
}
LISTED = (
    "files of a snapshot are never written again: someone has removed or replaced this one, or the "
    "snapshot has expired (refresh() goes on with the newest one)"
)
_KEPT_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class FileKind:
    """What many files have in common."""

    format: str
    deletes: DeletesOf
    constants: Mapping[int, Any]
    """values of the partition, by field id, for columns that a file lacks"""


@dataclass(frozen=True, slots=True)
class IcebergRows:
    """Reads files of one snapshot."""

    identity: str
    columns: Mapping[str, Column] = field(repr=False)
    """all that may be read, by the name under which they come out"""
    kinds: Sequence[FileKind] = field(repr=False)
    kind_of: Mapping[str, int] = field(repr=False)
    """which of the kinds a file is of, by its path"""
    names: NameMapping | None = field(default=None, repr=False)
    written_paths: Mapping[str, str] = field(default_factory=dict, repr=False)
    """paths as the table's metadata has them, where they are other than those of the store"""
    stored_rows: Mapping[str, int] = field(default_factory=dict, repr=False)
    """rows of files of which only those of some row groups count"""

    @property
    def name(self) -> str:
        return "+".join(sorted({kind.format for kind in self.kinds})) or "parquet"

    @property
    def delete_columns(self) -> Sequence[str]:
        ids = {column for kind in self.kinds for column in kind.deletes.field_ids}
        return [EQUALITY_COLUMN.format(column) for column in sorted(ids)]

    def read(
        self, store: Store, chunk: FileSplit, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        kind = self._kind(chunk.file)
        rows = 0
        with _listed():
            columns = self._matched(store, chunk.file, schema)
            for table in FORMATS[kind.format].read(store, chunk, columns.stored, block_bytes):
                rows += table.num_rows
                yield columns.aligned(table, str(chunk))
        wanted = chunk.row_range
        if wanted is not None and rows != wanted.length:
            raise ReadError(f"{chunk}: the file has {rows} of these rows only")

    def groups(self, store: Store, file: DataFileInfo) -> RowGroups | None:
        return self._facts(store, file).row_groups

    def live(self, store: Store, chunk: FileSplit, first_row: int, table: pa.Table) -> pa.Table:
        kind = self._kind(chunk.file)
        if not kind.deletes:
            return table
        with _listed():
            return LiveRows().live(
                store,
                kind.deletes,
                self.as_stored(chunk.file),
                first_row,
                table,
                {column: EQUALITY_COLUMN.format(column) for column in kind.deletes.field_ids},
                data_path=self.written_paths.get(chunk.file.path),
            )

    def deleted(self, store: Store, file: DataFileInfo) -> Int64Array:
        """Return the places of the rows of a file that are deleted by position, ascending."""
        stored, path = self.as_stored(file), self.written_paths.get(file.path, file.path)
        with _listed():
            deletes = self._kind(file).deletes
            return LiveRows().deleted(store, deletes, stored.record_count, path)

    def as_stored(self, file: DataFileInfo) -> DataFileInfo:
        """Return a file with the number of rows that are stored in it."""
        rows = self.stored_rows.get(file.path)
        return file if rows is None else replace(file, record_count=rows)

    def _facts(self, store: Store, file: DataFileInfo) -> FileFacts:
        """What is in a file, which is looked at once."""
        key = store.identity, self.identity, file.path, file.file_size
        return _facts.get_or_make(key, lambda: self._look(store, file), limit_bytes=_KEPT_BYTES)

    def _look(self, store: Store, file: DataFileInfo) -> FileFacts:
        file = self.as_stored(file)
        facts = FORMATS[self._kind(file).format].inspect(store, file)
        if facts.record_count != file.record_count:
            raise ReadError(
                f"{file.path} has {facts.record_count} rows, and the table's manifest says "
                f"{file.record_count}: the table is damaged"
            )
        return facts

    def _kind(self, file: DataFileInfo) -> FileKind:
        return self.kinds[self.kind_of[file.path]]

    def _matched(self, store: Store, file: DataFileInfo, schema: pa.Schema) -> FileColumns:
        """How to read some columns of a file; its own schema is looked at once."""
        key = store.identity, self.identity, file.path, file.file_size, tuple(schema.names)
        return _matched.get_or_make(
            key, lambda: self._match(store, file, schema), limit_bytes=_KEPT_BYTES
        )

    def _match(self, store: Store, file: DataFileInfo, schema: pa.Schema) -> FileColumns:
        kind = self._kind(file)
        return match_columns(
            [self.columns[name] for name in schema.names],
            self._facts(store, file).schema,
            wanted_schema=schema,
            names=self.names,
            constants=kind.constants,
            where=file.path,
        )


@dataclass(frozen=True, slots=True)
class CountedRows:
    """Reads files whose deletes are vectors. A row range counts the rows that are not deleted."""

    stored: IcebergRows

    delete_columns = ()

    @property
    def name(self) -> str:
        return self.stored.name

    @property
    def identity(self) -> str:
        return self.stored.identity

    def read(
        self, store: Store, chunk: FileSplit, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        deleted = self.stored.deleted(store, chunk.file)
        wanted = chunk.row_range
        if wanted is not None:
            wanted = stored_range(deleted, wanted)
        split = FileSplit(self.stored.as_stored(chunk.file), wanted)
        first_row = 0 if wanted is None else wanted.offset
        for table in self.stored.read(store, split, schema, block_bytes):
            yield live_rows(table, first_row, deleted)
            first_row += table.num_rows

    def groups(self, store: Store, file: DataFileInfo) -> RowGroups | None:
        groups = self.stored.groups(store, file)
        return None if groups is None else live_groups(groups, self.stored.deleted(store, file))

    def live(self, store: Store, chunk: FileSplit, first_row: int, table: pa.Table) -> pa.Table:
        return table


@contextmanager
def _listed() -> Iterator[None]:
    """Say of a file that is not there, or is another, that the table's metadata lists it."""
    try:
        yield
    except FileChangedError as error:
        raise FileChangedError(f"{error}; {LISTED}") from error


_matched: BoundedCache[FileColumns] = BoundedCache(
    lambda columns: 2000 + 500 * len(columns.stored.names)
)
_facts: BoundedCache[FileFacts] = BoundedCache(lambda facts: 2000 + 500 * len(facts.schema))
