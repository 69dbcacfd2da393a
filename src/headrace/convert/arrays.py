"""Arrow arrays as numpy arrays of numbers, without a copy where that is safe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headrace.errors import ConversionError

__all__ = [
    "Dense",
    "buffer_view",
    "check_int64",
    "contiguous",
    "decimal_floats",
    "decoded_type",
    "dense_cells",
    "dense_type",
    "dense_values",
    "null_mask",
    "storage",
    "storage_type",
    "writable",
]

Array = npt.NDArray[Any]

_LISTS = (
    (pt.is_list, pa.list_),
    (pt.is_large_list, pa.large_list),
    (pt.is_list_view, pa.list_view),
    (pt.is_large_list_view, pa.large_list_view),
)


def buffer_view(array: pa.Array, dtype: np.dtype[Any]) -> Array:
    """Return the values of a primitive array; null slots hold whatever lies there.

    The array may be written to. Memory that must not be written (a read-only map, an immutable
    Python object, memory lent by another library) is copied.
    """
    buffer = array.buffers()[1]
    if len(array) == 0 or buffer is None:
        return np.zeros(len(array), dtype)
    start = array.offset * dtype.itemsize
    # A slice of a buffer calls itself immutable; the buffer it was cut from knows better.
    owner = buffer
    while owner is not None and not owner.is_mutable:
        owner = owner.parent
    if owner is None:
        return np.frombuffer(buffer, dtype, len(array), start).copy()
    view = np.frombuffer(owner, dtype, len(array), buffer.address - owner.address + start)
    return view if view.flags.aligned else view.copy()


def writable(array: Array) -> Array:
    """The array itself, or a copy where it must not be written to."""
    return array if array.flags.writeable else array.copy()


def contiguous(column: pa.ChunkedArray) -> list[pa.Array]:
    """The rows as one array; copies only when several chunks hold rows.

    Chunks with dictionaries stay apart: joined ones may outgrow the type of their codes.
    """
    chunks = [chunk for chunk in column.chunks if len(chunk)]
    if len(chunks) == 1 or (chunks and decoded_type(column.type) != column.type):
        return chunks
    return [pa.concat_arrays(chunks) if chunks else pa.nulls(0, column.type)]


def decoded_type(type_: pa.DataType) -> pa.DataType:
    """The type with the values of dictionaries in their place, at any depth."""
    if pt.is_dictionary(type_):
        return decoded_type(type_.value_type)
    if pt.is_struct(type_):
        return pa.struct([field.with_type(decoded_type(field.type)) for field in type_])
    if pt.is_map(type_):
        return pa.map_(decoded_type(type_.key_type), decoded_type(type_.item_type))
    for is_list, make in _LISTS:
        if is_list(type_):
            element = type_.value_field
            return make(element.with_type(decoded_type(element.type)))
    if pt.is_fixed_size_list(type_):
        element = type_.value_field
        return pa.list_(element.with_type(decoded_type(element.type)), type_.list_size)
    return type_


def storage_type(type_: pa.DataType) -> pa.DataType:
    """The type of the values behind dictionaries, run-ends and extensions."""
    while True:
        if isinstance(type_, pa.BaseExtensionType):
            type_ = type_.storage_type
        elif pt.is_dictionary(type_) or pt.is_run_end_encoded(type_):
            type_ = type_.value_type
        else:
            return type_


def storage(array: pa.Array) -> pa.Array:
    """The values behind dictionaries, run-ends and extensions."""
    while True:
        if isinstance(array.type, pa.BaseExtensionType):
            array = array.storage
        elif pt.is_dictionary(array.type):
            array = array.dictionary_decode()
        elif pt.is_run_end_encoded(array.type):
            array = pc.run_end_decode(array)
        else:
            return array


def null_mask(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    """True where a row is null; None when no row is."""
    if array.null_count == 0:
        return None
    mask: npt.NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return mask


_DIGITS_OF_INT64 = 18
_EXACT_POWERS_OF_TEN = 22


def decimal_floats(array: pa.Array) -> npt.NDArray[np.float64]:
    """The nearest float64 of each value, for up to 15 digits; beyond, off by a last bit or so.

    Arrow's own cast multiplies by an inexact power of ten: it makes 99.99000000000001 of 99.99.
    """
    precision, scale = array.type.precision, array.type.scale
    if precision > _DIGITS_OF_INT64 or not 0 <= scale <= _EXACT_POWERS_OF_TEN:
        return buffer_view(array.cast(pa.float64()), np.dtype(np.float64))
    wide = array.cast(pa.decimal128(precision, scale))
    words = buffer_view(wide, np.dtype("V16")).view(np.int64)
    floats: npt.NDArray[np.float64] = words[::2] / 10.0**scale  # the low word holds the value
    return floats


_INT64 = np.dtype(np.int64)
_TORCH_DTYPES: dict[np.dtype[Any], np.dtype[Any]] = {
    np.dtype(np.uint16): np.dtype(np.int32),
    np.dtype(np.uint32): _INT64,
    np.dtype(np.uint64): _INT64,
}


@dataclass(frozen=True, slots=True)
class Dense:
    """How rows of an Arrow type become an array."""

    leaf: pa.DataType
    """the Arrow type of a single value"""
    cast: pa.DataType | None
    """what Arrow turns values into first, where their memory is not an array's"""
    stored: np.dtype[Any]
    """the number type in Arrow's memory"""
    dtype: np.dtype[Any]
    """the number type that comes out"""
    shape: tuple[int, ...] = ()
    """of one row, as it lies in memory"""
    axes: tuple[int, ...] | None = None
    """the order in which the dimensions of a row are handed out, where it is another"""


def dense_type(type_: pa.DataType, for_torch: bool) -> Dense | None:
    """How a type becomes an array, or None when its rows have no fixed shape of numbers."""
    if isinstance(type_, pa.FixedShapeTensorType):
        return _shaped(dense_type(type_.value_type, for_torch), type_.shape, type_.permutation)
    type_ = storage_type(type_)
    if pt.is_fixed_size_list(type_):
        return _shaped(dense_type(type_.value_type, for_torch), [type_.list_size], None)
    return _leaf(type_, for_torch)


def _shaped(inner: Dense | None, shape: list[int], permutation: list[int] | None) -> Dense | None:
    if inner is None:
        return None
    outer_axes = tuple(permutation or range(len(shape)))
    inner_axes = inner.axes or tuple(range(len(inner.shape)))
    axes = (*outer_axes, *(len(shape) + axis for axis in inner_axes))
    in_order = axes == tuple(range(len(axes)))
    return Dense(
        inner.leaf,
        inner.cast,
        inner.stored,
        inner.dtype,
        (*shape, *inner.shape),
        None if in_order else axes,
    )


def _leaf(type_: pa.DataType, for_torch: bool) -> Dense | None:
    if pt.is_boolean(type_):
        return Dense(type_, pa.uint8(), np.dtype(np.bool_), np.dtype(np.bool_))
    if pt.is_integer(type_) or pt.is_floating(type_):
        kind = "f" if pt.is_floating(type_) else "u" if pt.is_unsigned_integer(type_) else "i"
        stored: np.dtype[Any] = np.dtype(f"{kind}{type_.bit_width // 8}")
        return Dense(
            type_, None, stored, _TORCH_DTYPES.get(stored, stored) if for_torch else stored
        )
    if pt.is_decimal(type_) or pt.is_null(type_):
        return Dense(type_, pa.float64(), np.dtype(np.float64), np.dtype(np.float64))
    if pt.is_temporal(type_) and not pt.is_interval(type_):
        stored = np.dtype(f"i{type_.bit_width // 8}")
        return Dense(type_, None, stored, _INT64 if for_torch else _temporal_dtype(type_))
    return None


def _temporal_dtype(type_: pa.DataType) -> np.dtype[Any]:
    if pt.is_date(type_):
        return np.dtype("M8[D]" if pt.is_date32(type_) else "M8[ms]")
    if pt.is_timestamp(type_):
        return np.dtype(f"M8[{type_.unit}]")
    return np.dtype(f"m8[{type_.unit}]") if pt.is_duration(type_) else _INT64


def dense_values(
    array: pa.Array, dense: Dense, column: str
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """The rows as one array, and where its values are null (None: nowhere).

    A null row is null in each of its values. What stands in a null place is arbitrary.
    """
    if dense.cast is None and dense.stored == dense.dtype and array.type == dense.leaf:
        return buffer_view(array, dense.stored), null_mask(array)  # as most columns are
    rows = len(array)
    array, nulls = _innermost(array)
    values = _as_dtype(_stored_values(array, dense), dense, nulls, column)
    return _in_shape(values, dense, rows), None if nulls is None else _in_shape(nulls, dense, rows)


def dense_cells(cells: npt.NDArray[Any], dense: Dense, column: str) -> npt.NDArray[Any]:
    """The same of rows that are given as the bytes of each, where Arrow has nothing to cast."""
    return _in_shape(_as_dtype(cells.view(dense.stored), dense, None, column), dense, len(cells))


def _in_shape(values: npt.NDArray[Any], dense: Dense, rows: int) -> npt.NDArray[Any]:
    values = values.reshape(rows, *dense.shape)
    if dense.axes is None:
        return values
    return values.transpose(0, *(axis + 1 for axis in dense.axes))


def _innermost(array: pa.Array) -> tuple[pa.Array, npt.NDArray[np.bool_] | None]:
    """The values below all fixed-size lists, and which of them are null or in a null list."""
    array = storage(array)
    nulls = null_mask(array)
    while pt.is_fixed_size_list(array.type):
        size = array.type.list_size
        above = None if nulls is None else np.repeat(nulls, size)
        array = array.values.slice(array.offset * size, len(array) * size)
        array = storage(array if above is None else _without_hidden_codes(array, above))
        nulls = null_mask(array)
        if above is not None:
            nulls = above if nulls is None else nulls | above
    return array, nulls


def _without_hidden_codes(array: pa.Array, nulls: npt.NDArray[np.bool_]) -> pa.Array:
    """The codes that a null list hides may point nowhere, and then cannot be decoded."""
    if not pt.is_dictionary(array.type):
        return array
    codes = pc.if_else(pa.array(nulls), None, array.indices)
    return pa.DictionaryArray.from_arrays(codes, array.dictionary)


def _stored_values(array: pa.Array, dense: Dense) -> npt.NDArray[Any]:
    if pt.is_decimal(dense.leaf):
        return decimal_floats(array)
    return buffer_view(array if dense.cast is None else array.cast(dense.cast), dense.stored)


def _as_dtype(
    values: npt.NDArray[Any],
    dense: Dense,
    nulls: npt.NDArray[np.bool_] | None,
    column: str,
) -> npt.NDArray[Any]:
    if dense.stored == dense.dtype:
        return values
    if dense.stored == np.uint64:
        check_int64(values if nulls is None else values[~nulls], column)
    if dense.stored.itemsize == dense.dtype.itemsize:
        return values.view(dense.dtype)
    wide = values.astype(_INT64 if dense.dtype.kind in "Mm" else dense.dtype)
    return wide.view(dense.dtype)


def check_int64(values: npt.NDArray[np.uint64], column: str) -> None:
    """Raise a ConversionError if values do not fit the type that torch has for them."""
    largest = int(values.max(initial=0))
    if largest > np.iinfo(np.int64).max:
        raise ConversionError(
            f"column {column!r} (uint64) holds {largest}, and torch's int64 ends at 2**63-1; "
            'read it with output_format="numpy" or "arrow", give it another type in schema=, '
            "or leave it out of columns="
        )
