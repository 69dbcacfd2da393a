"""Rows of the data files of a snapshot: columns by id, without deleted rows."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import pyarrow as pa

from headrace.errors import FileChangedError, ReadError
from headrace.model import DataFileInfo, FileSplit, Int64Array, RowGroups
from headrace.process import BoundedCache
from headrace.sources.files._orc import OrcFormat
from headrace.sources.files._source import StoredFiles
from headrace.sources.files.protocol import FileFacts, Format
from headrace.sources.parquet._format import ParquetFormat
from headrace.sources.tables._columns import FileColumns, NameMapping, TableColumn, match_columns
from headrace.sources.tables._vectors import (
    DeletionVector,
    deleted_positions,
    live_groups,
    live_rows,
    read_vector,
    stored_range,
)

_LISTED = (
    "files of a snapshot are never written again: this one was removed or replaced, or the "
    "snapshot has expired (refresh() continues with the newest one)"
)
_FACTS_BYTES = 16 << 20
_DELETED_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """A data file, or several that are read as one, as the manifests of a snapshot describe it.

    Attributes:
        path: Path of the file in its store; for several files, the path of the first one.
        written_path: The path in the table's metadata, by which deletes name the file.
        size: Size of all files in bytes.
        rows: Number of stored rows; None if it is not known without reading.
        format: Format of the file.
        names: Ids of columns by their names, if the file itself has no ids; one object for all
            files that were written in a schema.
        constants: Values of the partition by column id: one object for all files of a partition.
        vector: The deletion vector of the file.
        deletes: Other objects that delete rows of it, if any.
    """

    path: str
    written_path: str = ""
    size: int
    rows: int | None
    format: str
    names: NameMapping | None = field(default=None, repr=False)
    constants: Mapping[int, Any]
    vector: DeletionVector | None = None
    deletes: Hashable = None


F = TypeVar("F", bound=TableFile)


@dataclass(frozen=True)
class TableSource(StoredFiles, Generic[F]):
    """Rows of the data files of one snapshot, with columns by id and without deleted rows.

    Kept row groups hold deleted rows, too.

    Attributes:
        identity: A key that differs between tables that read the same file differently.
        columns: All columns that may be read, by their names in the result.
        planned: The files as the manifests describe them, by path.
        counted: True if ``files`` and ranges of chunks count live rows. Otherwise they count stored
            rows.
    """

    identity: str
    columns: Mapping[str, TableColumn] = field(repr=False)
    planned: Mapping[str, F] = field(repr=False)
    counted: bool = field(default=False, kw_only=True)

    by_name: ClassVar[bool] = False
    formats: ClassVar[Mapping[str, Format]] = {"parquet": ParquetFormat(), "orc": OrcFormat()}

    @property
    def name(self) -> str:
        return "+".join(sorted({file.format for file in self.planned.values()})) or "parquet"

    def read(self, chunk: FileSplit, schema: pa.Schema, block_bytes: int) -> Iterator[pa.Table]:
        """Yield the live rows of a chunk, from runs of stored rows that hold all of them."""
        with naming_the_table():
            deleted = self.deleted(chunk.file)
            wanted = chunk.row_range
            if wanted is not None and self.counted:
                wanted = stored_range(deleted, wanted)
            stored = FileSplit(self.as_stored(chunk.file), wanted)
            first_row = 0 if wanted is None else wanted.offset
            for table in super().read(stored, schema, block_bytes):
                yield live_rows(table, first_row, deleted)
                first_row += table.num_rows

    def deleted(self, file: DataFileInfo) -> Int64Array:
        """Return the ascending positions of the deleted rows of a file, which are found once."""
        planned = self.planned[file.path]
        if planned.vector is None and not planned.deletes:
            return np.empty(0, np.int64)
        named = file.path, planned.written_path, planned.vector, planned.deletes
        key = self.store.identity, self.identity, *named
        return _deleted_cache.get_or_make(
            key, lambda: self.find_deleted(planned), limit_bytes=_DELETED_BYTES
        )

    def find_deleted(self, file: F) -> Int64Array:
        """Return the ascending positions of the deleted rows of a file."""
        if file.vector is None:
            return np.empty(0, np.int64)
        bitmap = read_vector(self.store, file.vector)
        return deleted_positions(bitmap, file.vector, file.path, file.rows)

    def decoded(self, chunk: FileSplit, schema: pa.Schema, block_bytes: int) -> Iterator[pa.Table]:
        """Yield the stored rows of a chunk, with deleted ones."""
        format_ = self.formats[self.planned[chunk.file.path].format]
        columns = self._match(chunk.file, schema)
        tables = self.from_file(format_, chunk, columns.stored, block_bytes)
        return check_row_count(chunk, (columns.aligned(table, str(chunk)) for table in tables))

    def row_groups(self, file: DataFileInfo) -> RowGroups | None:
        """Return the row groups of a file, with live rows if these are counted."""
        groups = self.stored_groups(file)
        if groups is None or not self.counted:
            return groups
        return live_groups(groups, self.deleted(file))

    def as_stored(self, file: DataFileInfo) -> DataFileInfo:
        """Return a file with the number of its stored rows."""
        return replace(file, record_count=self.planned[file.path].rows)

    def stored_groups(self, file: DataFileInfo) -> RowGroups | None:
        """Return the row groups of a file, deleted rows included."""
        return self._facts(file).row_groups

    def _facts(self, file: DataFileInfo) -> FileFacts:
        """Return the metadata of a file, which is inspected once."""
        key = self.store.identity, self.identity, file.path, file.file_size
        return _facts_cache.get_or_make(key, lambda: self._inspect(file), limit_bytes=_FACTS_BYTES)

    def _inspect(self, file: DataFileInfo) -> FileFacts:
        file = self.as_stored(file)
        facts = self.formats[self.planned[file.path].format].inspect(self.store, file)
        if facts.record_count != file.record_count:
            raise ReadError(
                f"{file.path} has {facts.record_count} rows, and the table's manifest says "
                f"{file.record_count}: the table is damaged"
            )
        return facts

    def _match(self, file: DataFileInfo, schema: pa.Schema) -> FileColumns:
        """Return how to read some columns of a file."""
        planned = self.planned[file.path]
        return match_columns(
            [self.columns[name] for name in schema.names],
            self._facts(file).schema,
            wanted_schema=schema,
            names=planned.names,
            by_name=self.by_name,
            constants=planned.constants,
            where=file.path,
        )


def check_row_count(chunk: FileSplit, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yield the tables of a chunk; raise a ReadError if rows are missing."""
    rows = 0
    for table in tables:
        rows += table.num_rows
        yield table
    if chunk.row_range is not None and rows != chunk.row_range.length:
        raise ReadError(f"{chunk}: the file has {rows} of these rows only")


@contextmanager
def naming_the_table() -> Iterator[None]:
    """Add to errors about a missing or changed file that the table's metadata lists it."""
    try:
        yield
    except FileChangedError as error:
        raise FileChangedError(f"{error}; {_LISTED}") from error


_facts_cache: BoundedCache[FileFacts] = BoundedCache(lambda facts: 2000 + 500 * len(facts.schema))
_deleted_cache: BoundedCache[Int64Array] = BoundedCache(lambda found: 300 + found.nbytes)
