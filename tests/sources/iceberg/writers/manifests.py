"""Manifests and lists of them, of any content and version, by pyiceberg's Avro reader and writer.

pyiceberg writes manifests of data only, and reads and writes no more than version 2 has. Here every
file is described as in version 3, whatever the version of the table.
"""

from __future__ import annotations

from copy import copy
from typing import Any

from pyiceberg.avro.file import AvroFile, AvroOutputFile
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    PartitionFieldSummary,
    _inherit_from_manifest,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import NestedField, StructType

REFERENCED_DATA_FILE = DATA_FILE_TYPE[3].field(143)
_KNOWN_MANIFESTS: dict[str, list[ManifestEntry]] = {}
CONTENTS = {ManifestContent.DATA: "data", ManifestContent.DELETES: "deletes"}


class AnyManifestWriter(ManifestWriterV2):
    """A manifest of any content and version."""

    def __init__(
        self, table: Table, content: ManifestContent, spec_id: int, output: Any, snapshot_id: int
    ) -> None:
        schema, spec = table.schema(), table.specs()[spec_id]
        super().__init__(spec, schema, output, snapshot_id, "deflate")
        self._content = content
        self._version = table.metadata.format_version

    def content(self) -> ManifestContent:
        return self._content

    @property
    def version(self) -> int:
        return self._version

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": CONTENTS[self._content]}

    def prepareentry_of(self, entry: ManifestEntry) -> ManifestEntry:
        return entry

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        written = self._with_partition(self._version)
        if self._version == 2:
            # Version 2 has the field too; pyiceberg does not know it.
            written = _with_file_field(written, REFERENCED_DATA_FILE)
        return AvroOutputFile[ManifestEntry](
            output_file=self._output_file,
            file_schema=written,
            record_schema=self._with_partition(3),
            schema_name="manifest_entry",
            metadata=self._meta,
        )

    def to_manifest_file(self) -> ManifestFile:
        return _widened(super().to_manifest_file())


def _with_file_field(entries: Schema, field: NestedField) -> Schema:
    described = entries.find_field("data_file").field_type
    widened = StructType(*described.fields, field)
    return Schema(
        *(
            NestedField(2, "data_file", widened, required=True) if one.field_id == 2 else one
            for one in entries.fields
        )
    )


def entry_of(
    status: ManifestEntryStatus, snapshot_id: int, sequence: int | None, file: DataFile
) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=status,
        snapshot_id=snapshot_id,
        sequence_number=sequence,
        file_sequence_number=sequence,
        data_file=file,
    )


def manifest_content(file: DataFile) -> ManifestContent:
    is_data = file.content == DataFileContent.DATA
    return ManifestContent.DATA if is_data else ManifestContent.DELETES


def _widened(manifest: ManifestFile) -> ManifestFile:
    widened = copy(manifest)
    missing = len(MANIFEST_LIST_FILE_SCHEMAS[3].fields) - len(manifest._data)
    widened._data = [*manifest._data, *[None] * missing]
    return widened


def read_manifest_list(table: Table, snapshot: Snapshot) -> list[ManifestFile]:
    with AvroFile[ManifestFile](
        table.io.new_input(snapshot.manifest_list),
        MANIFEST_LIST_FILE_SCHEMAS[3],
        read_types={-1: ManifestFile, 508: PartitionFieldSummary},
        read_enums={517: ManifestContent},
    ) as reader:
        return [_widened(manifest) for manifest in reader]


def read_manifest(table: Table, manifest: ManifestFile) -> list[ManifestEntry]:
    """Its live entries. What a manifest says never changes, and reading one is slow."""
    known = _KNOWN_MANIFESTS.get(manifest.manifest_path)
    if known is not None:
        return known
    with AvroFile[ManifestEntry](
        table.io.new_input(manifest.manifest_path),
        MANIFEST_ENTRY_SCHEMAS[3],
        read_types={-1: ManifestEntry, 2: DataFile},
        read_enums={0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    ) as reader:
        read = [
            _inherit_from_manifest(entry, manifest)
            for entry in reader
            if entry.status != ManifestEntryStatus.DELETED
        ]
    if len(_KNOWN_MANIFESTS) > 500:
        _KNOWN_MANIFESTS.clear()
    _KNOWN_MANIFESTS[manifest.manifest_path] = read
    return read


def write_manifest_list(
    table: Table,
    path: str,
    manifests: list[ManifestFile],
    snapshot_id: int,
    parent: Snapshot | None,
    sequence_number: int,
) -> None:
    version = table.metadata.format_version
    metadata = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": str(parent.snapshot_id) if parent else "null",
        "sequence-number": str(sequence_number),
        "format-version": str(version),
    }
    with AvroOutputFile[ManifestFile](
        output_file=table.io.new_output(path),
        record_schema=MANIFEST_LIST_FILE_SCHEMAS[3],
        file_schema=MANIFEST_LIST_FILE_SCHEMAS[version],
        schema_name="manifest_file",
        metadata=metadata,
    ) as writer:
        writer.write_block(manifests)
