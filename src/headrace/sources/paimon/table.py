"""A Paimon table: its snapshots, their files, and their rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pypaimon.common.predicate import Predicate
from pypaimon.manifest.schema.data_file_meta import DataFileMeta
from pypaimon.read.split import DataSplit
from pypaimon.schema.data_types import DataField
from pypaimon.schema.table_schema import TableSchema
from pypaimon.snapshot.snapshot import Snapshot
from pypaimon.table.file_store_table import FileStoreTable
from pypaimon.table.source.deletion_file import DeletionFile

from headrace.errors import ReadError
from headrace.model import DataFileInfo, FileSplit, RowGroups
from headrace.options import PaimonOptions
from headrace.sources.paimon._catalog import FAILURES, load_table, storage_options
from headrace.sources.paimon._schema import (
    VALUE_KIND,
    PaimonWords,
    is_blob,
    is_readable_as,
    is_variant,
    name_mapping,
    partition_expression,
    table_columns,
)
from headrace.sources.paimon.native import (
    ForeignRows,
    at_snapshot,
    check_merging,
    in_schema,
    note_use,
    scan_files,
)
from headrace.sources.tables._catalog import (
    PinnedSnapshot,
    SnapshotChoice,
    StoreAccess,
    explain_errors,
    hide_secrets,
    no_ref,
    no_schema,
    no_snapshot,
    store_path,
)
from headrace.sources.tables._columns import TableColumn
from headrace.sources.tables._predicates import pruning_predicate
from headrace.sources.tables._rows import TableFile, TableSource, check_row_count
from headrace.sources.tables._table import CatalogTable, SnapshotFiles, log_plan
from headrace.sources.tables._vectors import DeletionVector
from headrace.storage import Options

logger = logging.getLogger(__name__)

T = TypeVar("T")
PaimonSnapshot = PinnedSnapshot[FileStoreTable, Snapshot]

_APART = (".blob", ".vector")
"""Parts of the names of files that hold some columns for the rows of other files."""
_BY_ROWS = ("row", "several")
"""Formats from which pypaimon can read some rows without reading all."""


class PaimonTable(CatalogTable[PaimonSnapshot, "PaimonFile"]):
    """A table, and the wanted rows of it.

    Args:
        name: The name of the table.
        catalog_options: Options for pypaimon.
        options: The options of the dataset.
        access: Returns the access to the store of the files.
    """

    _table: FileStoreTable

    def __init__(
        self,
        name: str,
        catalog_options: Mapping[str, Any],
        options: PaimonOptions,
        access: StoreAccess,
    ) -> None:
        self._descriptors = options["blobs"] == "descriptors"
        self._partition_filter = options["partition_filter"]
        self._catalog_options = catalog_options
        choice = SnapshotChoice(options["snapshot_id"], options["tag"])
        super().__init__(name, options, choice, access)

    def load(self) -> None:
        self._table = load_table(self._name, self._catalog_options)

    def ask(self, action: Callable[[], T]) -> T:
        hidden = hide_secrets(self._catalog_options)
        return explain_errors(f"table {self._name!r}", hidden, action, FAILURES)

    # --- snapshots

    def newest_snapshot(self) -> Snapshot | None:
        return self._table.snapshot_manager().get_latest_snapshot()

    def named_snapshot(self) -> Snapshot | None:
        if self._choice.tag is None:
            return None
        tags = self._table.tag_manager()
        tagged = tags.get(self._choice.tag)
        if tagged is None:
            raise no_ref(self._name, "tag", self._choice.tag, tags.list_tags())
        return tagged.trim_to_snapshot()

    def schema_id(self, snapshot: Snapshot | None) -> int:
        return int(self._table.table_schema.id if snapshot is None else snapshot.schema_id)

    def snapshot(self, snapshot_id: int) -> Snapshot:
        """Return a snapshot; a tag may have kept it after it expired."""
        snapshots, tags = self._table.snapshot_manager(), self._table.tag_manager()
        found = snapshots.get_snapshot_by_id(snapshot_id)
        if found is not None:
            return found
        for kept in filter(None, map(tags.get, tags.list_tags())):
            if kept.trim_to_snapshot().id == snapshot_id:
                return kept.trim_to_snapshot()
        raise no_snapshot(self._name, snapshot_id)

    def pin(self, snapshot: Snapshot | None, schema_id: int) -> PaimonSnapshot:
        """Return the table in one of its schemas, with its current options."""
        table = self._table
        if schema_id != table.table_schema.id:
            schema = table.schema_manager.get_schema(schema_id)
            if schema is None:
                raise no_schema(self._name, schema_id)
            table = in_schema(table, schema)
        version = -1 if snapshot is None else snapshot.id, schema_id
        table = at_snapshot(table, snapshot)
        return PinnedSnapshot(self._name, str(table.table_path), table, snapshot, version)

    # --- the files of a snapshot

    def columns(self, pinned: PaimonSnapshot) -> Mapping[str, TableColumn]:
        return table_columns(pinned.table.fields, self._columns)

    def wanted_rows(self, pinned: PaimonSnapshot) -> ds.Expression | None:
        if self._partition_filter is None:
            return self._filter
        keys, columns = pinned.table.partition_keys, self.columns(pinned)
        wanted = partition_expression(self._partition_filter, keys, columns)
        return wanted if self._filter is None else wanted & self._filter

    def plan(
        self, pinned: PaimonSnapshot, keep: ds.Expression | None, read_schema: pa.Schema
    ) -> Sequence[PaimonFile]:
        columns = self.columns(pinned)
        fields = [field for field in pinned.table.fields if field.name in read_schema.names]
        predicate = None
        if keep is not None:
            builder = pinned.table.new_read_builder().new_predicate_builder()
            types = prunable_columns(pinned, columns)
            predicate = pruning_predicate(PaimonWords(builder), types, keep)
        return plan_files(pinned, fields, predicate)

    def storage_options(self, pinned: PaimonSnapshot, protocol: str) -> Options:
        return storage_options(self._catalog_options, pinned.table.file_io, protocol)

    def source(self, pinned: PaimonSnapshot, found: SnapshotFiles[PaimonFile]) -> PaimonSource:
        table = pinned.table
        foreign = next((file for file in found.planned.values() if file.split is not None), None)
        if foreign is not None:
            note_use(foreign.path)
        if self._descriptors:
            table = table.copy_without_time_travel({"blob-as-descriptor": "true"})
        return PaimonSource(
            found.store,
            found.schema,
            found.files,
            f"{pinned.location} {pinned.version}",
            {**found.columns, VALUE_KIND.name: VALUE_KIND},
            found.planned,
            table.is_primary_key_table,
            None if foreign is None else ForeignRows(table, hide_secrets(self._catalog_options)),
            counted=found.counted,
        )


def prunable_columns(
    pinned: PaimonSnapshot, columns: Mapping[str, TableColumn]
) -> dict[str, pa.DataType]:
    """Return columns whose type never changed, because statistics have the types of files."""
    types = {column.id: column.type for column in columns.values()}
    changed: set[int] = set()
    if pinned.table.table_schema.id > 0:
        for schema in pinned.table.schema_manager.list_all():
            changed |= {
                column.id
                for column in table_columns(schema.fields, ()).values()
                if types.get(column.id, column.type) != column.type
            }
    return {name: column.type for name, column in columns.items() if column.id not in changed}


# --- files


@dataclass(frozen=True, slots=True, kw_only=True)
class PaimonFile(TableFile):
    """A data file, a group of files with the same rows, or files whose rows are merged.

    Attributes:
        split: The split, if pypaimon has to read it.
    """

    split: DataSplit | None = field(default=None, repr=False)


def plan_files(
    pinned: PaimonSnapshot, wanted: Sequence[DataField], predicate: Predicate | None
) -> Sequence[PaimonFile]:
    """Return the files of a snapshot that hold wanted columns, sorted by path."""
    if pinned.snapshot is None:
        return ()
    scanned = scan_files(pinned.name, pinned.table, pinned.snapshot, predicate)
    files = sum(len(split.files) for split in scanned.splits)
    log_plan(pinned.name, pinned.version[0], files, scanned.files_before)
    if scanned.files_hidden:
        logger.warning(
            "table %s: %d of %d data files are not read, because the table shows their rows only "
            "after an engine has compacted them",
            pinned.name,
            scanned.files_hidden,
            scanned.files_before,
        )
    planner = _SplitPlanner(pinned, wanted, scanned.vectors)
    planned = [file for split in scanned.splits for file in planner.files(split)]
    return sorted(planned, key=lambda file: file.path)


class _SplitPlanner:
    """Decides how each split is read."""

    def __init__(
        self,
        pinned: PaimonSnapshot,
        wanted: Sequence[DataField],
        vectors: Mapping[tuple[Any, int], Mapping[str, DeletionFile]],
    ) -> None:
        keys = pinned.table.partition_keys
        self._table = pinned.table
        self._wanted = wanted
        self._vectors = vectors
        # By the id of the schema in which a file was written.
        self._names = cache(lambda schema: name_mapping(self._schema(schema).fields, without=keys))
        self._plain = cache(lambda schema: self._is_plain(self._schema(schema)))
        self._ids = [pinned.table.field_dict[key].id for key in keys]
        self._constants: dict[tuple[Any, ...], Mapping[int, Any]] = {}
        self._grouped = bool(pinned.table.options.data_evolution_enabled())

    def files(self, split: DataSplit) -> Iterator[PaimonFile]:
        vectors = self._vectors.get((tuple(split.partition.values), split.bucket), {})
        if self._table.is_primary_key_table:
            yield from self._keyed(split, vectors)
        elif self._grouped:
            yield self._group(split, vectors)
        else:
            for file in split.files:
                yield self._one(split, file, vectors.get(file.file_name))

    def _schema(self, schema_id: int) -> TableSchema:
        """Return the schema in which a file was written."""
        found = self._table.schema_manager.get_schema(schema_id)
        if found is None:
            raise ReadError(
                f"{self._table.identifier} has files of the schema {schema_id}, which does not "
                "exist: the table is damaged"
            )
        return found

    def _partition(self, split: DataSplit) -> Mapping[int, Any]:
        """Return the values of a partition by column id; one object for all of its files."""
        values = tuple(split.partition.values)
        return self._constants.setdefault(values, dict(zip(self._ids, values, strict=True)))

    def _keyed(self, split: DataSplit, vectors: Mapping[str, DeletionFile]) -> Iterator[PaimonFile]:
        """Plan files one by one if no other file in the bucket has the same keys.

        A file of level 0 is merged even if it is alone, because pypaimon's writer does not store
        how many of its rows delete others.
        """
        settled = split.raw_convertible and all(file.level > 0 for file in split.files)
        if settled and all(map(self._readable, split.files)):
            for file in split.files:
                yield self._one(split, file, vectors.get(file.file_name))
            return
        check_merging(self._table)
        deleted = [vectors.get(file.file_name) for file in split.files]
        merged = _part_of_split(split, split.files, deleted if any(deleted) else None)
        yield self._file(split.files[0], merged, rows=None, foreign=True)

    def _one(self, split: DataSplit, file: DataFileMeta, vector: DeletionFile | None) -> PaimonFile:
        """Plan one file whose rows are rows of the table."""
        alone, foreign = _part_of_split(split, [file], None, raw=True), not self._readable(file)
        return self._file(file, alone, rows=file.row_count, vector=vector, foreign=foreign)

    def _group(self, split: DataSplit, vectors: Mapping[str, DeletionFile]) -> PaimonFile:
        """Plan files that hold different columns of the same rows."""
        anchor = min(
            (file for file in split.files if not _is_apart(file)),
            key=lambda file: (file.max_sequence_number, file.file_name),
        )
        needed = [file for file in split.files if not _is_apart(file) or self._holds_wanted(file)]
        vector = next((vectors[f.file_name] for f in split.files if f.file_name in vectors), None)
        if needed == [anchor]:
            return self._one(split, anchor, vector)
        for file in needed:
            self._check_names(file)
        return self._file(
            anchor,
            _part_of_split(split, needed, None),
            rows=anchor.row_count,
            vector=vector,
            foreign=True,
            format_="several" if any(map(_is_apart, needed)) else None,
        )

    def _file(
        self,
        file: DataFileMeta,
        split: DataSplit,
        *,
        rows: int | None,
        foreign: bool,
        vector: DeletionFile | None = None,
        format_: str | None = None,
    ) -> PaimonFile:
        """Return the files of a split as one, under the path of ``file``.

        Args:
            file: The first file.
            split: The files, as pypaimon reads them.
            rows: Number of stored rows, if known.
            foreign: True if pypaimon has to read them.
            vector: The deletion vector.
            format_: Their format; None for the format of ``file``.
        """
        return PaimonFile(
            path=_file_path(file),
            size=sum(one.file_size for one in split.files),
            rows=rows,
            format=format_ or _file_format(file),
            names=self._names(file.schema_id),
            constants=self._partition(split),
            vector=_deletion_vector(vector),
            split=split if foreign else None,
        )

    def _holds_wanted(self, file: DataFileMeta) -> bool:
        """Return True if a file holds some of the wanted columns."""
        ids = {field.id for field in self._fields(file)}
        return any(field.id in ids for field in self._wanted)

    def _fields(self, file: DataFileMeta) -> Sequence[DataField]:
        """Return the columns that a file holds, in the schema in which it was written."""
        return list(self._schema(file.schema_id).data_file_fields(file.write_cols))

    def _check_names(self, file: DataFileMeta) -> None:
        """Raise an error for renamed columns: pypaimon looks for current names in these files."""
        now = {field.name: field.id for field in self._table.fields}
        wanted = {field.id for field in self._wanted}
        for one in self._fields(file) if file.write_cols is not None else ():
            if now.get(one.name) != one.id and (one.id in wanted or one.name in now):
                raise ReadError(
                    f"{_file_path(file)}: its column {one.name!r} was renamed after some of its "
                    "rows were updated (data evolution), which is not supported; let an engine "
                    "compact the table, or leave the column out with columns="
                )

    def _readable(self, file: DataFileMeta) -> bool:
        """Return True if the wanted columns of a file can be read without pypaimon."""
        return _file_format(file) in TableSource.formats and self._plain(file.schema_id)

    def _is_plain(self, schema: TableSchema) -> bool:
        """Return True if files of a schema hold the wanted columns in types that only widened."""
        before = {field.id: field.type for field in schema.fields}
        return all(
            not is_blob(field.type)
            and not is_variant(field.type)
            and (field.id not in before or is_readable_as(before[field.id], field.type))
            for field in self._wanted
        )


def _is_apart(file: DataFileMeta) -> bool:
    """Return True if a file holds some columns for the rows of other files."""
    return any(part in file.file_name for part in _APART)


def _file_path(file: DataFileMeta) -> str:
    return store_path(file.external_path or file.file_path)


def _file_format(file: DataFileMeta) -> str:
    return str(file.file_name).rpartition(".")[2].lower()


def _deletion_vector(file: DeletionFile | None) -> DeletionVector | None:
    if file is None:
        return None
    return DeletionVector(file.dv_index_path, file.offset, file.length, file.cardinality)


def _part_of_split(
    split: DataSplit,
    files: list[DataFileMeta],
    deleted: list[DeletionFile | None] | None,
    *,
    raw: bool = False,
) -> DataSplit:
    """Return a split of some of the files of another one."""
    return DataSplit(
        files, split.partition, split.bucket, raw_convertible=raw, data_deletion_files=deleted
    )


# --- rows


@dataclass(frozen=True)
class PaimonSource(TableSource[PaimonFile]):
    """Rows of one snapshot.

    Attributes:
        keyed: True if each row says whether it exists, or removes another row.
        foreign: Reads the files that only pypaimon can read; None if there are no such files.
    """

    keyed: bool
    foreign: ForeignRows | None

    by_name: ClassVar[bool] = True  # ids in files of some writers are of other kinds

    def decoded(self, chunk: FileSplit, schema: pa.Schema, block_bytes: int) -> Iterator[pa.Table]:
        path = chunk.file.path
        split = self.planned[path].split
        if split is not None:
            assert self.foreign is not None
            rows = self.foreign.read(path, split, chunk.row_range, schema, block_bytes)
            yield from check_row_count(chunk, rows)
        elif self.keyed:
            kind = pa.field(VALUE_KIND.name, VALUE_KIND.type)
            for table in super().decoded(chunk, pa.schema([*schema, kind]), block_bytes):
                _check_kinds(table[VALUE_KIND.name], chunk)
                yield table.select(schema.names)
        else:
            yield from super().decoded(chunk, schema, block_bytes)

    def stored_groups(self, file: DataFileInfo) -> RowGroups | None:
        planned = self.planned[file.path]
        if planned.split is None:
            return super().stored_groups(file)
        if planned.format in _BY_ROWS or planned.rows is None:
            return None
        return RowGroups.of([planned.rows], [file.file_size or 0])


def _check_kinds(kinds: pa.ChunkedArray, chunk: FileSplit) -> None:
    """Raise an error for rows that remove others; files that need no merging must not have them."""
    if pc.any(pc.is_in(kinds, pa.array([1, 3], pa.int8()))).as_py():
        raise ReadError(
            f"{chunk}: a compacted file has rows that delete others: the table is damaged, or was "
            "written in an unknown way"
        )
