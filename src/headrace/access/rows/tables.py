"""Rows as tables in memory: gathered in the order of a view, with columns that are new."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
import torch

from headrace.access.backend import StorageBackend
from headrace.access.rows.views import View
from headrace.convert.arrays import storage_type
from headrace.errors import OptionError, SchemaError

__all__ = ["arrow_column", "gathered", "mapped", "with_column"]

_CANNOT = (pa.ArrowInvalid, pa.ArrowTypeError, NotImplementedError, OverflowError)
"""what Arrow raises where it has no type for values, or a type no place for them"""

_KINDS = (
    pt.is_boolean,
    pt.is_integer,
    pt.is_floating,
    pt.is_decimal,
    pt.is_date,
    pt.is_time,
    pt.is_duration,
    lambda type_: pt.is_string(type_) or pt.is_large_string(type_) or pt.is_string_view(type_),
    lambda type_: (
        pt.is_binary(type_)
        or pt.is_large_binary(type_)
        or pt.is_binary_view(type_)
        or pt.is_fixed_size_binary(type_)
    ),
)


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
    except _CANNOT as error:
        failure = error
    kept = None if type_ is None else _of_type(values, made, type_)
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


def _of_type(values: Any, inferred: pa.Array | None, type_: pa.DataType) -> pa.Array | None:
    """The values in a type, if nothing of them is lost and they are of its kind.

    ``inferred``: what Arrow makes of them by itself, if it can.
    """
    if inferred is not None and inferred.type == type_:
        return inferred
    try:
        if inferred is not None and (_is_wide(values) or isinstance(type_, pa.BaseExtensionType)):
            made = inferred.cast(type_)
        else:
            made = pa.array(values, type_)
    except _CANNOT:
        return None
    if inferred is None or _has_map(type_):
        return made if _reads_as(made, values) else None
    known = _completed(inferred.type, type_)
    return made if known is not None and _is_same(made, inferred, known) else None


def _is_wide(values: Any) -> bool:
    return isinstance(values, np.ndarray) and values.ndim > 1


def _reads_as(made: pa.Array, values: Any) -> bool:
    try:
        return bool(made.to_pylist() == list(values))
    except ValueError:  # arrays among them
        return False


def _completed(new: pa.DataType, old: pa.DataType) -> pa.DataType | None:
    """A type that values suggest, with the old one where all are null; None: of another kind."""
    old = storage_type(old)
    if pt.is_null(new) or new == old:
        return old
    new = storage_type(new)
    if _is_list(new) and _is_list(old):
        inner = _completed(new.value_type, old.value_type)
        return None if inner is None else pa.large_list(inner)
    if pt.is_struct(new) and pt.is_struct(old):
        return _completed_struct(new, old)
    if pt.is_timestamp(new) and pt.is_timestamp(old):
        return new if new.tz == old.tz else None
    return new if any(is_kind(new) and is_kind(old) for is_kind in _KINDS) else None


def _completed_struct(new: pa.StructType, old: pa.StructType) -> pa.DataType | None:
    if [field.name for field in new] != [field.name for field in old]:
        return None
    inner = [_completed(a.type, b.type) for a, b in zip(new, old, strict=True)]
    if any(type_ is None for type_ in inner):
        return None
    return pa.struct([pa.field(a.name, type_) for a, type_ in zip(new, inner, strict=True)])


def _is_list(type_: pa.DataType) -> bool:
    return bool(pt.is_list(type_) or pt.is_large_list(type_) or pt.is_fixed_size_list(type_))


def _has_map(type_: pa.DataType) -> bool:
    """Whether there are maps, whose values are tuples, for which Arrow has no type."""
    type_ = storage_type(type_)
    inside = (type_.field(number).type for number in range(type_.num_fields))
    return bool(pt.is_map(type_)) or any(map(_has_map, inside))


def _is_same(made: pa.Array, inferred: pa.Array, known: pa.DataType) -> bool:
    try:
        one, other = made.cast(known), inferred.cast(known)
    except _CANNOT:
        return bool(made.to_pylist() == inferred.to_pylist())
    while _is_list(one.type) and one.is_null().equals(other.is_null()):
        if not one.value_lengths().equals(other.value_lengths()):
            return False
        one, other = one.flatten(), other.flatten()
    if pt.is_floating(one.type):  # in which Arrow holds no NaN for the same as another
        return np.array_equal(
            one.to_numpy(zero_copy_only=False),
            other.to_numpy(zero_copy_only=False),
            equal_nan=True,
        )
    return bool(one.equals(other))
