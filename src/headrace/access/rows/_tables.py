"""Rows of views as tables: gathered, filtered, mapped, and written as Arrow files."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as ds
import torch

from headrace.access.rows._reader import RowReader
from headrace.access.rows._views import View
from headrace.errors import OptionError, SchemaError
from headrace.model import Int64Array
from headrace.sources.files.filters import rows_where
from headrace.sources.taking import copied
from headrace.sources.values import plain_value

_INDEX = "headrace row index"
_SHARD_BYTES = 64 << 20
_BATCH_ROWS = 1000
"""Number of rows of the record batches that are written."""

Part = tuple[int, pa.Table]
"""Some rows of a view that follow each other, after the index of the first one."""

_CANNOT = (pa.ArrowInvalid, pa.ArrowTypeError, NotImplementedError, OverflowError)
"""Errors that Arrow raises for values without an Arrow type, or that do not fit a type."""


def gathered(reader: RowReader, view: View) -> pa.Table:
    """Return all rows of a view, copied into memory."""
    return copied(_rows(reader, view, 0, view.count))


def in_parts(reader: RowReader, view: View, part_rows: int) -> Iterator[Part]:
    """Yield all rows of a view as they are stored, some at a time."""
    for start in range(0, view.count, part_rows):
        yield start, _rows(reader, view, start, min(start + part_rows, view.count))


def _rows(reader: RowReader, view: View, start: int, stop: int) -> pa.Table:
    if view.is_run and stop > start:
        return reader.slice(view.start + start, stop - start)
    return reader.table(view.at(np.arange(start, stop, dtype=np.int64)))


def _in_types(table: pa.Table, schema: pa.Schema) -> pa.Table:
    pairs = zip(table.columns, schema.types, strict=True)
    # A column that has its type already is not cast: pyarrow casts wrong rows of slices of runs.
    try:
        columns = [column if column.type == kind else column.cast(kind) for column, kind in pairs]
    except pa.ArrowException as error:
        raise SchemaError(f"values have no common type: {error}") from error
    return pa.Table.from_arrays(columns, schema=schema)


def with_column(table: pa.Table, name: str, values: Any) -> pa.Table:
    """Return a table with one more column."""
    if name in table.schema.names:
        raise SchemaError(f"there is a column {name!r} already; rename it first")
    column = arrow_column(name, values)
    if len(column) != table.num_rows:
        raise OptionError(f"column {name!r} has {len(column)} values for {table.num_rows} rows")
    return table.append_column(name, column)


@dataclass(frozen=True, slots=True)
class RowFunction:
    """A function of the user that is called with rows, or with batches of rows.

    Attributes:
        function: The function.
        batched: True if it gets the columns of many rows, as a dict of lists.
        with_indices: True if it also gets the index of the row, or a list of them.
        input_columns: The columns that it gets, one argument each, in place of a dict.
    """

    function: Callable[..., Any]
    batched: bool
    with_indices: bool
    input_columns: Sequence[str] | None

    def results(self, part: pa.Table, start: int) -> Any:
        """Return the results of the function for a table whose first row has the index ``start``.

        This is a list with the result of each row, or the one result of a batch.
        """
        indices = range(start, start + part.num_rows)
        if self.batched:
            return self._called(part.to_pydict(), list(indices))
        rows = part.to_pylist()
        return [self._called(row, index) for row, index in zip(rows, indices, strict=True)]

    def _called(self, values: dict[str, Any], indices: Any) -> Any:
        chosen = self.input_columns
        arguments = [values] if chosen is None else [values[name] for name in chosen]
        return (
            self.function(*arguments, indices) if self.with_indices else self.function(*arguments)
        )


def rows_that(parts: Iterable[Part], function: RowFunction) -> Int64Array:
    """Return the indices of the rows for which a function returns True."""
    kept: list[npt.NDArray[np.bool_]] = []
    for start, part in parts:
        results = function.results(part, start)
        if len(results) != part.num_rows:
            raise OptionError(
                f"filter: the function returned {len(results)} values for the {part.num_rows} rows "
                f"from row {start} on"
            )
        kept.append(np.fromiter(map(bool, results), bool, part.num_rows))
    return np.flatnonzero(np.concatenate(kept)) if kept else np.empty(0, np.int64)


def rows_matching(parts: Iterable[Part], expression: ds.Expression) -> Int64Array:
    """Return the indices of the rows that an expression keeps."""
    kept: list[Int64Array] = []
    for start, part in parts:
        indices = pa.array(np.arange(start, start + part.num_rows))
        found = rows_where(part.append_column(_INDEX, indices), expression)
        kept.append(found.column(_INDEX).to_numpy())
    return np.concatenate(kept) if kept else np.empty(0, np.int64)


def mapped(
    parts: Iterable[Part], function: RowFunction, removed: Sequence[str], made: set[str]
) -> Iterator[pa.Table]:
    """Yield tables with the columns that a function returns, which replace or follow the others.

    Args:
        parts: The rows.
        function: The function, which returns dicts.
        removed: Columns that the function gets and the result does not have.
        made: Set to the names of the columns that the function returned.
    """
    for start, part in parts:
        results = function.results(part, start)
        columns = results if function.batched else _in_columns(results, start)
        base = part.drop_columns(list(removed))
        _check_columns(columns, base, start)
        if start and made != columns.keys():
            raise SchemaError(
                f"map: the results from row {start} on have the columns {list(columns)}, and the "
                f"rows before have {sorted(made)}; all need the same"
            )
        made.update(columns)
        yield _with_columns(base, columns)


def _in_columns(results: list[Any], start: int) -> dict[str, list[Any]]:
    for place, result in enumerate(results):
        if not isinstance(result, Mapping):
            raise OptionError(
                f"map: row {start + place} became {result!r}; the function must return a dict"
            )
        if result.keys() != results[0].keys():
            raise SchemaError(
                f"map: row {start + place} has the columns {list(result)}, and row {start} "
                f"{list(results[0])}; all need the same"
            )
    return {name: [result[name] for result in results] for name in results[0]}


def _check_columns(columns: object, base: pa.Table, start: int) -> None:
    """Raise an OptionError if results are not columns, or do not fit the columns that stay."""
    if not isinstance(columns, Mapping):
        raise OptionError(
            f"map: the batch from row {start} on became {columns!r}; the function "
            "must return a dict"
        )
    stay = [name for name in base.schema.names if name not in columns]
    rows = len(next(iter(columns.values()))) if columns and not stay else base.num_rows
    for name, values in columns.items():
        if len(values) != rows:
            raise OptionError(
                f"map: column {name!r} has {len(values)} values for the {rows} rows from row "
                f"{start} on; the number of rows changes only if all other columns are in "
                "remove_columns"
            )


def _with_columns(base: pa.Table, columns: Mapping[str, Any]) -> pa.Table:
    """Return a table with some columns replaced in place, and others appended."""
    if not columns:
        return base
    fields = {field.name: field for field in base.schema}
    arrays = dict(zip(base.schema.names, base.columns, strict=True))
    for name, values in columns.items():
        arrays[name] = arrow_column(name, values, fields[name].type if name in fields else None)
        fields[name] = pa.field(name, arrays[name].type)
    schema = pa.schema(list(fields.values()), base.schema.metadata)
    return pa.Table.from_arrays(list(arrays.values()), schema=schema)


def joined(tables: Iterable[pa.Table], empty: pa.Table) -> pa.Table:
    """Return all rows of tables as one table, in types that hold all values.

    Args:
        tables: The tables; the types of a column may differ.
        empty: The result if there are none.
    """
    held = list(tables) or [empty]
    schema = _common_schema([table.schema for table in held])
    return copied(pa.concat_tables([_in_types(table, schema) for table in held]))


def write_shards(tables: Iterable[pa.Table], empty: pa.Table, folder: Path) -> list[str]:
    """Write tables as Arrow IPC files of moderate size and return their paths.

    The folder appears when all files in it are complete.

    Raises:
        OptionError: The folder is not empty.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OptionError(
            f"cache_dir={str(folder)!r} is there already; read it with ArrowBackend, or remove it"
        )
    made = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
    made.mkdir(parents=True)
    try:
        schemas = [
            _write(shard, made / f"part-{number:05}.arrow")
            for number, shard in enumerate(_in_shards(tables, empty))
        ]
        schema = _common_schema(schemas)
        paths = sorted(made.iterdir())
        for path, own in zip(paths, schemas, strict=True):
            if own.types != schema.types:
                with pa.OSFile(str(path)) as source:
                    table = pa.ipc.open_file(source).read_all()
                _write(_in_types(table, schema), path)
        made.rename(folder)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return [str(folder / path.name) for path in paths]


def _in_shards(tables: Iterable[pa.Table], empty: pa.Table) -> Iterator[pa.Table]:
    """Yield tables of one schema joined, up to the size of a shard."""
    held: list[pa.Table] = []
    size = 0
    for table in tables:
        if held and (size + table.nbytes > _SHARD_BYTES or table.schema != held[0].schema):
            yield pa.concat_tables(held)
            held, size = [], 0
        held.append(table)
        size += table.nbytes
    yield pa.concat_tables(held) if held else empty


def _write(table: pa.Table, path: Path) -> pa.Schema:
    with pa.ipc.new_file(path, table.schema) as writer:
        # A file has one dictionary a column.
        writer.write_table(table.unify_dictionaries(), max_chunksize=_BATCH_ROWS)
    return table.schema


def _common_schema(schemas: Sequence[pa.Schema]) -> pa.Schema:
    try:
        return pa.unify_schemas(schemas, promote_options="permissive")
    except pa.ArrowException as error:
        raise SchemaError(
            f"map: the values of a column have different types from batch to batch: {error}"
        ) from error


def arrow_column(name: str, values: Any, type_: pa.DataType | None = None) -> Any:
    """Return values as an Arrow array: of the given type if they fit it, else of their own type."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if isinstance(values, torch.Tensor | np.ndarray):
        values = plain_value(values)
    else:
        values = _as_one([plain_value(value) for value in values])
    made, failure = None, None
    try:
        made = _array(values)
    except _CANNOT as error:
        failure = error
    kept = None if type_ is None else _of_type(values, made, type_)
    if kept is None and made is None:
        raise SchemaError(f"column {name!r}: Arrow has no type for its values: {failure}")
    return made if kept is None else kept


def _as_one(values: list[Any]) -> Any:
    """Return arrays of one shape and type as one array; anything else stays a list."""
    if values and all(isinstance(value, np.ndarray) for value in values):
        if len({(value.shape, value.dtype.str) for value in values}) == 1:
            return np.stack(values)
        return [value if value.ndim == 1 else value.tolist() for value in values]
    return values


def _array(values: Any) -> pa.Array:
    if not isinstance(values, np.ndarray) or values.ndim < 2:
        return pa.array(values if len(values) else np.asarray(values))
    if values.ndim == 2 and values.shape[1]:
        return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
    if values.size:
        return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(values))
    if not len(values):
        kind = pa.from_numpy_dtype(values.dtype)
        return pa.nulls(0, pa.fixed_shape_tensor(kind, values.shape[1:]))
    return pa.array(values.tolist())


def _of_type(values: Any, inferred: pa.Array | None, type_: pa.DataType) -> pa.Array | None:
    """Return values in a type, or None if the type would change them.

    Args:
        values: The values.
        inferred: The values in the type that Arrow infers, if it can.
        type_: The type.
    """
    if inferred is not None and inferred.type == type_:
        return inferred
    is_wide = isinstance(values, np.ndarray) and values.ndim > 1
    try:
        if inferred is not None and (is_wide or isinstance(type_, pa.BaseExtensionType)):
            made = inferred.cast(type_)
        else:
            made = pa.array(values, type_)
    except _CANNOT:
        return None
    # The text of values tells apart 1, 1.0 and True, and is equal for NaN.
    text = repr(made.to_pylist())
    is_same = inferred is not None and text == repr(inferred.to_pylist())
    return made if is_same or text == repr(list(values)) else None
