"""The data files of a snapshot with their deletes, from manifests alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from pyiceberg.expressions import BooleanExpression
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import ManifestGroupPlanner
from pyiceberg.transforms import IdentityTransform
from pyiceberg.utils.concurrent import ExecutorFactory

from headrace.errors import ReadError
from headrace.tables.iceberg.delete_index import DeleteIndex, read_delete_entries
from headrace.tables.iceberg.deletes import NO_DELETES, DeletesOf
from headrace.tables.iceberg.rows import FORMATS
from headrace.tables.iceberg.schema import arrow_value
from headrace.tables.iceberg.snapshots import Pinned

__all__ = ["Plan", "PlannedFile", "plan_files"]


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A data file, by what its manifest says of it."""

    path: str
    size: int
    rows: int
    format: str
    row_groups: int | None
    """None where the manifest does not say how many there are"""
    deletes: DeletesOf
    partition: dict[str, Any]
    constants: Mapping[int, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a snapshot holds for a filter."""

    files: list[PlannedFile]
    """sorted by path"""
    files_before: int
    """data files of the snapshot"""


def plan_files(pinned: Pinned, row_filter: BooleanExpression) -> Plan:
    """Data files that may hold rows for the filter, and every delete that applies to them.

    Deletes are never pruned by the filter: the statistics of a delete file may be those of other
    versions of a row than the one that it deletes.
    """
    if pinned.snapshot is None:
        return Plan([], 0)
    io = pinned.table.io
    # The planner binds filters to the current schema, and a snapshot may have another one.
    metadata = pinned.table.metadata.model_copy(
        update={"current_schema_id": pinned.schema.schema_id}
    )
    manifests = pinned.snapshot.manifests(io)
    data = [one for one in manifests if one.content == ManifestContent.DATA]
    planner = ManifestGroupPlanner(metadata, io, row_filter)
    entries = list(chain.from_iterable(planner.plan_manifest_entries(data)))
    index = _deletes(
        [one for one in manifests if one.content == ManifestContent.DELETES], io, metadata.specs()
    )
    partitions = {number: _Partitions(spec) for number, spec in metadata.specs().items()}
    files = [_planned(entry, index, partitions[entry.data_file.spec_id]) for entry in entries]
    files.sort(key=lambda file: file.path)
    return Plan(files, sum(map(_live_files, data)))


def _live_files(manifest: ManifestFile) -> int:
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)


def _deletes(
    manifests: list[ManifestFile], io: FileIO, specs: Mapping[int, PartitionSpec]
) -> DeleteIndex | None:
    if not manifests:
        return None
    read = ExecutorFactory.get_or_create().map(lambda one: read_delete_entries(one, io), manifests)
    return DeleteIndex(chain.from_iterable(read), specs)


class _Partitions:
    """The partitions of one spec: their values by name, and by the id of plain columns."""

    def __init__(self, spec: PartitionSpec) -> None:
        self._names = [part.name for part in spec.fields]
        self._plain = {
            place: part.source_id
            for place, part in enumerate(spec.fields)
            if isinstance(part.transform, IdentityTransform)
        }
        self._seen: dict[tuple[Any, ...], tuple[dict[str, Any], dict[int, Any]]] = {}

    def of(self, file: DataFile) -> tuple[dict[str, Any], Mapping[int, Any]]:
        """The same two objects for all files of a partition."""
        values: tuple[Any, ...] = tuple(iter(file.partition))
        found = self._seen.get(values)
        if found is None:
            by_id = {column: arrow_value(values[place]) for place, column in self._plain.items()}
            found = dict(zip(self._names, values, strict=True)), by_id
            self._seen[values] = found
        return found


def _planned(
    entry: ManifestEntry, index: DeleteIndex | None, partitions: _Partitions
) -> PlannedFile:
    file = entry.data_file
    format_ = file.file_format.lower()
    if format_ not in FORMATS:
        raise ReadError(
            f"{file.file_path} is {format_}, and data files are read as Parquet and ORC only; "
            "rewrite the table's data files with the engine that writes it"
        )
    if file.key_metadata is not None:
        raise ReadError(f"{file.file_path} is encrypted, which is not supported")
    by_name, by_id = partitions.of(file)
    deletes = NO_DELETES
    if index is not None:
        deletes = index.of(
            file.file_path,
            sequence_number=entry.sequence_number,
            spec_id=file.spec_id,
            partition=file.partition,
        )
    return PlannedFile(
        file.file_path,
        file.file_size_in_bytes,
        file.record_count,
        format_,
        len(file.split_offsets) if file.split_offsets else None,
        deletes,
        by_name,
        by_id,
    )
