"""The steps that Iceberg and Paimon tables share, from a name to the rows of a snapshot.

A table is loaded from its catalog, and one of its snapshots is pinned. Its manifests list the files
to read, pruned by the filter, and their deleted rows. The steps that differ are the methods of a
subclass.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.dataset as ds

from headrace.model import DataFileInfo, FileList
from headrace.options import DatasetOptions
from headrace.sources.files.filters import columns_of, settle_filter, to_expression, values_where
from headrace.sources.files.schemas import project
from headrace.sources.source import Discovered, TabularReader
from headrace.sources.tables._catalog import (
    PinnedSnapshot,
    SnapshotChoice,
    StoreAccess,
    store_of,
    store_path,
)
from headrace.sources.tables._columns import TableColumn
from headrace.sources.tables._rows import TableFile, TableSource
from headrace.sources.tables._vectors import live_count
from headrace.storage import Options, Store

logger = logging.getLogger(__name__)


T = TypeVar("T")
P = TypeVar("P", bound=PinnedSnapshot[Any, Any])
F = TypeVar("F", bound=TableFile)


class SnapshotFiles(NamedTuple, Generic[F]):
    """All data from which a source is made.

    Attributes:
        store: Reaches the files.
        files: The files as the plan sees them.
        planned: The files as the manifests describe them, by path.
        columns: The columns of the table, by name.
        schema: The schema of these columns.
        counted: True if ``files`` count live rows.
    """

    store: Store
    files: FileList
    planned: Mapping[str, F]
    columns: Mapping[str, TableColumn]
    schema: pa.Schema
    counted: bool


class CatalogTable(ABC, Generic[P, F]):
    """A table in a catalog, and its wanted rows. It is bound to its process, as the catalog is.

    Args:
        name: The name of the table.
        options: The options of the dataset.
        choice: The snapshot that the user wants.
        access: Returns the access to the store of the files.
    """

    def __init__(
        self, name: str, options: DatasetOptions, choice: SnapshotChoice, access: StoreAccess
    ) -> None:
        self._name = name
        self._choice = choice
        self._columns = options["columns"]
        self._filter = to_expression(options["filters"])
        self._access = access
        self.load()

    def newest(self, *, reload: bool = False) -> tuple[int, int]:
        """Return the ids of the snapshot that is wanted, and of the schema that goes with it."""
        if reload:
            self.load()
        return self.ask(lambda: self._pin_chosen().version)

    def discover(self, version: tuple[int, int]) -> Discovered:
        """Return what can be read of a snapshot."""
        return self.ask(lambda: self._discover(self._pin_again(*version)))

    def _pin_chosen(self) -> P:
        """Return the snapshot that the user wants, and its schema.

        The newest snapshot of the table or of a branch is read in the table's current schema, an
        older one in the schema in which it was written.
        """
        number = self._choice.snapshot_id
        older = self.named_snapshot() if number is None else self.snapshot(number)
        if older is None:
            return self.pin(self.newest_snapshot(), self.schema_id(None))
        return self.pin(older, self.schema_id(older))

    def _pin_again(self, snapshot_id: int, schema_id: int) -> P:
        """Return a snapshot and a schema that were pinned before."""
        return self.pin(None if snapshot_id == -1 else self.snapshot(snapshot_id), schema_id)

    def _discover(self, pinned: P) -> Discovered:
        columns = self.columns(pinned)
        whole = pa.schema([pa.field(name, column.type) for name, column in columns.items()])
        output = project(whole, self._columns)
        keep = self.wanted_rows(pinned)
        keep = None if keep is None else settle_filter(keep, whole)
        needed = [] if keep is None else [columns[name] for name in columns_of(keep, whole)]
        read_schema = _part_of(whole, output, needed)
        planned = self.plan(pinned, keep, read_schema)
        by_partition = all(column.id in file.constants for file in planned for column in needed)
        if keep is not None and needed and by_partition:
            planned, keep, needed = _in_partitions(keep, needed, planned), None, []
            read_schema = _part_of(whole, output, [])
        location = store_path(pinned.location)
        access, store = store_of(
            pinned.name,
            [file.path for file in planned] or [location],
            self._access,
            lambda protocol: self.storage_options(pinned, protocol),
        )
        listed, counted = self.list_files(pinned, store, planned, keep, needed)
        files, by_path = FileList(listed), {file.path: file for file in planned}
        found = SnapshotFiles(store, files, by_path, columns, whole, counted)
        return Discovered(
            TabularReader(self.source(pinned, found), output, read_schema, keep),
            files,
            roots=[location],
            filter=self._filter,
            counts=access.meter.drain(),
            version=pinned.version,
            has_deletes=not counted and any(file.deletes or file.vector for file in planned),
        )

    # --- the steps of a table format

    @abstractmethod
    def load(self) -> None:
        """Load the table from its catalog, as it is now."""

    @abstractmethod
    def ask(self, action: Callable[[], T]) -> T:
        """Return the result of an action, with errors of the library as ours."""

    @abstractmethod
    def newest_snapshot(self) -> Any:
        """Return the newest snapshot of the table, or of the wanted branch; None without any."""

    @abstractmethod
    def named_snapshot(self) -> Any:
        """Return the snapshot that a tag or a time names; None if the user names none.

        Raises:
            NothingFoundError: There is no such tag, or no snapshot of that time.
        """

    @abstractmethod
    def snapshot(self, snapshot_id: int) -> Any:
        """Return a snapshot of the table.

        Raises:
            NothingFoundError: No snapshot has this id.
        """

    @abstractmethod
    def schema_id(self, snapshot: Any) -> int:
        """Return the id of the schema in which a snapshot was written; the current one for None."""

    @abstractmethod
    def pin(self, snapshot: Any, schema_id: int) -> P:
        """Return a snapshot (None for an empty table) in one of the schemas of the table.

        Raises:
            NothingFoundError: The schema does not exist.
        """

    @abstractmethod
    def columns(self, pinned: P) -> Mapping[str, TableColumn]:
        """Return the columns by name, in the order of the table."""

    def wanted_rows(self, pinned: P) -> ds.Expression | None:
        """Return the rows that the user wants; None for all."""
        return self._filter

    @abstractmethod
    def plan(self, pinned: P, keep: ds.Expression | None, read_schema: pa.Schema) -> Sequence[F]:
        """Return the files that may hold rows for a filter, sorted by path."""

    @abstractmethod
    def storage_options(self, pinned: P, protocol: str) -> Options:
        """Return the options that the catalog gives for files of a protocol."""

    @abstractmethod
    def source(self, pinned: P, found: SnapshotFiles[F]) -> TableSource[F]:
        """Return the source of the rows."""

    def list_files(
        self,
        pinned: P,
        store: Store,
        planned: Sequence[F],
        keep: ds.Expression | None,
        needed: Sequence[TableColumn],
    ) -> tuple[Sequence[DataFileInfo], bool]:
        """Return the files as the plan sees them, and True if they count live rows.

        By default no file is opened, and live rows are counted.

        Args:
            pinned: The snapshot.
            store: Reaches the files.
            planned: The files.
            keep: The filter.
            needed: The columns of the filter.
        """
        files = []
        for file in planned:
            live = live_count(store, file.vector, file.path, file.rows)
            files.append(DataFileInfo(file.path, file.size, live, splittable=live is not None))
        return files, True


def log_plan(table: str, snapshot: int | None, files: int, files_before: int) -> None:
    """Log how many files of a snapshot are read."""
    logger.info(
        "table %s, snapshot %s: %d of %d data files to read", table, snapshot, files, files_before
    )


def _part_of(whole: pa.Schema, output: pa.Schema, needed: Sequence[TableColumn]) -> pa.Schema:
    """Return the columns of the result and of the filter, in the table's order."""
    names = {*output.names, *(column.name for column in needed)}
    return pa.schema([one for one in whole if one.name in names])


def _in_partitions(
    keep: ds.Expression, needed: Sequence[TableColumn], files: Sequence[F]
) -> list[F]:
    """Return the files that a filter keeps, which must use only columns of partitions."""
    schema = pa.schema([(column.name, column.type) for column in needed])
    distinct = {id(file.constants): file.constants for file in files}
    values = [{c.name: one[c.id] for c in needed} for one in distinct.values()]
    kept = dict(zip(distinct, values_where(values, schema, keep), strict=True))
    return [file for file in files if kept[id(file.constants)]]
