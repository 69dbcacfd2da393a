"""Columns of values that Arrow has no type for: arrays of any shape, JSON, Python objects.

They are stored as bytes or text. Their meaning is passed beside the schema, as a mapping of column
names to kinds, by the source that made the columns. The schema does not hold it, so that a file
cannot ask for its bytes to be unpickled. Batches hold the values themselves, made when a batch is
cut; arrays of one shape and type are stacked.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from headrace.convert.columns import Column, RowNumbers, object_array
from headrace.convert.images import decode_image, images_on
from headrace.errors import ReadError


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


def together(values: list[Any], output_format: str) -> Any:
    """Return the values of a batch as one array, if they are numbers or arrays of one shape."""
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
class DecodedColumn(Column):
    """Values that stay bytes or text until a batch is cut.

    Attributes:
        values: The bytes or text of each row.
        kind: The meaning of the values.
        for_torch: True if arrays become tensors.
        path: The name of the column, for messages.
        device: The CUDA device that decodes images; None for the host.
    """

    values: pa.Array
    kind: Kind
    for_torch: bool
    path: str
    device: torch.device | None = None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def nbytes(self) -> int:
        return int(self.values.nbytes)

    def slice(self, start: int, length: int) -> DecodedColumn:
        return replace(self, values=self.values.slice(start, length))

    def take(self, rows: RowNumbers) -> DecodedColumn:
        return replace(self, values=self.values.take(pa.array(rows)))

    def split(self, batch_size: int) -> Iterator[Any]:
        for start in range(0, len(self.values), batch_size):
            made = self._decoded(self.values.slice(start, batch_size))
            if self.kind is Kind.JSON:  # a batch of numbers in JSON must not become an array
                yield made if self.for_torch else object_array(made)
            elif self.for_torch:
                yield together([_tensor(value, self.path) for value in made], "torch")
            else:
                yield together(made, "numpy")

    def _decoded(self, values: pa.Array) -> list[Any]:
        if self.kind is not Kind.JPEG:
            return python_values(values, self.kind)
        try:
            if self.device is None:
                return python_values(values, self.kind)
            return images_on(self.device, values.to_numpy(zero_copy_only=False).tolist())
        except ReadError as error:
            raise ReadError(
                f'column {self.path!r}: {error}; read it with decode={{{self.path!r}: "image"}}, '
                "whose errors name the file"
            ) from error

    @classmethod
    def concat(cls, columns: Sequence[DecodedColumn]) -> DecodedColumn:
        return replace(columns[0], values=pa.concat_arrays([column.values for column in columns]))

    @classmethod
    def to_send(cls, columns: Sequence[DecodedColumn]) -> DecodedColumn | None:
        # Arrays are stacked in the process that read them, and are sent without another copy.
        return None if columns[0].kind is Kind.NPY else cls.concat(columns)


def _tensor(value: Any, path: str) -> Any:
    """Return an array of numbers as a tensor if torch has its type; return others unchanged."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biufc":
        return value
    dtype = _torch_dtype(value.dtype)
    if dtype is None:
        return value
    _check_fits(value, path)
    native = value.astype(dtype, copy=False)
    return torch.from_numpy(native if native.flags.writeable else native.copy())


def check_arrays(values: pa.LargeBinaryArray, path: str) -> None:
    """Raise an error for numbers that no tensor holds, while their file is still known."""
    for value in python_values(values, Kind.NPY):
        if value is not None:
            _check_fits(value, path)


def _check_fits(value: npt.NDArray[Any], path: str) -> None:
    if value.dtype.kind == "u" and value.dtype.itemsize == 8:
        check_int64(value, path)


@lru_cache(maxsize=64)
def _torch_dtype(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """Return the type of tensors of such numbers; None if torch has none, as for long doubles."""
    if dtype.itemsize > {"c": 16}.get(dtype.kind, 8):
        return None
    native = dtype.newbyteorder("=")
    dense = None if dtype.kind in "bc" else dense_type(pa.from_numpy_dtype(native), True)
    return native if dense is None else dense.dtype
