"""Calls of pypaimon beyond its documented interface, and rows that pypaimon itself reads.

pypaimon documents catalogs, read builders, scans and splits. Planning by files needs more, which
may change with every release: all such calls are in this module. They were tested with pypaimon
2.1, the version that the dependency requires.

* ``FileStoreTable._copy_with_snapshot``: a table that is read at a snapshot, even if others are
  committed. The option ``scan.snapshot-id`` does not work for a snapshot kept only by a tag.
* The constructor of ``FileStoreTable``: a table in an older schema with its current options.
* ``FileScanner._scan_dv_index``: the places of the deletion vectors of files, by bucket. Splits
  leave them out if pypaimon would not apply them itself.
* ``ManifestListManager`` and ``FileScanner``: the number of files of a snapshot, and of files
  that a scan leaves out until they are compacted.
* ``IndexedSplit``: some rows of a split.
* ``BatchWriteBuilder._with_commit_user``: a commit that can be recognised and is not done twice.
* ``RESTTokenFileIO.valid_token``: temporary keys from a REST catalog, with their expiry time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pypaimon.common.file_io import FileIO
from pypaimon.common.predicate import Predicate
from pypaimon.globalindex.indexed_split import IndexedSplit
from pypaimon.manifest.manifest_list_manager import ManifestListManager
from pypaimon.manifest.schema.manifest_file_meta import ManifestFileMeta
from pypaimon.read.scanner.file_scanner import FileScanner
from pypaimon.read.split import DataSplit
from pypaimon.schema.table_schema import TableSchema
from pypaimon.snapshot.snapshot import Snapshot
from pypaimon.table.file_store_table import FileStoreTable
from pypaimon.table.source.deletion_file import DeletionFile
from pypaimon.utils.range import Range

from headrace.errors import AccessDeniedError, FileChangedError, MissingExtraError, ReadError
from headrace.model import RowRange
from headrace.sources.files.protocol import in_blocks, rows_only
from headrace.sources.files.schemas import align
from headrace.sources.tables._catalog import Failures, explain_errors
from headrace.storage import PYARROW_CLIENTS, Redaction, protocol_of

_FINEST = {"source.split.target-size": "1 b", "source.split.open-file-cost": "1 b"}
"""Options with which each split is the smallest unit that can be read."""
_FAILURES: Failures = (
    (
        (ModuleNotFoundError,),
        MissingExtraError,
        "{what}: pypaimon reads such files with a package that is not installed: {reason}",
    ),
    (
        (FileNotFoundError,),
        FileChangedError,
        "{what}: a file vanished after it was discovered ({reason}); make a new dataset to read "
        "the table as it is",
    ),
    (
        (PermissionError,),
        AccessDeniedError,
        "{what}: access is refused ({reason}); check the credentials in catalog_options",
    ),
    (
        (RuntimeError, OSError, ValueError, TypeError, KeyError, ImportError, pa.ArrowException),
        ReadError,
        "{what}: {reason}",
    ),
)
"""Meanings of errors while rows are read."""


# --- tables at snapshots


def at_snapshot(table: FileStoreTable, snapshot: Snapshot | None) -> FileStoreTable:
    """Return a table that is read at a snapshot."""
    return table._copy_with_snapshot(snapshot)


def in_schema(table: FileStoreTable, schema: TableSchema) -> FileStoreTable:
    """Return a table in one of its schemas, with its current options."""
    return FileStoreTable(
        table.file_io,
        table.identifier,
        table.table_path,
        schema.copy(new_options=table.table_schema.options),
        table.catalog_environment,
    )


def check_merging(table: FileStoreTable) -> None:
    """Check that pypaimon merges the rows of a table as the table's options require.

    Raises:
        NotImplementedError: pypaimon merges them in another way.
    """
    table.new_read_builder().new_read()
    options = table.options.options.to_map()
    for name in ("ignore-delete", "deduplicate.ignore-delete"):
        if (
            str(options.get(name)).lower() == "true"
            and table.options.merge_engine() == "deduplicate"
        ):
            raise NotImplementedError(f"the option {name}, under which pypaimon still deletes rows")


# --- credentials


def lends_options(file_io: FileIO) -> bool:
    """Return True if the catalog gives temporary keys for the files of a table."""
    return hasattr(file_io, "valid_token")


def lent_options(file_io: Any) -> tuple[Mapping[str, str], float]:
    """Return keys that are valid now, and when they expire, in seconds since 1970."""
    token = file_io.valid_token()
    return token.token, token.expire_at_millis / 1000


# --- files of a snapshot


@dataclass(frozen=True, slots=True)
class SnapshotScan:
    """The files of a snapshot, by its manifests.

    Attributes:
        splits: The splits with their files; each split must be read as a whole.
        vectors: Deletion vectors by the name of their data file, by partition and bucket.
        files_before: Number of data files of the snapshot.
        files_hidden: Number of data files whose rows are visible only after compaction.
    """

    splits: Sequence[DataSplit]
    vectors: Mapping[tuple[Any, int], Mapping[str, DeletionFile]]
    files_before: int
    files_hidden: int


def scan_files(
    name: str,
    table: FileStoreTable,
    snapshot: Snapshot,
    predicate: Predicate | None,
) -> SnapshotScan:
    """Return the files of a snapshot that may hold rows for a predicate."""
    builder = table.copy_without_time_travel(_FINEST).new_read_builder()
    if predicate is not None:
        builder.with_filter(predicate)
    scan = builder.new_scan()
    splits = scan.plan().splits()
    for split in splits:
        if not isinstance(split, DataSplit):
            raise ReadError(
                f"table {name!r}: a {type(split).__name__} is not supported, because its rows or "
                "columns may be hidden from some users"
            )
    buckets = {(tuple(split.partition.values), split.bucket) for split in splits}
    manifests = ManifestListManager(table).read_all(snapshot)
    return SnapshotScan(
        splits,
        scan.file_scanner._scan_dv_index(snapshot, buckets),
        sum(one.num_added_files - one.num_deleted_files for one in manifests),
        _hidden(scan.file_scanner, manifests),
    )


def _hidden(scanner: FileScanner, manifests: list[ManifestFileMeta]) -> int:
    """Return the number of files that a scan leaves out, regardless of their contents."""
    postponed, fresh = scanner.only_read_real_buckets, scanner.skip_level0
    if not scanner.table.is_primary_key_table or not (postponed or fresh):
        return 0
    found = scanner.manifest_file_manager.read_entries_parallel(
        manifests,
        lambda entry: (postponed and entry.bucket < 0) or (fresh and entry.file.level == 0),
        partition_filter=scanner.partition_key_predicate,
    )
    return len(found)


# --- rows that pypaimon reads


@dataclass(frozen=True, slots=True)
class ForeignRows:
    """Rows that pypaimon reads: merged rows, and those of formats that only pypaimon reads.

    Attributes:
        table: The table, which holds the options of the catalog.
        hidden: Hides the secrets of the catalog in errors.
    """

    table: FileStoreTable = field(repr=False)
    hidden: Redaction = field(default_factory=Redaction, repr=False)

    def read(
        self,
        path: str,
        split: DataSplit,
        rows: RowRange | None,
        schema: pa.Schema,
        block_bytes: int,
    ) -> Iterator[pa.Table]:
        """Yield the rows of a split.

        Args:
            path: The path of its first file.
            split: The split.
            rows: Rows by their position in the split, including deleted ones; None for all.
            schema: The columns.
            block_bytes: Approximate size of a table in bytes.
        """
        note_use(path)
        where = path if rows is None else f"{path}, rows {rows.offset}-{rows.stop}"
        wanted = split if rows is None else _rows_of_split(split, rows)
        tables = in_blocks(self._tables(wanted, schema), block_bytes)
        while (table := self._next(tables, where)) is not None:
            yield align(table, schema, {}, where) if len(schema) else table

    def _tables(self, split: Any, schema: pa.Schema) -> Iterator[pa.Table]:
        names = list(schema.names) or [self._counted]
        builder = self.table.new_read_builder().with_projection(names)
        reader = builder.new_read().to_arrow_batch_reader([split], parallelism=1)
        for batch in reader:
            yield pa.Table.from_batches([batch]) if len(schema) else rows_only(batch.num_rows)

    @property
    def _counted(self) -> str:
        """A column for counting rows: without columns, pypaimon counts no rows in some formats."""
        fixed = ("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "BOOLEAN", "DATE")
        names = [one.name for one in self.table.fields if str(one.type).split()[0] in fixed]
        return str([*self.table.primary_keys, *names, self.table.fields[0].name][0])

    def _next(self, tables: Iterator[pa.Table], where: str) -> pa.Table | None:
        """Return the next table, with errors of pypaimon as ours."""
        return explain_errors(where, self.hidden, lambda: next(tables, None), _FAILURES)


def note_use(path: str) -> None:
    """Note that pypaimon reads files with pyarrow, which does not survive a fork unless local."""
    if protocol_of(path):
        PYARROW_CLIENTS.use()


def _rows_of_split(split: DataSplit, rows: RowRange) -> IndexedSplit:
    """Return a split of some rows, by their row ids if the table tracks them."""
    starts = [file.first_row_id for file in split.files if file.first_row_id is not None]
    base = min(starts, default=0)
    return IndexedSplit(split, [Range(base + rows.offset, base + rows.stop - 1)])
