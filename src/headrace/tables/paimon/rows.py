"""Rows of a Paimon table: columns by field id, counted without those that are deleted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import ReadError
from headrace.formats import Format
from headrace.formats.cache import BoundedCache
from headrace.formats.orc import OrcFormat
from headrace.formats.parquet import ParquetFormat
from headrace.model import DataFileInfo, FileSplit, Int64Array, RowGroups
from headrace.storage import Store
from headrace.tables.columns import Column, FileColumns, NameMapping, match_columns
from headrace.tables.paimon.foreign import ForeignRows
from headrace.tables.paimon.schema import VALUE_KIND
from headrace.tables.paimon.vectors import DeletionVector, deleted_rows
from headrace.tables.vectors import live_groups, live_rows, stored_range

__all__ = ["FileKind", "PaimonRows", "StoredRows"]

_FORMATS: Mapping[str, Format] = {"parquet": ParquetFormat(), "orc": OrcFormat()}
_BY_ROWS = ("row", "several")
"""formats of which pypaimon reads some rows without the others"""
_KEPT_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class FileKind:
    """What many files have in common."""

    format: str
    schema_id: int
    constants: Mapping[int, Any]
    """values of the partition, by field id"""
    keyed: bool
    """each row says whether it is there, or takes one away"""


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows as they are stored in files, by their place there, deleted ones too."""

    identity: str
    columns: Mapping[str, Column] = field(repr=False)
    kinds: Sequence[FileKind] = field(repr=False)
    kind_of: Mapping[str, int] = field(repr=False)
    """which of the kinds a file is of, by its path"""
    rows: Mapping[str, int] = field(repr=False)
    """how many a file has"""
    vectors: Mapping[str, DeletionVector] = field(repr=False)
    names: Mapping[int, NameMapping] = field(repr=False)
    """ids of columns by their names in files, for each schema that files were written in"""
    foreign: ForeignRows | None = None

    def read(
        self, store: Store, chunk: FileSplit, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        path = chunk.file.path
        if self.is_foreign(path):
            assert self.foreign is not None
            tables = self.foreign.read(path, chunk.row_range, schema, block_bytes)
        else:
            tables = self._own(store, chunk, schema, block_bytes)
        rows = 0
        for table in tables:
            rows += table.num_rows
            yield table
        if chunk.row_range is not None and rows != chunk.row_range.length:
            raise ReadError(f"{chunk}: the file has {rows} of these rows only")

    def deleted(self, store: Store, path: str) -> Int64Array:
        """Places of the rows of a file that are deleted, ascending."""
        vector = self.vectors.get(path)
        if vector is None:
            return np.empty(0, np.int64)
        return deleted_rows(store, vector, path, self.rows[path])

    def is_foreign(self, path: str) -> bool:
        """Whether pypaimon reads it."""
        return self.foreign is not None and path in self.foreign.splits

    def row_groups(self, store: Store, file: DataFileInfo) -> RowGroups | None:
        """Runs of rows that are decoded as a whole, whatever is wanted of them."""
        kind = self._kind(file.path)
        if self.is_foreign(file.path):
            if kind.format in _BY_ROWS:
                return None
            return RowGroups.of([self.rows[file.path]], [file.file_size or 0])
        return _row_groups.get_or_make(
            (store.identity, file.path, file.file_size),
            lambda: _FORMATS[kind.format].inspect(store, file).row_groups or RowGroups.of((), ()),
            limit_bytes=_KEPT_BYTES,
        )

    def _own(
        self, store: Store, chunk: FileSplit, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        kind = self._kind(chunk.file.path)
        hidden = [pa.field(VALUE_KIND.name, VALUE_KIND.type)] if kind.keyed else []
        columns = self._matched(store, chunk.file, pa.schema([*schema, *hidden]))
        for table in _FORMATS[kind.format].read(store, chunk, columns.stored, block_bytes):
            aligned = columns.aligned(table, str(chunk))
            if kind.keyed:
                _check_kinds(aligned[VALUE_KIND.name], chunk)
                aligned = aligned.drop_columns([VALUE_KIND.name])
            yield aligned

    def _kind(self, path: str) -> FileKind:
        return self.kinds[self.kind_of[path]]

    def _matched(self, store: Store, file: DataFileInfo, schema: pa.Schema) -> FileColumns:
        """How to read some columns of a file; its own schema is looked at once."""
        key = store.identity, self.identity, file.path, file.file_size, tuple(schema.names)
        return _matched.get_or_make(
            key, lambda: self._match(store, file, schema), limit_bytes=_KEPT_BYTES
        )

    def _match(self, store: Store, file: DataFileInfo, schema: pa.Schema) -> FileColumns:
        kind = self._kind(file.path)
        facts = _FORMATS[kind.format].inspect(store, file)
        if facts.record_count != self.rows[file.path]:
            raise ReadError(
                f"{file.path} has {facts.record_count} rows, and the table's manifest says "
                f"{self.rows[file.path]}: the table is damaged"
            )
        known = {**self.columns, VALUE_KIND.name: VALUE_KIND}
        return match_columns(
            [known[name] for name in schema.names],
            _without_ids(facts.schema),
            wanted_schema=schema,
            names=self.names[kind.schema_id],
            constants=kind.constants,
            where=file.path,
        )


@dataclass(frozen=True, slots=True)
class PaimonRows:
    """Rows of one snapshot. A row range counts the rows of a file that are not deleted."""

    stored: StoredRows

    delete_columns = ()

    @property
    def name(self) -> str:
        return "+".join(sorted({kind.format for kind in self.stored.kinds})) or "parquet"

    @property
    def identity(self) -> str:
        return self.stored.identity

    def groups(self, store: Store, file: DataFileInfo) -> RowGroups | None:
        groups = self.stored.row_groups(store, self._as_stored(file))
        deleted = self.stored.deleted(store, file.path)
        return None if groups is None else live_groups(groups, deleted)

    def read(
        self, store: Store, chunk: FileSplit, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        deleted = self.stored.deleted(store, chunk.file.path)
        wanted = chunk.row_range
        if wanted is not None:
            wanted = stored_range(deleted, wanted)
        split = FileSplit(self._as_stored(chunk.file), wanted)
        first_row = 0 if wanted is None else wanted.offset
        for table in self.stored.read(store, split, schema, block_bytes):
            yield live_rows(table, first_row, deleted)
            first_row += table.num_rows

    def live(self, store: Store, chunk: FileSplit, first_row: int, table: pa.Table) -> pa.Table:
        return table

    def _as_stored(self, file: DataFileInfo) -> DataFileInfo:
        return replace(file, record_count=self.stored.rows.get(file.path))


def _check_kinds(kinds: pa.ChunkedArray, chunk: FileSplit) -> None:
    """Rows that take others away have no place in files that need no merging."""
    if pc.any(pc.is_in(kinds, pa.array([1, 3], pa.int8()))).as_py():
        raise ReadError(
            f"{chunk}: there are rows that delete others in a file that was compacted: the table "
            "is damaged, or was written in a way that is not known here"
        )


def _without_ids(schema: pa.Schema) -> pa.Schema:
    """Names are what files of all writers have in common; ids in some files are of other kinds."""
    return pa.schema(list(map(_plain_field, schema)))


def _plain_field(one: pa.Field) -> pa.Field:
    return pa.field(one.name, _plain(one.type), one.nullable)


def _plain(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(type_):
        return pa.struct([_plain_field(type_.field(i)) for i in range(type_.num_fields)])
    if pa.types.is_list(type_):
        return pa.list_(_plain_field(type_.value_field))
    if pa.types.is_map(type_):
        return pa.map_(_plain_field(type_.key_field), _plain_field(type_.item_field))
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(_plain_field(type_.value_field), type_.list_size)
    return type_


_matched: BoundedCache[FileColumns] = BoundedCache(
    lambda columns: 2000 + 500 * len(columns.stored.names)
)
_row_groups: BoundedCache[RowGroups] = BoundedCache(lambda groups: 500 + 25 * len(groups))
