"""Columns of values without a fixed size: Python objects once a batch needs them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.convert.columns import Rows
from headrace.convert.memory import storage
from headrace.matrices import values_at

__all__ = ["ObjectColumn", "object_array"]


@dataclass(frozen=True, slots=True, eq=False)
class ObjectColumn:
    """Values without a fixed size, left as they are until a batch needs them as Python objects."""

    values: pa.Array | npt.NDArray[Any]
    """in Arrow; or cells, none of them null: bytes of one length, or objects that are bytes"""
    fill: Any
    """stands where a row is null"""
    as_array: bool
    """batches are numpy arrays of objects, and not lists"""

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.values)) if self._has_objects else int(self.values.nbytes)

    @property
    def _has_objects(self) -> bool:
        return isinstance(self.values, np.ndarray) and self.values.dtype.hasobject

    def slice(self, start: int, length: int) -> ObjectColumn:
        return ObjectColumn(self.values[start : start + length], self.fill, self.as_array)

    def take(self, rows: Rows) -> ObjectColumn:
        values = self.values
        values = values[rows] if isinstance(values, np.ndarray) else values_at(values, rows)
        return ObjectColumn(values, self.fill, self.as_array)

    def split(self, batch_size: int) -> Iterator[Any]:
        for start in range(0, len(self.values), batch_size):
            objects = self._objects(self.values[start : start + batch_size])
            yield object_array(objects) if self.as_array else objects

    def _objects(self, values: pa.Array | npt.NDArray[Any]) -> list[Any]:
        if isinstance(values, np.ndarray):
            cells: list[bytes] = values.tolist()
            return cells
        if _is_large(values.type):
            objects = values.to_numpy(zero_copy_only=False).tolist()  # 10 x faster than to_pylist
        else:
            objects = values.to_pylist()
        if values.null_count and self.fill is not None:
            return [copy(self.fill) if value is None else value for value in objects]
        return list(objects)

    def arrays(self) -> list[npt.NDArray[Any]] | None:
        return None

    def to_send(self) -> ObjectColumn | None:
        """Strings and bytes are made as fast from Arrow as from a pickle; anything else is not."""
        if self._has_objects:
            return ObjectColumn(_in_arrow(self.values), self.fill, self.as_array)
        return self if isinstance(self.values, np.ndarray) or _is_large(self.values.type) else None

    def pin(self) -> ObjectColumn:
        return self

    @classmethod
    def concat(cls, columns: Sequence[ObjectColumn]) -> ObjectColumn:
        joined = pa.concat_arrays([_in_arrow(column.values) for column in columns])
        return cls(joined, columns[0].fill, columns[0].as_array)

    @classmethod
    def of(cls, values: pa.Array, fill: Any, as_array: bool) -> ObjectColumn:
        """Offsets are widened to 64 bits, so that joined strings may be longer than 2 GiB."""
        values = storage(values)
        if pa.types.is_string(values.type) or pa.types.is_string_view(values.type):
            values = values.cast(pa.large_string())
        elif _is_bytes(values.type):
            if pa.types.is_fixed_size_binary(values.type) and values.offset:
                values = pa.concat_arrays([values, values[:0]])  # pyarrow 16 casts from its start
            values = values.cast(pa.large_binary())
        return cls(values, fill, as_array)


def _in_arrow(values: pa.Array | npt.NDArray[Any]) -> pa.Array:
    if not isinstance(values, np.ndarray):
        return values
    if values.dtype.hasobject:
        return pa.array(values, pa.large_binary())
    ends = np.arange(0, values.nbytes + 1, values.itemsize, dtype=np.int64)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.large_binary(), len(values), buffers, 0)


def _is_large(type_: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(type_) or pa.types.is_large_binary(type_))


def _is_bytes(type_: pa.DataType) -> bool:
    kinds = (pa.types.is_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
    return any(is_kind(type_) for is_kind in kinds)


def object_array(objects: Sequence[Any]) -> npt.NDArray[np.object_]:
    """One-dimensional whatever the objects are; ``np.array`` would make a table of equal lists."""
    return np.fromiter(objects, object, len(objects))
