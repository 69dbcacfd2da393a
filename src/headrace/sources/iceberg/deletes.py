"""Deletes: files and vectors that say which rows are gone, and which data files they apply to.

A position delete applies to data files that are as old or older (by data sequence number) and lie
in the same partition of the same spec, or to the one file that it names. An equality delete applies
to data files that are strictly older and lie in the same partition of the same spec, or to all of
them if its spec has no partitions. A deletion vector replaces the position deletes of its file.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import numpy as np
import numpy.typing as npt

from headrace.errors import ReadError
from headrace.sources.tables.vectors import DeletionVector

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
"""no UTF-8 has the latter"""
_BYTES_A_FILE = 8
_POSITION_DELETES, _EQUALITY_DELETES = 1, 2
_PATH_FIELD_IDS = (2147483546, 2147483646)
"""of the column file_path of position deletes; DuckDB gives its bounds under the id of _file"""
_REFERENCED_DATA_FILE, _CONTENT_OFFSET, _CONTENT_SIZE = 17, 18, 19
"""places in a data file of a manifest of version 3, for which pyiceberg has no names"""
WAY_OUT = "compact the table, or rewrite its delete files, with the engine that writes it"


@dataclass(frozen=True, slots=True)
class PositionDeleteFile:
    """A file that names rows of data files by their positions."""

    path: str
    size: int
    format: str
    """parquet, orc or avro"""


@dataclass(frozen=True, slots=True)
class EqualityDeleteFile:
    """A file of values: rows that have the same ones in some columns are deleted."""

    path: str
    size: int
    format: str
    field_ids: tuple[int, ...]
    """the columns, ascending"""


T = TypeVar("T", PositionDeleteFile, EqualityDeleteFile)


@dataclass(frozen=True, slots=True)
class Selection(Generic[T]):
    """Some files of a list that is shared: all from a place on, or those whose bits are set."""

    files: tuple[T, ...]
    start: int = 0
    bits: bytes = b""
    """one for each file from ``start`` on; nothing: all of them"""

    def __len__(self) -> int:
        if self.bits:
            return int.from_bytes(self.bits).bit_count()
        return len(self.files) - self.start

    def __iter__(self) -> Iterator[T]:
        if not self.bits:
            return islice(self.files, self.start, None)
        places = np.flatnonzero(np.unpackbits(np.frombuffer(self.bits, np.uint8)))
        return (self.files[self.start + place] for place in places.tolist())


@dataclass(frozen=True, slots=True)
class SharedFiles(Sequence[T], Generic[T]):
    """Files out of lists that many data files share: those of all of them pickle as one list."""

    parts: tuple[Selection[T], ...]
    """none of them empty"""

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(self.parts)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        return tuple(self)[index]

    def __hash__(self) -> int:
        """Hash little of it: the lists may be long, and caches have this in their keys."""
        return hash(tuple((p.files[p.start], len(p.files), p.bits) for p in self.parts))


@dataclass(frozen=True, slots=True)
class DeletesOf:
    """All deletes that apply to a data file. Without any it is false."""

    positions: Sequence[PositionDeleteFile] = ()
    vector: DeletionVector | None = None
    equalities: Sequence[EqualityDeleteFile] = ()

    def __bool__(self) -> bool:
        return self.vector is not None or bool(self.positions) or bool(self.equalities)

    @property
    def counted(self) -> bool:
        """Return True if the table's metadata tells how many rows are deleted."""
        return not self.positions and not self.equalities

    @property
    def field_ids(self) -> frozenset[int]:
        """The columns whose values decide, which are read also where they were dropped."""
        return frozenset(chain.from_iterable({file.field_ids for file in self.equalities}))


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


# --- delete files of a partition, by age


def plain_bounds(lower: bytes | None, upper: bytes | None) -> Bounds:
    """Return bounds of the paths that a delete file names, as ``plain_path`` has them.

    Bounds may be cut short: a lower one is then a prefix, an upper one a prefix whose end is
    raised, so that comparing them as they are is right. Of paths of this machine that are written
    in different ways they say nothing, for those are in another order when they are plain.
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


class DeleteGroup(Generic[T]):
    """Delete files of one partition, or of one data file, by age."""

    def __init__(self) -> None:
        self._added: list[tuple[int, T, Bounds]] = []
        self._files: tuple[T, ...] = ()
        self._ages: list[int] = []
        self._avro = False
        self._paths: _Intervals | None = None
        self._selected: dict[tuple[int, bytes], Selection[T]] = {}

    def add(self, age: int, file: T, bounds: Bounds = ALL_PATHS) -> None:
        """Add a file with the bounds of the paths that it names, before ``from_age`` is called."""
        self._added.append((age, file, bounds))

    def from_age(self, age: int, path: str = "") -> Selection[T] | None:
        """Return those of this age or younger that may name the path; None if there are none.

        The same object for the same ones.
        """
        if self._added:
            self._settle()
        start = bisect_left(self._ages, age)
        bits = b""
        if start < len(self._files) and self._paths is not None:
            within = self._paths.holding(plain_path(path).encode(), start)
            if not within.any():
                return None
            bits = b"" if within.all() else np.packbits(within).tobytes()
        key = start, bits
        if start < len(self._files) and key not in self._selected:
            self._selected[key] = self._select(start, bits)
        return self._selected.get(key)

    def _select(self, start: int, bits: bytes) -> Selection[T]:
        """Select files by bits, or by a list where that is less."""
        selection = Selection(self._files, start, bits)
        if self._avro:
            _refuse_avro(selection)
        few = bits and len(selection) * _BYTES_A_FILE < len(bits)
        return Selection(tuple(selection)) if few else selection

    def _settle(self) -> None:
        self._added.sort(key=lambda added: added[0])
        self._ages = [age for age, _, _ in self._added]
        self._files = tuple(file for _, file, _ in self._added)
        self._avro = any(file.format == "avro" for file in self._files)
        bounds = [bounds for _, _, bounds in self._added]
        self._paths = _Intervals(bounds) if set(bounds) != {ALL_PATHS} else None
        self._added.clear()


class _Intervals:
    """Bounds of paths, compared all at once: by their places among all bounds."""

    def __init__(self, bounds: Sequence[Bounds]) -> None:
        self._sorted = sorted({bound for pair in bounds for bound in pair})
        place = {bound: at for at, bound in enumerate(self._sorted)}
        self._low = np.fromiter((place[low] for low, _ in bounds), np.int32)
        self._high = np.fromiter((place[high] for _, high in bounds), np.int32)

    def holding(self, path: bytes, start: int) -> npt.NDArray[np.bool_]:
        """Return which of them, from a place on, hold the path."""
        above = self._low[start:] < bisect_right(self._sorted, path)
        return above & (self._high[start:] >= bisect_left(self._sorted, path))


def _refuse_avro(files: Iterable[PositionDeleteFile | EqualityDeleteFile]) -> None:
    for file in files:
        if file.format == "avro":
            raise ReadError(f"{file.path}: delete files in Avro are not supported; {WAY_OUT}")


# --- delete files of a snapshot


def read_delete_entries(manifest: ManifestFile, io: FileIO) -> list[ManifestEntry]:
    """Return the live entries of a manifest, with all that version 3 says of delete files.

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
        """Return the deletes of a data file, by what its manifest says of it.

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
        vector = DeletionVector(path, offset, length, file.record_count, file.file_size_in_bytes)
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
