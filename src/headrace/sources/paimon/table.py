"""A Paimon table: its snapshots, what there is to read in them, and their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pypaimon.snapshot.snapshot import Snapshot
from pypaimon.table.file_store_table import FileStoreTable

from headrace.errors import OptionError, ReadError
from headrace.model import DataFileInfo, FileSplit, RowGroups
from headrace.options import PaimonOptions
from headrace.sources.paimon._catalog import FAILURES, load_table, storage_options
from headrace.sources.paimon._planning import PaimonFile, PaimonSnapshot, plan_files
from headrace.sources.paimon._schema import (
    VALUE_KIND,
    PaimonWords,
    partition_expression,
    table_columns,
)
from headrace.sources.paimon.native import ForeignRows, at_snapshot, in_schema, note_use
from headrace.sources.tables._catalog import (
    Pinned,
    StoreAccess,
    Wanted,
    explained,
    hiding,
    no_ref,
    no_schema,
    no_snapshot,
)
from headrace.sources.tables._columns import TableColumn
from headrace.sources.tables._predicates import pruning_predicate
from headrace.sources.tables._rows import TableSource, counted_rows
from headrace.sources.tables._table import CatalogTable, SnapshotFiles

__all__ = ["PaimonTable"]

T = TypeVar("T")

_BY_ROWS = ("row", "several")
"""formats of which pypaimon reads some rows without the others"""


class PaimonTable(CatalogTable[PaimonSnapshot, PaimonFile]):
    """A table, and the wanted rows of it.

    Args:
        name: The name of the table.
        catalog_options: Options for pypaimon.
        options: The options of the dataset.
        access: Returns how files are reached.
    """

    _table: FileStoreTable

    def __init__(
        self,
        name: str,
        catalog_options: Mapping[str, Any],
        options: PaimonOptions,
        access: StoreAccess,
    ) -> None:
        if options["blobs"] not in ("bytes", "descriptors"):
            raise OptionError(f'blobs must be "bytes" or "descriptors", not {options["blobs"]!r}')
        self._descriptors = options["blobs"] == "descriptors"
        self._partition_filter = options["partition_filter"]
        self._catalog_options = catalog_options
        wanted = Wanted(options["snapshot_id"], options["tag"])
        super().__init__(name, options, wanted, access)

    def load(self) -> None:
        self._table = load_table(self._name, self._catalog_options)

    def explained(self, action: Callable[[], T]) -> T:
        hidden = hiding(self._catalog_options)
        return explained(f"table {self._name!r}", hidden, action, lambda: FAILURES)

    # --- snapshots

    def pin_wanted(self) -> PaimonSnapshot:
        """Return the snapshot that is wanted.

        The newest one is read in the table's current schema; one of the past in the schema that it
        was written in.
        """
        table, wanted = self._table, self._wanted
        if wanted.tag is not None:
            tags = table.tag_manager()
            tagged = tags.get(wanted.tag)
            if tagged is None:
                raise no_ref(self._name, "tag", wanted.tag, tags.list_tags())
            snapshot = tagged.trim_to_snapshot()
        elif wanted.snapshot_id is not None:
            snapshot = self.snapshot(wanted.snapshot_id)
        else:
            newest = table.snapshot_manager().get_latest_snapshot()
            return self.pin(newest, table.table_schema.id)
        return self.pin(snapshot, snapshot.schema_id)

    def snapshot(self, snapshot_id: int) -> Snapshot:
        """Return a snapshot, which a tag may have kept after it expired."""
        snapshots, tags = self._table.snapshot_manager(), self._table.tag_manager()
        found = snapshots.get_snapshot_by_id(snapshot_id)
        if found is not None:
            return found
        for kept in filter(None, map(tags.get, tags.list_tags())):
            if kept.trim_to_snapshot().id == snapshot_id:
                return kept.trim_to_snapshot()
        there = (one.id for one in snapshots.list_snapshots())
        raise no_snapshot(self._name, snapshot_id, there)

    def pin(self, snapshot: Snapshot | None, schema_id: int) -> PaimonSnapshot:
        """Return the table in one of its schemas, with the options that it has today."""
        table = self._table
        if schema_id != table.table_schema.id:
            schema = table.schema_manager.get_schema(schema_id)
            if schema is None:
                raise no_schema(self._name, schema_id)
            table = in_schema(table, schema)
        version = -1 if snapshot is None else snapshot.id, schema_id
        table = at_snapshot(table, snapshot)
        return Pinned(self._name, str(table.table_path), table, snapshot, version)

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
            types = _comparable(pinned, columns)
            predicate = pruning_predicate(PaimonWords(builder), types, keep)
        return plan_files(pinned, fields, predicate)

    def storage_options(self, pinned: PaimonSnapshot, protocol: str) -> Mapping[str, Any]:
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
            None if foreign is None else ForeignRows(table, hiding(self._catalog_options)),
            counted=found.counted,
        )


def _comparable(
    pinned: PaimonSnapshot, columns: Mapping[str, TableColumn]
) -> dict[str, pa.DataType]:
    """Return columns that have never changed their type: statistics are of the types of files."""
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


# --- rows


@dataclass(frozen=True)
class PaimonSource(TableSource[PaimonFile]):
    """Rows of one snapshot.

    Attributes:
        keyed: True if each row says whether it is there, or takes another one away.
        foreign: Reads files that are left to pypaimon; None if there are none.
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
            yield from counted_rows(chunk, rows)
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
    """Refuse rows that take others away: they have no place in files that need no merging."""
    if pc.any(pc.is_in(kinds, pa.array([1, 3], pa.int8()))).as_py():
        raise ReadError(
            f"{chunk}: there are rows that delete others in a file that was compacted: the table "
            "is damaged, or was written in a way that is not known here"
        )
