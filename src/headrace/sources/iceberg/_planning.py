"""The data files of a snapshot with their deletes, from manifests, and their row groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyiceberg.expressions import BooleanExpression
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import ManifestGroupPlanner
from pyiceberg.transforms import IdentityTransform
from pyiceberg.utils.concurrent import ExecutorFactory

from headrace.errors import ReadError
from headrace.model import DataFileInfo, RowGroups
from headrace.sources.files.protocol import FileFacts
from headrace.sources.iceberg._catalog import IcebergSnapshot
from headrace.sources.iceberg._delete_files import FORMATS
from headrace.sources.iceberg._deletes import (
    NO_DELETES,
    DeleteIndex,
    DeletesOf,
    read_delete_entries,
)
from headrace.sources.iceberg._schema import arrow_value, name_mapping
from headrace.sources.tables._catalog import store_path
from headrace.sources.tables._columns import NameMapping, TableColumn, field_id, nested_fields
from headrace.sources.tables._rows import TableFile
from headrace.sources.tables._table import log_plan
from headrace.storage import Store, side_by_side

__all__ = ["IcebergFile", "plan_files", "read_row_groups"]

_THREADS = 16
_REMOTE_MANIFEST_THREADS = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergFile(TableFile):
    """A data file of an Iceberg table.

    Attributes:
        written_path: Its path as the table's metadata has it.
        partition: Values of the partition by name: one object for all files of a partition.
        row_groups: Number of row groups, if the manifest says so.
        deletes: The delete files that apply to it.
    """

    written_path: str
    partition: dict[str, Any]
    row_groups: int | None
    deletes: DeletesOf


def plan_files(pinned: IcebergSnapshot, row_filter: BooleanExpression) -> list[IcebergFile]:
    """Return data files that may hold rows for a filter, and every delete that applies to them.

    They are sorted by path.

    Deletes are never pruned by the filter: the statistics of a delete file may be those of other
    versions of a row than the one that it deletes.
    """
    if pinned.snapshot is None:
        return []
    io = pinned.table.io
    # The planner binds filters to the current schema, and a snapshot may have another one.
    metadata = pinned.table.metadata.model_copy(update={"current_schema_id": pinned.version[1]})
    manifests = pinned.snapshot.manifests(io)
    data = [one for one in manifests if one.content == ManifestContent.DATA]
    planner = ManifestGroupPlanner(metadata, io, row_filter)
    entries = list(chain.from_iterable(planner.plan_manifest_entries(data)))
    index = _deletes(
        [one for one in manifests if one.content == ManifestContent.DELETES], io, metadata.specs()
    )
    names = name_mapping(metadata)
    partitions = {number: _Partitions(spec) for number, spec in metadata.specs().items()}
    files = [
        _planned(entry, index, partitions[entry.data_file.spec_id], names) for entry in entries
    ]
    files.sort(key=lambda file: file.written_path)
    log_plan(pinned.name, pinned.snapshot_id, len(files), sum(map(_live_files, data)))
    return files


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
        """Return values by name and by column id: the same two objects for all of a partition."""
        values: tuple[Any, ...] = tuple(iter(file.partition))
        found = self._seen.get(values)
        if found is None:
            by_id = {column: arrow_value(values[place]) for place, column in self._plain.items()}
            found = dict(zip(self._names, values, strict=True)), by_id
            self._seen[values] = found
        return found


def _planned(
    entry: ManifestEntry,
    index: DeleteIndex | None,
    partitions: _Partitions,
    names: NameMapping | None,
) -> IcebergFile:
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
    deletes, vector = NO_DELETES, None
    if index is not None:
        deletes, vector = index.of(
            file.file_path,
            sequence_number=entry.sequence_number,
            spec_id=file.spec_id,
            partition=file.partition,
        )
    return IcebergFile(
        path=store_path(file.file_path),
        size=file.file_size_in_bytes,
        rows=file.record_count,
        format=format_,
        names=names,
        constants=by_id,
        vector=vector,
        written_path=file.file_path,
        partition=by_name,
        row_groups=len(file.split_offsets) if file.split_offsets else None,
        deletes=deletes,
    )


# --- row groups


def read_row_groups(
    store: Store,
    files: Sequence[IcebergFile],
    keep: ds.Expression | None,
    filtered: Sequence[TableColumn],
) -> list[RowGroups | None]:
    """Return the row groups of files, less those that a filter does not want.

    Args:
        store: Where the files are.
        files: The files.
        keep: The filter.
        filtered: The columns of the filter.
    """

    def look(file: IcebergFile) -> RowGroups | None:
        format_, info = FORMATS[file.format], DataFileInfo(file.path, file.size, file.rows)
        facts = format_.inspect(store, info, keep)
        if keep is not None and not all(_is_comparable(facts, column) for column in filtered):
            facts = format_.inspect(store, info)
        return facts.row_groups

    threads = _THREADS if store.local else _REMOTE_MANIFEST_THREADS
    return list(side_by_side(look, files, threads=threads))


def _is_comparable(facts: FileFacts, column: TableColumn) -> bool:
    """Return True if a file has a column under the name and in the type of the table.

    Else its statistics are of another column, or an expression may come out differently.
    """
    place = facts.schema.get_field_index(column.name)
    return place >= 0 and _is_same(facts.schema.field(place), column)


def _is_same(stored: pa.Field, column: TableColumn) -> bool:
    """Return True if ids and types are the same, of all that is inside too."""
    inside = nested_fields(stored.type)
    return (
        field_id(stored) == column.id
        and stored.type == column.type
        and len(inside) == len(column.children)
        and all(map(_is_same, inside, column.children))
    )
