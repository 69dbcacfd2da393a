"""Columns of values that Arrow has no type for: arrays of any shape, JSON, Python objects.

They are stored as bytes or text. Their meaning is passed beside the schema, as a mapping of column
names to kinds, by the source that made the columns. The schema does not hold it, so that a file
cannot ask for its bytes to be unpickled. Batches hold the values themselves, made when a batch is
cut; arrays of one shape and type are stacked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from headrace.convert.arrays import check_int64, dense_type, object_array
from headrace.convert.columns import Column, RowNumbers
from headrace.convert.images import images_on
from headrace.convert.kinds import Kind, python_values
from headrace.errors import ReadError


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
