"""Arrow memory seen as numpy arrays that may be written to, without a copy where that is safe."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

__all__ = [
    "buffer_view",
    "contiguous",
    "decoded_type",
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
