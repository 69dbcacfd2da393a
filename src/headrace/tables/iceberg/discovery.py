"""From a pinned snapshot to all that planning and reading need."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import bind

from headrace.errors import HeadraceError, OptionError, ReadError
from headrace.formats import Discovered, TabularReader
from headrace.formats.filters import columns_of, settle_filter
from headrace.formats.schemas import project
from headrace.model import FileList, IcebergDataFileInfo
from headrace.storage import Access
from headrace.tables.columns import Column, NameMapping
from headrace.tables.iceberg.credentials import table_options
from headrace.tables.iceberg.deletes import DeletesOf, store_path
from headrace.tables.iceberg.locations import protocol_of, store_of
from headrace.tables.iceberg.partitions import settled_by_partition
from headrace.tables.iceberg.planning import PlannedFile, plan_files
from headrace.tables.iceberg.predicates import IcebergWords, prunable_columns
from headrace.tables.iceberg.row_groups import Footers
from headrace.tables.iceberg.rows import EQUALITY_COLUMN, CountedRows, FileKind, IcebergRows
from headrace.tables.iceberg.schema import column_of, name_mapping, table_columns
from headrace.tables.iceberg.snapshots import Pinned
from headrace.tables.predicates import Translator

__all__ = ["Scan", "discover_snapshot"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Scan:
    """What is wanted of a snapshot."""

    columns: Sequence[str] | None
    filter: ds.Expression | None
    scan_filter: BooleanExpression | None
    """prunes files, in place of what follows from the filter"""
    access: Callable[[Callable[[], Mapping[str, Any]]], Access]
    """how files are reached, with options that the catalog gave if the user gave none"""
    is_cut: Callable[[IcebergDataFileInfo], bool]
    """whether a file becomes several chunks, which should end where its row groups do"""


def discover_snapshot(pinned: Pinned, scan: Scan) -> Discovered:
    """Plan from manifests; footers are read only of files that are cut, or filtered inside."""
    columns = {column.name: column for column in table_columns(pinned.schema)}
    whole = pa.schema([pa.field(name, column.type) for name, column in columns.items()])
    output = project(whole, scan.columns)
    asked = scan.filter
    if asked is not None:
        scan = replace(scan, filter=settle_filter(asked, whole))
    planned = _plan(pinned, scan)
    protocol = protocol_of(pinned, planned)
    access = scan.access(lambda: table_options(pinned.table, protocol))
    store = store_of(pinned, planned, access)
    keep, planned = settled_by_partition(scan.filter, columns, planned)
    needed = [] if keep is None else columns_of(keep, whole)
    rows = _rows(pinned, planned, columns)
    files = [
        IcebergDataFileInfo(
            store_path(file.path),
            file.size,
            file.rows,
            partition=file.partition,
            snapshot_id=pinned.snapshot_id,
        )
        for file in planned
    ]
    footers = Footers(store, keep, [columns[name] for name in needed])
    inside = {
        at: file
        for at, file in enumerate(files)
        if planned[at].row_groups != 1 and (keep is not None or scan.is_cut(file))
    }
    for at, file in footers.read(inside, lambda at: planned[at].format).items():
        files[at] = file
    hidden = rows.delete_columns
    if keep is not None and not hidden and _all_settled(files):
        keep, needed = None, []
        rows = replace(rows, stored_rows={file.path: file.record_count or 0 for file in files})
        files = [_counting_groups(file) for file in files]
    has_deletes = any(kind.deletes for kind in rows.kinds)
    source: IcebergRows | CountedRows = rows
    counted = all(kind.deletes.counted for kind in rows.kinds) and not rows.stored_rows
    if keep is None and has_deletes and counted:
        rows = replace(rows, stored_rows={file.path: file.record_count or 0 for file in files})
        files = [_live(file, one.deletes) for file, one in zip(files, planned, strict=True)]
        source, has_deletes = CountedRows(rows), False
    read_schema = pa.schema(
        [
            *(column for column in whole if column.name in {*output.names, *needed}),
            *(pa.field(name, rows.columns[name].type) for name in hidden),
        ]
    )
    return Discovered(
        TabularReader(store, source, output, read_schema, keep),
        FileList(files),
        roots=[store_path(pinned.table.metadata.location)],
        filter=asked,
        counts=access.meter.drain(),
        version=pinned.version,
        has_deletes=has_deletes,
    )


def _plan(pinned: Pinned, scan: Scan) -> Sequence[PlannedFile]:
    row_filter: BooleanExpression = AlwaysTrue()
    if scan.scan_filter is not None:
        row_filter = _checked(scan.scan_filter, pinned)
    elif scan.filter is not None:
        translator = Translator(IcebergWords(), prunable_columns(pinned.schema))
        predicate = translator.predicate(scan.filter)
        row_filter = row_filter if predicate is None else predicate
        logger.info("filters prune files by %.500s", row_filter)
        for part in translator.dropped:
            logger.info("applied to rows only: %s", part)
    try:
        plan = plan_files(pinned, row_filter)
    except ValueError as error:
        if isinstance(error, HeadraceError):
            raise
        raise ReadError(
            f"table {pinned.name!r}: the lists of files of snapshot {pinned.snapshot_id} are "
            f"damaged, or of a kind that pyiceberg does not know: {type(error).__name__}: {error}"
        ) from error
    logger.info(
        "table %s, snapshot %s: %d of %d data files to read",
        pinned.name,
        pinned.snapshot_id,
        len(plan.files),
        plan.files_before,
    )
    return plan.files


def _checked(scan_filter: BooleanExpression, pinned: Pinned) -> BooleanExpression:
    try:
        bind(pinned.schema, scan_filter, case_sensitive=True)
    except (ValueError, TypeError) as error:
        raise OptionError(
            f"scan_filter {scan_filter} does not fit table {pinned.name!r}: {error}"
        ) from error
    return scan_filter


def _rows(
    pinned: Pinned, planned: Sequence[PlannedFile], columns: Mapping[str, Column]
) -> IcebergRows:
    numbers: dict[tuple[str, int, int], int] = {}
    kinds: list[FileKind] = []
    kind_of: dict[str, int] = {}
    for file in planned:
        key = file.format, id(file.deletes), id(file.constants)
        if key not in numbers:
            numbers[key] = len(kinds)
            kinds.append(FileKind(file.format, file.deletes, file.constants))
        kind_of[store_path(file.path)] = numbers[key]
    names = name_mapping(pinned.table.metadata)
    ids = {column for kind in kinds for column in kind.deletes.field_ids}
    hidden = {EQUALITY_COLUMN.format(column): _by_id(pinned, column) for column in ids}
    return IcebergRows(
        f"{pinned.table.metadata.table_uuid} {pinned.schema.schema_id} {hash(_sorted(names))}",
        {**columns, **hidden},
        kinds,
        kind_of,
        names,
        {store_path(f.path): f.path for f in planned if store_path(f.path) != f.path},
    )


def _sorted(names: NameMapping | None) -> tuple[object, ...]:
    return () if names is None else tuple(sorted(names.items()))


def _by_id(pinned: Pinned, column: int) -> Column:
    """A column by whose values rows are deleted, which the table may have dropped since."""
    schemas = [pinned.schema, *reversed(pinned.table.metadata.schemas)]
    for schema in schemas:
        if column in schema.field_ids:
            return column_of(schema.find_field(column))
    raise ReadError(
        f"table {pinned.name!r} has rows deleted by the field id {column}, and no schema with "
        "such a field: the table is damaged"
    )


def _all_settled(files: Sequence[IcebergDataFileInfo]) -> bool:
    """Whether statistics have settled a filter: there is no row left that it would drop."""
    groups = [file.row_groups for file in files]
    return bool(groups) and all(one is not None and one.settled.all() for one in groups)


def _live(file: IcebergDataFileInfo, deletes: DeletesOf) -> IcebergDataFileInfo:
    """Return a file that counts its live rows.

    Its row groups count all rows and are left out: readers look for them.
    """
    if deletes.vector is None:
        return file
    live = (file.record_count or 0) - deletes.vector.cardinality
    if live < 0:
        raise ReadError(
            f"{deletes.vector.path} deletes {deletes.vector.cardinality} rows of {file.path}, "
            f"which has {file.record_count}: the table is damaged"
        )
    return replace(file, record_count=live, row_groups=None)


def _counting_groups(file: IcebergDataFileInfo) -> IcebergDataFileInfo:
    assert file.row_groups is not None
    return replace(file, record_count=int(file.row_groups.rows.sum()))
