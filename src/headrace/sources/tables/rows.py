"""Rows of the data files of a snapshot: columns by id, deleted rows left out."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pyarrow as pa

from headrace.errors import ReadError
from headrace.model import DataFileInfo, FileSplit, Int64Array, RowGroups
from headrace.sources.files import FileFacts, Format
from headrace.sources.files.cache import BoundedCache
from headrace.sources.files.orc import OrcFormat
from headrace.sources.files.parquet import ParquetFormat
from headrace.sources.files.reader import RowSource
from headrace.sources.tables.columns import Column, FileColumns, NameMapping, match_columns
from headrace.sources.tables.vectors import live_groups, live_rows, stored_range
from headrace.storage import Store

__all__ = ["CountedRows", "FileKind", "StoredRows", "kinds_of"]

_KEPT_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class FileKind:
    """What many files have in common.

    Attributes:
        format: Format of the files.
        constants: Values of the partition by column id, for columns that a file lacks.
        deletes: What deletes rows of these files, as the table format has it.
        schema_id: The schema that the files were written in, where ``StoredRows.names`` has some.
    """

    format: str
    constants: Mapping[int, Any]
    deletes: Any = None
    schema_id: int = -1


def kinds_of(
    files: Iterable[tuple[str, Hashable, FileKind]],
) -> tuple[list[FileKind], dict[str, int]]:
    """Return the kinds of some files, each once, and the number of its kind for each path.

    Args:
        files: Path, a key that is equal for files of one kind, and kind of each file.
    """
    kinds: list[FileKind] = []
    numbers: dict[Hashable, int] = {}
    kind_of: dict[str, int] = {}
    for path, key, kind in files:
        number = kind_of[path] = numbers.setdefault(key, len(kinds))
        if number == len(kinds):
            kinds.append(kind)
    return kinds, kind_of


@dataclass(frozen=True, slots=True)
class StoredRows(RowSource):
    """Rows as they are stored in files, deleted ones too.

    Attributes:
        identity: Tells apart tables that read the same file differently.
        columns: All columns that may be read, by the name under which they come out.
        kinds: The kinds of files.
        kind_of: The kind of each file, by its path.
        rows: The number of rows that are stored in each file, by its path, where it is known.
        names: Ids of columns by their names in files that have no ids, by the schema id.
    """

    identity: str
    columns: Mapping[str, Column] = field(repr=False)
    kinds: Sequence[FileKind] = field(repr=False)
    kind_of: Mapping[str, int] = field(repr=False)
    rows: Mapping[str, int] = field(repr=False)
    names: Mapping[int, NameMapping] = field(repr=False)

    by_name: ClassVar[bool] = False
    formats: ClassVar[Mapping[str, Format]] = {"parquet": ParquetFormat(), "orc": OrcFormat()}

    @property
    def name(self) -> str:  # type: ignore[override]
        return "+".join(sorted({kind.format for kind in self.kinds})) or "parquet"

    def read(
        self, store: Store, chunk: FileSplit, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        kind = self.kind(chunk.file)
        rows = 0
        columns = self._matched(store, chunk.file, schema)
        for table in self.formats[kind.format].read(store, chunk, columns.stored, block_bytes):
            rows += table.num_rows
            yield columns.aligned(table, str(chunk))
        wanted = chunk.row_range
        if wanted is not None and rows != wanted.length:
            raise ReadError(f"{chunk}: the file has {rows} of these rows only")

    def groups(self, store: Store, file: DataFileInfo) -> RowGroups | None:
        return self._facts(store, file).row_groups

    def deleted(self, store: Store, file: DataFileInfo) -> Int64Array:
        """Return the places of the rows of a file that are deleted by position, ascending."""
        raise NotImplementedError

    def kind(self, file: DataFileInfo) -> FileKind:
        """Return the kind of a file."""
        return self.kinds[self.kind_of[file.path]]

    def as_stored(self, file: DataFileInfo) -> DataFileInfo:
        """Return a file with the number of rows that are stored in it."""
        return replace(file, record_count=self.rows.get(file.path))

    def _facts(self, store: Store, file: DataFileInfo) -> FileFacts:
        """Return what is in a file, which is looked at once."""
        key = store.identity, self.identity, file.path, file.file_size
        return _facts.get_or_make(key, lambda: self._look(store, file), limit_bytes=_KEPT_BYTES)

    def _look(self, store: Store, file: DataFileInfo) -> FileFacts:
        file = self.as_stored(file)
        facts = self.formats[self.kind(file).format].inspect(store, file)
        if facts.record_count != file.record_count:
            raise ReadError(
                f"{file.path} has {facts.record_count} rows, and the table's manifest says "
                f"{file.record_count}: the table is damaged"
            )
        return facts

    def _matched(self, store: Store, file: DataFileInfo, schema: pa.Schema) -> FileColumns:
        """Return how to read some columns of a file."""
        key = store.identity, self.identity, file.path, file.file_size, tuple(schema.names)
        return _matched.get_or_make(
            key, lambda: self._match(store, file, schema), limit_bytes=_KEPT_BYTES
        )

    def _match(self, store: Store, file: DataFileInfo, schema: pa.Schema) -> FileColumns:
        kind = self.kind(file)
        return match_columns(
            [self.columns[name] for name in schema.names],
            self._facts(store, file).schema,
            wanted_schema=schema,
            names=self.names.get(kind.schema_id),
            by_name=self.by_name,
            constants=kind.constants,
            where=file.path,
        )


@dataclass(frozen=True, slots=True)
class CountedRows(RowSource):
    """Rows of files whose deletes are counted. A row range counts the rows that are left."""

    stored: StoredRows

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.stored.name

    @property
    def identity(self) -> str:  # type: ignore[override]
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
        groups = self.stored.groups(store, self.stored.as_stored(file))
        return None if groups is None else live_groups(groups, self.stored.deleted(store, file))


_matched: BoundedCache[FileColumns] = BoundedCache(
    lambda columns: 2000 + 500 * len(columns.stored.names)
)
_facts: BoundedCache[FileFacts] = BoundedCache(lambda facts: 2000 + 500 * len(facts.schema))
