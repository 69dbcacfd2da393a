"""Rows of the data files of a snapshot: columns by id, deleted rows left out."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import pyarrow as pa

from headrace.errors import ReadError
from headrace.model import DataFileInfo, FileList, FileSplit, Int64Array, RowGroups
from headrace.sources.files.cache import BoundedCache, read_groups
from headrace.sources.files.orc import OrcFormat
from headrace.sources.files.protocol import FileFacts, Format
from headrace.sources.parquet.format import ParquetFormat
from headrace.sources.source import StoredSource
from headrace.sources.tables.columns import Column, FileColumns, NameMapping, match_columns
from headrace.sources.tables.vectors import live_groups, live_rows, stored_range
from headrace.storage import Store

__all__ = ["FileKind", "TableSource", "kinds_of"]

_KEPT_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class FileKind:
    """The properties that many files have in common.

    Attributes:
        format: Format of the files.
        constants: Values of the partition by column id, for columns that a file lacks.
        deletes: What deletes rows of these files, as the table format has it.
        schema_id: The schema that the files were written in, where ``TableSource.names`` has some.
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


@dataclass(frozen=True)
class TableSource(StoredSource):
    """Rows of the data files of one snapshot, columns by id, deleted rows left out.

    Attributes:
        store: Reaches the files.
        schema: All columns of the table.
        files: The files that are read.
        identity: Tells apart tables that read the same file differently.
        columns: All columns that may be read, by the name under which they come out.
        kinds_of_files: The kinds of files.
        kind_of: The kind of each file, by its path.
        rows: The number of rows that are stored in each file, by its path, where it is known.
        names: Ids of columns by their names in files that have no ids, by the schema id.
        counted: True if ``files`` count live rows, and ranges of chunks count them too. Otherwise
            ranges count the rows that are stored.
        cache_bytes: Bytes of decoded row groups to keep, deleted rows included.
    """

    store: Store
    schema: pa.Schema
    files: FileList = field(repr=False)
    identity: str
    columns: Mapping[str, Column] = field(repr=False)
    kinds_of_files: Sequence[FileKind] = field(repr=False)
    kind_of: Mapping[str, int] = field(repr=False)
    rows: Mapping[str, int] = field(repr=False)
    names: Mapping[int, NameMapping] = field(repr=False)
    counted: bool = field(default=False, kw_only=True)
    cache_bytes: int = field(default=0, kw_only=True)

    by_name: ClassVar[bool] = False
    formats: ClassVar[Mapping[str, Format]] = {"parquet": ParquetFormat(), "orc": OrcFormat()}

    @property
    def name(self) -> str:
        return "+".join(sorted({kind.format for kind in self.kinds_of_files})) or "parquet"

    def read(self, chunk: FileSplit, schema: pa.Schema, block_bytes: int) -> Iterator[pa.Table]:
        """Yield the live rows of a chunk, from runs of stored rows that hold all of them."""
        deleted = self.deleted(chunk.file)
        wanted = chunk.row_range
        if wanted is not None and self.counted:
            wanted = stored_range(deleted, wanted)
        stored = FileSplit(self.as_stored(chunk.file), wanted)
        first_row = 0 if wanted is None else wanted.offset
        for table in self._kept(stored, schema, block_bytes):
            yield live_rows(table, first_row, deleted)
            first_row += table.num_rows

    def deleted(self, file: DataFileInfo) -> Int64Array:
        """Return the places of the rows of a file that are deleted by position, ascending."""
        raise NotImplementedError

    def _kept(self, chunk: FileSplit, schema: pa.Schema, block_bytes: int) -> Iterator[pa.Table]:
        """Yield the stored rows of a chunk, deleted ones too, by way of the cache."""
        if self.cache_bytes and chunk.row_range is not None:
            if chunk.file.row_groups is None:
                groups = self.stored_groups(chunk.file)
                chunk = replace(chunk, file=replace(chunk.file, row_groups=groups))
            return read_groups(
                chunk,
                lambda part: self.decoded(part, schema, block_bytes),
                schema,
                identity=(self.store.identity, self.identity),
                cache_bytes=self.cache_bytes,
            )
        return self.decoded(chunk, schema, block_bytes)

    def decoded(self, chunk: FileSplit, schema: pa.Schema, block_bytes: int) -> Iterator[pa.Table]:
        """Yield the stored rows of a chunk, deleted ones too."""
        format_ = self.formats[self.kind(chunk.file).format]
        rows = 0
        columns = self._match(chunk.file, schema)
        for table in format_.read(self.store, chunk, columns.stored, block_bytes):
            rows += table.num_rows
            yield columns.aligned(table, str(chunk))
        wanted = chunk.row_range
        if wanted is not None and rows != wanted.length:
            raise ReadError(f"{chunk}: the file has {rows} of these rows only")

    def row_groups(self, file: DataFileInfo) -> RowGroups | None:
        """Return the row groups of a file, by its live rows if these are counted."""
        groups = self.stored_groups(file)
        if groups is None or not self.counted:
            return groups
        return live_groups(groups, self.deleted(file))

    def through(self, store: Store) -> Self:
        return replace(self, store=store)

    def keeping(self, cache_bytes: int) -> Self:
        return replace(self, cache_bytes=cache_bytes)

    def kind(self, file: DataFileInfo) -> FileKind:
        """Return the kind of a file."""
        return self.kinds_of_files[self.kind_of[file.path]]

    def as_stored(self, file: DataFileInfo) -> DataFileInfo:
        """Return a file with the number of rows that are stored in it."""
        return replace(file, record_count=self.rows.get(file.path))

    def stored_groups(self, file: DataFileInfo) -> RowGroups | None:
        """Return the row groups of a file, deleted rows included."""
        return self._facts(file).row_groups

    def _facts(self, file: DataFileInfo) -> FileFacts:
        """Return what is in a file, which is looked at once."""
        key = self.store.identity, self.identity, file.path, file.file_size
        return _facts.get_or_make(key, lambda: self._look(file), limit_bytes=_KEPT_BYTES)

    def _look(self, file: DataFileInfo) -> FileFacts:
        file = self.as_stored(file)
        facts = self.formats[self.kind(file).format].inspect(self.store, file)
        if facts.record_count != file.record_count:
            raise ReadError(
                f"{file.path} has {facts.record_count} rows, and the table's manifest says "
                f"{file.record_count}: the table is damaged"
            )
        return facts

    def _match(self, file: DataFileInfo, schema: pa.Schema) -> FileColumns:
        """Return how to read some columns of a file."""
        kind = self.kind(file)
        return match_columns(
            [self.columns[name] for name in schema.names],
            self._facts(file).schema,
            wanted_schema=schema,
            names=self.names.get(kind.schema_id),
            by_name=self.by_name,
            constants=kind.constants,
            where=file.path,
        )


_facts: BoundedCache[FileFacts] = BoundedCache(lambda facts: 2000 + 500 * len(facts.schema))
