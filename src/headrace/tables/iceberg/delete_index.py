"""Which delete files apply to which data file, by the rules of the specification.

A position delete applies to data files that are as old or older (by data sequence number) and lie
in the same partition of the same spec, or to the one file that it names. An equality delete applies
to data files that are strictly older and lie in the same partition of the same spec, or to all of
them if its spec has no partitions. A deletion vector replaces the position deletes of its file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.errors import ReadError
from headrace.tables.iceberg.delete_groups import DeleteGroup, plain_bounds
from headrace.tables.iceberg.deletes import (
    NO_DELETES,
    WAY_OUT,
    DeletesOf,
    DeletionVector,
    EqualityDeleteFile,
    PositionDeleteFile,
    Selection,
    SharedFiles,
    plain_path,
)

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.typedef import Record

__all__ = ["DeleteIndex", "read_delete_entries"]

Partition = tuple[Any, ...]

_POSITION_DELETES, _EQUALITY_DELETES = 1, 2
_PATH_FIELD_IDS = (2147483546, 2147483646)
"""of the column file_path of position deletes; DuckDB gives its bounds under the id of _file"""
_REFERENCED_DATA_FILE, _CONTENT_OFFSET, _CONTENT_SIZE = 17, 18, 19
"""places in a data file of a manifest of version 3, for which pyiceberg has no names"""


def read_delete_entries(manifest: ManifestFile, io: FileIO) -> list[ManifestEntry]:
    """The live entries of a manifest, with all that version 3 says of delete files.

    pyiceberg itself reads all manifests as of version 2, and leaves out where vectors are.
    """
    from pyiceberg.avro.file import AvroFile
    from pyiceberg.manifest import (
        MANIFEST_ENTRY_SCHEMAS,
        DataFile,
        DataFileContent,
        FileFormat,
        ManifestEntry,
        ManifestEntryStatus,
    )

    with AvroFile[ManifestEntry](
        io.new_input(manifest.manifest_path),
        MANIFEST_ENTRY_SCHEMAS[3],
        read_types={-1: ManifestEntry, 2: DataFile},
        read_enums={0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    ) as reader:
        entries = [entry for entry in reader if entry.status != ManifestEntryStatus.DELETED]
    for entry in entries:
        entry.data_file.spec_id = manifest.partition_spec_id
        if entry.sequence_number is None and (
            manifest.sequence_number == 0 or entry.status == ManifestEntryStatus.ADDED
        ):
            entry.sequence_number = manifest.sequence_number
    return entries


class DeleteIndex:
    """The delete files of a snapshot, from entries that ``read_delete_entries`` gave."""

    def __init__(
        self, entries: Iterable[ManifestEntry], specs: Mapping[int, PartitionSpec]
    ) -> None:
        self._unpartitioned = {
            number
            for number, spec in specs.items()
            if all(str(part.transform) == "void" for part in spec.fields)
        }
        self._vectors: dict[str, tuple[int, DeletionVector]] = {}
        self._positions: dict[str | Partition, DeleteGroup[PositionDeleteFile]] = {}
        """by the data file that they name, or by partition"""
        self._equalities: dict[Partition | None, DeleteGroup[EqualityDeleteFile]] = {}
        """by partition; under None those that apply everywhere"""
        self._puffins: dict[str, str] = {}
        self._made: dict[tuple[Any, ...], DeletesOf] = {}
        for entry in entries:
            self._add(entry)

    def of(
        self,
        path: str,
        *,
        sequence_number: int | None,
        spec_id: int,
        partition: Record | Iterable[Any],
    ) -> DeletesOf:
        """The deletes of a data file, by what its manifest says of it.

        Data files with the same deletes get the same object.
        """
        age = sequence_number or 0
        name = plain_path(path)
        where = _partition(spec_id, partition)
        vector_age, vector = self._vectors.get(name, (-1, None))
        positions: list[Selection[PositionDeleteFile]] = []
        if vector is None or vector_age < age:
            vector = None
            for same in (self._positions.get(name), self._positions.get(where)):
                if same is not None and (named := same.from_age(age, path)) is not None:
                    positions.append(named)
        equalities: list[Selection[EqualityDeleteFile]] = []
        for equal in (self._equalities.get(where), self._equalities.get(None)):
            if equal is not None and (younger := equal.from_age(age + 1)) is not None:
                equalities.append(younger)
        return self._shared(positions, vector, equalities)

    def _shared(
        self,
        positions: list[Selection[PositionDeleteFile]],
        vector: DeletionVector | None,
        equalities: list[Selection[EqualityDeleteFile]],
    ) -> DeletesOf:
        if not positions and vector is None and not equalities:
            return NO_DELETES
        key = (*map(id, positions), id(vector), *map(id, equalities))
        made = self._made.get(key)
        if made is None:
            made = DeletesOf(
                SharedFiles(tuple(positions)) if positions else (),
                vector,
                SharedFiles(tuple(equalities)) if equalities else (),
            )
            self._made[key] = made
        return made

    def _add(self, entry: ManifestEntry) -> None:
        file, age = entry.data_file, entry.sequence_number or 0
        if file.key_metadata is not None:
            raise ReadError(f"{file.file_path}: encrypted delete files are not supported")
        if file.content == _EQUALITY_DELETES:
            self._add_equality(file, age)
        elif file.content != _POSITION_DELETES:
            raise ReadError(
                f"{file.file_path}: content {file.content!r} in a manifest of deletes is not "
                f"known; {WAY_OUT}"
            )
        elif file.file_format == "PUFFIN":
            self._add_vector(file, age)
        else:
            self._add_positions(file, age)

    def _add_equality(self, file: DataFile, age: int) -> None:
        if not file.equality_ids:
            raise ReadError(
                f"{file.file_path}: an equality delete file whose manifest does not say by which "
                f"columns it deletes: the table is damaged"
            )
        delete = EqualityDeleteFile(
            file.file_path,
            file.file_size_in_bytes,
            file.file_format.lower(),
            tuple(sorted(set(file.equality_ids))),
        )
        everywhere = file.spec_id in self._unpartitioned
        where = None if everywhere else _partition(file.spec_id, file.partition)
        self._equalities.setdefault(where, DeleteGroup()).add(age, delete)

    def _add_vector(self, file: DataFile, age: int) -> None:
        target = _optional(file, _REFERENCED_DATA_FILE)
        offset, length = _optional(file, _CONTENT_OFFSET), _optional(file, _CONTENT_SIZE)
        if target is None or offset is None or length is None:
            raise ReadError(
                f"{file.file_path}: a deletion vector whose manifest does not say where it is, "
                "or of which data file: the table is damaged"
            )
        path = self._puffins.setdefault(file.file_path, file.file_path)
        vector = DeletionVector(path, file.file_size_in_bytes, offset, length, file.record_count)
        other = self._vectors.setdefault(plain_path(target), (age, vector))[1]
        if other is not vector:
            raise ReadError(
                f"{target} has two deletion vectors, in {other.path} and {path}, and may have "
                "one: the table is damaged"
            )

    def _add_positions(self, file: DataFile, age: int) -> None:
        delete = PositionDeleteFile(
            file.file_path, file.file_size_in_bytes, file.file_format.lower()
        )
        lower, upper = plain_bounds(_of_path(file.lower_bounds), _of_path(file.upper_bounds))
        target = _optional(file, _REFERENCED_DATA_FILE)
        if target is None and lower == upper:
            target = lower.decode(errors="surrogateescape")
        if target is not None:
            self._positions.setdefault(plain_path(target), DeleteGroup()).add(age, delete)
        else:
            where = _partition(file.spec_id, file.partition)
            self._positions.setdefault(where, DeleteGroup()).add(age, delete, (lower, upper))


def _of_path(bounds: Mapping[int, bytes] | None) -> bytes | None:
    """A bound of the paths that a position delete file names."""
    known = bounds or {}
    return next((known[column] for column in _PATH_FIELD_IDS if column in known), None)


def _optional(file: DataFile, place: int) -> Any:
    """What entries of version 3 have, and others may lack."""
    return file[place] if place < len(file) else None


def _partition(spec_id: int, values: Record | Iterable[Any]) -> Partition:
    """What two partitions have in common if and only if they are the same.

    As in other implementations all NaN are one value, and the two zeros are two.
    """
    parts: Iterable[Any] = iter(values)
    return spec_id, *(_bits(value) if isinstance(value, float) else value for value in parts)


def _bits(value: float) -> str:
    return "NaN" if math.isnan(value) else value.hex()
