"""An Iceberg table: its snapshots, what there is to read in them, and their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.dataset as ds
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import bind
from pyiceberg.table import Table

from headrace.errors import FileChangedError, HeadraceError, OptionError, ReadError
from headrace.model import (
    DataFileInfo,
    FileList,
    FileSplit,
    IcebergDataFileInfo,
    Int64Array,
)
from headrace.sources.files.filters import columns_of, settle_filter
from headrace.sources.files.protocol import Format
from headrace.sources.files.schemas import project
from headrace.sources.iceberg.catalog import (
    LISTED,
    Pinned,
    is_known,
    load_table,
    pin,
    pin_again,
    reading_metadata,
    table_options,
)
from headrace.sources.iceberg.delete_files import deleted, live
from headrace.sources.iceberg.deletes import DeletesOf
from headrace.sources.iceberg.planning import FORMATS, PlannedFile, plan_files, with_row_groups
from headrace.sources.iceberg.schema import (
    IcebergWords,
    column_of,
    name_mapping,
    prunable_columns,
    table_columns,
)
from headrace.sources.reader import Discovered, TabularReader
from headrace.sources.tables.columns import Column
from headrace.sources.tables.rows import FileKind, TableSource, kinds_of
from headrace.sources.tables.table import (
    Wanted,
    in_partitions,
    pruning_predicate,
    store_of,
    store_path,
    table_schema,
)
from headrace.sources.tables.vectors import live_count
from headrace.storage import Access, Store

__all__ = ["IcebergTable", "Scan", "Wanted"]

_EQUALITY_COLUMN = "\0equality {}"
"""name under which a column is read that decides which rows are deleted, by its field id"""


@dataclass(frozen=True, slots=True)
class Scan:
    """The rows and columns that are wanted of a snapshot.

    Attributes:
        columns: Names of columns; None: all of them.
        filter: What rows are kept.
        scan_filter: Prunes files, in place of what follows from the filter.
        split_rows: Number of rows of a chunk.
        split_bytes: Size of a chunk, if ``split_rows`` is not given.
        access: How files are reached, with options that the catalog gave if the user gave none.
    """

    columns: Sequence[str] | None
    filter: ds.Expression | None
    scan_filter: BooleanExpression | None
    split_rows: int | None
    split_bytes: int
    access: Callable[[Callable[[], Mapping[str, Any]]], Access]

    def is_cut(self, file: DataFileInfo) -> bool:
        """Return True if a file becomes several chunks, which should end where row groups do."""
        if self.split_rows is not None:
            return (file.record_count or 0) > self.split_rows
        return (file.file_size or 0) > self.split_bytes


class IcebergTable:
    """A table and what is wanted of it. Bound to its process, as the catalog is."""

    def __init__(
        self,
        name: str,
        config: Mapping[str, Any] | Catalog | None,
        wanted: Wanted,
        scan: Scan,
    ) -> None:
        if scan.scan_filter is not None and not isinstance(scan.scan_filter, BooleanExpression):
            raise OptionError(
                f"scan_filter must be a pyiceberg expression, not {scan.scan_filter!r}; a pyarrow "
                "expression is given as filters"
            )
        self._name = name
        self._config = config
        self._wanted = wanted
        self._scan = scan
        self._table: Table = load_table(name, config)

    def newest(self, *, reload: bool = False) -> tuple[int, int]:
        """Return the ids of the snapshot that is wanted, and of the schema that goes with it."""
        if reload:
            self._table = load_table(self._name, self._config)
        return pin(self._name, self._table, self._wanted).version

    def discover(self, version: tuple[int, int]) -> Discovered:
        """Return what there is to read in a snapshot, which may be younger than what was loaded."""
        if is_known(self._table, version):
            try:
                return self._discover(version)
            except ReadError:
                # Keys that the catalog lent when the table was loaded may have expired.
                if not isinstance(self._table.catalog, RestCatalog):
                    raise
        self._table = load_table(self._name, self._config)
        return self._discover(version)

    def _discover(self, version: tuple[int, int]) -> Discovered:
        pinned = pin_again(self._name, self._table, version)
        return reading_metadata(self._name, self._table, lambda: _discover(pinned, self._scan))


def _discover(pinned: Pinned, scan: Scan) -> Discovered:
    """Plan from manifests; footers are read only of files that are cut, or filtered inside."""
    columns = {column.name: column for column in table_columns(pinned.schema)}
    whole = table_schema(columns)
    output = project(whole, scan.columns)
    keep = None if scan.filter is None else settle_filter(scan.filter, whole)
    planned = _plan(pinned, scan.scan_filter, keep)
    location = pinned.table.metadata.location
    access, store = store_of(
        pinned.name,
        [file.info.path for file in planned] or [store_path(location)],
        scan.access,
        lambda protocol: table_options(pinned.table, protocol),
    )
    needed = [] if keep is None else [columns[name] for name in columns_of(keep, whole)]
    by_partition = all(column.id in file.constants for file in planned for column in needed)
    if keep is not None and needed and by_partition:
        planned = in_partitions(keep, needed, planned)
        keep, needed = None, []
    files = [file.info for file in planned]
    inside = [
        at
        for at, file in enumerate(planned)
        if file.row_groups != 1 and (keep is not None or scan.is_cut(file.info))
    ]
    looked_at = with_row_groups(store, [planned[at] for at in inside], keep, needed)
    for at, info in zip(inside, looked_at, strict=True):
        files[at] = info
    has_deletes, counted = any(file.deletes for file in planned), False
    by_values = any(file.deletes.field_ids for file in planned)
    if keep is not None and not by_values and _all_settled(files):
        keep, needed = None, []
        files = [_counting_groups(file) for file in files]
    elif keep is None and has_deletes and all(file.deletes.counted for file in planned):
        files = [_live(store, file, one.deletes) for file, one in zip(files, planned, strict=True)]
        has_deletes, counted = False, True
    names = {*output.names, *(column.name for column in needed)}
    read_schema = pa.schema([one for one in whole if one.name in names])
    listed = FileList(files)
    source = _source(pinned, planned, columns, store, listed, counted=counted)
    return Discovered(
        TabularReader(source, output, read_schema, keep),
        listed,
        roots=[store_path(location)],
        filter=scan.filter,
        counts=access.meter.drain(),
        version=pinned.version,
        has_deletes=has_deletes,
    )


def _plan(
    pinned: Pinned, scan_filter: BooleanExpression | None, keep: ds.Expression | None
) -> list[PlannedFile]:
    row_filter: BooleanExpression | None = None
    if scan_filter is not None:
        row_filter = _checked(scan_filter, pinned)
    elif keep is not None:
        row_filter = pruning_predicate(IcebergWords(), prunable_columns(pinned.schema), keep)
    try:
        return plan_files(pinned, AlwaysTrue() if row_filter is None else row_filter)
    except ValueError as error:
        if isinstance(error, HeadraceError):
            raise
        raise ReadError(
            f"table {pinned.name!r}: the lists of files of snapshot {pinned.snapshot_id} are "
            f"damaged, or of a kind that pyiceberg does not know: {type(error).__name__}: {error}"
        ) from error


def _checked(scan_filter: BooleanExpression, pinned: Pinned) -> BooleanExpression:
    try:
        bind(pinned.schema, scan_filter, case_sensitive=True)
    except (ValueError, TypeError) as error:
        raise OptionError(
            f"scan_filter {scan_filter} does not fit table {pinned.name!r}: {error}"
        ) from error
    return scan_filter


def _all_settled(files: Sequence[IcebergDataFileInfo]) -> bool:
    """Return True if statistics have settled a filter: no row is left that it would drop."""
    groups = [file.row_groups for file in files]
    return bool(groups) and all(one is not None and one.settled.all() for one in groups)


def _live(store: Store, file: IcebergDataFileInfo, deletes: DeletesOf) -> IcebergDataFileInfo:
    """Return a file that counts its live rows.

    Its row groups count all rows and are left out: readers look for them.
    """
    if deletes.vector is None:
        return file
    live = live_count(store, deletes.vector, file.path, file.record_count or 0)
    return replace(file, record_count=live, row_groups=None)


def _counting_groups(file: IcebergDataFileInfo) -> IcebergDataFileInfo:
    assert file.row_groups is not None
    return replace(file, record_count=int(file.row_groups.rows.sum()))


# --- rows


def _source(
    pinned: Pinned,
    planned: Sequence[PlannedFile],
    columns: Mapping[str, Column],
    store: Store,
    files: FileList,
    *,
    counted: bool,
) -> IcebergSource:
    kinds, kind_of = kinds_of(
        (
            file.info.path,
            (file.format, id(file.deletes), id(file.constants)),
            FileKind(file.format, file.constants, file.deletes),
        )
        for file in planned
    )
    names = name_mapping(pinned.table.metadata)
    ids = {column for kind in kinds for column in kind.deletes.field_ids}
    hidden = {_EQUALITY_COLUMN.format(column): _by_id(pinned, column) for column in ids}
    known = () if names is None else tuple(sorted(names.items()))
    return IcebergSource(
        store,
        table_schema(columns),
        files,
        f"{pinned.table.metadata.table_uuid} {pinned.schema.schema_id} {hash(known)}",
        {**columns, **hidden},
        kinds,
        kind_of,
        {file.info.path: file.info.record_count or 0 for file in planned},
        {} if names is None else {-1: names},
        {file.info.path: file.path for file in planned if file.info.path != file.path},
        counted=counted,
    )


def _by_id(pinned: Pinned, column: int) -> Column:
    """Return a column by whose values rows are deleted, which the table may have dropped since."""
    schemas = [pinned.schema, *reversed(pinned.table.metadata.schemas)]
    for schema in schemas:
        if column in schema.field_ids:
            return column_of(schema.find_field(column))
    raise ReadError(
        f"table {pinned.name!r} has rows deleted by the field id {column}, and no schema with "
        "such a field: the table is damaged"
    )


@dataclass(frozen=True)
class IcebergSource(TableSource):
    """Rows of one snapshot.

    Columns by whose values rows are deleted are read under hidden names, and dropped again.

    Attributes:
        written_paths: Paths as the table's metadata has them, where the store has others.
    """

    written_paths: Mapping[str, str] = field(repr=False)

    formats: ClassVar[Mapping[str, Format]] = FORMATS

    def read(self, chunk: FileSplit, schema: pa.Schema, block_bytes: int) -> Iterator[pa.Table]:
        with _listed():
            if self.counted:
                yield from super().read(chunk, schema, block_bytes)
            else:
                yield from self._live(chunk, schema, block_bytes)

    def _live(self, chunk: FileSplit, schema: pa.Schema, block_bytes: int) -> Iterator[pa.Table]:
        """Yield the rows of a chunk, whose range counts stored rows, that are not deleted."""
        deletes = self.kind(chunk.file).deletes
        hidden = {column: _EQUALITY_COLUMN.format(column) for column in deletes.field_ids}
        fields = [pa.field(name, self.columns[name].type) for name in hidden.values()]
        file = self.as_stored(chunk.file)
        path = self.written_paths.get(chunk.file.path)
        first_row = 0 if chunk.row_range is None else chunk.row_range.offset
        for table in self._kept(chunk, pa.schema([*schema, *fields]), block_bytes):
            rows = table
            if deletes:
                rows = live(self.store, deletes, file, first_row, table, hidden, data_path=path)
            first_row += table.num_rows
            yield rows.select(schema.names) if hidden else rows

    def deleted(self, file: DataFileInfo) -> Int64Array:
        path = self.written_paths.get(file.path, file.path)
        return deleted(self.store, self.kind(file).deletes, self.rows[file.path], path)


@contextmanager
def _listed() -> Iterator[None]:
    """Say of a file that is not there, or is another, that the table's metadata lists it."""
    try:
        yield
    except FileChangedError as error:
        raise FileChangedError(f"{error}; {LISTED}") from error
