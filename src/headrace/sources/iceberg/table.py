"""An Iceberg table: its snapshots, the files and deletes of each, and their rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import chain
from typing import Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import bind
from pyiceberg.manifest import ManifestContent, ManifestEntry
from pyiceberg.schema import Schema
from pyiceberg.table import ManifestGroupPlanner, Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import IdentityTransform
from pyiceberg.utils.concurrent import ExecutorFactory

from headrace.errors import NothingFoundError, OptionError, ReadError
from headrace.model import DataFileInfo, FileSplit, IcebergDataFileInfo, Int64Array, RowGroups
from headrace.options import IcebergOptions
from headrace.sources.files.protocol import FileFacts, Format
from headrace.sources.iceberg._catalog import UNREADABLE, load_table, table_options
from headrace.sources.iceberg._deletes import (
    BLOCK_BYTES,
    FORMATS,
    DeleteIndex,
    Deletes,
    equality_deletes,
    equality_keys,
    position_deletes,
    positions,
    read_delete_entries,
    rows_with_keys,
)
from headrace.sources.iceberg._schema import (
    IcebergWords,
    arrow_value,
    column_of,
    name_mapping,
    prunable_columns,
)
from headrace.sources.source import Discovered
from headrace.sources.tables._catalog import (
    PinnedSnapshot,
    SnapshotChoice,
    StoreAccess,
    explain_errors,
    hide_secrets,
    list_last,
    no_ref,
    no_schema,
    no_snapshot,
    store_path,
)
from headrace.sources.tables._columns import NameMapping, TableColumn, field_id, nested_fields
from headrace.sources.tables._predicates import pruning_predicate
from headrace.sources.tables._rows import TableFile, TableSource, naming_the_table
from headrace.sources.tables._table import CatalogTable, SnapshotFiles, log_plan
from headrace.sources.tables._vectors import live_count
from headrace.storage import Options, Store, side_by_side

T = TypeVar("T")
IcebergSnapshot = PinnedSnapshot[Table, Snapshot]
ById = Mapping[int, Any]

_KEY_COLUMN = "\0key {}"
"""Name of a column by whose values rows are deleted, to be formatted with its field id."""
_THREADS, _REMOTE_THREADS = 16, 48


class IcebergTable(CatalogTable[IcebergSnapshot, "IcebergFile"]):
    """A table, and the wanted rows of it.

    Args:
        name: The name of the table.
        config: Properties for pyiceberg, or a catalog.
        options: The options of the dataset.
        split_bytes: Size of a chunk, if ``split_rows`` is not given.
        access: Returns the access to the store of the files.
    """

    _table: Table

    def __init__(
        self,
        name: str,
        config: Mapping[str, Any] | Catalog | None,
        options: IcebergOptions,
        split_bytes: int,
        access: StoreAccess,
    ) -> None:
        self._scan_filter = options["scan_filter"]
        if not isinstance(self._scan_filter, BooleanExpression | None):
            raise OptionError(
                f"scan_filter must be a pyiceberg expression, not {self._scan_filter!r}; give a "
                "pyarrow expression as filters="
            )
        self._config = config
        self._split_rows, self._split_bytes = options["split_rows"], split_bytes
        choice = SnapshotChoice(
            options["snapshot_id"], options["tag"], options["branch"], options["as_of"]
        )
        super().__init__(name, options, choice, access)

    def load(self) -> None:
        self._table = load_table(self._name, self._config)

    def ask(self, action: Callable[[], T]) -> T:
        what = f"table {self._name!r}: its lists of files under {self._table.metadata.location}"
        with naming_the_table():
            return explain_errors(what, hide_secrets(self._table.io.properties), action, UNREADABLE)

    def discover(self, version: tuple[int, int]) -> Discovered:
        """Return what can be read of a snapshot."""
        with suppress(NothingFoundError, ReadError):
            return super().discover(version)
        # The snapshot may be newer than the loaded table, and lent keys may have expired.
        self.load()
        return super().discover(version)

    # --- snapshots

    def newest_snapshot(self) -> Snapshot | None:
        branch = self._choice.branch
        return self._table.current_snapshot() if branch is None else self._by_ref(branch, "branch")

    def named_snapshot(self) -> Snapshot | None:
        if self._choice.tag is not None:
            return self._by_ref(self._choice.tag, "tag")
        return None if self._choice.as_of is None else self._as_of(self._choice.as_of)

    def schema_id(self, snapshot: Snapshot | None) -> int:
        known = {one.schema_id for one in self._table.metadata.schemas}
        if snapshot is None or snapshot.schema_id not in known:
            return int(self._table.schema().schema_id)
        return int(snapshot.schema_id)

    def snapshot(self, snapshot_id: int) -> Snapshot:
        found = self._table.snapshot_by_id(snapshot_id)
        if found is None:
            raise no_snapshot(self._name, snapshot_id)
        return found

    def pin(self, snapshot: Snapshot | None, schema_id: int) -> IcebergSnapshot:
        if all(one.schema_id != schema_id for one in self._table.metadata.schemas):
            raise no_schema(self._name, schema_id)
        version = -1 if snapshot is None else snapshot.snapshot_id, schema_id
        return PinnedSnapshot(self._name, self._table.location(), self._table, snapshot, version)

    def _by_ref(self, name: str, kind: str) -> Snapshot:
        """Return the snapshot of a tag or a branch."""
        refs = self._table.metadata.refs
        there = [ref for ref, one in refs.items() if one.snapshot_ref_type.value == kind]
        if name not in there:
            raise no_ref(self._name, kind, name, there)
        return self.snapshot(refs[name].snapshot_id)

    def _as_of(self, when: datetime | str | int) -> Snapshot:
        """Return the snapshot that was the newest one at a time."""
        found = self._table.snapshot_as_of_timestamp(_milliseconds(when))
        if found is None:
            oldest = (one.timestamp_ms for one in self._table.metadata.snapshots[:1])
            raise NothingFoundError(
                f"table {self._name!r} had no snapshot at {when}, or it has expired: the oldest "
                f"known snapshot is from {list_last(oldest)} (in milliseconds since 1970)"
            )
        return found

    # --- the files of a snapshot

    def columns(self, pinned: IcebergSnapshot) -> Mapping[str, TableColumn]:
        return {field.name: column_of(field) for field in _pinned_schema(pinned).fields}

    def plan(
        self, pinned: IcebergSnapshot, keep: ds.Expression | None, read_schema: pa.Schema
    ) -> Sequence[IcebergFile]:
        row_filter = AlwaysTrue()
        if self._scan_filter is not None:
            row_filter = _checked_filter(self._scan_filter, pinned)
        elif keep is not None:
            columns = prunable_columns(_pinned_schema(pinned))
            row_filter = pruning_predicate(IcebergWords(), columns, keep) or row_filter
        return plan_files(pinned, row_filter)

    def storage_options(self, pinned: IcebergSnapshot, protocol: str) -> Options:
        return table_options(pinned.table, protocol)

    def list_files(
        self,
        pinned: IcebergSnapshot,
        store: Store,
        planned: Sequence[IcebergFile],
        keep: ds.Expression | None,
        needed: Sequence[TableColumn],
    ) -> tuple[Sequence[DataFileInfo], bool]:
        """Return the files as the plan sees them, and True if they count live rows.

        Footers are read only of files that are cut, at the ends of row groups if possible, and of
        files whose row groups the filter may exclude.
        """
        inside = [
            file
            for file in planned
            if file.row_groups != 1 and (keep is not None or self._is_cut(file))
        ]
        threads = _THREADS if store.local else _REMOTE_THREADS
        groups = side_by_side(
            lambda file: _row_groups(store, file, keep, needed), inside, threads=threads
        )
        groups_of = {file.path: found for file, found in zip(inside, groups, strict=True)}
        # Without filters and other deletes than vectors, live rows are counted.
        counted = keep is None and not any(file.deletes for file in planned)
        files = [
            IcebergDataFileInfo(
                file.path,
                file.size,
                live_count(store, file.vector, file.path, file.rows) if counted else file.rows,
                # Row groups count deleted rows; readers of such a file find them in it.
                row_groups=None if counted and file.vector else groups_of.get(file.path),
                partition=file.partition,
                snapshot_id=pinned.snapshot_id,
            )
            for file in planned
        ]
        return files, counted

    def _is_cut(self, file: IcebergFile) -> bool:
        """Return True if a file becomes several chunks."""
        if self._split_rows is not None:
            return (file.rows or 0) > self._split_rows
        return file.size > self._split_bytes

    def source(self, pinned: IcebergSnapshot, found: SnapshotFiles[IcebergFile]) -> IcebergSource:
        names = name_mapping(pinned.table.metadata)
        known = () if names is None else tuple(sorted(names.items()))
        deletes = {file.deletes for file in found.planned.values()}
        ids = set(chain.from_iterable(chain.from_iterable(map(equality_deletes, deletes))))
        keys = {_KEY_COLUMN.format(number): _by_id(pinned, number) for number in ids}
        return IcebergSource(
            found.store,
            found.schema,
            found.files,
            f"{pinned.table.metadata.table_uuid} {pinned.version[1]} {hash(known)}",
            {**found.columns, **keys},
            found.planned,
            counted=found.counted,
        )


def _milliseconds(when: Any) -> int:
    """Return a time that the user gives as milliseconds since 1970."""
    if isinstance(when, str):
        try:
            when = datetime.fromisoformat(when)
        except ValueError:
            raise OptionError(
                f"as_of={when!r} is not a time in ISO 8601, such as '2026-01-31T12:00:00+00:00'"
            ) from None
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise OptionError(f"as_of={when} has no time zone; add one, such as +00:00")
        return int(when.timestamp() * 1000)
    if isinstance(when, bool) or not isinstance(when, int):
        raise OptionError(
            "as_of must be a datetime with a time zone, a time with a time zone as text, or "
            f"milliseconds since 1970, not {when!r}"
        )
    return when


def _pinned_schema(pinned: IcebergSnapshot) -> Schema:
    """Return the schema in which a snapshot is read."""
    return pinned.table.schemas()[pinned.version[1]]


def _by_id(pinned: IcebergSnapshot, column: int) -> TableColumn:
    """Return a column by whose values rows are deleted; the table may have dropped it since."""
    schemas = [_pinned_schema(pinned), *reversed(pinned.table.metadata.schemas)]
    for schema in schemas:
        if column in schema.field_ids:
            return column_of(schema.find_field(column))
    raise ReadError(
        f"table {pinned.name!r} has rows deleted by the field id {column}, and no schema with "
        "such a field: the table is damaged"
    )


def _checked_filter(scan_filter: BooleanExpression, pinned: IcebergSnapshot) -> BooleanExpression:
    """Return the user's own filter for planning, which must fit the columns of the snapshot."""
    try:
        bind(_pinned_schema(pinned), scan_filter, case_sensitive=True)
    except (ValueError, TypeError) as error:
        raise OptionError(
            f"scan_filter {scan_filter} does not fit table {pinned.name!r}: {error}"
        ) from error
    return scan_filter


# --- files


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergFile(TableFile):
    """A data file of an Iceberg table.

    Attributes:
        partition: Values of the partition by name: one object for all files of a partition.
        row_groups: Number of row groups, if the manifest gives it.
        deletes: The delete files that apply to it.
    """

    partition: dict[str, Any]
    row_groups: int | None
    deletes: Deletes


def plan_files(pinned: IcebergSnapshot, row_filter: BooleanExpression) -> list[IcebergFile]:
    """Return data files that may hold rows for a filter, sorted by path, with all their deletes.

    Deletes are never pruned by the filter, because the statistics of a delete file may describe
    another version of the row than the one that it deletes.
    """
    if pinned.snapshot is None:
        return []
    io = pinned.table.io
    # The planner binds filters to the current schema, and a snapshot may have another one.
    metadata = pinned.table.metadata.model_copy(update={"current_schema_id": pinned.version[1]})
    manifests = pinned.snapshot.manifests(io)
    data = [one for one in manifests if one.content == ManifestContent.DATA]
    planner = ManifestGroupPlanner(metadata, io, row_filter)
    entries = list(chain.from_iterable(planner.plan_manifest_entries(data)))
    deletes = [one for one in manifests if one.content == ManifestContent.DELETES]
    read = ExecutorFactory.get_or_create().map(lambda one: read_delete_entries(one, io), deletes)
    specs = metadata.specs()
    index = DeleteIndex(chain.from_iterable(read), specs)
    names = name_mapping(metadata)

    @cache
    def partition_of(spec_id: int, values: tuple[Any, ...]) -> tuple[dict[str, Any], ById]:
        fields = specs[spec_id].fields
        plain = {
            part.source_id: arrow_value(value)
            for part, value in zip(fields, values, strict=True)
            if isinstance(part.transform, IdentityTransform)
        }
        return dict(zip((part.name for part in fields), values, strict=True)), plain

    files = [_planned(entry, index, partition_of, names) for entry in entries]
    files.sort(key=lambda file: file.written_path)
    known = sum((one.added_files_count or 0) + (one.existing_files_count or 0) for one in data)
    log_plan(pinned.name, pinned.snapshot_id, len(files), known)
    return files


def _planned(
    entry: ManifestEntry,
    index: DeleteIndex,
    partition_of: Callable[[int, tuple[Any, ...]], tuple[dict[str, Any], ById]],
    names: NameMapping | None,
) -> IcebergFile:
    """Return a data file, by its entry in a manifest.

    Args:
        entry: The entry.
        index: The deletes of the snapshot.
        partition_of: Returns the values of a partition by name, and those of plain columns by id;
            the same two objects for all files of a partition.
        names: Ids by names, for files without ids.
    """
    file = entry.data_file
    format_ = file.file_format.lower()
    if format_ not in FORMATS:
        raise ReadError(
            f"{file.file_path} is {format_}, and only Parquet and ORC data files are supported; "
            "rewrite the table's data files with the engine that writes it"
        )
    if file.key_metadata is not None:
        raise ReadError(f"{file.file_path} is encrypted, which is not supported")
    by_name, by_id = partition_of(file.spec_id, tuple(iter(file.partition)))
    deletes, vector = index.of(
        file.file_path,
        sequence_number=entry.sequence_number,
        spec_id=file.spec_id,
        partition=file.partition,
    )
    return IcebergFile(
        path=store_path(file.file_path),
        size=file.file_size_in_bytes,
        rows=file.record_count,
        format=format_,
        names=names,
        constants=by_id,
        vector=vector,
        written_path=file.file_path,
        partition=by_name,
        row_groups=len(file.split_offsets) if file.split_offsets else None,
        deletes=deletes,
    )


def _row_groups(
    store: Store, file: IcebergFile, keep: ds.Expression | None, needed: Sequence[TableColumn]
) -> RowGroups | None:
    """Return the row groups of a file, without those that a filter over some columns excludes."""
    format_, info = FORMATS[file.format], DataFileInfo(file.path, file.size, file.rows)
    facts = format_.inspect(store, info, keep)
    if facts.matching is None or not all(_is_stored_as_now(facts, column) for column in needed):
        return facts.row_groups
    return facts.matching


def _is_stored_as_now(facts: FileFacts, column: TableColumn) -> bool:
    """Return True if a file has a column under the name and in the type of the table.

    Otherwise its statistics describe another column, or an expression may give another result.
    """
    place = facts.schema.get_field_index(column.name)
    return place >= 0 and _is_same_column(facts.schema.field(place), column)


def _is_same_column(stored: pa.Field, column: TableColumn) -> bool:
    """Return True if ids and types are the same, also those of all fields inside."""
    inside = nested_fields(stored.type)
    return (
        field_id(stored) == column.id
        and stored.type == column.type
        and len(inside) == len(column.children)
        and all(map(_is_same_column, inside, column.children))
    )


# --- rows


@dataclass(frozen=True)
class IcebergSource(TableSource[IcebergFile]):
    """Rows of one snapshot.

    Rows deleted by the values of columns are found once for each data file, by reading these
    columns of the whole file.
    """

    formats: ClassVar[Mapping[str, Format]] = FORMATS

    def find_deleted(self, file: IcebergFile) -> Int64Array:
        try:
            parts = [super().find_deleted(file)]
            for delete in position_deletes(file.deletes):
                found = positions(self.store, delete, file.written_path, record_count=file.rows)
                parts.append(found)
            keys = {
                tuple(map(_KEY_COLUMN.format, ids)): equality_keys(
                    self.store, deletes, [self.columns[_KEY_COLUMN.format(one)] for one in ids]
                )
                for ids, deletes in equality_deletes(file.deletes).items()
            }
        except ReadError as error:
            where = f"{file.written_path}: its deletes cannot be read"
            raise type(error)(f"{where}: {error}") from error
        names = sorted(set(chain.from_iterable(keys)))
        schema = pa.schema([(name, self.columns[name].type) for name in names])
        first_row = 0
        whole = FileSplit(DataFileInfo(file.path, file.size, file.rows))
        for rows in self.decoded(whole, schema, BLOCK_BYTES) if keys else ():
            parts += [
                first_row + rows_with_keys(rows.select(columns), known)
                for columns, known in keys.items()
            ]
            first_row += rows.num_rows
        return np.unique(np.concatenate(parts))
