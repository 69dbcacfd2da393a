"""Convert Arrow arrays to numpy arrays of numbers, without a copy where that is safe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headrace.errors import ConversionError

AnyArray = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

_LISTS = (
    (pt.is_list, pa.list_),
    (pt.is_large_list, pa.large_list),
    (pt.is_list_view, pa.list_view),
    (pt.is_large_list_view, pa.large_list_view),
)
_DIGITS_OF_INT64 = 18
_EXACT_POWERS_OF_TEN = 22
_BOOL, _INT64, _FLOAT64 = np.dtype(np.bool_), np.dtype(np.int64), np.dtype(np.float64)
_TORCH_DTYPES: dict[np.dtype[Any], np.dtype[Any]] = {
    np.dtype(np.uint16): np.dtype(np.int32),
    np.dtype(np.uint32): _INT64,
    np.dtype(np.uint64): _INT64,
}


def buffer_view(array: pa.Array, dtype: np.dtype[Any]) -> AnyArray:
    """Return the values of a primitive array; null slots hold arbitrary values.

    The result may be written to. Memory that must not be written (a read-only map, an immutable
    Python object, memory lent by another library) is copied.
    """
    buffer = array.buffers()[1]
    if len(array) == 0 or buffer is None:
        return np.zeros(len(array), dtype)
    start = array.offset * dtype.itemsize
    # A slice of a buffer claims to be immutable; ask the buffer from which it was cut.
    owner = buffer
    while owner is not None and not owner.is_mutable:
        owner = owner.parent
    if owner is None:
        return np.frombuffer(buffer, dtype, len(array), start).copy()
    view = np.frombuffer(owner, dtype, len(array), buffer.address - owner.address + start)
    return view if view.flags.aligned else view.copy()


def null_mask(array: pa.Array) -> Mask | None:
    """Return an array that is True where a row is null; None if no row is."""
    if array.null_count == 0:
        return None
    mask: Mask = array.is_null().to_numpy(zero_copy_only=False)
    return mask


# --- types behind types


def decoded_type(type_: pa.DataType) -> pa.DataType:
    """Return the type with dictionaries replaced by the type of their values, at any depth."""
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
    """Return the type of the values behind dictionaries, run-ends and extensions."""
    while True:
        if isinstance(type_, pa.BaseExtensionType):
            type_ = type_.storage_type
        elif pt.is_dictionary(type_) or pt.is_run_end_encoded(type_):
            type_ = type_.value_type
        else:
            return type_


def storage(array: pa.Array) -> pa.Array:
    """Return the values behind dictionaries, run-ends and extensions."""
    while True:
        if isinstance(array.type, pa.BaseExtensionType):
            array = array.storage
        elif pt.is_dictionary(array.type):
            array = array.dictionary_decode()
        elif pt.is_run_end_encoded(array.type):
            array = pc.run_end_decode(array)
        else:
            return array


def movable(array: pa.Array) -> pa.Array:
    """Return values in a type whose rows can be taken and joined, whatever their number.

    Dictionaries, run-ends and extensions become their values, because joined dictionaries may
    outgrow the type of their codes. Text and bytes get 64-bit offsets, because they may exceed 2
    GiB.
    """
    array = storage(array)
    type_ = array.type
    if pt.is_string(type_) or pt.is_string_view(type_):
        return array.cast(pa.large_string())
    if pt.is_fixed_size_binary(type_):
        if array.offset:
            array = pa.concat_arrays([array, array[:0]])  # pyarrow 16 casts from its start
        return array.cast(pa.large_binary())
    if pt.is_binary(type_) or pt.is_binary_view(type_):
        return array.cast(pa.large_binary())
    # Codes that null lists of a fixed size hide may be out of bounds, and stay as they are.
    if pt.is_fixed_size_list(type_) or decoded_type(type_) == type_:
        return array
    return array.cast(decoded_type(type_))


# --- numbers


@dataclass(frozen=True, slots=True)
class Dense:
    """Describes how rows of an Arrow type become an array.

    Attributes:
        leaf: The Arrow type of a single value.
        cast: The type to which Arrow casts values first, if their memory is not that of an array.
        stored: The number type in Arrow's memory.
        dtype: The number type that comes out.
        shape: The shape of one row in memory.
        axes: The order in which the dimensions of a row are handed out, if it is not their order in
            memory.
    """

    leaf: pa.DataType
    cast: pa.DataType | None
    stored: np.dtype[Any]
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    axes: tuple[int, ...] | None = None


def dense_type(type_: pa.DataType, for_torch: bool) -> Dense | None:
    """Return how a type becomes an array; None if its rows have no fixed shape of numbers."""
    if isinstance(type_, pa.FixedShapeTensorType):
        inner = dense_type(type_.value_type, for_torch)
        return None if inner is None else _shaped(inner, type_.shape, type_.permutation)
    type_ = storage_type(type_)
    if pt.is_fixed_size_list(type_):
        inner = dense_type(type_.value_type, for_torch)
        return None if inner is None else _shaped(inner, [type_.list_size], None)
    if pt.is_boolean(type_):
        return Dense(type_, pa.uint8(), _BOOL, _BOOL)
    if pt.is_integer(type_) or pt.is_floating(type_):
        kind = "f" if pt.is_floating(type_) else "u" if pt.is_unsigned_integer(type_) else "i"
        stored: np.dtype[Any] = np.dtype(f"{kind}{type_.bit_width // 8}")
        dtype = _TORCH_DTYPES.get(stored, stored) if for_torch else stored
        return Dense(type_, None, stored, dtype)
    if pt.is_decimal(type_) or pt.is_null(type_):
        return Dense(type_, pa.float64(), _FLOAT64, _FLOAT64)
    if pt.is_temporal(type_) and not pt.is_interval(type_):
        stored = np.dtype(f"i{type_.bit_width // 8}")
        return Dense(type_, None, stored, _INT64 if for_torch else _temporal_dtype(type_))
    return None


def _shaped(inner: Dense, shape: list[int], permutation: list[int] | None) -> Dense:
    outer_axes = tuple(permutation or range(len(shape)))
    inner_axes = inner.axes or tuple(range(len(inner.shape)))
    axes = (*outer_axes, *(len(shape) + axis for axis in inner_axes))
    in_order = axes == tuple(range(len(axes)))
    return replace(inner, shape=(*shape, *inner.shape), axes=None if in_order else axes)


def _temporal_dtype(type_: pa.DataType) -> np.dtype[Any]:
    if pt.is_date(type_):
        return np.dtype("M8[D]" if pt.is_date32(type_) else "M8[ms]")
    if pt.is_timestamp(type_):
        return np.dtype(f"M8[{type_.unit}]")
    return np.dtype(f"m8[{type_.unit}]") if pt.is_duration(type_) else _INT64


def dense_values(array: pa.Array, dense: Dense, column: str) -> tuple[AnyArray, Mask | None]:
    """Return the rows as one array, and a mask of its null values (None if there are none).

    A null row is null in each of its values. Null places hold arbitrary values.
    """
    if dense.cast is None and dense.stored == dense.dtype and array.type == dense.leaf:
        return buffer_view(array, dense.stored), null_mask(array)  # the usual case
    rows = len(array)
    array, nulls = _innermost(array)
    if pt.is_decimal(dense.leaf):
        values = _decimal_floats(array)
    else:
        values = buffer_view(array if dense.cast is None else array.cast(dense.cast), dense.stored)
    values = _in_shape(_as_dtype(values, dense, nulls, column), dense, rows)
    return values, None if nulls is None else _in_shape(nulls, dense, rows)


def dense_cells(cells: AnyArray, dense: Dense, column: str) -> AnyArray:
    """Return rows given as bytes as one array; Arrow has nothing to cast."""
    return _in_shape(_as_dtype(cells.view(dense.stored), dense, None, column), dense, len(cells))


def _in_shape(values: AnyArray, dense: Dense, rows: int) -> AnyArray:
    values = values.reshape(rows, *dense.shape)
    if dense.axes is None:
        return values
    return values.transpose(0, *(axis + 1 for axis in dense.axes))


def _innermost(array: pa.Array) -> tuple[pa.Array, Mask | None]:
    """Return the values below all fixed-size lists, and a mask of those that are null."""
    array = storage(array)
    nulls = null_mask(array)
    while pt.is_fixed_size_list(array.type):
        size = array.type.list_size
        above = None if nulls is None else np.repeat(nulls, size)
        array = array.values.slice(array.offset * size, len(array) * size)
        if above is not None and pt.is_dictionary(array.type):
            # Codes that a null list hides may be out of bounds, and could not be decoded.
            codes = pc.if_else(pa.array(above), None, array.indices)
            array = pa.DictionaryArray.from_arrays(codes, array.dictionary)
        array = storage(array)
        nulls = null_mask(array)
        if above is not None:
            nulls = above if nulls is None else nulls | above
    return array, nulls


def _decimal_floats(array: pa.Array) -> npt.NDArray[np.float64]:
    """Return the nearest float64 of values of up to 15 digits; others may be off in the last bit.

    Arrow's own cast multiplies by an inexact power of ten: it turns 99.99 into 99.99000000000001.
    """
    precision, scale = array.type.precision, array.type.scale
    if precision > _DIGITS_OF_INT64 or not 0 <= scale <= _EXACT_POWERS_OF_TEN:
        return buffer_view(array.cast(pa.float64()), _FLOAT64)
    wide = array.cast(pa.decimal128(precision, scale))
    words = buffer_view(wide, np.dtype("V16")).view(np.int64)
    floats: npt.NDArray[np.float64] = words[::2] / 10.0**scale  # the low word holds the value
    return floats


def _as_dtype(values: AnyArray, dense: Dense, nulls: Mask | None, column: str) -> AnyArray:
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


def object_array(objects: Sequence[Any]) -> npt.NDArray[np.object_]:
    """Return a one-dimensional array; ``np.array`` would turn lists of one length into a matrix."""
    return np.fromiter(objects, object, len(objects))
