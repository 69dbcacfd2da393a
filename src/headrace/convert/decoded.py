"""Columns of what Arrow has no type for: arrays of any shape, JSON, Python objects.

They are stored as bytes or text. What they stand for is passed beside the schema, as a mapping of
column names to kinds: the source that made the columns gives it to the converter. A schema cannot
say it, so that a file cannot ask for its bytes to be unpickled. Batches hold the values themselves,
made when a batch is cut; arrays of one shape and type are stacked.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from io import BytesIO
from tokenize import TokenError
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from headrace.convert.arrays import buffer_view, check_int64, dense_type, null_mask
from headrace.convert.builders import REFUSE, Remedy, dense_column, null_error
from headrace.convert.columns import Column, Rows, object_array
from headrace.convert.lent import LENT_TYPE
from headrace.errors import OptionError

__all__ = [
    "STORED_TYPES",
    "DecodedBuilder",
    "DecodedColumn",
    "Kind",
    "Kinds",
    "npy_array",
    "npy_header",
    "python_values",
    "together",
]


class Kind(Enum):
    """What the values of a column stand for, other than what their Arrow type says."""

    JSON = "JSON text"
    NPY = "the bytes of .npy files"
    PICKLE = "what a function of the user returned, pickled by this library for its own processes"
    LENT = "positions of bytes in files that are mapped"


Kinds = Mapping[str, Kind]
"""the kinds of columns by their names; columns without one are what their types say"""

STORED_TYPES = {
    Kind.JSON: pa.large_string(),
    Kind.NPY: pa.large_binary(),
    Kind.PICKLE: pa.large_binary(),
    Kind.LENT: LENT_TYPE,
}
"""the Arrow types of columns of each kind"""
_MAGIC = b"\x93NUMPY"
_SHORT = 10
"""bytes before the header of a .npy of version 1; later ones have two more"""
_MOST = np.iinfo(np.int64).max
_DESCRIBED = 32
"""bytes of a .npy of numpy in which the type of its numbers stands"""


def npy_header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """What stands before the memory of an array, in C order, in a .npy file."""
    sink = BytesIO()
    described = {
        "descr": np.lib.format.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": shape,
    }
    np.lib.format.write_array_header_1_0(sink, described)
    return sink.getvalue()


def npy_array(data: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
    """The array that the bytes of a .npy file are, as a view; a ValueError if they are not one."""
    start, shape, dtype, fortran = _parsed(_head(data))
    count = int(np.prod(shape, dtype=np.int64))
    if count < 0 or len(data) - start < count * dtype.itemsize:
        raise ValueError(f"{len(data)} bytes are too few for an array {shape} of {dtype}")
    if not count:
        return np.empty(shape, dtype)
    values = data[start : start + count * dtype.itemsize]
    aligned = values if values.ctypes.data % dtype.alignment == 0 else values.copy()
    return aligned.view(dtype).reshape(shape, order="F" if fortran else "C")


def _head(data: npt.NDArray[np.uint8]) -> bytes:
    begin = data[: _SHORT + 2].tobytes()
    if not begin.startswith(_MAGIC) or len(begin) < _SHORT + 2:
        raise ValueError("they are no .npy file")
    if begin[6] == 1:
        return data[: _SHORT + int.from_bytes(begin[8:10], "little")].tobytes()
    return data[: _SHORT + 2 + int.from_bytes(begin[8:12], "little")].tobytes()


@lru_cache(maxsize=256)
def _parsed(head: bytes) -> tuple[int, tuple[int, ...], np.dtype[Any], bool]:
    """Where the values begin, and what the header says of them."""
    stream = BytesIO(head)
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
    if len(shape) and max(shape) > _MOST:
        raise ValueError(f"an array of the shape {shape} fits no memory")
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are not loaded")
    return len(head), shape, dtype, fortran


def python_values(values: pa.Array | pa.ChunkedArray, kind: Kind) -> list[Any]:
    """The values of all rows, None where there is none. Arrays are views of their memory."""
    if isinstance(values, pa.ChunkedArray):
        return [value for chunk in values.chunks for value in python_values(chunk, kind)]
    if kind is Kind.NPY:
        return _arrays(values)
    load: Any = {Kind.JSON: json.loads, Kind.PICKLE: pickle.loads}[kind]
    objects = values.to_numpy(zero_copy_only=False).tolist()
    return [None if value is None else load(value) for value in objects]


def _arrays(values: pa.LargeBinaryArray) -> list[npt.NDArray[Any] | None]:
    if not len(values):
        return []
    _, offsets, data = values.buffers()
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


def together(values: list[Any], output_format: str) -> Any:
    """Values of a batch as one array, if they are arrays of one shape and type, or numbers."""
    if output_format == "dict" or not values:
        return values
    if all(isinstance(value, bool | int | float | np.number | np.bool_) for value in values):
        numbers = np.asarray(values)
        if numbers.dtype.kind in "biuf":
            return torch.from_numpy(numbers) if output_format == "torch" else numbers
    first = values[0]
    kind = torch.Tensor if output_format == "torch" else np.ndarray
    if all(
        isinstance(value, kind) and value.shape == first.shape and value.dtype == first.dtype
        for value in values
    ):
        return torch.stack(values) if output_format == "torch" else np.stack(values)
    return values if output_format == "torch" else object_array(values)


@dataclass(frozen=True, slots=True, eq=False)
class DecodedColumn:
    """Values that stay bytes or text until a batch is cut."""

    values: pa.Array
    kind: Kind
    for_torch: bool

    @property
    def nbytes(self) -> int:
        return int(self.values.nbytes)

    def slice(self, start: int, length: int) -> DecodedColumn:
        return DecodedColumn(self.values.slice(start, length), self.kind, self.for_torch)

    def take(self, rows: Rows) -> DecodedColumn:
        return DecodedColumn(self.values.take(pa.array(rows)), self.kind, self.for_torch)

    def split(self, batch_size: int) -> Iterator[Any]:
        for start in range(0, len(self.values), batch_size):
            made = python_values(self.values.slice(start, batch_size), self.kind)
            if self.for_torch and self.kind is not Kind.JSON:
                made = [_tensor(value) for value in made]
            if self.kind is Kind.JSON:  # or it were numbers that make a batch of JSON an array
                yield made if self.for_torch else object_array(made)
            else:
                yield together(made, "torch" if self.for_torch else "numpy")

    def arrays(self) -> list[npt.NDArray[Any]] | None:
        return None

    def to_send(self) -> DecodedColumn | None:
        """Arrays are stacked where they were read; they cross without being copied again."""
        return None if self.kind is Kind.NPY else self

    def pin(self) -> DecodedColumn:
        return self

    @classmethod
    def concat(cls, columns: Sequence[DecodedColumn]) -> DecodedColumn:
        joined = pa.concat_arrays([column.values for column in columns])
        return cls(joined, columns[0].kind, columns[0].for_torch)


def _tensor(value: Any) -> Any:
    """An array of numbers as a tensor; of unsigned ones in the type that columns of them have."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biufc":
        return value
    dtype = _torch_dtype(value.dtype)
    if dtype is None:
        return value
    _check_fits(value, "what decode= made")
    native = value.astype(dtype, copy=False)
    return torch.from_numpy(native if native.flags.writeable else native.copy())


@lru_cache(maxsize=64)
def _torch_dtype(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """What it is in a tensor; None for what torch has no type for, such as long doubles."""
    if dtype.itemsize > {"c": 16}.get(dtype.kind, 8):
        return None
    native = dtype.newbyteorder("=")
    dense = None if dtype.kind in "bc" else dense_type(pa.from_numpy_dtype(native), True)
    return native if dense is None else dense.dtype


@dataclass(frozen=True, slots=True)
class DecodedBuilder:
    """Makes the column of such a field; a null is None in a batch, if the user says so."""

    path: str
    keys: tuple[str, ...]
    kind: Kind
    allows_null: bool
    for_torch: bool

    @classmethod
    def of(
        cls, path: str, keys: tuple[str, ...], kind: Kind, remedy: Remedy, for_torch: bool
    ) -> DecodedBuilder:
        if remedy.fill is not REFUSE and remedy.fill is not None:
            raise OptionError(
                f"nulls={{{path!r}: {remedy.fill!r}}}: what is decoded is filled with None only"
            )
        return cls(path, keys, kind, remedy != Remedy(), for_torch)

    def build(self, array: pa.Array) -> list[Column]:
        if array.null_count and not self.allows_null:
            raise null_error(self.path, array.type, array.null_count, len(array), None)
        if self.for_torch and self.kind is Kind.NPY:
            self._check_unsigned(array)
        columns: list[Column] = [DecodedColumn(array, self.kind, self.for_torch)]
        if len(self.keys) > 1:
            nulls = null_mask(array)
            mask = np.zeros(len(array), np.bool_) if nulls is None else nulls
            columns.append(dense_column(mask, self.for_torch))
        return columns

    def _check_unsigned(self, array: pa.Array) -> None:
        """Find what does not fit a tensor now, while it is known where it was read.

        Headers in which the type stands further behind than numpy writes it are found later.
        """
        if not len(array) or array.buffers()[2] is None:
            return
        edges = np.frombuffer(array.buffers()[1], np.int64, len(array), 8 * array.offset)
        memory = memoryview(array.buffers()[2])
        if any(b"u8'" in memory[start : start + _DESCRIBED].tobytes() for start in edges.tolist()):
            for value in _arrays(array):
                _check_fits(value, self.path)


def _check_fits(value: Any, named: str) -> None:
    if isinstance(value, np.ndarray) and value.dtype.kind == "u" and value.dtype.itemsize == 8:
        check_int64(value, named)
