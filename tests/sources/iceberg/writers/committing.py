"""Snapshots of any files: data, deletes of every kind, and files that are no longer there."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import (
    Operation,
    Snapshot,
    SnapshotSummaryCollector,
    Summary,
    update_snapshot_summaries,
)
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, SetSnapshotRefUpdate
from pyiceberg.typedef import Record

from writers.catalogs import next_row_id
from writers.manifests import (
    AnyManifestWriter,
    entry_of,
    manifest_content,
    read_manifest,
    read_manifest_list,
    write_manifest_list,
)


def describe_file(
    *,
    path: str,
    file_format: str,
    rows: int,
    size: int,
    content: DataFileContent = DataFileContent.DATA,
    partition: Record | None = None,
    spec_id: int = 0,
    **more: Any,
) -> DataFile:
    """An entry's file as version 3 describes it; `more` are further fields of it by name."""
    described = DataFile.from_args(
        _table_format_version=3,
        content=content,
        file_path=path,
        file_format=FileFormat[file_format.upper()],
        partition=partition if partition is not None else Record(),
        record_count=rows,
        file_size_in_bytes=size,
        **more,
    )
    described.spec_id = spec_id
    return described


def as_version_3(file: DataFile) -> DataFile:
    """A file that pyiceberg has described, with room for what it leaves out."""
    missing = len(DATA_FILE_TYPE[3].fields) - len(file._data)
    widened = DataFile(*file._data, *[None] * missing)
    widened.spec_id = file.spec_id
    return widened


def commit_files(
    table: Table,
    *,
    added: Iterable[DataFile] = (),
    removed: Callable[[DataFile], bool] | None = None,
    branch: str = MAIN_BRANCH,
) -> Table:
    """One snapshot more: `added` of any content, without those for which `removed` is true.

    The files that are added get the new sequence number. The table is brought up to date.
    """
    table.refresh()
    added = list(added)
    if table.metadata.format_version == 1 and any(file.content for file in added):
        raise ValueError("tables of version 1 have no delete files")
    making = _NewSnapshot(table, added, branch)
    manifests = making.carried_over(removed) + making.added()
    snapshot = making.snapshot(manifests)
    parent = making.parent
    table.catalog.commit_table(
        table,
        (AssertRefSnapshotId(ref=branch, snapshot_id=parent.snapshot_id if parent else None),),
        (
            AddSnapshotUpdate(snapshot=snapshot),
            SetSnapshotRefUpdate(
                ref_name=branch, type=SnapshotRefType.BRANCH, snapshot_id=snapshot.snapshot_id
            ),
        ),
    )
    return table.refresh()


def live_entries(table: Table, *, branch: str = MAIN_BRANCH) -> list[ManifestEntry]:
    """All entries of the newest snapshot that are not deleted, with inherited numbers."""
    snapshot = table.metadata.snapshot_by_name(branch)
    if snapshot is None:
        return []
    return [
        entry
        for manifest in read_manifest_list(table, snapshot)
        for entry in read_manifest(table, manifest)
    ]


def data_files(table: Table, *, branch: str = MAIN_BRANCH) -> list[DataFile]:
    """The data files of the newest snapshot, oldest first."""
    entries = [
        entry
        for entry in live_entries(table, branch=branch)
        if entry.data_file.content == DataFileContent.DATA
    ]
    return [entry.data_file for entry in sorted(entries, key=lambda one: one.sequence_number)]


class _NewSnapshot:
    def __init__(self, table: Table, added: list[DataFile], branch: str) -> None:
        metadata = table.metadata
        self._table = table
        self._added = added
        self._removed: list[DataFile] = []
        self._version = metadata.format_version
        self._id = metadata.new_snapshot_id()
        self._sequence = metadata.next_sequence_number() if self._version > 1 else 0
        self.parent = metadata.snapshot_by_name(branch)

    def carried_over(self, removed: Callable[[DataFile], bool] | None) -> list[ManifestFile]:
        """The manifests of the parent; those anew in which something is removed."""
        if self.parent is None:
            return []
        manifests = read_manifest_list(self._table, self.parent)
        if removed is None:
            return manifests
        return [self._without(manifest, removed) for manifest in manifests]

    def added(self) -> list[ManifestFile]:
        """A manifest for each content and partition spec."""
        groups = defaultdict(list)
        for file in self._added:
            groups[manifest_content(file), file.spec_id].append(file)
        manifests = []
        for (content, spec_id), files in groups.items():
            with self._writer(content, spec_id) as writer:
                for file in files:
                    writer.add(entry_of(ManifestEntryStatus.ADDED, self._id, None, file))
            manifests.append(writer.to_manifest_file())
        return manifests

    def snapshot(self, manifests: list[ManifestFile]) -> Snapshot:
        first_row = next_row_id(self._table.metadata)
        added_rows = self._number(manifests, first_row)
        path = self._path(f"snap-{self._id}-0-{uuid.uuid4()}.avro")
        write_manifest_list(self._table, path, manifests, self._id, self.parent, self._sequence)
        return Snapshot(
            snapshot_id=self._id,
            parent_snapshot_id=self.parent.snapshot_id if self.parent else None,
            sequence_number=self._sequence,
            manifest_list=path,
            summary=self._summary(),
            schema_id=self._table.metadata.current_schema_id,
            **({"first_row_id": first_row, "added_rows": added_rows} if self._version > 2 else {}),
        )

    def _without(self, manifest: ManifestFile, removed: Callable[[DataFile], bool]) -> ManifestFile:
        entries = read_manifest(self._table, manifest)
        if not any(removed(entry.data_file) for entry in entries):
            return manifest
        with self._writer(manifest.content, manifest.partition_spec_id) as writer:
            for entry in entries:
                if removed(entry.data_file):
                    writer.delete(entry)
                    self._removed.append(entry.data_file)
                else:
                    writer.existing(entry)
        return writer.to_manifest_file()

    def _number(self, manifests: list[ManifestFile], first_row: int) -> int:
        """Give sequence numbers and row ids to new manifests; how many rows those have."""
        rows = 0
        for manifest in manifests:
            if manifest.sequence_number == -1:
                manifest.sequence_number = self._sequence
            if manifest.min_sequence_number == -1:
                manifest.min_sequence_number = self._sequence
            if manifest._data[15] is None and manifest.content == ManifestContent.DATA:
                manifest._data[15] = first_row + rows
                rows += manifest.added_rows_count + manifest.existing_rows_count
        return rows

    def _summary(self) -> Summary:
        metadata = self._table.metadata
        collected = SnapshotSummaryCollector()
        for files, collect in (
            (self._added, collected.add_file),
            (self._removed, collected.remove_file),
        ):
            for file in files:
                spec = metadata.specs()[file.spec_id]
                collect(data_file=file, partition_spec=spec, schema=metadata.schema())
        return update_snapshot_summaries(
            Summary(operation=self._operation(), **collected.build()),
            self.parent.summary if self.parent is not None else None,
        )

    def _operation(self) -> Operation:
        if self._removed:
            return Operation.OVERWRITE
        deletes = any(file.content != DataFileContent.DATA for file in self._added)
        return Operation.DELETE if deletes else Operation.APPEND

    def _writer(self, content: ManifestContent, spec_id: int) -> AnyManifestWriter:
        output = self._table.io.new_output(self._path(f"{uuid.uuid4()}-m0.avro"))
        return AnyManifestWriter(self._table, content, spec_id, output, self._id)

    def _path(self, name: str) -> str:
        return self._table.location_provider().new_metadata_location(name)
