"""Kinds of values that Arrow has no type for, and how they are stored and read without torch.

Arrays are stored as .npy files, JSON as text, other objects as pickles that this library wrote.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from io import BytesIO
from tokenize import TokenError
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.convert.arrays import buffer_view, null_mask
from headrace.convert.images import decode_image


class Kind(Enum):
    """The meaning of the values of a column, if their Arrow type does not tell it."""

    JSON = "JSON text"
    NPY = "the bytes of .npy files"
    JPEG = "encoded images, which are decoded where batches are"
    PICKLE = "objects that a decoder or a user's function returned, pickled by this library"


Kinds = Mapping[str, Kind]
"""The kinds of columns by their names; the types of all other columns tell their meaning."""

STORED_TYPES = {
    Kind.JSON: pa.large_string(),
    Kind.NPY: pa.large_binary(),
    Kind.JPEG: pa.large_binary(),
    Kind.PICKLE: pa.large_binary(),
}
"""Arrow types of columns of each kind."""
_MAGIC = b"\x93NUMPY"
_SHORT = 10
"""Number of bytes before the header in version 1 of .npy; later versions have two more."""
_MAX_LENGTH = np.iinfo(np.int64).max


def npy_header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """Return the bytes before the memory of an array, in C order, in a .npy file."""
    sink = BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(sink, header)
    return sink.getvalue()


def npy_array(data: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
    """Return the array in the bytes of a .npy file, as a view.

    Raises:
        ValueError: The bytes are not a .npy file of numbers.
    """
    start, shape, dtype, fortran = _parse_header(_header(data))
    count = int(np.prod(shape, dtype=np.int64))
    if count < 0 or len(data) - start < count * dtype.itemsize:
        raise ValueError(f"{len(data)} bytes are too few for an array {shape} of {dtype}")
    if not count:
        return np.empty(shape, dtype)
    values = data[start : start + count * dtype.itemsize]
    aligned = values if values.ctypes.data % dtype.alignment == 0 else values.copy()
    return aligned.view(dtype).reshape(shape, order="F" if fortran else "C")


def _header(data: npt.NDArray[np.uint8]) -> bytes:
    # Six bytes of magic, two of the version, and the length of the header: two bytes in version 1,
    # four in later ones.
    begin = data[: _SHORT + 2].tobytes()
    if not begin.startswith(_MAGIC) or len(begin) < _SHORT + 2:
        raise ValueError("they are no .npy file")
    if begin[6] == 1:
        return data[: _SHORT + int.from_bytes(begin[8:10], "little")].tobytes()
    return data[: _SHORT + 2 + int.from_bytes(begin[8:12], "little")].tobytes()


@lru_cache(maxsize=256)
def _parse_header(header: bytes) -> tuple[int, tuple[int, ...], np.dtype[Any], bool]:
    """Return where values begin, their shape and type, and True if they are in Fortran order."""
    stream = BytesIO(header)
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0
    if version != (1, 0):
        read = np.lib.format.read_array_header_2_0
    try:
        shape, fortran, dtype = read(stream)
    except (TokenError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"the header of the .npy file is damaged: {error}") from error
    if any(type(length) is not int or length < 0 for length in shape):
        raise ValueError(f"an array cannot have the shape {shape}")
    if len(shape) and max(shape) > _MAX_LENGTH:
        raise ValueError(f"an array of the shape {shape} fits no memory")
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are not loaded")
    return len(header), shape, dtype, fortran


def python_values(values: pa.Array | pa.ChunkedArray, kind: Kind) -> list[Any]:
    """Return the values of all rows, None for null rows. Arrays are views of Arrow's memory."""
    if isinstance(values, pa.ChunkedArray):
        return [value for chunk in values.chunks for value in python_values(chunk, kind)]
    if kind is Kind.NPY:
        return _npy_arrays(values)
    load: Any = {
        Kind.JSON: json.loads,
        Kind.JPEG: decode_image,
        Kind.PICKLE: pickle.loads,
    }[kind]
    objects = values.to_numpy(zero_copy_only=False).tolist()
    return [None if value is None else load(value) for value in objects]


def _npy_arrays(values: pa.LargeBinaryArray) -> list[npt.NDArray[Any] | None]:
    if not len(values):
        return []
    _, offsets, data = values.buffers()
    # A slice shares the buffers of its array: its first offset is eight bytes a row further on.
    edges = np.frombuffer(offsets, np.int64, len(values) + 1, 8 * values.offset)
    first, size = int(edges[0]), int(edges[-1] - edges[0])
    held = pa.Array.from_buffers(pa.uint8(), size, [None, data], offset=first)
    memory = buffer_view(held, np.dtype(np.uint8))
    nulls = null_mask(values)
    ends = (edges - first).tolist()
    return [
        None if nulls is not None and nulls[i] else npy_array(memory[ends[i] : ends[i + 1]])
        for i in range(len(values))
    ]
