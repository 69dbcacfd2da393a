"""A Paimon table: its snapshots, what there is to read in them, and their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pypaimon.table.file_store_table import FileStoreTable

from headrace.errors import OptionError, ReadError
from headrace.model import DataFileInfo, FileList, FileSplit, Int64Array, RowGroups
from headrace.sources.files.filters import columns_of, settle_filter
from headrace.sources.files.schemas import project
from headrace.sources.paimon.catalog import (
    Pinned,
    failures,
    load_table,
    pin,
    pin_again,
    storage_options,
)
from headrace.sources.paimon.native import ForeignRows
from headrace.sources.paimon.planning import Schemas, Unit, plan_units
from headrace.sources.paimon.schema import (
    VALUE_KIND,
    PaimonWords,
    name_mapping,
    table_columns,
    wanted_partitions,
)
from headrace.sources.reader import Discovered, TabularReader
from headrace.sources.tables.columns import Column
from headrace.sources.tables.rows import FileKind, TableSource, kinds_of
from headrace.sources.tables.table import (
    Wanted,
    explained,
    hiding,
    in_partitions,
    pruning_predicate,
    store_of,
    store_path,
    table_schema,
)
from headrace.sources.tables.vectors import DeletionVector, deleted_rows, live_count
from headrace.storage import Access, Store

__all__ = ["PaimonTable", "Scan", "Wanted"]

T = TypeVar("T")

_BY_ROWS = ("row", "several")
"""formats of which pypaimon reads some rows without the others"""


@dataclass(frozen=True, slots=True)
class Scan:
    """The rows and columns that are wanted of a snapshot.

    Attributes:
        columns: Names of columns; None: all of them.
        filter: What rows are kept.
        partition_filter: Which partitions are read.
        blobs: Whether to read blobs ("bytes") or where they are ("descriptors").
        catalog_options: Options for pypaimon.
        access: How files are reached, with options that the catalog gave if the user gave none.
    """

    columns: Sequence[str] | None
    filter: ds.Expression | None
    partition_filter: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
    blobs: str
    catalog_options: Mapping[str, Any] = field(repr=False)
    access: Callable[[Callable[[], Mapping[str, Any]]], Access]


class PaimonTable:
    """A table and what is wanted of it. Bound to its process, as the catalog is."""

    def __init__(self, name: str, wanted: Wanted, scan: Scan) -> None:
        if scan.blobs not in ("bytes", "descriptors"):
            raise OptionError(f'blobs must be "bytes" or "descriptors", not {scan.blobs!r}')
        self._name = name
        self._wanted = wanted
        self._scan = scan
        self._table: FileStoreTable = load_table(name, scan.catalog_options)
        self._hidden = hiding(scan.catalog_options)

    def newest(self, *, reload: bool = False) -> tuple[int, int]:
        """Return the ids of the snapshot that is wanted, and of the schema that goes with it."""
        if reload:
            self._table = load_table(self._name, self._scan.catalog_options)
        return self._explained(lambda: pin(self._name, self._table, self._wanted).version)

    def discover(self, version: tuple[int, int]) -> Discovered:
        """Return what there is to read in a snapshot."""
        return self._explained(
            lambda: _discover(pin_again(self._name, self._table, version), self._scan)
        )

    def _explained(self, action: Callable[[], T]) -> T:
        return explained(f"table {self._name!r}", self._hidden, action, failures)


def _discover(pinned: Pinned, scan: Scan) -> Discovered:
    """Plan from manifests alone: no data file is opened."""
    columns = table_columns(pinned.table.fields, scan.columns)
    whole = table_schema(columns)
    output = project(whole, scan.columns)
    keep = None if scan.filter is None else settle_filter(scan.filter, whole)
    needed = [] if keep is None else columns_of(keep, whole)
    by_partition = bool(needed) and set(needed) <= set(pinned.table.partition_keys)
    read_names = {*output.names, *(() if by_partition else needed)}
    read_schema = pa.schema([one for one in whole if one.name in read_names])
    schemas = Schemas(pinned)
    units = _plan(pinned, scan.partition_filter, keep, schemas, read_schema, columns)
    if keep is not None and by_partition:
        keep, units = None, in_partitions(keep, [columns[name] for name in needed], units)
    access, store = store_of(
        pinned.name,
        [unit.path for unit in units] or [store_path(pinned.table.table_path)],
        scan.access,
        lambda protocol: storage_options(scan.catalog_options, pinned.table.file_io, protocol),
    )
    files = FileList([_file(unit, store) for unit in units])
    source = _source(pinned, scan, units, schemas, columns, store, files)
    return Discovered(
        TabularReader(source, output, read_schema, keep),
        files,
        roots=[store_path(pinned.table.table_path)],
        filter=scan.filter,
        counts=access.meter.drain(),
        version=pinned.version,
    )


def _plan(
    pinned: Pinned,
    partition_filter: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
    keep: ds.Expression | None,
    schemas: Schemas,
    read_schema: pa.Schema,
    columns: Mapping[str, Column],
) -> Sequence[Unit]:
    fields = [field for field in pinned.table.fields if field.name in read_schema.names]
    builder = pinned.table.new_read_builder().new_predicate_builder()
    partitions = wanted_partitions(partition_filter, pinned.table.partition_keys, columns, builder)
    predicate = None
    if keep is not None:
        types = _comparable(pinned, columns)
        predicate = pruning_predicate(PaimonWords(builder), types, keep)
    return plan_units(pinned, schemas, fields, partitions=partitions, predicate=predicate)


def _comparable(pinned: Pinned, columns: Mapping[str, Column]) -> dict[str, pa.DataType]:
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


def _file(unit: Unit, store: Store) -> DataFileInfo:
    live = unit.rows
    if unit.vector is not None and live is not None:
        live = live_count(store, unit.vector, unit.path, live)
    return DataFileInfo(unit.path, unit.size, live, splittable=live is not None)


# --- rows


def _source(
    pinned: Pinned,
    scan: Scan,
    units: Sequence[Unit],
    schemas: Schemas,
    columns: Mapping[str, Column],
    store: Store,
    files: FileList,
) -> PaimonSource:
    kinds, kind_of = kinds_of(
        (
            unit.path,
            (unit.format, unit.schema_id, id(unit.constants)),
            FileKind(unit.format, unit.constants, schema_id=unit.schema_id),
        )
        for unit in units
    )
    table = pinned.table
    if scan.blobs == "descriptors":
        table = table.copy_without_time_travel({"blob-as-descriptor": "true"})
    splits = {unit.path: unit.split for unit in units if unit.split is not None}
    return PaimonSource(
        store,
        table_schema(columns),
        files,
        f"{pinned.table.table_path} {pinned.version}",
        {**columns, VALUE_KIND.name: VALUE_KIND},
        kinds,
        kind_of,
        {unit.path: unit.rows for unit in units if unit.rows is not None},
        {
            schema_id: name_mapping(schemas[schema_id].fields, without=pinned.table.partition_keys)
            for schema_id in {kind.schema_id for kind in kinds}
        },
        {unit.path: unit.vector for unit in units if unit.vector is not None},
        pinned.table.is_primary_key_table,
        ForeignRows(table, splits, hiding(scan.catalog_options)) if splits else None,
        counted=True,
    )


@dataclass(frozen=True)
class PaimonSource(TableSource):
    """Rows of one snapshot.

    Attributes:
        vectors: Deletion vectors by the path of their data file.
        keyed: Whether each row says if it is there, or takes one away.
        foreign: Reads files that are left to pypaimon.
    """

    vectors: Mapping[str, DeletionVector] = field(repr=False)
    keyed: bool
    foreign: ForeignRows | None

    by_name: ClassVar[bool] = True  # ids in files of some writers are of other kinds

    def decoded(self, chunk: FileSplit, schema: pa.Schema, block_bytes: int) -> Iterator[pa.Table]:
        if self.foreign is not None and chunk.file.path in self.foreign.splits:
            rows, wanted = 0, chunk.row_range
            for table in self.foreign.read(chunk.file.path, wanted, schema, block_bytes):
                rows += table.num_rows
                yield table
            if wanted is not None and rows != wanted.length:
                raise ReadError(f"{chunk}: the file has {rows} of these rows only")
            return
        hidden = [pa.field(VALUE_KIND.name, VALUE_KIND.type)] if self.keyed else []
        wanted_schema = pa.schema([*schema, *hidden])
        for table in super().decoded(chunk, wanted_schema, block_bytes):
            if self.keyed:
                _check_kinds(table[VALUE_KIND.name], chunk)
            yield table.select(schema.names) if self.keyed else table

    def stored_groups(self, file: DataFileInfo) -> RowGroups | None:
        if self.foreign is None or file.path not in self.foreign.splits:
            return super().stored_groups(file)
        if self.kind(file).format in _BY_ROWS or file.path not in self.rows:
            return None
        return RowGroups.of([self.rows[file.path]], [file.file_size or 0])

    def deleted(self, file: DataFileInfo) -> Int64Array:
        vector = self.vectors.get(file.path)
        if vector is None:
            return np.empty(0, np.int64)
        return deleted_rows(self.store, vector, file.path, self.rows[file.path])


def _check_kinds(kinds: pa.ChunkedArray, chunk: FileSplit) -> None:
    """Refuse rows that take others away: they have no place in files that need no merging."""
    if pc.any(pc.is_in(kinds, pa.array([1, 3], pa.int8()))).as_py():
        raise ReadError(
            f"{chunk}: there are rows that delete others in a file that was compacted: the table "
            "is damaged, or was written in a way that is not known here"
        )
