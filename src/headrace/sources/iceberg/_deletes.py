"""Deletes of Iceberg: the files and vectors that apply to a data file, and the rows they delete.

A position delete applies to data files of the same partition and spec that are as old or older (by
data sequence number), or to the one file that it names. An equality delete applies to data files of
the same partition and spec that are strictly older, or to all older files if its spec has no
partitions. A deletion vector replaces the position deletes of its file.

Delete files are read when rows of a data file are first read, and their contents are kept for other
data files.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.avro.file import AvroFile
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    MANIFEST_ENTRY_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.typedef import Record

from headrace.errors import ReadError
from headrace.model import DataFileInfo, FileSplit, Int64Array
from headrace.process import BoundedCache
from headrace.sources.files._orc import OrcFormat
from headrace.sources.files.protocol import Format
from headrace.sources.parquet._format import ParquetFormat
from headrace.sources.tables._catalog import store_path
from headrace.sources.tables._columns import NameMapping, TableColumn, match_columns
from headrace.sources.tables._vectors import DeletionVector
from headrace.storage import Store

Partition = tuple[Any, ...]

FORMATS: Mapping[str, Format] = {
    # Spark writes timestamps without a unit; those of a table are microseconds.
    "parquet": ParquetFormat({"coerce_int96_timestamp_unit": "us"}),
    "orc": OrcFormat(),
}
"""Formats of data files and of delete files, by name."""
BLOCK_BYTES = 32 << 20
_CACHE_BYTES = 256 << 20
_PATH = TableColumn(2147483546, "file_path", pa.string())
_POSITION = TableColumn(2147483545, "pos", pa.int64())
_RESERVED: NameMapping = {(column.name,): column.id for column in (_PATH, _POSITION)}
"""Columns of position deletes, by the names and ids that the specification reserves."""
_BOUNDED_IDS = (_PATH.id, 2147483646)
"""Ids of columns with bounds of paths; DuckDB uses the id of _file."""
_REFERENCED_DATA_FILE, _CONTENT_OFFSET, _CONTENT_SIZE = 17, 18, 19
"""Indices of fields in a data file of a manifest of version 3; pyiceberg has no names for them."""
_CURE = "compact the table, or rewrite its delete files, with the engine that writes it"


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A file that names rows of data files by their positions, or by the values of columns.

    Attributes:
        path: Its path in the table's metadata.
        size: Its size in bytes.
        format: The name of its format.
        field_ids: Ids of the columns by whose values it deletes, ascending; empty for positions.
    """

    path: str
    size: int
    format: str
    field_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteList:
    """Delete files from an age on: the end of a list that all data files of a partition share."""

    files: tuple[DeleteFile, ...]
    start: int

    def __iter__(self) -> Iterator[DeleteFile]:
        return islice(self.files, self.start, None)

    def __hash__(self) -> int:
        """Return a hash of a small part: the list may be long, and is part of cache keys."""
        return hash((self.files[self.start], len(self.files)))


Deletes = tuple[DeleteList, ...]
"""The delete files that apply to a data file."""


def position_deletes(deletes: Deletes) -> list[DeleteFile]:
    """Return the position deletes, which may name the data file."""
    return [file for file in chain.from_iterable(deletes) if not file.field_ids]


def equality_deletes(deletes: Deletes) -> Mapping[tuple[int, ...], Sequence[DeleteFile]]:
    """Return the equality deletes, by the columns whose values they name."""
    found: dict[tuple[int, ...], list[DeleteFile]] = defaultdict(list)
    for file in chain.from_iterable(deletes):
        if file.field_ids:
            found[file.field_ids].append(file)
    return found


# --- delete files of a snapshot


def read_delete_entries(manifest: ManifestFile, io: FileIO) -> list[ManifestEntry]:
    """Return the live entries of a manifest, with all fields of version 3 for delete files.

    pyiceberg itself reads all manifests as version 2, and leaves out the places of vectors.
    """
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


class _ByAge:
    """Delete files of one partition or data file, by the age of the data files they apply to.

    Args:
        files: The files, each with the age of the youngest data files that it applies to.
    """

    def __init__(self, files: Iterable[tuple[int, DeleteFile]]) -> None:
        by_age = sorted(files, key=lambda added: added[0])
        self._ages = [age for age, _ in by_age]
        self._files = tuple(file for _, file in by_age)
        self._lists: dict[int, DeleteList] = {}
        unknown = [at for at, file in enumerate(self._files) if file.format not in FORMATS]
        self._last_unknown = max(unknown, default=-1)

    def applying_to(self, age: int) -> DeleteList | None:
        """Return the files that apply to data files of an age as one object; None for no file."""
        start = bisect_left(self._ages, age)
        if start <= self._last_unknown:
            file = self._files[self._last_unknown]
            raise ReadError(
                f"{file.path}: delete files in {file.format} are not supported; {_CURE}"
            )
        if start == len(self._files):
            return None
        return self._lists.setdefault(start, DeleteList(self._files, start))


class DeleteIndex:
    """The delete files of a snapshot, made from entries of ``read_delete_entries``."""

    def __init__(
        self, entries: Iterable[ManifestEntry], specs: Mapping[int, PartitionSpec]
    ) -> None:
        self._unpartitioned = {
            number
            for number, spec in specs.items()
            if all(str(part.transform) == "void" for part in spec.fields)
        }
        self._vectors: dict[str, tuple[int, DeletionVector]] = {}
        self._puffins: dict[str, str] = {}
        self._made: dict[tuple[int, ...], Deletes] = {}
        # Keys: True for equality deletes, and a data file, a partition, or None for all data files.
        groups: dict[tuple[bool, str | Partition | None], list[tuple[int, DeleteFile]]]
        groups = defaultdict(list)
        for entry in entries:
            file, age = entry.data_file, entry.sequence_number or 0
            if file.key_metadata is not None:
                raise ReadError(f"{file.file_path}: encrypted delete files are not supported")
            if file.content == DataFileContent.EQUALITY_DELETES:
                where, delete = self._equality_delete(file)
                groups[True, where].append((age - 1, delete))
            elif file.content != DataFileContent.POSITION_DELETES:
                raise ReadError(
                    f"{file.file_path}: content {file.content!r} in a manifest of deletes is not "
                    f"known; {_CURE}"
                )
            elif file.file_format == FileFormat.PUFFIN:
                self._add_vector(file, age)
            else:
                named, delete = _position_delete(file)
                groups[False, named].append((age, delete))
        self._groups = {where: _ByAge(files) for where, files in groups.items()}

    def of(
        self,
        path: str,
        *,
        sequence_number: int | None,
        spec_id: int,
        partition: Record | Iterable[Any],
    ) -> tuple[Deletes, DeletionVector | None]:
        """Return the deletes of a data file and its vector, for the file's fields in its manifest.

        Data files with the same delete files get the same object.

        Raises:
            ReadError: A delete file is in a format that cannot be read.
        """
        age, name = sequence_number or 0, plain_path(path)
        where = _partition(spec_id, partition)
        vector_age, vector = self._vectors.get(name, (-1, None))
        if vector_age < age:
            vector = None
        keys: list[tuple[bool, str | Partition | None]] = [(True, where), (True, None)]
        if vector is None:
            keys += [(False, name), (False, where)]
        found = [self._groups[key].applying_to(age) for key in keys if key in self._groups]
        lists = tuple(files for files in found if files is not None)
        return self._made.setdefault(tuple(map(id, lists)), lists), vector

    def _equality_delete(self, file: DataFile) -> tuple[Partition | None, DeleteFile]:
        """Return an equality delete, and the partition to which it applies; None for all."""
        if not file.equality_ids:
            raise ReadError(
                f"{file.file_path}: the manifest does not name the columns of this equality delete "
                "file: the table is damaged"
            )
        columns = tuple(sorted(set(file.equality_ids)))
        format_ = file.file_format.lower()
        delete = DeleteFile(file.file_path, file.file_size_in_bytes, format_, columns)
        everywhere = file.spec_id in self._unpartitioned
        return None if everywhere else _partition(file.spec_id, file.partition), delete

    def _add_vector(self, file: DataFile, age: int) -> None:
        target = _optional(file, _REFERENCED_DATA_FILE)
        offset, length = _optional(file, _CONTENT_OFFSET), _optional(file, _CONTENT_SIZE)
        if target is None or offset is None or length is None:
            raise ReadError(
                f"{file.file_path}: the manifest does not give the position or the data file of "
                "this deletion vector: the table is damaged"
            )
        path = self._puffins.setdefault(file.file_path, file.file_path)
        vector = DeletionVector(path, offset, length, file.record_count, file.file_size_in_bytes)
        other = self._vectors.setdefault(plain_path(target), (age, vector))[1]
        if other is not vector:
            raise ReadError(
                f"{target} has two deletion vectors, in {other.path} and {path}, but may have only "
                "one: the table is damaged"
            )


def _position_delete(file: DataFile) -> tuple[str | Partition, DeleteFile]:
    """Return a position delete, and the data file that it names, or the partition if several."""
    low, high = _bound_of_paths(file.lower_bounds), _bound_of_paths(file.upper_bounds)
    target = _optional(file, _REFERENCED_DATA_FILE)
    if target is None and low is not None and low == high:
        target = low.decode(errors="surrogateescape")
    delete = DeleteFile(file.file_path, file.file_size_in_bytes, file.file_format.lower())
    where = _partition(file.spec_id, file.partition)
    return where if target is None else plain_path(target), delete


def _bound_of_paths(bounds: Mapping[int, bytes] | None) -> bytes | None:
    """Return a bound of the paths that a position delete file names."""
    known = bounds or {}
    return next((known[column] for column in _BOUNDED_IDS if column in known), None)


def _optional(file: DataFile, place: int) -> Any:
    """Return a field of entries of version 3; None for entries without it."""
    return file[place] if place < len(file) else None


def _partition(spec_id: int, values: Record | Iterable[Any]) -> Partition:
    """Return a key that two partitions share if and only if they are the same.

    As in other implementations, all NaN are equal, and the two zeros differ.
    """
    parts: Iterable[Any] = iter(values)
    return spec_id, *(_bits(value) if isinstance(value, float) else value for value in parts)


def _bits(value: float) -> str:
    return "NaN" if math.isnan(value) else value.hex()


def plain_path(path: str) -> str:
    """Return the path by which a local file is compared; other paths are not changed.

    ``file:///x``, ``file:/x`` and ``/x`` are one file, and engines write all three. Other paths
    must be equal as they are written, as the specification requires.
    """
    if path.startswith("file:///"):
        return path[7:]
    if path.startswith("file:/") and not path.startswith("file://"):
        return path[5:]
    return path


# --- rows


def positions(
    store: Store, delete: DeleteFile, data_path: str, *, record_count: int | None = None
) -> Int64Array:
    """Return the rows of a data file that a delete file names: ascending, each once.

    Args:
        store: The store of the delete file.
        delete: The delete file.
        data_path: The path of the data file in the manifest. It is compared as it is written,
            except that a local file is the same with and without ``file:``.
        record_count: Number of rows of the data file.

    Raises:
        ReadError: The delete file cannot be read, or names a row that does not exist.
    """
    by_path = _positions.get_or_make(
        (store.identity, delete), lambda: _by_path(store, delete), limit_bytes=_CACHE_BYTES
    )
    found = by_path.get(plain_path(data_path), np.empty(0, np.int64))
    if len(found) and record_count is not None and found[-1] >= record_count:
        raise ReadError(
            f"{delete.path} names row {found[-1]} of {data_path}, which has {record_count} rows: "
            "the table is damaged"
        )
    return found


def _by_path(store: Store, delete: DeleteFile) -> dict[str, Int64Array]:
    """Read a position delete file: positions by the plain path of the data file."""
    table = _read(store, delete, [_PATH, _POSITION], _RESERVED)
    if any(column.null_count for column in table.columns):
        raise ReadError(
            f"{delete.path} has nulls in the columns that name rows: the table is damaged"
        )
    parts: dict[str, list[Int64Array]] = defaultdict(list)
    grouped = table.group_by(_PATH.name).aggregate([(_POSITION.name, "list")])
    for path, found in zip(*grouped.columns, strict=True):
        parts[plain_path(path.as_py())].append(found.values.to_numpy())
    named = {path: np.unique(np.concatenate(found)) for path, found in parts.items()}
    for path, rows in named.items():
        if rows[0] < 0:
            raise ReadError(f"{delete.path} names row {rows[0]} of {path}: the table is damaged")
    return named


def equality_keys(
    store: Store, files: Iterable[DeleteFile], columns: Sequence[TableColumn]
) -> pa.Table:
    """Return the values of delete files in the columns by which they delete.

    Columns are found by their ids, also inside structs. They come out in the types of the table, as
    ``rows_with_keys`` expects them.
    """
    types = tuple(column.type for column in columns)
    return pa.concat_tables(
        _keys.get_or_make(
            (store.identity, file, types),
            lambda file=file: _in_joinable_form(_read(store, file, columns)),  # type: ignore[misc]
            limit_bytes=_CACHE_BYTES,
        )
        for file in files
    )


def rows_with_keys(rows: pa.Table, keys: pa.Table) -> Int64Array:
    """Return the ascending indices of rows that are among the keys from ``equality_keys``.

    Null is equal to null. The specification does not allow floating-point numbers here; they are
    compared as in the Java implementation: all NaN are equal, and the two zeros are not.
    """
    numbered = _in_joinable_form(rows).append_column("place", pa.array(np.arange(rows.num_rows)))
    found = numbered.join(keys, keys=keys.column_names, join_type="left semi", use_threads=False)
    return np.sort(found["place"].to_numpy())


def _in_joinable_form(table: pa.Table) -> pa.Table:
    """Return columns in a form that joins compare like deletes: nulls as flags, floats as bits."""
    columns: list[pa.ChunkedArray] = []
    for column in table.columns:
        if pa.types.is_floating(column.type):
            one_nan = pc.if_else(pc.is_nan(column), pa.scalar(math.nan, column.type), column)
            bits = {4: pa.int32(), 8: pa.int64()}[column.type.byte_width]
            column = pa.chunked_array([chunk.view(bits) for chunk in one_nan.chunks], bits)
        columns += [pc.is_null(column), pc.fill_null(column, _zero(column.type))]
    return pa.Table.from_arrays(columns, [str(place) for place in range(len(columns))])


def _zero(type_: pa.DataType) -> pa.Scalar:
    """Return a value in a type by which rows can be deleted."""
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        return pa.scalar("", type_)
    return pa.Array.from_buffers(type_, 1, [None, pa.py_buffer(bytes(type_.bit_width))])[0]


def _read(
    store: Store,
    delete: DeleteFile,
    wanted: Sequence[TableColumn],
    names: NameMapping | None = None,
) -> pa.Table:
    """Read columns of a delete file by their ids; in a file without ids by ``names``."""
    format_, file = FORMATS[delete.format], DataFileInfo(store_path(delete.path), delete.size)
    schema = pa.schema([(column.name, column.type) for column in wanted])
    columns = match_columns(
        wanted,
        format_.inspect(store, file).schema,
        wanted_schema=schema,
        names=names,
        constants={},
        where=delete.path,
    )
    if columns.missing:
        raise ReadError(
            f"{delete.path}: a delete file without a column of the field id {columns.missing[0]}, "
            f"outside of lists and maps, by which it deletes; {_CURE}"
        )
    blocks = format_.read(store, FileSplit(file), columns.stored, BLOCK_BYTES)
    tables = [columns.aligned(block, delete.path) for block in blocks]
    return pa.concat_tables([schema.empty_table(), *tables])


_positions: BoundedCache[dict[str, Int64Array]] = BoundedCache(
    lambda split: 200 + sum(2 * len(path) + 200 + found.nbytes for path, found in split.items())
)
_keys: BoundedCache[pa.Table] = BoundedCache(lambda table: 1000 + int(table.nbytes))
