"""Columns of a block: cut, permuted and joined as a whole, handed out batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from headrace.convert.arrays import storage
from headrace.matrices import values_at

__all__ = [
    "RAGGED_FORMS",
    "ArrayColumn",
    "Column",
    "ObjectColumn",
    "RaggedColumn",
    "Rows",
    "StructColumn",
    "TensorColumn",
    "object_array",
    "taken",
]

Rows = npt.NDArray[np.int64]

_TOO_FEW_FOR_THREADS = 1 << 14
"""values that torch moves without threads of its own"""


class Column(Protocol):
    """Values of all rows of a block under one key of its batches."""

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        ...

    def slice(self, start: int, length: int) -> Self:
        """Some consecutive rows, as a view."""
        ...

    def take(self, rows: Rows) -> Self:
        """These rows, in this order."""
        ...

    def split(self, batch_size: int) -> Iterable[Any]:
        """The values of consecutive batches. Not called on a column without rows."""
        ...

    def arrays(self) -> list[npt.NDArray[Any]] | None:
        """The column as arrays whose first dimension is the rows, where it is nothing else."""
        ...

    def to_send(self) -> Self | None:
        """The same rows in memory of their own, if batches are cheaper to cut where they arrive."""
        ...

    def pin(self) -> Self:
        """The same with its tensors in pinned memory."""
        ...

    @classmethod
    def concat(cls, columns: Sequence[Self]) -> Self:
        """The rows of several columns, in order."""
        ...


@dataclass(frozen=True, slots=True)
class TensorColumn:
    """A tensor whose first dimension is the rows.

    Rows are moved by numpy: torch would spread the work over threads of its own, in each of the
    threads that make blocks, and they would wait for each other far longer than they work.
    """

    values: torch.Tensor

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    def slice(self, start: int, length: int) -> TensorColumn:
        return TensorColumn(self.values[start : start + length])

    def take(self, rows: Rows) -> TensorColumn:
        return TensorColumn(torch.from_numpy(taken(self.values.numpy(), rows)))

    def split(self, batch_size: int) -> Iterable[torch.Tensor]:
        return _views(self.values, _sizes(self.values.size(0), batch_size))

    def arrays(self) -> list[npt.NDArray[Any]] | None:
        return [self.values.numpy()]

    def to_send(self) -> TensorColumn | None:
        return self

    def pin(self) -> TensorColumn:
        return TensorColumn(self.values.pin_memory())

    @classmethod
    def concat(cls, columns: Sequence[TensorColumn]) -> TensorColumn:
        values = [column.values for column in columns]
        if sum(tensor.numel() for tensor in values) < _TOO_FEW_FOR_THREADS:
            return cls(torch.cat(values))  # twice as fast
        return cls(torch.from_numpy(np.concatenate([tensor.numpy() for tensor in values])))


@dataclass(frozen=True, slots=True, eq=False)
class ArrayColumn:
    """A numpy array whose first dimension is the rows."""

    values: npt.NDArray[Any]

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    def slice(self, start: int, length: int) -> ArrayColumn:
        return ArrayColumn(self.values[start : start + length])

    def take(self, rows: Rows) -> ArrayColumn:
        return ArrayColumn(taken(self.values, rows))

    def split(self, batch_size: int) -> Iterable[npt.NDArray[Any]]:
        values = self.values
        return [values[i : i + batch_size] for i in range(0, len(values), batch_size)]

    def arrays(self) -> list[npt.NDArray[Any]] | None:
        return [self.values]

    def to_send(self) -> ArrayColumn | None:
        return self

    def pin(self) -> ArrayColumn:
        return self

    @classmethod
    def concat(cls, columns: Sequence[ArrayColumn]) -> ArrayColumn:
        return cls(np.concatenate([column.values for column in columns]))


@dataclass(frozen=True, slots=True)
class StructColumn:
    """A dict of columns."""

    names: tuple[str, ...]
    columns: tuple[Column, ...]
    num_rows: int
    """kept apart, because a struct may have no fields"""

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.columns)

    def slice(self, start: int, length: int) -> StructColumn:
        columns = tuple(column.slice(start, length) for column in self.columns)
        return StructColumn(self.names, columns, max(0, min(length, self.num_rows - start)))

    def take(self, rows: Rows) -> StructColumn:
        return StructColumn(self.names, tuple(c.take(rows) for c in self.columns), len(rows))

    def split(self, batch_size: int) -> Iterator[dict[str, Any]]:
        return self.batches(batch_size, at_once=self.num_rows)

    def batches(self, batch_size: int, *, at_once: int) -> Iterator[dict[str, Any]]:
        """What ``split`` gives, made of so many rows at a time, which are whole batches."""
        if not self.num_rows:
            return
        names = self.names
        starts = range(0, self.num_rows, at_once)
        columns = [_parts(column, at_once, starts) for column in self.columns]
        for start, *parts in zip(starts, *columns, strict=True):
            sizes = _sizes(min(at_once, self.num_rows - start), batch_size)
            values = [
                _views(part, sizes) if isinstance(part, torch.Tensor) else part.split(batch_size)
                for part in parts
            ]
            if not values:
                yield from ({} for _ in sizes)
            for leaves in zip(*values, strict=True):
                yield dict(zip(names, leaves))  # noqa: B905  (strict costs a tenth of the time)

    def arrays(self) -> list[npt.NDArray[Any]] | None:
        parts = [column.arrays() for column in self.columns]
        if not parts or any(part is None for part in parts):
            return None
        return [array for part in parts for array in part or ()]

    def to_send(self) -> StructColumn | None:
        columns = [column.to_send() for column in self.columns]
        kept = tuple(column for column in columns if column is not None)
        return StructColumn(self.names, kept, self.num_rows) if len(kept) == len(columns) else None

    def pin(self) -> StructColumn:
        return StructColumn(self.names, tuple(c.pin() for c in self.columns), self.num_rows)

    @classmethod
    def concat(cls, columns: Sequence[StructColumn]) -> StructColumn:
        children = zip(*[column.columns for column in columns], strict=True)
        joined = tuple(type(parts[0]).concat(parts) for parts in children)
        return cls(columns[0].names, joined, sum(column.num_rows for column in columns))


def _parts(column: Column, rows: int, starts: range) -> Sequence[torch.Tensor | Column]:
    """So many rows from each start on; of tensors alone, without the column around them."""
    if isinstance(column, TensorColumn):
        return torch.unsafe_split(column.values, rows) if len(starts) > 1 else [column.values]
    return [column.slice(start, rows) for start in starts] if len(starts) > 1 else [column]


def _views(values: torch.Tensor, sizes: tuple[int, ...]) -> Sequence[torch.Tensor]:
    """As split has them, a third faster: nobody tracks gradients through a block."""
    return (values,) if len(sizes) == 1 else torch.unsafe_split_with_sizes(values, sizes)


@lru_cache(maxsize=64)
def _sizes(rows: int, batch_size: int) -> tuple[int, ...]:
    """Rows of each batch."""
    whole, rest = divmod(rows, batch_size)
    return (batch_size,) * whole + ((rest,) if rest else ())


def taken(values: npt.NDArray[Any], rows: Rows) -> npt.NDArray[Any]:
    """Rows of an array. Whether there are such rows is not asked: that takes a third longer."""
    out = np.empty((len(rows), *values.shape[1:]), values.dtype)
    return np.take(values, rows, axis=0, out=out, mode="clip") if len(values) else out


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


@dataclass(frozen=True, slots=True, eq=False)
class RaggedColumn:
    """Rows are runs of one array of values; permuting rows moves the runs and not the values."""

    values: TensorColumn | ArrayColumn
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    form: str

    @property
    def nbytes(self) -> int:
        size = len(self.values.values)
        per_value = self.values.nbytes // size if size else 0
        return int(self.lengths.sum()) * per_value + self.starts.nbytes + self.lengths.nbytes

    def slice(self, start: int, length: int) -> RaggedColumn:
        rows = slice(start, start + length)
        return replace(self, starts=self.starts[rows], lengths=self.lengths[rows])

    def take(self, rows: Rows) -> RaggedColumn:
        return replace(self, starts=self.starts[rows], lengths=self.lengths[rows])

    def split(self, batch_size: int) -> Iterator[Any]:
        finish = _FORMS[self.form, isinstance(self.values, TensorColumn)]
        for start in range(0, len(self.starts), batch_size):
            rows = slice(start, start + batch_size)
            lengths = self.lengths[rows]
            yield finish(self._run(self.starts[rows], lengths).values, lengths)

    def _run(self, starts: Rows, lengths: Rows) -> TensorColumn | ArrayColumn:
        """The values of some rows end to end: a view where they already lie so."""
        ends = starts + lengths
        if len(starts) == 0 or np.array_equal(ends[:-1], starts[1:]):
            first = int(starts[0]) if len(starts) else 0
            return self.values.slice(first, int(lengths.sum()))
        within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return self.values.take(np.repeat(starts, lengths) + within)

    def arrays(self) -> list[npt.NDArray[Any]] | None:
        return None

    def to_send(self) -> RaggedColumn | None:
        return self.concat([self])

    def pin(self) -> RaggedColumn:
        return replace(self, values=self.values.pin())

    @classmethod
    def concat(cls, columns: Sequence[RaggedColumn]) -> RaggedColumn:
        runs = [column._run(column.starts, column.lengths) for column in columns]
        lengths = np.concatenate([column.lengths for column in columns])
        return cls.of(type(runs[0]).concat(runs), lengths, columns[0].form)  # type: ignore[arg-type]

    @classmethod
    def of(
        cls, values: TensorColumn | ArrayColumn, lengths: npt.NDArray[np.int64], form: str
    ) -> RaggedColumn:
        """Rows that lie end to end."""
        return cls(values, np.cumsum(lengths) - lengths, lengths, form)


def _tensor_list(values: torch.Tensor, lengths: Rows) -> list[torch.Tensor]:
    return list(torch.split(values, lengths.tolist()))


def _tensor_pad(values: torch.Tensor, lengths: Rows) -> torch.Tensor:
    width = int(lengths.max(initial=0))
    padded = values.new_zeros((len(lengths), width, *values.shape[1:]))
    padded[torch.from_numpy(_occupied(lengths, width))] = values
    return padded


def _tensor_offsets(values: torch.Tensor, lengths: Rows) -> dict[str, torch.Tensor]:
    return {"values": values, "offsets": torch.from_numpy(_offsets(lengths))}


def _tensor_nested(values: torch.Tensor, lengths: Rows) -> torch.Tensor:
    nested: torch.Tensor = torch.nested.nested_tensor_from_jagged(
        values, torch.from_numpy(_offsets(lengths))
    )
    return nested


def _array_list(values: npt.NDArray[Any], lengths: Rows) -> npt.NDArray[np.object_]:
    edges = _offsets(lengths).tolist()
    return object_array([values[a:b] for a, b in pairwise(edges)])


def _array_pad(values: npt.NDArray[Any], lengths: Rows) -> npt.NDArray[Any]:
    width = int(lengths.max(initial=0))
    padded = np.zeros((len(lengths), width, *values.shape[1:]), values.dtype)
    padded[_occupied(lengths, width)] = values
    return padded


def _array_offsets(values: npt.NDArray[Any], lengths: Rows) -> dict[str, npt.NDArray[Any]]:
    return {"values": values, "offsets": _offsets(lengths)}


def _occupied(lengths: Rows, width: int) -> npt.NDArray[np.bool_]:
    occupied: npt.NDArray[np.bool_] = np.arange(width) < lengths[:, None]
    return occupied


def _offsets(lengths: Rows) -> npt.NDArray[np.int64]:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


_FORMS: dict[tuple[str, bool], Callable[[Any, Rows], Any]] = {
    ("list", True): _tensor_list,
    ("pad", True): _tensor_pad,
    ("offsets", True): _tensor_offsets,
    ("nested", True): _tensor_nested,
    ("list", False): _array_list,
    ("pad", False): _array_pad,
    ("offsets", False): _array_offsets,
}

RAGGED_FORMS = tuple(dict.fromkeys(form for form, _ in _FORMS))
