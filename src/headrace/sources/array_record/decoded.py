"""Records that a user's function decodes, and their columns, without loss.

Columns and types are those of the first record, or of the schema that comes with the function.
Arrow converts Python values to a given type more freely than a data set may: 0.5 becomes the
integer 0, True becomes 1.0, a datetime loses its fraction of a second, a dict its unknown keys.
What is checked here is what Arrow lets through; it refuses everything else itself.

Arrays, tensors and images may have another shape in every record. Arrow has no type for that, so
such a column holds .npy files; batches hold the arrays, stacked where they are of one shape.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NoReturn, TypeGuard

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from headrace.convert.decoded import STORED_TYPES, Kind, Kinds, npy_header, python_values
from headrace.errors import ReadError, SchemaError

__all__ = [
    "DecodedRecords",
    "Misfit",
    "RecordFunction",
    "RecordName",
    "plain_value",
    "table_of",
    "type_of",
]

RecordFunction = Callable[[bytes], Mapping[str, Any] | tuple[Any, ...]]
"""a function of the user: takes a record, returns its values by name, or as a tuple"""
RecordName = Callable[[int], str]
"""what the record at a place of a list is called in messages"""

_PLAIN = {type(None), bool, int, float, str, bytes, list, dict}
_SHOWN = 80
"""characters of a value in a message"""
_INTEGERS = (int, np.integer)
_FLOATS = (float, np.floating)
_TIMES = (dt.date, dt.time, dt.timedelta)
_TIMES_OF_NUMPY = (np.datetime64, np.timedelta64)
_BYTES = (bytes, bytearray, memoryview)


class DecodedRecords:
    """Decodes records by a user's function, and puts what it returns into columns.

    A record has to have the columns of the schema, no fewer and no more, and values that their
    types hold exactly. A key may be missing only if the user gave the schema and the field is
    nullable there. The items of a tuple are columns called by its field names, else by the schema,
    else ``0``, ``1`` and so on.

    Args:
        decode: The function.
        schema: The columns.
        kinds: Columns of arrays of any shape.
        inferred: The columns are those of a first record, and not given by the user.
    """

    def __init__(
        self,
        decode: RecordFunction,
        schema: pa.Schema,
        kinds: Kinds | None = None,
        inferred: bool = False,
    ) -> None:
        self.schema = schema
        self.kinds: Kinds = kinds or {}
        self._decode = decode
        self._inferred = inferred

    @classmethod
    def of_record(cls, decode: RecordFunction, record: bytes, name: str) -> DecodedRecords:
        """Return what decodes records with the columns of a first one."""
        row = cls(decode, pa.schema([]))._decoded(record, name)
        kinds = {key: Kind.NPY for key, value in row.items() if _is_numbers(value)}
        fields = []
        for key, value in row.items():
            try:
                type_ = STORED_TYPES[kinds[key]] if key in kinds else type_of([value])
                fields.append(pa.field(key, type_))
            except (pa.ArrowException, TypeError, ValueError) as error:
                raise SchemaError(f"{name}: {key!r} is no column: {error}") from error
            if pt.is_null(type_):
                raise SchemaError(
                    f"{name} has nothing in {key!r}, so that its type is not known: give "
                    "decode=(function, schema)"
                )
        return cls(decode, pa.schema(fields), kinds, inferred=True)

    def table(self, records: Sequence[bytes], schema: pa.Schema, name: RecordName) -> pa.Table:
        """Return some columns of records."""
        rows = [self._decoded(record, name(place)) for place, record in enumerate(records)]
        try:
            return table_of(rows, self.schema, schema, self.kinds, inferred=self._inferred)
        except Misfit as misfit:
            cure = "change what decode returns, or give another schema"
            if self._inferred:
                cure = (
                    "the columns are those of the first record: give decode=(function, schema) "
                    "with columns and types that hold all records, or change what decode returns"
                )
            which = name(misfit.place)
            raise ReadError(f"{which} does not fit the columns: {misfit}; {cure}") from misfit

    def row(self, record: bytes, schema: pa.Schema, name: RecordName) -> dict[str, Any]:
        """Return some columns of one record, as Python values and arrays."""
        table, kinds = self.table([record], schema, name), self.kinds
        return {
            key: (python_values(column, kinds[key]) if key in kinds else column.to_pylist())[0]
            for key, column in zip(table.column_names, table.columns, strict=True)
        }

    def _decoded(self, record: bytes, name: str) -> dict[str, Any]:
        try:
            row = self._decode(record)
            if isinstance(row, tuple):
                row = dict(zip(self._names(row), row, strict=True))
            if isinstance(row, Mapping):
                return {key: plain_value(value) for key, value in row.items()}
        except Exception as error:  # a user's function may raise anything
            said = f"{type(error).__name__}: {error}"
            raise ReadError(f"{name} cannot be decoded: {said}") from error
        raise ReadError(f"{name}: decode returned a {type(row).__name__}, and not a dict or tuple")

    def _names(self, row: tuple[Any, ...]) -> Iterable[str]:
        named = getattr(row, "_fields", self.schema.names)
        return named if len(named) == len(row) else map(str, range(len(row)))


def plain_value(value: Any) -> Any:
    """Return tensors, images and other arrays as arrays of numpy, and any other value unchanged."""
    if type(value) in _PLAIN or isinstance(value, np.generic):
        return value
    if hasattr(value, "detach"):  # a tensor, which may need a gradient or lie on a device
        value = value.detach().cpu()
    if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
        array = np.asarray(value)
        if hasattr(value, "getbands"):  # an image of Pillow, as [channels, height, width]
            array = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
        return array if array.ndim else array[()]
    return value


def _is_numbers(value: Any) -> TypeGuard[npt.NDArray[Any]]:
    return isinstance(value, np.ndarray) and value.dtype.kind in "biufc"


def _npy_column(values: Sequence[Any], field: pa.Field) -> pa.Array:
    cells: list[bytes | None] = []
    for value in values:
        if value is None:
            cells.append(None)
        elif _is_numbers(value):
            cells.append(_npy_header(value.shape, value.dtype) + value.tobytes())
        else:
            shown = _shown(value)
            raise Misfit(f"column {field.name!r} should be an array of numbers, but is {shown}")
    return pa.array(cells, field.type)


@lru_cache(maxsize=256)
def _npy_header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    return npy_header(shape, dtype)


class Misfit(Exception):
    """A value has no exact place in its column; the text names the column and the value.

    Attributes:
        place: Which of the rows has the value.
    """

    place = 0


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
        inferred: The columns were inferred from other rows, and not given by the user.

    Raises:
        Misfit: A row has other columns, or a value that does not fit.
    """

    def convert(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
        _check_keys(rows, columns, "", inferred)
        made = []
        for field in schema:
            values = [row.get(field.name) for row in rows]
            if field.name in kinds:
                made.append(_npy_column(values, field))
            else:
                made.append(_column(values, field, inferred))
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


def _column(values: Sequence[Any], field: pa.Field, inferred: bool) -> Any:
    """Return values as an array of the type of ``field``.

    Integers become floats if those are exact, floats become integers if they are whole, and
    floats are rounded to a narrower type of floats. Nothing else changes its value.

    Args:
        values: A value for each row.
        field: The column.
        inferred: The type was inferred from other rows. Then all keys of structs have to be
            there, and integers are no points in time; in a schema that the user gave, fields may
            be nullable and times may be counted in their unit.

    Raises:
        Misfit: A value does not fit.
    """
    try:
        values = [_as_lists(value) for value in values]
        _check(values, field, field.name, inferred)
        return pa.array(values, field.type)
    except MemoryError:
        raise
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise Misfit(f"{_expected(field.name, field.type, values[0])}: {error}") from error


def type_of(values: Sequence[Any]) -> pa.DataType:
    """Return the Arrow type that holds some values, each of which ``plain_value`` returned."""
    return pa.array([_as_lists(value) for value in values]).type


def _as_lists(value: Any) -> Any:
    """Return arrays of several dimensions as lists of lists, which Arrow needs."""
    return value.tolist() if isinstance(value, np.ndarray) and value.ndim > 1 else value


def _check_keys(rows: Iterable[Mapping[Any, Any]], fields: Any, path: str, inferred: bool) -> None:
    """Refuse rows that lack a column which is not nullable, or have one that is unknown.

    Args:
        rows: Values by the names of columns.
        fields: The columns: a schema or a struct type.
        path: The column that the rows are values of; empty if they are whole rows.
        inferred: Columns were inferred from other rows, and none may be missing.
    """
    known = {field.name for field in fields}
    for row in rows:
        if row.keys() == known:
            continue
        for key in row:
            if key not in known:
                raise Misfit(f"{_joined(path, key)!r} is no column of the data set")
        for field in fields:
            if field.name not in row and (inferred or not field.nullable):
                raise Misfit(f"column {_joined(path, field.name)!r} ({field.type}) is missing")


def _check(values: Sequence[Any], field: pa.Field, path: str, inferred: bool) -> None:
    """Refuse the values that Arrow would convert with a loss."""
    kinds = set(map(type, values))
    if type(None) in kinds:
        if not field.nullable:
            raise Misfit(f"column {path!r} ({field.type}) is None, and not nullable in the schema")
        kinds.discard(type(None))
        values = [value for value in values if value is not None]
    type_ = _plain(field.type)
    if pt.is_integer(type_):
        _check_integers(values, kinds, type_, path)
    elif pt.is_floating(type_):
        _check_floats(values, kinds, type_, path)
    elif _is_time(type_):
        _check_times(values, kinds, type_, path, inferred)
    elif pt.is_struct(type_):
        _refuse_others(values, kinds, (dict,), type_, path)
        _check_keys(values, type_, path, inferred)
        for inner in type_:
            found = [value.get(inner.name) for value in values]
            _check(found, inner, f"{path}.{inner.name}", inferred)
    elif pt.is_map(type_):
        pairs = [pair for value in values for pair in _pairs(value, type_, path)]
        _check([key for key, _ in pairs], type_.key_field, f"{path}.key", inferred)
        _check([item for _, item in pairs], type_.item_field, f"{path}.value", inferred)
    elif _is_list(type_):
        lists = values if kinds <= {list} else [_items(value, type_, path) for value in values]
        items = list(chain.from_iterable(lists))
        _check(items, type_.value_field, f"{path}[]", inferred)


def _check_integers(values: Sequence[Any], kinds: set[type], type_: pa.DataType, path: str) -> None:
    if kinds <= {int}:
        return
    _refuse_others(values, kinds, (*_INTEGERS, *_FLOATS), type_, path)
    for value in values:
        if isinstance(value, _FLOATS) and not float(value).is_integer():
            _refuse(path, type_, value)


def _check_floats(values: Sequence[Any], kinds: set[type], type_: pa.DataType, path: str) -> None:
    if kinds <= {float, int} and pt.is_float64(type_):
        return
    _refuse_others(values, kinds, (*_INTEGERS, *_FLOATS), type_, path)
    width = np.dtype(type_.to_pandas_dtype())
    wide = np.array([float(value) for value in values], np.float64)
    with np.errstate(over="ignore"):
        narrow = wide.astype(width)
    lost = np.isinf(narrow) & ~np.isinf(wide)
    if not kinds <= {float}:
        lost |= np.array([isinstance(value, _INTEGERS) for value in values]) & (narrow != wide)
    if lost.any():
        _refuse(path, type_, values[int(np.argmax(lost))])


def _check_times(
    values: Sequence[Any], kinds: set[type], type_: pa.DataType, path: str, inferred: bool
) -> None:
    allowed = (*_TIMES, *_TIMES_OF_NUMPY) if inferred else (*_TIMES, *_TIMES_OF_NUMPY, *_INTEGERS)
    _refuse_others(values, kinds, allowed, type_, path)
    stored = [value for value in values if isinstance(value, _TIMES)]
    for value, kept in zip(stored, pa.array(stored, type_).to_pylist(), strict=True):
        if value != kept:
            _refuse(path, type_, value)


def _refuse_others(
    values: Sequence[Any],
    kinds: Iterable[type],
    allowed: tuple[type, ...],
    type_: pa.DataType,
    path: str,
) -> None:
    """Refuse the first value that is of none of the classes; bool does not count as int."""
    wrong = {kind for kind in kinds if not issubclass(kind, allowed) or issubclass(kind, bool)}
    if wrong:
        _refuse(path, type_, next(value for value in values if type(value) in wrong))


def _pairs(value: Any, type_: pa.DataType, path: str) -> Iterable[Any]:
    """Return the keys and items of a map."""
    if isinstance(value, dict):
        return value.items()
    if isinstance(value, list | tuple) and all(
        isinstance(pair, list | tuple) and len(pair) == 2 for pair in value
    ):
        return value
    _refuse(path, type_, value)


def _items(value: Any, type_: pa.DataType, path: str) -> Collection[Any]:
    """Return the items of a list that have to be checked one by one."""
    inner = _plain(type_.value_type)
    if isinstance(value, np.ndarray):
        if _holds(inner, value.dtype):
            return ()
        if value.dtype.kind in "mM":
            _refuse(path, type_, value)
        items: Collection[Any] = value.tolist()
        return items
    if isinstance(value, _BYTES):
        if pt.is_uint8(inner):
            return ()
        _refuse(path, type_, value)
    if isinstance(value, Mapping | str) or not isinstance(value, Collection):
        _refuse(path, type_, value)
    return value


def _holds(type_: pa.DataType, dtype: np.dtype[Any]) -> bool:
    """Return True if Arrow converts all arrays of a dtype without a loss, or refuses them."""
    if pt.is_integer(type_):
        return dtype.kind in "iu"
    if pt.is_floating(type_):
        return dtype.kind == "f" and dtype.itemsize * 8 <= type_.bit_width
    if pt.is_timestamp(type_):
        return dtype == f"datetime64[{type_.unit}]"
    if pt.is_duration(type_):
        return dtype == f"timedelta64[{type_.unit}]"
    return False


def _plain(type_: pa.DataType) -> pa.DataType:
    """Return the type of the values that a column of a type takes."""
    if isinstance(type_, pa.BaseExtensionType):
        return _plain(type_.storage_type)
    return _plain(type_.value_type) if pt.is_dictionary(type_) else type_


def _is_time(type_: pa.DataType) -> bool:
    kinds = (pt.is_timestamp, pt.is_date, pt.is_time, pt.is_duration)
    return any(is_kind(type_) for is_kind in kinds)


def _is_list(type_: pa.DataType) -> bool:
    kinds = (pt.is_list, pt.is_large_list, pt.is_fixed_size_list, pt.is_list_view)
    return any(is_kind(type_) for is_kind in (*kinds, pt.is_large_list_view))


def _joined(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _refuse(path: str, type_: pa.DataType, value: Any) -> NoReturn:
    raise Misfit(_expected(path, type_, value))


def _expected(path: str, type_: pa.DataType, value: Any) -> str:
    return f"column {path!r} should be {type_}, but is {_shown(value)}"


def _shown(value: Any) -> str:
    shown = repr(value)
    if len(shown) > _SHOWN:
        shown = f"{shown[:_SHOWN]}..."
    return f"{shown} ({type(value).__name__})"
