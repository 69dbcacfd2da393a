"""Entries of manifests for data and deletes, and which of them an index finds."""

from typing import Any

from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform, VoidTransform
from pyiceberg.typedef import Record

from headrace.sources.iceberg._deletes import DeleteIndex, Deletes
from headrace.sources.tables._vectors import DeletionVector

PATH_ID = 2147483546
PARTITIONED = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p"), spec_id=1)
OTHER_SPEC = PartitionSpec(PartitionField(2, 1001, IdentityTransform(), "q"), spec_id=2)
ALL_VOID = PartitionSpec(PartitionField(1, 1000, VoidTransform(), "p"), spec_id=3)
SPECS = {0: PartitionSpec(spec_id=0), 1: PARTITIONED, 2: OTHER_SPEC, 3: ALL_VOID}


def entry(
    path: str,
    age: int | None = 5,
    *,
    spec: int = 1,
    partition: tuple[Any, ...] = (7,),
    content: DataFileContent = DataFileContent.POSITION_DELETES,
    format: FileFormat = FileFormat.PARQUET,
    bounds: tuple[str | bytes | None, str | bytes | None] = (None, None),
    **more: Any,
) -> ManifestEntry:
    raw = [b.encode() if isinstance(b, str) else b for b in bounds]
    file = DataFile.from_args(
        _table_format_version=3,
        **{
            "content": content,
            "file_path": path,
            "file_format": format,
            "partition": Record(*partition),
            "record_count": 3,
            "file_size_in_bytes": 100,
            "lower_bounds": None if raw[0] is None else {PATH_ID: raw[0]},
            "upper_bounds": None if raw[1] is None else {PATH_ID: raw[1]},
            **more,
        },
    )
    file.spec_id = spec
    return ManifestEntry.from_args(
        _table_format_version=3,
        status=ManifestEntryStatus.ADDED,
        snapshot_id=1,
        sequence_number=age,
        file_sequence_number=age,
        data_file=file,
    )


def equality(path: str, age: int = 5, ids: tuple[int, ...] = (1,), **more: Any) -> ManifestEntry:
    kind = DataFileContent.EQUALITY_DELETES
    return entry(path, age, content=kind, equality_ids=list(ids), **more)


def vector(path: str, data_path: str, age: int = 5, **more: Any) -> ManifestEntry:
    return entry(
        path,
        age,
        format=FileFormat.PUFFIN,
        **{
            "referenced_data_file": data_path,
            "content_offset": 4,
            "content_size_in_bytes": 40,
            **more,
        },
    )


def found(
    entries: list[ManifestEntry],
    path: str = "s3://b/data.parquet",
    age: int | None = 5,
    spec: int = 1,
    partition: tuple[Any, ...] = (7,),
) -> tuple[list[str], DeletionVector | None]:
    """Return the paths of the delete files of a data file, sorted, and its vector."""
    index = DeleteIndex(entries, SPECS)
    deletes, vector = index.of(
        path, sequence_number=age, spec_id=spec, partition=Record(*partition)
    )
    return names_of(deletes), vector


def names_of(deletes: Deletes) -> list[str]:
    """Return the paths of the delete files that apply to a data file, sorted."""
    return sorted(file.path for files in deletes for file in files)


def names(found: tuple[list[str], DeletionVector | None]) -> list[str]:
    files, vector = found
    return [*files, *([vector.path] if vector else [])]
