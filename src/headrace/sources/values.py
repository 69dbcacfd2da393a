"""Convert Python values to Arrow columns, without loss.

Arrow converts Python values to a given type more freely than a data set may: 0.5 becomes the
integer 0, a datetime loses its fraction of a second or its zone, a dict its unknown keys. So the
values in a column are compared with the given ones. Integers may become floats if those are exact,
floats may become integers if they are whole, and floats are rounded to a narrower float type.
Nothing else may change its value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from headrace.convert.kinds import Kinds, npy_header

_SHOWN = 80
"""Number of characters of a value in a message."""


def plain_value(value: Any) -> Any:
    """Return tensors, images and other arrays as arrays of numpy, and any other value unchanged."""
    if isinstance(value, np.generic):
        return value
    if hasattr(value, "detach"):  # a tensor, which may need a gradient or lie on a device
        value = value.detach().cpu()
    if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
        array = np.asarray(value)
        if hasattr(value, "getbands"):  # an image of Pillow, as [channels, height, width]
            array = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
        return array if array.ndim else array[()]
    return value


def is_numbers(value: Any) -> TypeGuard[npt.NDArray[Any]]:
    """Return True for an array of numbers."""
    return isinstance(value, np.ndarray) and value.dtype.kind in "biufc"


class Misfit(Exception):
    """A value does not fit its column exactly; the text names the column and the value.

    Attributes:
        place: Index of the row that has the value.
    """

    place = 0


def type_of(values: Sequence[Any]) -> pa.DataType:
    """Return the Arrow type that holds some values, each of which ``plain_value`` returned."""
    return pa.array([_as_lists(value) for value in values]).type


def _as_lists(value: Any) -> Any:
    """Return arrays of several dimensions as lists of lists, which Arrow needs."""
    return value.tolist() if isinstance(value, np.ndarray) and value.ndim > 1 else value


def table_of(
    rows: Sequence[Mapping[str, Any]],
    columns: pa.Schema,
    schema: pa.Schema,
    kinds: Kinds,
    *,
    inferred: bool,
) -> pa.Table:
    """Return rows as a table, without loss.

    Args:
        rows: Values by the names of columns, as ``plain_value`` returns them.
        columns: All columns that the rows have.
        schema: The columns of the table.
        kinds: Columns of arrays of any shape.
        inferred: True if the columns were inferred from other rows. Then none may be missing, and
            integers are not points in time. In a schema given by the user, fields may be nullable
            and times may be counted in their unit.

    Raises:
        Misfit: A row has other columns, or a value that does not fit.
    """

    def convert(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
        fit = _Fit(inferred)
        for row in rows:
            fit.check_keys(row, columns, "")
        made = []
        for field in schema:
            values = [row.get(field.name) for row in rows]
            npy = field.name in kinds
            made.append(_npy_column(values, field) if npy else fit.column(values, field))
        return pa.Table.from_arrays(made, schema=schema)

    try:
        return convert(rows)
    except Misfit:
        for place, row in enumerate(rows):
            try:
                convert([row])
            except Misfit as first:
                first.place = place
                raise
        raise


def _npy_column(values: Sequence[Any], field: pa.Field) -> pa.Array:
    cells: list[bytes | None] = []
    for value in values:
        if value is None:
            cells.append(None)
        elif is_numbers(value):
            cells.append(_npy_header(value.shape, value.dtype) + value.tobytes())
        else:
            shown = _shown(value)
            raise Misfit(f"column {field.name!r} should be an array of numbers, but is {shown}")
    return pa.array(cells, field.type)


@lru_cache(maxsize=256)
def _npy_header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    return npy_header(shape, dtype)


class _Fit:
    """Converts values to a type and compares the values in the column with the given ones.

    Args:
        inferred: True if types were inferred from other rows, and not given by the user.
    """

    def __init__(self, inferred: bool) -> None:
        self._inferred = inferred

    def column(self, values: Sequence[Any], field: pa.Field) -> Any:
        """Return values as an array of the type of ``field``.

        Raises:
            Misfit: A value does not fit.
        """
        try:
            values = [_as_lists(value) for value in values]
            made = pa.array(values, field.type)
            held = made.storage if isinstance(made.type, pa.BaseExtensionType) else made
            if not self._counts_time(values, held.type):
                self._compare_all(values, held.to_pylist(), field, field.name)
            return made
        except MemoryError:
            raise
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise Misfit(f"{_expected(field.name, field.type, values[0])}: {error}") from error

    def _counts_time(self, values: Sequence[Any], type_: pa.DataType) -> bool:
        """Return True if all values are integers that the user's schema makes points in time."""
        return (
            pt.is_temporal(type_)
            and not self._inferred
            and all(isinstance(value, int | np.integer | None) for value in values)
        )

    def check_keys(self, row: Mapping[Any, Any], fields: Any, path: str) -> None:
        """Raise an error for a row or struct with an unknown field, or without a required one.

        Args:
            row: Values by the names of fields.
            fields: The fields: a schema or a struct type.
            path: The column that holds the struct; empty for a row.
        """
        if len(row) == len(fields) and all(field.name in row for field in fields):
            return
        known = {field.name for field in fields}
        for key in row:
            if key not in known:
                raise Misfit(f"{_joined(path, key)!r} is no column of the data set")
        for field in fields:
            if field.name not in row and (self._inferred or not field.nullable):
                raise Misfit(f"column {_joined(path, field.name)!r} ({field.type}) is missing")

    def _compare_all(
        self, values: Sequence[Any], held: Sequence[Any], field: pa.Field, path: str
    ) -> None:
        """Compare given values with those that a column holds."""
        kinds = set(map(type, held))
        plain = kinds <= {int, float, str, bytes, bool}
        if plain and kinds == set(map(type, values)) and list(values) == held:
            return  # this comparison takes a twentieth of the time
        type_ = _value_type(field.type)
        for value, kept in zip(values, held, strict=True):
            self._compare(value, kept, field, type_, path)

    def _compare(
        self, value: Any, kept: Any, field: pa.Field, type_: pa.DataType, path: str
    ) -> None:
        if value is None:
            if not field.nullable:
                raise Misfit(
                    f"column {path!r} ({field.type}) is None, and not nullable in the schema"
                )
        elif pt.is_struct(type_):
            self.check_keys(value, type_, path)
            for inner in type_:
                below = _value_type(inner.type)
                at = f"{path}.{inner.name}"
                self._compare(value.get(inner.name), kept[inner.name], inner, below, at)
        elif pt.is_map(type_):
            pairs = list(value.items()) if isinstance(value, Mapping) else value
            keys, items = ([pair[place] for pair in pairs] for place in (0, 1))
            self._compare_all(keys, [key for key, _ in kept], type_.key_field, f"{path}.key")
            self._compare_all(items, [item for _, item in kept], type_.item_field, f"{path}.value")
        elif isinstance(kept, list):
            if isinstance(value, bytes | bytearray | memoryview | Mapping | str):
                raise Misfit(_expected(path, type_, value))
            items = value.tolist() if isinstance(value, np.ndarray) else value
            self._compare_all(items, kept, type_.value_field, f"{path}[]")
        elif not _is_same(value, kept):
            raise Misfit(_expected(path, type_, value))


def _is_same(value: Any, kept: Any) -> bool:
    """Return True if a column holds a value unchanged, except for rounding floats."""
    if isinstance(value, np.generic):
        value = value.item() if value.dtype.kind in "biuf" else value
    if isinstance(value, bool) != isinstance(kept, bool):
        return False
    if isinstance(value, float) and isinstance(kept, float):
        return math.isinf(value) == math.isinf(kept)
    if isinstance(value, np.datetime64 | np.timedelta64):
        return bool(value == type(value)(kept))
    if isinstance(value, bytearray | memoryview):
        value = bytes(value)
    return bool(value == kept)


def _value_type(type_: pa.DataType) -> pa.DataType:
    """Return the type of the values that a column of a type takes."""
    if isinstance(type_, pa.BaseExtensionType):
        return _value_type(type_.storage_type)
    return _value_type(type_.value_type) if pt.is_dictionary(type_) else type_


def _joined(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _expected(path: str, type_: pa.DataType, value: Any) -> str:
    return f"column {path!r} should be {type_}, but is {_shown(value)}"


def _shown(value: Any) -> str:
    shown = repr(value)
    if len(shown) > _SHOWN:
        shown = f"{shown[:_SHOWN]}..."
    return f"{shown} ({type(value).__name__})"
