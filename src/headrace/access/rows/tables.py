"""Rows as tables in memory: gathered in the order of a view, with columns that are new."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
import torch

from headrace.access.backend import StorageBackend
from headrace.access.rows.types import CANNOT, of_type
from headrace.access.rows.views import View
from headrace.errors import OptionError, SchemaError

__all__ = ["arrow_column", "gathered", "mapped", "with_column"]


def gathered(backend: StorageBackend, view: View, columns: Sequence[str] | None) -> pa.Table:
    """All rows of a view, in memory of their own."""
    if view.count and view.is_run:
        return _copied(backend.slice(view.start, view.count, columns=columns))
    table = backend.take(view.at(np.arange(view.count, dtype=np.int64)), columns=columns)
    return _copied(table) if any(map(_shares_memory, table.schema.types)) else table


def _copied(table: pa.Table) -> pa.Table:
    """The same without the files and the other rows that what is only a slice holds on to."""
    if not table.num_columns:
        return table
    plain = _in_types(table, pa.schema([f.with_type(_without_views(f.type)) for f in table.schema]))
    memory = pa.BufferOutputStream()
    with pa.ipc.new_stream(memory, plain.schema) as stream:
        stream.write_table(plain)
    return _in_types(pa.ipc.open_stream(memory.getvalue()).read_all(), table.schema)


def _in_types(table: pa.Table, schema: pa.Schema) -> pa.Table:
    pairs = zip(table.columns, schema.types, strict=True)
    # What has its type already is left as it is: of a slice of runs pyarrow casts wrong rows.
    columns = [column if column.type == type_ else column.cast(type_) for column, type_ in pairs]
    return pa.Table.from_arrays(columns, schema=schema)


def _without_views(type_: pa.DataType) -> pa.DataType:
    """Of values behind views all are written, also those of other rows."""
    if pt.is_string_view(type_):
        return pa.string()
    return pa.binary() if pt.is_binary_view(type_) else type_


def _shares_memory(type_: pa.DataType) -> bool:
    """Whether values of rows that were taken lie where they lay: in dictionaries, behind views."""
    if isinstance(type_, pa.BaseExtensionType):
        return _shares_memory(type_.storage_type)
    if pt.is_dictionary(type_) or pt.is_string_view(type_) or pt.is_binary_view(type_):
        return True
    return any(_shares_memory(type_.field(number).type) for number in range(type_.num_fields))


def with_column(table: pa.Table, name: str, values: Any) -> pa.Table:
    """The table with one more column."""
    if name in table.schema.names:
        raise SchemaError(f"there is a column {name!r} already; rename it first")
    column = arrow_column(name, values)
    if len(column) != table.num_rows:
        raise OptionError(f"column {name!r} has {len(column)} values for {table.num_rows} rows")
    return table.append_column(name, column)


def mapped(
    table: pa.Table, function: Callable[[Any], Mapping[str, Any]], batched: bool, batch_size: int
) -> tuple[pa.Table, set[str]]:
    """Return the table with the columns that a function makes of its rows, and their names.

    They take the place of columns of the same name.
    """
    made: dict[str, list[Any]] = {}
    for start in range(0, table.num_rows, batch_size):
        part = table.slice(start, min(batch_size, table.num_rows - start))
        results = function(part.to_pydict()) if batched else _by_row(function, part, start)
        _check_result(results, part.num_rows, start)
        if start and made.keys() != results.keys():
            raise SchemaError(
                f"map: the results from row {start} on have the columns {list(results)}, and "
                f"those before {list(made)}; all need the same"
            )
        for name, values in results.items():
            made.setdefault(name, []).extend(values)
    for name, values in made.items():
        place = table.schema.get_field_index(name)
        if place < 0:
            table = table.append_column(name, arrow_column(name, values))
        else:
            column = arrow_column(name, values, table.schema.field(place).type)
            table = table.set_column(place, name, column)
    return table, set(made)


def _by_row(
    function: Callable[[Any], Mapping[str, Any]], part: pa.Table, start: int
) -> dict[str, list[Any]]:
    results = [function(row) for row in part.to_pylist()]
    for place, result in enumerate(results):
        if not isinstance(result, Mapping):
            raise OptionError(f"map: row {start + place} became {result!r}, and not a dict")
        if result.keys() != results[0].keys():
            raise SchemaError(
                f"map: row {start + place} has the columns {list(result)}, and row {start} "
                f"{list(results[0])}; all need the same"
            )
    return {name: [result[name] for result in results] for name in results[0]}


def _check_result(results: object, rows: int, start: int) -> None:
    if not isinstance(results, Mapping):
        raise OptionError(f"map: the batch from row {start} on became {results!r}, and not a dict")
    for name, values in results.items():
        if not hasattr(values, "__len__"):
            raise OptionError(
                f"map: column {name!r} of the batch from row {start} on is {values!r}, and not a "
                "list of values"
            )
        if len(values) != rows:
            raise OptionError(
                f"map: column {name!r} has {len(values)} values for the {rows} rows from row "
                f"{start} on; map keeps rows as they are, and select leaves some out"
            )


def arrow_column(name: str, values: Any, type_: pa.DataType | None = None) -> Any:
    """Values as Arrow has them: of the given type if they are such, else of their own."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if isinstance(values, torch.Tensor):
        values = _numpy(name, values)
    elif not isinstance(values, np.ndarray):
        values = _as_one([_numpy(name, value) for value in values])
    made, failure = None, None
    try:
        made = _array(values)
    except CANNOT as error:
        failure = error
    kept = None if type_ is None else of_type(values, made, type_)
    if kept is None and made is None:
        raise SchemaError(f"column {name!r}: Arrow has no type for its values: {failure}")
    return made if kept is None else kept


def _numpy(name: str, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        try:
            value = value.detach().cpu().numpy()
        except TypeError:
            raise SchemaError(
                f"column {name!r}: Arrow has no type for {value.dtype}; give another, such as "
                "values.float()"
            ) from None
    return value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value


def _as_one(values: list[Any]) -> Any:
    """Arrays of one shape and type as one array; anything else stays a list."""
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
