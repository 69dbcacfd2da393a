"""Columns of a block: cut, permuted and joined as a whole, handed out batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["ArrayColumn", "Column", "Rows", "StructColumn", "TensorColumn", "taken"]

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
