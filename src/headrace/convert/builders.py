"""From one field of a schema to the columns it becomes: decided once, applied to every block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from headrace.convert.columns import ArrayColumn, Column, StructColumn, TensorColumn
from headrace.convert.dense import Dense, dense_cells, dense_values
from headrace.convert.memory import null_mask, storage, writable
from headrace.convert.nulls import REFUSE, null_error
from headrace.convert.objects import ObjectColumn
from headrace.convert.ragged import RaggedColumn
from headrace.errors import OptionError

__all__ = ["Builder", "DenseBuilder", "ObjectBuilder", "RaggedBuilder", "StructBuilder", "rebuild"]

Mask = npt.NDArray[np.bool_]

_BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)


class Builder(Protocol):
    """Makes the columns of one field."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys under which the columns stand in a batch."""
        ...

    def build(self, array: pa.Array) -> list[Column]:
        """One column for each key; any thread may call this."""
        ...


@dataclass(frozen=True, slots=True)
class DenseBuilder:
    """Numbers, or lists of numbers of one shape."""

    path: str
    keys: tuple[str, ...]
    """the field, and its mask where it has one"""
    dense: Dense
    fill: Any
    for_torch: bool

    def build(self, array: pa.Array) -> list[Column]:
        values, nulls = dense_values(array, self.dense, self.path)
        if nulls is not None and nulls.any():
            values = _filled(values, nulls, self.fill, self.path, self.dense, len(array))
        return self._columns(values, nulls)

    @property
    def takes_cells(self) -> bool:
        """Whether it builds from the bytes of each row, equally many, where none is null."""
        return self.dense.cast is None

    def of_cells(self, cells: npt.NDArray[Any]) -> list[Column]:
        """What is built of the rows that have these bytes."""
        return self._columns(dense_cells(cells, self.dense, self.path), None)

    def _columns(self, values: npt.NDArray[Any], nulls: Mask | None) -> list[Column]:
        if len(self.keys) == 1:
            return [dense_column(values, self.for_torch)]
        mask = np.zeros(values.shape, np.bool_) if nulls is None else nulls
        return [dense_column(values, self.for_torch), dense_column(mask, self.for_torch)]


@dataclass(frozen=True, slots=True)
class RaggedBuilder:
    """Lists of any length of numbers, or of lists of numbers of one shape."""

    path: str
    keys: tuple[str, ...]
    """the field, its lengths where it is padded, and its mask where it has one"""
    type_: pa.DataType
    dense: Dense
    """of the elements"""
    fill: Any
    """for null elements"""
    empty_rows: bool
    """whether null rows become empty ones"""
    form: str
    for_torch: bool

    def build(self, array: pa.Array) -> list[Column]:
        array = storage(array)
        if array.null_count and not self.empty_rows:
            raise null_error(self.path, self.type_, array.null_count, len(array), [])
        lengths = pc.list_value_length(array).fill_null(0).cast(pa.int64())
        counts = lengths.to_numpy().copy()
        column = RaggedColumn.of(self._elements(array), counts, self.form)
        companions = {f"{self.keys[0]}_length": counts}
        if self.keys[-1] == f"{self.keys[0]}_mask":
            nulls = null_mask(array)
            companions[self.keys[-1]] = np.zeros(len(array), np.bool_) if nulls is None else nulls
        return [column, *(dense_column(companions[k], self.for_torch) for k in self.keys[1:])]

    def _elements(self, array: pa.Array) -> TensorColumn | ArrayColumn:
        elements = array.flatten()  # leaves out what null rows hide
        values, nulls = dense_values(elements, self.dense, self.path)
        if nulls is not None and nulls.any():
            values = _filled(values, nulls, self.fill, self.path, self.dense, len(array))
        return dense_column(values, self.for_torch)


@dataclass(frozen=True, slots=True)
class ObjectBuilder:
    """Strings, bytes, maps and lists of such: Python objects in the batch."""

    path: str
    keys: tuple[str, ...]
    type_: pa.DataType
    """of the rows, without dictionaries at any depth"""
    fill: Any
    example: Any
    """a fill value that would fit, for messages"""
    for_torch: bool

    def build(self, array: pa.Array) -> list[Column]:
        array = storage(array)
        if array.type != self.type_:
            array = array.cast(self.type_)
        nulls = null_mask(array)
        if nulls is not None and self.fill is REFUSE:
            raise null_error(self.path, self.type_, array.null_count, len(array), self.example)
        fill = None if self.fill is REFUSE else self.fill
        return self._columns(ObjectColumn.of(array, fill, not self.for_torch), len(array), nulls)

    @property
    def takes_cells(self) -> bool:
        """Whether it builds from the bytes of each row, equally many, where none is null."""
        return any(is_bytes(self.type_) for is_bytes in _BYTES)

    def of_cells(self, cells: npt.NDArray[Any]) -> list[Column]:
        """What is built of the rows that have these bytes."""
        return self._columns(ObjectColumn(cells, None, not self.for_torch), len(cells), None)

    def _columns(self, values: Column, rows: int, nulls: Mask | None) -> list[Column]:
        if len(self.keys) == 1:
            return [values]
        mask = np.zeros(rows, np.bool_) if nulls is None else nulls
        return [values, dense_column(mask, self.for_torch)]


@dataclass(frozen=True, slots=True)
class StructBuilder:
    """A dict of the fields; a null struct makes its fields null."""

    keys: tuple[str, ...]
    fields: tuple[Builder, ...]
    for_torch: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The keys of the inner dict."""
        return tuple(key for field in self.fields for key in field.keys)

    def build(self, array: pa.Array) -> list[Column]:
        array = storage(array)
        parts = zip(self.fields, _fields_of(array), strict=True)
        inner = tuple(column for field, part in parts for column in field.build(part))
        columns: list[Column] = [StructColumn(self.names, inner, len(array))]
        if len(self.keys) > 1:
            nulls = null_mask(array)
            mask = np.zeros(len(array), np.bool_) if nulls is None else nulls
            columns.append(dense_column(mask, self.for_torch))
        return columns


def _fields_of(array: pa.StructArray) -> list[pa.Array]:
    """The fields, null where the struct is.

    Run-ends have no place for such nulls and are decoded before they come in; dictionaries only
    after that, because the codes that a null struct hides may point nowhere.
    """
    fields = [array.field(i) for i in range(array.type.num_fields)]
    if not fields or array.null_count == 0:
        return fields
    decoded = [storage(f) if pa.types.is_run_end_encoded(f.type) else f for f in fields]
    names = [str(i) for i in range(len(fields))]
    parts: list[pa.Array] = pa.StructArray.from_arrays(
        decoded, names, mask=array.is_null()
    ).flatten()
    return parts


def dense_column(values: npt.NDArray[Any], for_torch: bool) -> TensorColumn | ArrayColumn:
    """A column over an array, which it may write to."""
    values = writable(values)
    return TensorColumn(torch.from_numpy(values)) if for_torch else ArrayColumn(values)


def rebuild(
    builders: Sequence[Builder], arrays: Iterator[npt.NDArray[Any]], num_rows: int
) -> list[Column]:
    """Columns over arrays that came from ``Column.arrays``, in the same order."""
    columns: list[Column] = []
    for builder in builders:
        companions = builder.keys
        if isinstance(builder, StructBuilder):
            inner = tuple(rebuild(builder.fields, arrays, num_rows))
            columns.append(StructColumn(builder.names, inner, num_rows))
            companions = builder.keys[1:]
        elif not isinstance(builder, DenseBuilder):
            raise OptionError(f"column {builder.keys[0]!r} does not consist of arrays of rows")
        columns.extend(dense_column(next(arrays), builder.for_torch) for _ in companions)
    return columns


def _filled(
    values: npt.NDArray[Any], nulls: Mask, fill: Any, path: str, dense: Dense, rows: int
) -> npt.NDArray[Any]:
    if fill is REFUSE:
        count = int(np.count_nonzero(nulls))
        example = False if dense.dtype.kind == "b" else 0
        raise null_error(path, dense.leaf, count, rows, example)
    filled = values.copy()  # Arrow's memory stays as it was read
    filled[nulls] = fill
    return filled
