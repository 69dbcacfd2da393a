"""From a pinned snapshot to all that planning and reading need."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from headrace.formats import Discovered, TabularReader
from headrace.formats.filters import columns_of, settle_filter
from headrace.formats.schemas import project
from headrace.model import DataFileInfo, FileList
from headrace.storage import Access, RemoteStore, Store
from headrace.tables.columns import Column
from headrace.tables.paimon.catalog import hiding
from headrace.tables.paimon.credentials import storage_options
from headrace.tables.paimon.foreign import ForeignRows
from headrace.tables.paimon.locations import protocol_of, store_path
from headrace.tables.paimon.partitions import in_partitions, wanted_partitions
from headrace.tables.paimon.planning import Schemas, Unit, plan_units
from headrace.tables.paimon.predicates import PaimonWords
from headrace.tables.paimon.rows import FileKind, PaimonRows, StoredRows
from headrace.tables.paimon.schema import name_mapping, table_columns
from headrace.tables.paimon.snapshots import Pinned
from headrace.tables.paimon.vectors import read_vector
from headrace.tables.predicates import Translator

__all__ = ["Scan", "discover_snapshot"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Scan:
    """What is wanted of a snapshot."""

    columns: Sequence[str] | None
    filter: ds.Expression | None
    partition_filter: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
    described_blobs: bool
    """whether to say where blobs are, and not what is in them"""
    catalog_options: Mapping[str, Any] = field(repr=False)
    access: Callable[[Mapping[str, Any]], Access]
    """how files are reached, with options that the catalog gave"""


def discover_snapshot(pinned: Pinned, scan: Scan) -> Discovered:
    """Plan from manifests alone: no data file is opened."""
    columns = table_columns(pinned.table.fields, scan.columns)
    whole = pa.schema([pa.field(name, column.type) for name, column in columns.items()])
    output = project(whole, scan.columns)
    asked = scan.filter
    if asked is not None:
        scan = replace(scan, filter=settle_filter(asked, whole))
    keep, keys = scan.filter, pinned.table.partition_keys
    needed = [] if keep is None else columns_of(keep, whole)
    settled = bool(needed) and set(needed) <= set(keys)
    if settled:
        needed = []
    read_schema = pa.schema([one for one in whole if one.name in {*output.names, *needed}])
    schemas = Schemas(pinned)
    units = _plan(pinned, scan, schemas, read_schema, columns)
    if keep is not None and settled:
        keep, units = None, in_partitions(keep, keys, columns, units)
    access, store = _store(pinned, scan, units)
    files = [_file(unit, store) for unit in units]
    return Discovered(
        TabularReader(
            store,
            PaimonRows(_stored_rows(pinned, scan, units, schemas, columns)),
            output,
            read_schema,
            keep,
        ),
        FileList(files),
        roots=[store_path(pinned.table.table_path)],
        filter=asked,
        counts=access.meter.drain(),
        version=pinned.version,
    )


def _plan(
    pinned: Pinned,
    scan: Scan,
    schemas: Schemas,
    read_schema: pa.Schema,
    columns: Mapping[str, Column],
) -> Sequence[Unit]:
    fields = [field for field in pinned.table.fields if field.name in read_schema.names]
    builder = pinned.table.new_read_builder().new_predicate_builder()
    partitions = wanted_partitions(
        scan.partition_filter, pinned.table.partition_keys, columns, builder
    )
    predicate = None
    if scan.filter is not None:
        translator = Translator(PaimonWords(builder), _comparable(pinned, columns))
        predicate = translator.predicate(scan.filter)
        logger.info("filters prune files by %s", predicate)
        for part in translator.dropped:
            logger.info("applied to rows only: %s", part)
    plan = plan_units(pinned, schemas, fields, partitions=partitions, predicate=predicate)
    logger.info(
        "table %s, snapshot %s: %d of %d data files to read",
        pinned.name,
        pinned.version[0],
        plan.files,
        plan.files_before,
    )
    if plan.files_hidden:
        logger.warning(
            "table %s: %d of %d data files are not read, because the table shows their rows only "
            "after an engine has compacted them",
            pinned.name,
            plan.files_hidden,
            plan.files_before,
        )
    return plan.units


def _comparable(pinned: Pinned, columns: Mapping[str, Column]) -> dict[str, pa.DataType]:
    """Columns that have been of one type ever since: statistics of old files are of old types."""
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


def _store(pinned: Pinned, scan: Scan, units: Sequence[Unit]) -> tuple[Access, Store]:
    """The one store that holds all files."""
    paths = [unit.path for unit in units] or [store_path(pinned.table.table_path)]
    one_each = {protocol_of(path): path for path in paths}
    file_io, protocol = pinned.table.file_io, next(iter(one_each))
    access = scan.access(storage_options(scan.catalog_options, file_io, protocol))
    store = access.store_for(list(one_each.values()))[0]
    return access, replace(store, immutable=True) if isinstance(store, RemoteStore) else store


def _file(unit: Unit, store: Store) -> DataFileInfo:
    live = unit.rows
    if unit.vector is not None and live is not None:
        gone = unit.vector.cardinality
        live -= len(read_vector(store, unit.vector)) if gone is None else gone
    return DataFileInfo(unit.path, unit.size, live, splittable=live is not None)


def _stored_rows(
    pinned: Pinned,
    scan: Scan,
    units: Sequence[Unit],
    schemas: Schemas,
    columns: Mapping[str, Column],
) -> StoredRows:
    keys = pinned.table.partition_keys
    ids = [pinned.table.field_dict[key].id for key in keys]
    numbers: dict[tuple[Any, ...], int] = {}
    kinds: list[FileKind] = []
    kind_of: dict[str, int] = {}
    for unit in units:
        key = unit.format, unit.schema_id, unit.partition, unit.keyed
        if key not in numbers:
            numbers[key] = len(kinds)
            constants = dict(zip(ids, unit.partition, strict=True))
            kinds.append(FileKind(unit.format, unit.schema_id, constants, unit.keyed))
        kind_of[unit.path] = numbers[key]
    table = pinned.table
    if scan.described_blobs:
        table = table.copy_without_time_travel({"blob-as-descriptor": "true"})
    splits = {unit.path: unit.split for unit in units if unit.split is not None}
    return StoredRows(
        f"{pinned.table.table_path} {pinned.version}",
        columns,
        kinds,
        kind_of,
        {unit.path: unit.rows for unit in units if unit.rows is not None},
        {unit.path: unit.vector for unit in units if unit.vector is not None},
        {
            schema_id: name_mapping(schemas[schema_id].fields, without=keys)
            for schema_id in {kind.schema_id for kind in kinds}
        },
        ForeignRows(table, splits, hiding(scan.catalog_options)) if splits else None,
    )
