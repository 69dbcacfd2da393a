"""From the manifests of a snapshot to what is read: files, groups of files, and what is merged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pypaimon.common.predicate import Predicate
from pypaimon.manifest.manifest_list_manager import ManifestListManager
from pypaimon.manifest.schema.data_file_meta import DataFileMeta
from pypaimon.manifest.schema.manifest_file_meta import ManifestFileMeta
from pypaimon.read.scanner.file_scanner import FileScanner
from pypaimon.read.split import DataSplit
from pypaimon.schema.data_types import DataField
from pypaimon.schema.table_schema import TableSchema
from pypaimon.table.source.deletion_file import DeletionFile

from headrace.errors import ReadError
from headrace.tables.paimon.locations import store_path
from headrace.tables.paimon.schema import is_blob, is_readable_as, is_variant
from headrace.tables.paimon.snapshots import Pinned
from headrace.tables.paimon.vectors import DeletionVector

__all__ = ["OWN_FORMATS", "Plan", "Schemas", "Unit", "plan_units"]

OWN_FORMATS = ("parquet", "orc")
_APART = (".blob", ".vector")
"""endings, or parts of names, of files that hold single columns of the rows of others"""
_FINEST = {"source.split.target-size": "1 b", "source.split.open-file-cost": "1 b"}
"""under which a split is what cannot be read in parts"""


@dataclass(frozen=True, slots=True)
class Unit:
    """What is read as one file: a data file, a group of files with the same rows, or a merge."""

    path: str
    size: int
    rows: int | None
    """that are stored; None: only merging tells"""
    format: str
    schema_id: int
    partition: tuple[Any, ...]
    vector: DeletionVector | None = None
    keyed: bool = False
    """a file of a table with a key"""
    split: DataSplit | None = field(default=None, repr=False)
    """what pypaimon reads, where we do not"""


class Schemas:
    """The schemas that files of a table were written in, each of which is read once."""

    def __init__(self, pinned: Pinned) -> None:
        self._table = pinned.table
        self._known: dict[int, TableSchema] = {
            pinned.table.table_schema.id: pinned.table.table_schema
        }

    def __getitem__(self, schema_id: int) -> TableSchema:
        if schema_id not in self._known:
            found = self._table.schema_manager.get_schema(schema_id)
            if found is None:
                raise ReadError(
                    f"{self._table.identifier} has files of the schema {schema_id}, "
                    "which is not there: the table is damaged"
                )
            self._known[schema_id] = found
        return self._known[schema_id]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be read."""

    units: Sequence[Unit] = ()
    """sorted by path"""
    files: int = 0
    """data files in them"""
    files_before: int = 0
    """data files that the snapshot has"""
    files_hidden: int = 0
    """data files in the partitions to read whose rows show only when they have been compacted"""


def plan_units(
    pinned: Pinned,
    schemas: Schemas,
    wanted: Sequence[DataField],
    *,
    partitions: Predicate | None = None,
    predicate: Predicate | None = None,
) -> Plan:
    """What a snapshot has of the columns that are wanted."""
    if pinned.snapshot is None:
        return Plan()
    builder = pinned.table.copy_without_time_travel(_FINEST).new_read_builder()
    if partitions is not None:
        builder.with_partition_filter(partitions)
    if predicate is not None:
        builder.with_filter(predicate)
    scan = builder.new_scan()
    splits = scan.plan().splits()
    for split in splits:
        if not isinstance(split, DataSplit):
            raise ReadError(
                f"table {pinned.name!r}: a {type(split).__name__} is not read here, because rows "
                "or columns of it may be hidden from some users"
            )
    buckets = {(tuple(split.partition.values), split.bucket) for split in splits}
    vectors = scan.file_scanner._scan_dv_index(pinned.snapshot, buckets)
    planner = _Planner(pinned, schemas, wanted, vectors)
    units = [unit for split in splits for unit in planner.units(split)]
    manifests = ManifestListManager(pinned.table).read_all(pinned.snapshot)
    return Plan(
        sorted(units, key=lambda unit: unit.path),
        sum(len(split.files) for split in splits),
        sum(one.num_added_files - one.num_deleted_files for one in manifests),
        _hidden(scan.file_scanner, manifests),
    )


def _hidden(scanner: FileScanner, manifests: list[ManifestFileMeta]) -> int:
    """How many files a scan leaves out whatever is in them."""
    postponed, fresh = scanner.only_read_real_buckets, scanner.skip_level0
    if not scanner.table.is_primary_key_table or not (postponed or fresh):
        return 0
    found = scanner.manifest_file_manager.read_entries_parallel(
        manifests,
        lambda entry: (postponed and entry.bucket < 0) or (fresh and entry.file.level == 0),
        partition_filter=scanner.partition_key_predicate,
    )
    return len(found)


class _Planner:
    """Tells how each split is read."""

    def __init__(
        self,
        pinned: Pinned,
        schemas: Schemas,
        wanted: Sequence[DataField],
        vectors: Mapping[tuple[Any, int], Mapping[str, DeletionFile]],
    ) -> None:
        self._table = pinned.table
        self._schemas = schemas
        self._wanted = wanted
        self._vectors = vectors
        self._plain: dict[int, bool] = {}
        self._grouped = bool(pinned.table.options.data_evolution_enabled())

    def units(self, split: DataSplit) -> Iterator[Unit]:
        vectors = self._vectors.get((tuple(split.partition.values), split.bucket), {})
        if self._table.is_primary_key_table:
            yield from self._keyed(split, vectors)
        elif self._grouped:
            yield self._group(split, vectors)
        else:
            for file in split.files:
                yield self._one(split, file, vectors.get(file.file_name))

    def _keyed(self, split: DataSplit, vectors: Mapping[str, DeletionFile]) -> Iterator[Unit]:
        """Files that need no merging have been compacted: their rows are counted."""
        settled = split.raw_convertible and all(file.level > 0 for file in split.files)
        if settled and all(map(self._readable, split.files)):
            for file in split.files:
                yield self._one(split, file, vectors.get(file.file_name), keyed=True)
            return
        deleted = [vectors.get(file.file_name) for file in split.files]
        first = split.files[0]
        yield Unit(
            _path(first),
            sum(file.file_size for file in split.files),
            None,
            _format(first),
            first.schema_id,
            tuple(split.partition.values),
            keyed=True,
            split=_split(split, split.files, deleted if any(deleted) else None),
        )

    def _one(
        self,
        split: DataSplit,
        file: DataFileMeta,
        vector: DeletionFile | None,
        *,
        keyed: bool = False,
    ) -> Unit:
        """One file whose rows are the table's."""
        return Unit(
            _path(file),
            file.file_size,
            file.row_count,
            _format(file),
            file.schema_id,
            tuple(split.partition.values),
            _vector(vector),
            keyed,
            None if self._readable(file) else _split(split, [file], None, raw=True),
        )

    def _group(self, split: DataSplit, vectors: Mapping[str, DeletionFile]) -> Unit:
        """Files that hold different columns of the same rows."""
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
        return Unit(
            _path(anchor),
            sum(file.file_size for file in needed),
            anchor.row_count,
            "several" if any(map(_is_apart, needed)) else _format(anchor),
            anchor.schema_id,
            tuple(split.partition.values),
            _vector(vector),
            split=_split(split, needed, None),
        )

    def _holds_wanted(self, file: DataFileMeta) -> bool:
        ids = {field.id for field in self._fields(file)}
        return any(field.id in ids for field in self._wanted)

    def _fields(self, file: DataFileMeta) -> Sequence[DataField]:
        return list(self._schemas[file.schema_id].data_file_fields(file.write_cols))

    def _check_names(self, file: DataFileMeta) -> None:
        """pypaimon finds the columns of such files by the names that they have in the table now."""
        now = {field.name: field.id for field in self._table.fields}
        wanted = {field.id for field in self._wanted}
        for one in self._fields(file) if file.write_cols is not None else ():
            if now.get(one.name) != one.id and (one.id in wanted or one.name in now):
                raise ReadError(
                    f"{_path(file)}: the column {one.name!r} of it was renamed after some of "
                    "its rows were updated (data evolution), which is not read here; let an "
                    "engine compact the table, or leave the column out with columns="
                )

    def _readable(self, file: DataFileMeta) -> bool:
        """Whether we read the wanted columns of a file ourselves."""
        if _format(file) not in OWN_FORMATS:
            return False
        if file.schema_id not in self._plain:
            self._plain[file.schema_id] = self._is_plain(self._schemas[file.schema_id])
        return self._plain[file.schema_id]

    def _is_plain(self, schema: TableSchema) -> bool:
        before = {field.id: field.type for field in schema.fields}
        return all(
            not is_blob(field.type)
            and not is_variant(field.type)
            and (field.id not in before or is_readable_as(before[field.id], field.type))
            for field in self._wanted
        )


def _is_apart(file: DataFileMeta) -> bool:
    return any(part in file.file_name for part in _APART)


def _path(file: DataFileMeta) -> str:
    return store_path(file.external_path or file.file_path)


def _format(file: DataFileMeta) -> str:
    return str(file.file_name).rpartition(".")[2].lower()


def _vector(file: DeletionFile | None) -> DeletionVector | None:
    if file is None:
        return None
    return DeletionVector(
        store_path(file.dv_index_path), file.offset, file.length, file.cardinality
    )


def _split(
    split: DataSplit,
    files: list[DataFileMeta],
    deleted: list[DeletionFile | None] | None,
    *,
    raw: bool = False,
) -> DataSplit:
    return DataSplit(
        files, split.partition, split.bucket, raw_convertible=raw, data_deletion_files=deleted
    )
