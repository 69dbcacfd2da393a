"""Deletes: files and vectors that name deleted rows, and the data files that they apply to.

A position delete applies to data files that are as old or older (by data sequence number) and lie
in the same partition of the same spec, or to the one file that it names. An equality delete applies
to data files that are strictly older and lie in the same partition of the same spec, or to all of
them if its spec has no partitions. A deletion vector replaces the position deletes of its file.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headrace.errors import ReadError
from headrace.sources.tables._vectors import DeletionVector

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.typedef import Record

__all__ = [
    "ALL_PATHS",
    "NO_DELETES",
    "WAY_OUT",
    "DeleteIndex",
    "DeleteList",
    "DeletesOf",
    "EqualityDeleteFile",
    "PositionDeleteFile",
    "plain_bounds",
    "plain_path",
    "read_delete_entries",
]

Partition = tuple[Any, ...]
Bounds = tuple[bytes, bytes]

ALL_PATHS: Bounds = b"", b"\xff"
"""bounds that hold every path: UTF-8 never has the latter byte"""
_POSITION_DELETES, _EQUALITY_DELETES = 1, 2
_PATH_FIELD_IDS = (2147483546, 2147483646)
"""of the column file_path of position deletes; DuckDB gives its bounds under the id of _file"""
_REFERENCED_DATA_FILE, _CONTENT_OFFSET, _CONTENT_SIZE = 17, 18, 19
"""places in a data file of a manifest of version 3, for which pyiceberg has no names"""
WAY_OUT = "compact the table, or rewrite its delete files, with the engine that writes it"


@dataclass(frozen=True, slots=True)
class PositionDeleteFile:
    """A file that names rows of data files by their positions.

    Attributes:
        path: Its path, as the table's metadata has it.
        size: Its size in bytes.
        format: parquet, orc or avro.
        bounds: Bounds of the paths of data files that it names, as ``plain_path`` returns them.
    """

    path: str
    size: int
    format: str
    bounds: Bounds = ALL_PATHS

    def may_name(self, path: bytes) -> bool:
        """Return True if a data file, by its plain path, lies within the bounds."""
        return self.bounds[0] <= path <= self.bounds[1]


@dataclass(frozen=True, slots=True)
class EqualityDeleteFile:
    """A file of values: rows that have the same ones in some columns are deleted.

    Attributes:
        path: Its path, as the table's metadata has it.
        size: Its size in bytes.
        format: parquet, orc or avro.
        field_ids: The columns, ascending.
    """

    path: str
    size: int
    format: str
    field_ids: tuple[int, ...]


T = TypeVar("T", PositionDeleteFile, EqualityDeleteFile)


@dataclass(frozen=True, slots=True)
class DeleteList(Generic[T]):
    """Delete files from an age on: the end of a list that all data files of a partition share."""

    files: tuple[T, ...]
    start: int

    def __iter__(self) -> Iterator[T]:
        return islice(self.files, self.start, None)

    def __hash__(self) -> int:
        """Hash little of it: the list may be long, and caches have this in their keys."""
        return hash((self.files[self.start], len(self.files)))


@dataclass(frozen=True, slots=True)
class DeletesOf:
    """The delete files that apply to a data file. Without any it is false.

    Attributes:
        positions: Lists of position deletes; those whose bounds hold the data file apply.
        equalities: Lists of equality deletes.
    """

    positions: tuple[DeleteList[PositionDeleteFile], ...] = ()
    equalities: tuple[DeleteList[EqualityDeleteFile], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.positions) or bool(self.equalities)

    def naming(self, path: str) -> Iterator[PositionDeleteFile]:
        """Yield the position deletes that may name a data file, by its path in the manifest."""
        name = plain_path(path).encode()
        return (file for file in chain.from_iterable(self.positions) if file.may_name(name))

    @property
    def field_ids(self) -> frozenset[int]:
        """The columns whose values decide, which are read also where they were dropped."""
        files = chain.from_iterable(self.equalities)
        return frozenset(chain.from_iterable({file.field_ids for file in files}))


NO_DELETES = DeletesOf()


def plain_path(path: str) -> str:
    """Return the path by which a local file is compared; other paths as they are.

    ``file:///x``, ``file:/x`` and ``/x`` are one file, and engines write all three. Nothing else
    is taken for the same: the specification wants paths to be equal as they are written.
    """
    if path.startswith("file:///"):
        return path[7:]
    if path.startswith("file:/") and not path.startswith("file://"):
        return path[5:]
    return path


def plain_bounds(lower: bytes | None, upper: bytes | None) -> Bounds:
    """Return bounds of the paths that a delete file names, as ``plain_path`` has them.

    Bounds may be cut short: a lower one is then a prefix, an upper one a prefix whose end is
    raised, so that comparing them as they are is right. Bounds of local paths that are written in
    different ways hold every path, for plain paths are in another order.
    """
    low, high = lower or ALL_PATHS[0], upper or ALL_PATHS[1]
    if low.startswith(b"file:///") and high.startswith(b"file:///"):
        return low[7:], high[7:]
    if (
        low.startswith(b"file:/")
        and high.startswith(b"file:/")
        and not _hold(low, high, b"file://")
    ):
        return low[5:], high[5:]
    return ALL_PATHS if low > high or _hold(low, high, b"file:/") else (low, high)


def _hold(low: bytes, high: bytes, prefix: bytes) -> bool:
    """Return True if a path that begins like this may lie between two."""
    return low < prefix[:-1] + bytes([prefix[-1] + 1]) and high >= prefix


# --- delete files of a snapshot


def read_delete_entries(manifest: ManifestFile, io: FileIO) -> list[ManifestEntry]:
    """Return the live entries of a manifest, with all fields that version 3 has for delete files.

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


class DeleteGroup(Generic[T]):
    """Delete files of one partition, or of one data file, by age."""

    def __init__(self) -> None:
        self._added: list[tuple[int, T]] = []
        self._files: tuple[T, ...] = ()
        self._ages: list[int] = []
        self._lists: dict[int, DeleteList[T]] = {}

    def add(self, age: int, file: T) -> None:
        """Add a file, before ``from_age`` is called."""
        self._added.append((age, file))

    def from_age(self, age: int) -> DeleteList[T] | None:
        """Return those of this age or younger, as one object; None if there are none."""
        if self._added:
            self._added.sort(key=lambda added: added[0])
            self._ages = [age for age, _ in self._added]
            self._files = tuple(file for _, file in self._added)
            self._added.clear()
        start = bisect_left(self._ages, age)
        if start == len(self._files):
            return None
        if start not in self._lists:
            self._lists[start] = DeleteList(self._files, start)
        return self._lists[start]


class DeleteIndex:
    """The delete files of a snapshot, from entries that ``read_delete_entries`` returned."""

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
    ) -> tuple[DeletesOf, DeletionVector | None]:
        """Return the deletes of a data file and its vector, by what its manifest says of it.

        Data files with the same delete files get the same object.

        Raises:
            ReadError: A delete file is in a format that cannot be read.
        """
        age = sequence_number or 0
        name = plain_path(path)
        where = _partition(spec_id, partition)
        vector_age, vector = self._vectors.get(name, (-1, None))
        equalities = [self._equalities.get(where), self._equalities.get(None)]
        if vector is not None and vector_age >= age:
            return self._shared([], _lists(equalities, age + 1)), vector
        positions = [
            files
            for files in _lists([self._positions.get(name), self._positions.get(where)], age)
            if any(file.may_name(name.encode()) for file in files)
        ]
        return self._shared(positions, _lists(equalities, age + 1)), None

    def _shared(
        self,
        positions: list[DeleteList[PositionDeleteFile]],
        equalities: list[DeleteList[EqualityDeleteFile]],
    ) -> DeletesOf:
        if not positions and not equalities:
            return NO_DELETES
        key = (*map(id, positions), None, *map(id, equalities))
        if key not in self._made:
            _refuse_avro(chain.from_iterable(positions))
            _refuse_avro(chain.from_iterable(equalities))
            self._made[key] = DeletesOf(tuple(positions), tuple(equalities))
        return self._made[key]

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
        vector = DeletionVector(path, offset, length, file.record_count, file.file_size_in_bytes)
        other = self._vectors.setdefault(plain_path(target), (age, vector))[1]
        if other is not vector:
            raise ReadError(
                f"{target} has two deletion vectors, in {other.path} and {path}, and may have "
                "one: the table is damaged"
            )

    def _add_positions(self, file: DataFile, age: int) -> None:
        lower, upper = plain_bounds(_of_path(file.lower_bounds), _of_path(file.upper_bounds))
        target = _optional(file, _REFERENCED_DATA_FILE)
        if target is None and lower == upper:
            target = lower.decode(errors="surrogateescape")
        path, size, format_ = file.file_path, file.file_size_in_bytes, file.file_format.lower()
        if target is not None:
            where: str | Partition = plain_path(target)
            delete = PositionDeleteFile(path, size, format_)
        else:
            where = _partition(file.spec_id, file.partition)
            delete = PositionDeleteFile(path, size, format_, (lower, upper))
        self._positions.setdefault(where, DeleteGroup()).add(age, delete)


def _refuse_avro(files: Iterable[PositionDeleteFile | EqualityDeleteFile]) -> None:
    for file in files:
        if file.format == "avro":
            raise ReadError(f"{file.path}: delete files in Avro are not supported; {WAY_OUT}")


def _lists(groups: Iterable[DeleteGroup[T] | None], age: int) -> list[DeleteList[T]]:
    """Return the files of some groups from an age on, without empty lists."""
    found = [None if group is None else group.from_age(age) for group in groups]
    return [files for files in found if files is not None]


def _of_path(bounds: Mapping[int, bytes] | None) -> bytes | None:
    """Return a bound of the paths that a position delete file names."""
    known = bounds or {}
    return next((known[column] for column in _PATH_FIELD_IDS if column in known), None)


def _optional(file: DataFile, place: int) -> Any:
    """Return a field that entries of version 3 have, and others may lack."""
    return file[place] if place < len(file) else None


def _partition(spec_id: int, values: Record | Iterable[Any]) -> Partition:
    """Return a key that two partitions share if and only if they are the same.

    As in other implementations all NaN are one value, and the two zeros are two.
    """
    parts: Iterable[Any] = iter(values)
    return spec_id, *(_bits(value) if isinstance(value, float) else value for value in parts)


def _bits(value: float) -> str:
    return "NaN" if math.isnan(value) else value.hex()
