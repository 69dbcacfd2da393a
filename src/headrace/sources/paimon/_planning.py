"""From the manifests of a snapshot to what is read: files, groups of files, and what is merged."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pypaimon.common.predicate import Predicate
from pypaimon.manifest.schema.data_file_meta import DataFileMeta
from pypaimon.read.split import DataSplit
from pypaimon.schema.data_types import DataField
from pypaimon.schema.table_schema import TableSchema
from pypaimon.snapshot.snapshot import Snapshot
from pypaimon.table.file_store_table import FileStoreTable
from pypaimon.table.source.deletion_file import DeletionFile

from headrace.errors import ReadError
from headrace.sources.paimon._schema import is_blob, is_readable_as, is_variant, name_mapping
from headrace.sources.paimon.native import check_merging, scan_files
from headrace.sources.tables._catalog import Pinned, store_path
from headrace.sources.tables._columns import NameMapping
from headrace.sources.tables._rows import TableFile, TableSource
from headrace.sources.tables._table import log_plan
from headrace.sources.tables._vectors import DeletionVector

__all__ = ["PaimonFile", "PaimonSnapshot", "plan_files"]

logger = logging.getLogger(__name__)

PaimonSnapshot = Pinned[FileStoreTable, Snapshot]

_APART = (".blob", ".vector")
"""endings, or parts of names, of files that hold single columns of the rows of others"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaimonFile(TableFile):
    """A data file, a group of files with the same rows, or files whose rows are merged.

    Attributes:
        split: The split that pypaimon reads, where it is left to pypaimon.
    """

    split: DataSplit | None = field(default=None, repr=False)


def plan_files(
    pinned: PaimonSnapshot, wanted: Sequence[DataField], predicate: Predicate | None
) -> Sequence[PaimonFile]:
    """Return the files of a snapshot that hold wanted columns, sorted by path."""
    if pinned.snapshot is None:
        return ()
    scanned = scan_files(pinned.name, pinned.table, pinned.snapshot, predicate)
    files = sum(len(split.files) for split in scanned.splits)
    log_plan(pinned.name, pinned.version[0], files, scanned.files_before)
    if scanned.files_hidden:
        logger.warning(
            "table %s: %d of %d data files are not read, because the table shows their rows only "
            "after an engine has compacted them",
            pinned.name,
            scanned.files_hidden,
            scanned.files_before,
        )
    planner = _Planner(pinned, wanted, scanned.vectors)
    planned = [file for split in scanned.splits for file in planner.files(split)]
    return sorted(planned, key=lambda file: file.path)


class _Planner:
    """Decides how each split is read."""

    def __init__(
        self,
        pinned: PaimonSnapshot,
        wanted: Sequence[DataField],
        vectors: Mapping[tuple[Any, int], Mapping[str, DeletionFile]],
    ) -> None:
        self._table = pinned.table
        self._schemas = {pinned.table.table_schema.id: pinned.table.table_schema}
        self._names: dict[int, NameMapping] = {}
        self._wanted = wanted
        self._vectors = vectors
        self._plain: dict[int, bool] = {}
        self._ids = [pinned.table.field_dict[key].id for key in pinned.table.partition_keys]
        self._constants: dict[tuple[Any, ...], Mapping[int, Any]] = {}
        self._grouped = bool(pinned.table.options.data_evolution_enabled())

    def files(self, split: DataSplit) -> Iterator[PaimonFile]:
        vectors = self._vectors.get((tuple(split.partition.values), split.bucket), {})
        if self._table.is_primary_key_table:
            yield from self._keyed(split, vectors)
        elif self._grouped:
            yield self._group(split, vectors)
        else:
            for file in split.files:
                yield self._one(split, file, vectors.get(file.file_name))

    def _schema(self, schema_id: int) -> TableSchema:
        """Return the schema that a file was written in, which is read once."""
        if schema_id not in self._schemas:
            found = self._table.schema_manager.get_schema(schema_id)
            if found is None:
                raise ReadError(
                    f"{self._table.identifier} has files of the schema {schema_id}, "
                    "which is not there: the table is damaged"
                )
            self._schemas[schema_id] = found
        return self._schemas[schema_id]

    def _names_in(self, file: DataFileMeta) -> NameMapping:
        """Return the ids of columns by their names in a file."""
        if file.schema_id not in self._names:
            fields, keys = self._schema(file.schema_id).fields, self._table.partition_keys
            self._names[file.schema_id] = name_mapping(fields, without=keys)
        return self._names[file.schema_id]

    def _partition(self, split: DataSplit) -> Mapping[int, Any]:
        values = tuple(split.partition.values)
        return self._constants.setdefault(values, dict(zip(self._ids, values, strict=True)))

    def _keyed(self, split: DataSplit, vectors: Mapping[str, DeletionFile]) -> Iterator[PaimonFile]:
        """Plan files of which no other in the bucket has the same keys one by one.

        A file of level 0 is merged also if it is alone: pypaimon's writer does not say how many of
        its rows delete others.
        """
        settled = split.raw_convertible and all(file.level > 0 for file in split.files)
        if settled and all(map(self._readable, split.files)):
            for file in split.files:
                yield self._one(split, file, vectors.get(file.file_name))
            return
        check_merging(self._table)
        deleted = [vectors.get(file.file_name) for file in split.files]
        first = split.files[0]
        yield PaimonFile(
            path=_path(first),
            size=sum(file.file_size for file in split.files),
            rows=None,
            format=_format(first),
            names=self._names_in(first),
            constants=self._partition(split),
            split=_split(split, split.files, deleted if any(deleted) else None),
        )

    def _one(self, split: DataSplit, file: DataFileMeta, vector: DeletionFile | None) -> PaimonFile:
        """Plan one file whose rows are the table's."""
        return PaimonFile(
            path=_path(file),
            size=file.file_size,
            rows=file.row_count,
            format=_format(file),
            names=self._names_in(file),
            constants=self._partition(split),
            vector=_vector(vector),
            split=None if self._readable(file) else _split(split, [file], None, raw=True),
        )

    def _group(self, split: DataSplit, vectors: Mapping[str, DeletionFile]) -> PaimonFile:
        """Plan files that hold different columns of the same rows."""
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
        return PaimonFile(
            path=_path(anchor),
            size=sum(file.file_size for file in needed),
            rows=anchor.row_count,
            format="several" if any(map(_is_apart, needed)) else _format(anchor),
            names=self._names_in(anchor),
            constants=self._partition(split),
            vector=_vector(vector),
            split=_split(split, needed, None),
        )

    def _holds_wanted(self, file: DataFileMeta) -> bool:
        ids = {field.id for field in self._fields(file)}
        return any(field.id in ids for field in self._wanted)

    def _fields(self, file: DataFileMeta) -> Sequence[DataField]:
        return list(self._schema(file.schema_id).data_file_fields(file.write_cols))

    def _check_names(self, file: DataFileMeta) -> None:
        """Refuse renamed columns: pypaimon finds those of such files by the names of today."""
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
        """Return True if the wanted columns of a file are read without pypaimon."""
        if _format(file) not in TableSource.formats:
            return False
        if file.schema_id not in self._plain:
            self._plain[file.schema_id] = self._is_plain(self._schema(file.schema_id))
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
    return DeletionVector(file.dv_index_path, file.offset, file.length, file.cardinality)


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
