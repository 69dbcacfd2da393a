"""The rows that delete files delete: by position, and by the values of columns.

Files are read when rows of a data file are read, and kept for other chunks of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import or_

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import ReadError
from headrace.matrices import rows_kept
from headrace.model import DataFileInfo, FileSplit, Int64Array, RowGroups, RowRange
from headrace.sources.files.cache import BoundedCache
from headrace.sources.files.orc import OrcFormat
from headrace.sources.files.protocol import Format
from headrace.sources.iceberg.deletes import (
    WAY_OUT,
    DeletesOf,
    EqualityDeleteFile,
    PositionDeleteFile,
    plain_path,
)
from headrace.sources.parquet.format import ParquetFormat
from headrace.sources.tables.columns import Column, field_id, match_columns
from headrace.sources.tables.table import store_path
from headrace.sources.tables.vectors import deleted_rows
from headrace.storage import Store

__all__ = [
    "EqualityKeys",
    "deleted",
    "equality_values",
    "hashes_of_rows",
    "live",
    "positions",
    "stored_type",
    "without_extension",
]

_SLOTS_A_KEY = 8
Hashes = npt.NDArray[np.uint64]

_ODD = np.uint64(0x9E3779B97F4A7C15)
_OF_NULL = np.uint64(0xD1B54A32D192ED03)
_BYTES_AT_ONCE = 1 << 21
"""of strings, which take many times as much while they are hashed"""


@dataclass(frozen=True, slots=True, eq=False)
class EqualityKeys:
    """Rows of values, in the order of their hashes.

    Few rows of a table have the hash of a key, and only those are compared, with the keys that
    they may be equal to: a million keys cost little more than a few.

    Null is equal to null. Of floating-point numbers, which the specification does not allow here,
    what the Java implementation makes of them: all NaN are equal, and the two zeros are not.
    """

    columns: tuple[pa.ChunkedArray, ...]
    hashes: Hashes
    """of the keys, ascending"""
    slots: npt.NDArray[np.bool_]
    """by the first bits of a hash, whether a key has them; a power of two"""

    @classmethod
    def of(cls, columns: Sequence[pa.ChunkedArray]) -> EqualityKeys:
        """Make keys of columns of the types that ``stored_type`` returns."""
        compared = [_comparable(column) for column in columns]
        hashes = hashes_of_rows(compared)
        order = np.argsort(hashes, kind="stable")
        places = pa.array(order)
        slots = np.zeros(1 << (_SLOTS_A_KEY * len(hashes) + 1).bit_length(), bool)
        slots[_slots_of(hashes, slots)] = True
        return cls(tuple(column.take(places) for column in compared), hashes[order], slots)

    @property
    def nbytes(self) -> int:
        """Their size in memory."""
        values = sum(int(column.nbytes) for column in self.columns)
        return values + self.hashes.nbytes + self.slots.nbytes

    def matches(self, columns: Sequence[pa.ChunkedArray]) -> npt.NDArray[np.bool_]:
        """Return which rows have the values of a key. Columns are in the order of the keys'."""
        compared = [_comparable(column) for column in columns]
        hashes = hashes_of_rows(compared)
        rows = np.flatnonzero(self.slots[_slots_of(hashes, self.slots)])
        first = np.searchsorted(self.hashes, hashes[rows], side="left")
        last = np.searchsorted(self.hashes, hashes[rows], side="right")
        rows, keys = rows[first < last], _ranges(first, last)
        matching = np.zeros(len(hashes), bool)
        if len(rows):
            own = [column.take(pa.array(rows)) for column in compared]
            named = [column.take(pa.array(keys)) for column in self.columns]
            matching[rows[_equal(own, named)]] = True
        return matching


def stored_type(type_: pa.DataType) -> pa.DataType:
    """Return the type in which keys are compared with a column of a table."""
    if isinstance(type_, pa.BaseExtensionType):
        return stored_type(type_.storage_type)
    return stored_type(type_.value_type) if pa.types.is_dictionary(type_) else type_


def without_extension(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column as it is stored: a UUID is sixteen bytes."""
    if not isinstance(column.type, pa.BaseExtensionType):
        return column
    return pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column whose values are equal where their bytes are: of floats, their bits."""
    column = without_extension(column).cast(stored_type(column.type))
    if not pa.types.is_floating(column.type):
        return column
    one_nan = pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), column)
    bits = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[column.type.bit_width]
    return pa.chunked_array([chunk.view(bits) for chunk in one_nan.chunks], bits)


def _slots_of(hashes: Hashes, slots: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint64]:
    return hashes >> np.uint64(65 - len(slots).bit_length())


def _ranges(first: Int64Array, last: Int64Array) -> Int64Array:
    """Return all numbers that lie in some ranges, of which the same one may come often."""
    starts, once = np.unique(first[first < last], return_index=True)
    lengths = (last - first)[first < last][once]
    before: Int64Array = np.cumsum(lengths) - lengths
    total = int(lengths.sum())
    return np.arange(total, dtype=np.int64) + np.repeat(starts - before, lengths)


def _equal(rows: list[pa.ChunkedArray], keys: list[pa.ChunkedArray]) -> npt.NDArray[np.bool_]:
    """Return which rows are equal to a key, by the places of their values among the keys'.

    Places in two columns make a number, and numbers have places among those that the keys have.
    """
    found, wanted = _places(rows[0], keys[0])
    for row, key in zip(rows[1:], keys[1:], strict=True):
        own, named = _places(row, key)
        count = np.int64(len(key))
        both = np.where((found < 0) | (own < 0), -1, found * count + own)
        found, wanted = _places(pa.array(both), pa.array(wanted * count + named))
    return found >= 0


def _places(
    rows: pa.ChunkedArray | pa.Array, keys: pa.ChunkedArray | pa.Array
) -> tuple[Int64Array, Int64Array]:
    """Return where the values of rows and of keys stand among those of keys; -1: nowhere."""
    values = pc.unique(keys)
    rows, keys = (
        np.asarray(pc.fill_null(pc.index_in(some, value_set=values), -1).to_numpy(), np.int64)
        for some in (rows, keys)
    )
    return rows, keys


# --- hashes of rows


def hashes_of_rows(columns: Sequence[pa.ChunkedArray]) -> Hashes:
    """Return a number for each row of some columns: the same for equal rows, and rarely for others.

    Values are hashed by their bytes: numbers, decimals, strings and binary. Floating-point numbers
    are not.
    """
    rows = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        parts = [_of_array(chunk) for chunk in column.chunks if len(chunk)]
        rows = _mixed(rows * _ODD + (np.concatenate(parts) if parts else rows))
    return rows


def _mixed(numbers: Hashes) -> Hashes:
    """Return numbers in which every bit depends on every other."""
    numbers = (numbers ^ (numbers >> np.uint64(31))) * np.uint64(0x7FB5D329728EA185)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x81DADEF4BC2DD44D)
    return numbers ^ (numbers >> np.uint64(33))


def _of_array(array: pa.Array) -> Hashes:
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    if pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type):
        numbers = _of_strings(array, np.dtype(np.int64))
    elif pa.types.is_string(array.type) or pa.types.is_binary(array.type):
        numbers = _of_strings(array, np.dtype(np.int32))
    else:
        numbers = _of_fixed_width(array)
    if array.null_count:
        numbers[array.is_null().to_numpy(zero_copy_only=False)] = _OF_NULL
    return numbers


def _of_fixed_width(array: pa.Array) -> Hashes:
    width = array.type.byte_width
    content = np.frombuffer(array.buffers()[1], np.uint8)
    content = content[array.offset * width : (array.offset + len(array)) * width]
    if width in (1, 2, 4, 8):
        return _mixed(content.view(f"u{width}").astype(np.uint64) + _ODD)
    return _mixed((content.reshape(-1, width) * _powers(width)).sum(axis=1, dtype=np.uint64))


def _of_strings(array: pa.Array, offset_type: np.dtype[np.signedinteger]) -> Hashes:
    bounds = np.frombuffer(array.buffers()[1], offset_type)
    bounds = bounds[array.offset : array.offset + len(array) + 1].astype(np.int64)
    if bounds[-1] - bounds[0] > _BYTES_AT_ONCE and len(array) > 1:
        half = len(array) // 2
        halves = [_of_strings(part, offset_type) for part in (array[:half], array[half:])]
        return np.concatenate(halves)
    raw = array.buffers()[2]
    content = np.frombuffer(b"" if raw is None else raw, np.uint8)[bounds[0] : bounds[-1]]
    bounds = bounds - bounds[0]
    lengths = np.diff(bounds)
    within = np.arange(len(content)) - np.repeat(bounds[:-1], lengths)
    weighed = (content.astype(np.uint64) + np.uint64(1)) * _powers(lengths.max(initial=0))[within]
    sums = np.zeros(len(content) + 1, np.uint64)
    np.cumsum(weighed, out=sums[1:])
    return _mixed(sums[bounds[1:]] - sums[bounds[:-1]] + lengths.astype(np.uint64))


def _powers(count: int) -> Hashes:
    """Return weights of the bytes of a value by their places."""
    return np.cumprod(np.full(count, _ODD, np.uint64), dtype=np.uint64)


CACHE_BYTES = 256 << 20
_BLOCK_BYTES = 32 << 20
_LARGE_ROWS = 2_000_000
_POSITION_COLUMNS = (2147483546, "file_path"), (2147483545, "pos")
"""ids and names that the specification reserves"""
_FORMATS: Mapping[str, Format] = {"parquet": ParquetFormat(), "orc": OrcFormat()}

Positions = npt.NDArray[np.int64] | npt.NDArray[np.uint32]


def positions(
    store: Store,
    delete: PositionDeleteFile,
    data_path: str,
    *,
    record_count: int | None = None,
) -> Int64Array:
    """Return the rows of a data file that a delete file names: ascending, each once.

    ``data_path`` is the one in the manifest. It is compared as it is written, except that a local
    file is the same with and without ``file:``. A row that is not there is an error.
    """
    with _belonging_to(data_path):
        found = _PositionFile(store, delete).naming(plain_path(data_path))
    if len(found) and record_count is not None and found[-1] >= record_count:
        raise ReadError(
            f"{delete.path} names row {found[-1]} of {data_path}, which has {record_count} rows: "
            "the table is damaged"
        )
    return found.astype(np.int64)


def equality_values(
    store: Store, delete: EqualityDeleteFile, types: Sequence[pa.DataType]
) -> pa.Table:
    """Return the values of the columns by which a file deletes, in the types of the table.

    Columns are found by their ids, also inside of structs, and are named by their ids.
    """
    format_, file = _format(delete), _file(delete)
    stored = format_.inspect(store, file).schema
    wanted = [
        Column(number, str(number), type_)
        for number, type_ in zip(delete.field_ids, types, strict=True)
    ]
    schema = pa.schema([(column.name, column.type) for column in wanted])
    columns = match_columns(wanted, stored, wanted_schema=schema, constants={}, where=delete.path)
    if columns.missing:
        raise ReadError(
            f"{delete.path}: no column has the field id {columns.missing[0]} by which it deletes, "
            f"outside of lists and maps; {WAY_OUT}"
        )
    blocks = format_.read(store, FileSplit(file), columns.stored, _BLOCK_BYTES)
    tables = [columns.aligned(block, delete.path) for block in blocks]
    return pa.concat_tables([schema.empty_table(), *tables])


@contextmanager
def _belonging_to(data_path: str) -> Iterator[None]:
    """Name the data file whose rows cannot be told without what is read inside."""
    try:
        yield
    except ReadError as error:
        raise type(error)(f"{data_path}: its deletes cannot be read: {error}") from error


class _PositionFile:
    """A position delete file, of which no more is read than is needed and not kept already."""

    def __init__(self, store: Store, delete: PositionDeleteFile) -> None:
        self._store = store
        self._path = delete.path
        self._format = _format(delete)
        self._file = _file(delete)
        self._key = store.identity, self._file.path, self._file.file_size

    def naming(self, path: str) -> Positions:
        """Return the positions for one data file."""
        kept = _by_path.get(self._key)
        if kept is None:
            kept = _by_path.get((*self._key, path))
        if kept is None:
            kept = self._read(path)
        return kept.get(path, np.empty(0, np.int64))

    def _read(self, path: str) -> dict[str, Positions]:
        facts = self._format.inspect(self._store, self._file)
        names = [self._column(facts.schema, *column) for column in _POSITION_COLUMNS]
        rows = facts.record_count or 0
        part = self._part(path, names[0]) if rows > _LARGE_ROWS else None
        if part is None or 4 * int(part.rows.sum()) > rows:
            return _by_path.get_or_make(
                self._key,
                lambda: self._split([RowRange(0, rows)], names),
                limit_bytes=CACHE_BYTES,
            )
        ranges = map(RowRange, part.start.tolist(), part.rows.tolist())
        return _by_path.get_or_make(
            (*self._key, path),
            lambda: {path: self._split(ranges, names).get(path, np.empty(0, np.int64))},
            limit_bytes=CACHE_BYTES,
        )

    def _part(self, path: str, column: str) -> RowGroups | None:
        """Return the row groups that may name a data file."""
        spelled = [path, f"file:{path}", f"file://{path}"] if path.startswith("/") else [path]
        keep = reduce(or_, [pc.field(column) == spelling for spelling in spelled])
        return self._format.inspect(self._store, self._file, keep).row_groups

    def _column(self, schema: pa.Schema, number: int, name: str) -> str:
        """Return the name of a column, found by its id; in a file without ids, by its name."""
        by_id = [str(field.name) for field in schema if field_id(field) == number]
        if not by_id and name not in schema.names:
            raise ReadError(
                f"{self._path}: a position delete file without {name!r}: the table is damaged"
            )
        return by_id[0] if by_id else name

    def _split(self, ranges: Iterable[RowRange], names: list[str]) -> dict[str, Positions]:
        """Return the positions in some rows, by the data file that they are of."""
        parts: dict[str, list[Int64Array]] = {}
        wanted = pa.schema([(names[0], pa.string()), (names[1], pa.int64())])
        for rows in ranges:
            chunk = FileSplit(self._file, rows)
            for table in self._format.read(self._store, chunk, wanted, _BLOCK_BYTES):
                for path, found in self._by_path(table.select(names)):
                    parts.setdefault(plain_path(path), []).append(found)
        return {path: _compact(np.concatenate(found)) for path, found in parts.items()}

    def _by_path(self, table: pa.Table) -> Iterator[tuple[str, Int64Array]]:
        paths, numbers = (column.combine_chunks() for column in table.columns)
        if paths.null_count or numbers.null_count:
            raise ReadError(f"{self._path} has nulls where it names rows: the table is damaged")
        at = numbers.cast(pa.int64()).to_numpy(zero_copy_only=False)
        encoded = paths.cast(pa.large_string()).dictionary_encode()
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        if (np.diff(codes) < 0).any():
            order = np.argsort(codes, kind="stable")
            codes, at = codes[order], at[order]
        cuts = np.searchsorted(codes, np.arange(len(encoded.dictionary) + 1)).tolist()
        for number, path in enumerate(encoded.dictionary.to_pylist()):
            found = at[cuts[number] : cuts[number + 1]]
            if found.min() < 0:
                raise ReadError(
                    f"{self._path} names row {found.min()} of {path}: the table is damaged"
                )
            yield path, found


def _compact(found: Int64Array) -> Positions:
    """Return positions ascending, each once, in half of the bytes where they fit."""
    if not (np.diff(found) > 0).all():
        found = np.unique(found)
    return found.astype(np.uint32) if found[-1] < 1 << 32 else found.copy()


_by_path: BoundedCache[dict[str, Positions]] = BoundedCache(
    lambda split: 200 + sum(2 * len(path) + 200 + found.nbytes for path, found in split.items())
)


def _format(delete: PositionDeleteFile | EqualityDeleteFile) -> Format:
    if delete.format not in _FORMATS:
        raise ReadError(f"{delete.path}: delete files in {delete.format} cannot be read; {WAY_OUT}")
    return _FORMATS[delete.format]


def _file(delete: PositionDeleteFile | EqualityDeleteFile) -> DataFileInfo:
    return DataFileInfo(store_path(delete.path), delete.size)


# --- rows that are left


def live(
    store: Store,
    deletes: DeletesOf,
    file: DataFileInfo,
    first_row: int,
    table: pa.Table,
    equality_columns: Mapping[int, str] | None = None,
    *,
    data_path: str | None = None,
) -> pa.Table:
    """Return the rows of a table that are left, in order; the table itself if all of them are.

    Args:
        store: Where the delete files are.
        deletes: What deletes rows of the file.
        file: The data file, with the number of rows that are stored in it.
        first_row: The row of the file at which the table begins; the table has no gaps.
        table: The rows.
        equality_columns: Names of columns of the table by the ids in ``deletes.field_ids``.
        data_path: The path of the file in the manifest, where the store has another one.
    """
    if not deletes or not table.num_rows:
        return table
    path = file.path if data_path is None else data_path
    gone = deleted(store, deletes, file.record_count, path)
    first, last = np.searchsorted(gone, [first_row, first_row + table.num_rows])
    keep = np.ones(table.num_rows, bool)
    keep[gone[first:last] - first_row] = False
    if deletes.equalities and keep.any():
        with _belonging_to(path):
            keep &= _unequal(store, deletes, table, equality_columns or {})
    left = int(np.count_nonzero(keep))
    if left == table.num_rows:
        return table
    return rows_kept(table, keep) if left else table.slice(0, 0)


def deleted(store: Store, deletes: DeletesOf, record_count: int | None, path: str) -> Int64Array:
    """Return all positions of a data file that are deleted by position, ascending."""
    if deletes.vector is not None:
        with _belonging_to(path):
            return deleted_rows(store, deletes.vector, path, record_count)
    if not deletes.positions:
        return np.empty(0, np.int64)

    def read() -> Int64Array:
        parts = [
            positions(store, delete, path, record_count=record_count)
            for delete in deletes.positions
        ]
        return parts[0] if len(parts) == 1 else np.unique(np.concatenate(parts))

    key = store.identity, path, record_count, deletes.positions
    return _positions.get_or_make(key, read, limit_bytes=CACHE_BYTES)


def _unequal(
    store: Store, deletes: DeletesOf, table: pa.Table, names: Mapping[int, str]
) -> npt.NDArray[np.bool_]:
    """Return which rows have values that no equality delete has."""
    keep = np.ones(table.num_rows, bool)
    missing = sorted(deletes.field_ids - {i for i in names if names[i] in table.column_names})
    if missing:
        raise ReadError(
            f"rows are deleted by the values of the columns with the field ids {missing}, "
            "which were not read"
        )
    for field_ids in sorted({file.field_ids for file in deletes.equalities}):
        columns = [table.column(names[number]) for number in field_ids]
        types = tuple(stored_type(column.type) for column in columns)
        keep &= ~_keys_of(store, deletes, field_ids, types).matches(columns)
    return keep


def _keys_of(
    store: Store, deletes: DeletesOf, field_ids: tuple[int, ...], types: tuple[pa.DataType, ...]
) -> EqualityKeys:
    def values(file: EqualityDeleteFile) -> pa.Table:
        return _values.get_or_make(
            (store.identity, file, types),
            lambda: equality_values(store, file, types),
            limit_bytes=CACHE_BYTES,
        )

    def make() -> EqualityKeys:
        files = [file for file in deletes.equalities if file.field_ids == field_ids]
        return EqualityKeys.of(pa.concat_tables(map(values, files)).columns)

    key = store.identity, deletes.equalities, field_ids, types
    return _keys.get_or_make(key, make, limit_bytes=CACHE_BYTES)


_positions: BoundedCache[Int64Array] = BoundedCache(lambda found: 200 + found.nbytes)
_values: BoundedCache[pa.Table] = BoundedCache(lambda table: 1000 + int(table.nbytes))
_keys: BoundedCache[EqualityKeys] = BoundedCache(lambda keys: 1000 + keys.nbytes)
