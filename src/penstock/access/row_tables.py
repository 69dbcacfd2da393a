"""Rows as tables in memory: gathered in the order of a view, with columns that are new."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from penstock.access.backend import StorageBackend
from penstock.access.views import View
from penstock.errors import OptionError, SchemaError

__all__ = ["arrow_column", "gathered", "mapped", "with_column"]

_CANNOT = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError)


def gathered(backend: StorageBackend, view: View, columns: Sequence[str] | None) -> pa.Table:
    """All rows of a view."""
    if view.count and view.is_run:
        return backend.slice(view.start, view.count, columns=columns)
    return backend.take(view.at(np.arange(view.count, dtype=np.int64)), columns=columns)


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
) -> pa.Table:
    """The table with what a function makes of its rows in place of, or beside, their columns."""
    made: dict[str, list[Any]] = {}
    for start in range(0, table.num_rows, batch_size):
        part = table.slice(start, batch_size)
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
    return table


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
        if len(values) != rows:
            raise OptionError(
                f"map: column {name!r} has {len(values)} values for the {rows} rows from row "
                f"{start} on; map keeps rows as they are, and select leaves some out"
            )


def arrow_column(name: str, values: Any, type_: pa.DataType | None = None) -> Any:
    """Values as Arrow has them: of the given type if they fit, else of the one they suggest."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu().numpy()
    elif not isinstance(values, np.ndarray):
        values = _as_one([_numpy(value) for value in values])
    if isinstance(values, np.ndarray) and values.ndim > 1:
        return _arrays(values, type_)
    for kind in (type_, None) if type_ is not None else (None,):
        try:
            return pa.array(values, kind)
        except _CANNOT as error:
            failure = error
    raise SchemaError(f"column {name!r}: Arrow has no type for its values: {failure}")


def _numpy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    return value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value


def _as_one(values: list[Any]) -> Any:
    """Arrays of one shape and type as one array; anything else stays a list."""
    if values and all(isinstance(value, np.ndarray) for value in values):
        if len({(value.shape, value.dtype.str) for value in values}) == 1:
            return np.stack(values)
        return [value if value.ndim == 1 else value.tolist() for value in values]
    return values


def _arrays(values: np.ndarray[Any, Any], type_: pa.DataType | None) -> Any:
    if values.ndim == 2 and values.shape[1]:
        made = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
    elif values.size:
        made = pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(values))
    else:
        made = pa.array(values.tolist())
    try:
        return made if type_ is None else made.cast(type_)
    except _CANNOT:
        return made
