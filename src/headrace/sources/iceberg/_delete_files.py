"""The rows that delete files delete: by position, and by the values of columns.

Files are read when rows of a data file are first read, and what they hold is kept for other data
files. Values are compared with the rows of a data file once: what comes out is positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import ReadError
from headrace.model import DataFileInfo, FileSplit, Int64Array
from headrace.sources.files._cache import BoundedCache
from headrace.sources.files._orc import OrcFormat
from headrace.sources.files.protocol import Format
from headrace.sources.iceberg._deletes import (
    WAY_OUT,
    DeletesOf,
    EqualityDeleteFile,
    PositionDeleteFile,
    plain_path,
)
from headrace.sources.parquet._format import ParquetFormat
from headrace.sources.tables._catalog import store_path
from headrace.sources.tables._columns import TableColumn, field_id, match_columns
from headrace.storage import Store

__all__ = ["BLOCK_BYTES", "CACHE_BYTES", "FORMATS", "EqualityKeys", "equality_keys", "positions"]

CACHE_BYTES = 256 << 20
BLOCK_BYTES = 32 << 20
_POSITION_COLUMNS = (2147483546, "file_path"), (2147483545, "pos")
"""ids and names that the specification reserves"""
FORMATS: Mapping[str, Format] = {
    # Spark writes timestamps in a way that tells no unit, and a table's are microseconds.
    "parquet": ParquetFormat({"coerce_int96_timestamp_unit": "us"}),
    "orc": OrcFormat(),
}
"""of data files and of delete files"""

Positions = npt.NDArray[np.int64] | npt.NDArray[np.uint32]


def _format(delete: PositionDeleteFile | EqualityDeleteFile) -> Format:
    if delete.format not in FORMATS:
        raise ReadError(f"{delete.path}: delete files in {delete.format} cannot be read; {WAY_OUT}")
    return FORMATS[delete.format]


def _file(delete: PositionDeleteFile | EqualityDeleteFile) -> DataFileInfo:
    return DataFileInfo(store_path(delete.path), delete.size)


# --- by position


def positions(
    store: Store,
    delete: PositionDeleteFile,
    data_path: str,
    *,
    record_count: int | None = None,
) -> Int64Array:
    """Return the rows of a data file that a delete file names: ascending, each once.

    Args:
        store: Where the delete file is.
        delete: The delete file.
        data_path: The path of the data file in the manifest. It is compared as it is written,
            except that a local file is the same with and without ``file:``.
        record_count: Number of rows of the data file.

    Raises:
        ReadError: The delete file cannot be read, or names a row that is not there.
    """
    by_path = _by_path.get_or_make(
        (store.identity, store_path(delete.path), delete.size),
        lambda: _positions_by_path(store, delete),
        limit_bytes=CACHE_BYTES,
    )
    found = by_path.get(plain_path(data_path), np.empty(0, np.int64))
    if len(found) and record_count is not None and found[-1] >= record_count:
        raise ReadError(
            f"{delete.path} names row {found[-1]} of {data_path}, which has {record_count} rows: "
            "the table is damaged"
        )
    return found.astype(np.int64)


def _positions_by_path(store: Store, delete: PositionDeleteFile) -> dict[str, Positions]:
    """Read a position delete file: positions by the plain path of the data file."""
    format_, file = _format(delete), _file(delete)
    schema = format_.inspect(store, file).schema
    names = [_position_column(delete, schema, *column) for column in _POSITION_COLUMNS]
    wanted = pa.schema([(names[0], pa.string()), (names[1], pa.int64())])
    blocks = format_.read(store, FileSplit(file), wanted, BLOCK_BYTES)
    tables = [block.select(names).cast(wanted) for block in blocks]
    table = pa.concat_tables([wanted.empty_table(), *tables]).rename_columns(["path", "at"])
    if any(column.null_count for column in table.columns):
        raise ReadError(f"{delete.path} has nulls where it names rows: the table is damaged")
    parts: dict[str, list[Int64Array]] = {}
    grouped = table.group_by("path").aggregate([("at", "list")])
    for path, found in zip(grouped["path"], grouped["at_list"], strict=True):
        named = np.unique(found.values.to_numpy())
        if named[0] < 0:
            raise ReadError(f"{delete.path} names row {named[0]} of {path}: the table is damaged")
        parts.setdefault(plain_path(path.as_py()), []).append(named)
    return {path: _compact(found) for path, found in parts.items()}


def _position_column(delete: PositionDeleteFile, schema: pa.Schema, number: int, name: str) -> str:
    """Return the name of a column, found by its id; in a file without ids, by its name."""
    by_id = [str(field.name) for field in schema if field_id(field) == number]
    if not by_id and name not in schema.names:
        raise ReadError(
            f"{delete.path}: a position delete file without {name!r}: the table is damaged"
        )
    return by_id[0] if by_id else name


def _compact(parts: Sequence[Int64Array]) -> Positions:
    """Return positions ascending, each once, in half of the bytes where they fit."""
    found = parts[0] if len(parts) == 1 else np.unique(np.concatenate(parts))
    return found.astype(np.uint32) if found[-1] < 1 << 32 else found


# --- by values


@dataclass(frozen=True, slots=True, eq=False)
class EqualityKeys:
    """Distinct rows of values.

    Null is equal to null. The specification does not allow floating-point numbers here; they are
    compared as the Java implementation does: all NaN are equal, and the two zeros are not.

    Attributes:
        values: The distinct values of each column.
        rows: The distinct rows of the first columns, up to each column. A row is a number: that of
            the row of the columns before, and the place of the value of this one.
    """

    values: tuple[pa.Array, ...]
    rows: tuple[Int64Array, ...]

    @classmethod
    def of(cls, columns: Sequence[pa.ChunkedArray]) -> EqualityKeys:
        """Return the distinct rows of some columns."""
        values, rows = [], []
        numbers = np.zeros(len(columns[0]), np.int64)
        for column in map(_comparable, columns):
            distinct = pc.unique(column)
            numbers = numbers * len(distinct) + _places(column, distinct)
            known, numbers = np.unique(numbers, return_inverse=True)
            values.append(distinct)
            rows.append(known)
        return cls(tuple(values), tuple(rows))

    @property
    def nbytes(self) -> int:
        """Their size in memory."""
        return sum(int(part.nbytes) for part in (*self.values, *self.rows))

    def matches(self, columns: Sequence[pa.ChunkedArray]) -> Int64Array:
        """Return the places of rows that have the values of a key, ascending."""
        at = np.arange(len(columns[0]) if len(self.rows[0]) else 0)
        numbers = np.zeros(len(at), np.int64)
        for column, distinct, known in zip(columns, self.values, self.rows, strict=True):
            if not len(at):
                break
            places = _places(_comparable(column), distinct)[at]
            numbers = numbers * len(distinct) + places
            found = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
            same = (places >= 0) & (known[found] == numbers)
            at, numbers = at[same], found[same]
        return at


def _places(column: pa.ChunkedArray, values: pa.Array) -> Int64Array:
    """Return where the values of a column are among some; -1: nowhere."""
    found = pc.fill_null(pc.index_in(column, value_set=values), -1)
    return np.asarray(found.to_numpy(), np.int64)


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column whose values are equal where their bytes are: of floats, their bits."""
    if not pa.types.is_floating(column.type):
        return column
    one_nan = pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), column)
    bits = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[column.type.bit_width]
    return pa.chunked_array([chunk.view(bits) for chunk in one_nan.chunks], bits)


def equality_keys(
    store: Store, deletes: DeletesOf, types: Mapping[int, pa.DataType]
) -> Iterator[tuple[tuple[int, ...], EqualityKeys]]:
    """Yield the columns by which rows are deleted, and the keys, for each set of columns.

    Args:
        store: Where the delete files are.
        deletes: The deletes of a data file.
        types: The types in which values are compared, by the ids of columns.
    """
    files = list(chain.from_iterable(deletes.equalities))
    for field_ids in sorted({file.field_ids for file in files}):
        wanted = tuple(types[number] for number in field_ids)
        same = [file for file in files if file.field_ids == field_ids]
        key = store.identity, deletes.equalities, field_ids, wanted
        make = partial(_read_keys, store, same, wanted)
        yield field_ids, _keys.get_or_make(key, make, limit_bytes=CACHE_BYTES)


def _read_keys(
    store: Store, files: Sequence[EqualityDeleteFile], types: tuple[pa.DataType, ...]
) -> EqualityKeys:
    def values(file: EqualityDeleteFile) -> pa.Table:
        return _values.get_or_make(
            (store.identity, file, types),
            lambda: equality_values(store, file, types),
            limit_bytes=CACHE_BYTES,
        )

    return EqualityKeys.of(pa.concat_tables(map(values, files)).columns)


def equality_values(
    store: Store, delete: EqualityDeleteFile, types: Sequence[pa.DataType]
) -> pa.Table:
    """Return the values of the columns by which a file deletes, in the types of the table.

    Columns are found by their ids, also inside of structs, and are named by their ids.
    """
    format_, file = _format(delete), _file(delete)
    stored = format_.inspect(store, file).schema
    wanted = [
        TableColumn(number, str(number), type_)
        for number, type_ in zip(delete.field_ids, types, strict=True)
    ]
    schema = pa.schema([(column.name, column.type) for column in wanted])
    columns = match_columns(wanted, stored, wanted_schema=schema, constants={}, where=delete.path)
    if columns.missing:
        raise ReadError(
            f"{delete.path}: no column has the field id {columns.missing[0]} by which it deletes, "
            f"outside of lists and maps; {WAY_OUT}"
        )
    blocks = format_.read(store, FileSplit(file), columns.stored, BLOCK_BYTES)
    tables = [columns.aligned(block, delete.path) for block in blocks]
    return pa.concat_tables([schema.empty_table(), *tables])


_by_path: BoundedCache[dict[str, Positions]] = BoundedCache(
    lambda split: 200 + sum(2 * len(path) + 200 + found.nbytes for path, found in split.items())
)
_values: BoundedCache[pa.Table] = BoundedCache(lambda table: 1000 + int(table.nbytes))
_keys: BoundedCache[EqualityKeys] = BoundedCache(lambda keys: 1000 + keys.nbytes)
