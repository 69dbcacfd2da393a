"""An Iceberg table: its snapshots, what there is to read in them, and their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import bind
from pyiceberg.table import Table

from headrace.errors import HeadraceError, NothingFoundError, OptionError, ReadError
from headrace.model import DataFileInfo, FileSplit, IcebergDataFileInfo, Int64Array
from headrace.options import IcebergOptions
from headrace.sources.files._cache import BoundedCache
from headrace.sources.files.protocol import Format
from headrace.sources.iceberg._catalog import (
    IcebergSnapshot,
    load_table,
    pin,
    pin_again,
    reading_metadata,
    schema_of,
    table_options,
)
from headrace.sources.iceberg._delete_files import (
    BLOCK_BYTES,
    CACHE_BYTES,
    FORMATS,
    equality_keys,
    positions,
)
from headrace.sources.iceberg._planning import IcebergFile, plan_files, read_row_groups
from headrace.sources.iceberg._schema import (
    IcebergWords,
    column_of,
    name_mapping,
    prunable_columns,
    table_columns,
)
from headrace.sources.reader import Discovered
from headrace.sources.tables._catalog import StoreAccess, Wanted
from headrace.sources.tables._columns import TableColumn
from headrace.sources.tables._predicates import pruning_predicate
from headrace.sources.tables._rows import TableSource
from headrace.sources.tables._table import CatalogTable, ListedFiles, SnapshotFiles, live_count_of
from headrace.storage import Store

__all__ = ["IcebergTable"]

T = TypeVar("T")

_KEY_COLUMN = "\0key {}"
"""name of a column by whose values rows are deleted, with its field id"""


class IcebergTable(CatalogTable[IcebergSnapshot, IcebergFile]):
    """A table, and the wanted rows of it.

    Args:
        name: The name of the table.
        config: Properties for pyiceberg, or a catalog.
        options: The options of the dataset.
        split_bytes: Size of a chunk, if ``split_rows`` is not given.
        access: Returns how files are reached.
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
                f"scan_filter must be a pyiceberg expression, not {self._scan_filter!r}; a pyarrow "
                "expression is given as filters"
            )
        self._config = config
        self._wanted = Wanted(
            options["snapshot_id"], options["tag"], options["branch"], options["as_of"]
        )
        self._split_rows, self._split_bytes = options["split_rows"], split_bytes
        super().__init__(name, options, access)

    def load(self) -> None:
        self._table = load_table(self._name, self._config)

    def explained(self, action: Callable[[], T]) -> T:
        return reading_metadata(self._name, self._table, action)

    def pin(self, version: tuple[int, int] | None) -> IcebergSnapshot:
        if version is None:
            return pin(self._name, self._table, self._wanted)
        return pin_again(self._name, self._table, version)

    def discover(self, version: tuple[int, int]) -> Discovered:
        """Return what there is to read in a snapshot."""
        with suppress(NothingFoundError, ReadError):
            return super().discover(version)
        # The snapshot may be younger than what was loaded, and lent keys may have expired.
        self.load()
        return super().discover(version)

    def columns(self, pinned: IcebergSnapshot) -> Mapping[str, TableColumn]:
        return {column.name: column for column in table_columns(schema_of(pinned))}

    def plan(
        self, pinned: IcebergSnapshot, keep: ds.Expression | None, read_schema: pa.Schema
    ) -> Sequence[IcebergFile]:
        row_filter = AlwaysTrue()
        if self._scan_filter is not None:
            row_filter = _checked(self._scan_filter, pinned)
        elif keep is not None:
            columns = prunable_columns(schema_of(pinned))
            row_filter = pruning_predicate(IcebergWords(), columns, keep) or row_filter
        try:
            return plan_files(pinned, row_filter)
        except ValueError as error:
            if isinstance(error, HeadraceError):
                raise
            raise ReadError(
                f"table {pinned.name!r}: the lists of files of snapshot {pinned.snapshot_id} are "
                "damaged, or of a kind that pyiceberg does not know: "
                f"{type(error).__name__}: {error}"
            ) from error

    def storage_options(self, pinned: IcebergSnapshot, protocol: str) -> Mapping[str, Any]:
        return table_options(pinned.table, protocol)

    def list_files(
        self,
        pinned: IcebergSnapshot,
        store: Store,
        planned: Sequence[IcebergFile],
        keep: ds.Expression | None,
        needed: Sequence[TableColumn],
    ) -> ListedFiles:
        """Return the files for the plan.

        Footers are read only of files that are cut, which should end where row groups do, or whose
        row groups the filter may rule out.
        """
        files = [
            IcebergDataFileInfo(
                file.path,
                file.size,
                file.rows,
                partition=file.partition,
                snapshot_id=pinned.snapshot_id,
            )
            for file in planned
        ]
        inside = [
            at
            for at, file in enumerate(planned)
            if file.row_groups != 1 and (keep is not None or self._is_cut(file))
        ]
        groups = read_row_groups(store, [planned[at] for at in inside], keep, needed)
        for at, found in zip(inside, groups, strict=True):
            files[at] = replace(files[at], row_groups=found)
        has_deletes = any(file.deletes or file.vector for file in planned)
        if keep is not None and files and all(map(_is_settled, files)):
            return ListedFiles(list(map(_counting_groups, files)), None, False, has_deletes)
        if keep is None and has_deletes and not any(file.deletes for file in planned):
            live = [_live(store, *one) for one in zip(files, planned, strict=True)]
            return ListedFiles(live, None, counted=True, has_deletes=False)
        return ListedFiles(files, keep, False, has_deletes)

    def _is_cut(self, file: IcebergFile) -> bool:
        """Return True if a file becomes several chunks."""
        if self._split_rows is not None:
            return (file.rows or 0) > self._split_rows
        return file.size > self._split_bytes

    def source(self, pinned: IcebergSnapshot, found: SnapshotFiles[IcebergFile]) -> IcebergSource:
        names = name_mapping(pinned.table.metadata)
        known = () if names is None else tuple(sorted(names.items()))
        ids = {number for file in found.planned.values() for number in file.deletes.field_ids}
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


def _checked(scan_filter: BooleanExpression, pinned: IcebergSnapshot) -> BooleanExpression:
    try:
        bind(schema_of(pinned), scan_filter, case_sensitive=True)
    except (ValueError, TypeError) as error:
        raise OptionError(
            f"scan_filter {scan_filter} does not fit table {pinned.name!r}: {error}"
        ) from error
    return scan_filter


def _is_settled(file: DataFileInfo) -> bool:
    """Return True if statistics have settled a filter: no row is left that it would drop."""
    return file.row_groups is not None and bool(file.row_groups.settled.all())


def _counting_groups(file: IcebergDataFileInfo) -> IcebergDataFileInfo:
    assert file.row_groups is not None
    return replace(file, record_count=int(file.row_groups.rows.sum()))


def _live(store: Store, file: IcebergDataFileInfo, planned: IcebergFile) -> IcebergDataFileInfo:
    """Return a file that counts its live rows.

    Its row groups count all rows and are left out: readers look for them.
    """
    if planned.vector is None:
        return file
    return replace(file, record_count=live_count_of(store, planned), row_groups=None)


def _by_id(pinned: IcebergSnapshot, column: int) -> TableColumn:
    """Return a column by whose values rows are deleted, which the table may have dropped since."""
    schemas = [schema_of(pinned), *reversed(pinned.table.metadata.schemas)]
    for schema in schemas:
        if column in schema.field_ids:
            return column_of(schema.find_field(column))
    raise ReadError(
        f"table {pinned.name!r} has rows deleted by the field id {column}, and no schema with "
        "such a field: the table is damaged"
    )


# --- rows


@dataclass(frozen=True)
class IcebergSource(TableSource[IcebergFile]):
    """Rows of one snapshot.

    Rows that are deleted by the values of columns are found once for each data file, by reading
    these columns of all of it.
    """

    formats: ClassVar[Mapping[str, Format]] = FORMATS

    def deleted(self, file: DataFileInfo) -> Int64Array:
        planned = self.planned[file.path]
        if not planned.deletes:
            with _belonging_to(planned):
                return super().deleted(file)
        named = planned.written_path, planned.deletes, planned.vector
        key = self.store.identity, self.identity, *named
        return _deleted.get_or_make(
            key, lambda: self._all_deleted(planned, file), limit_bytes=CACHE_BYTES
        )

    def _all_deleted(self, planned: IcebergFile, file: DataFileInfo) -> Int64Array:
        path, deletes = planned.written_path, planned.deletes
        names = {number: _KEY_COLUMN.format(number) for number in sorted(deletes.field_ids)}
        types = {number: self.columns[name].type for number, name in names.items()}
        with _belonging_to(planned):
            parts = [super().deleted(file)]
            for delete in deletes.naming(path):
                parts.append(positions(self.store, delete, path, record_count=planned.rows))
            keys = list(equality_keys(self.store, deletes, types))
        if keys:
            whole = FileSplit(DataFileInfo(planned.path, planned.size, planned.rows))
            schema = pa.schema([(name, types[number]) for number, name in names.items()])
            first_row = 0
            for table in self.decoded(whole, schema, BLOCK_BYTES):
                for field_ids, known in keys:
                    columns = [table[names[number]] for number in field_ids]
                    parts.append(first_row + known.matches(columns))
                first_row += table.num_rows
        return np.unique(np.concatenate(parts))


@contextmanager
def _belonging_to(file: IcebergFile) -> Iterator[None]:
    """Name the data file whose deleted rows are not known without what is read inside."""
    try:
        yield
    except ReadError as error:
        raise type(error)(f"{file.written_path}: its deletes cannot be read: {error}") from error


_deleted: BoundedCache[Int64Array] = BoundedCache(lambda found: 300 + found.nbytes)
