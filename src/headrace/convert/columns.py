"""Blocks: many rows in their output form, which are permuted, joined, and cut into batches.

A block is a ``StructColumn`` of columns (batches are dicts of tensors, arrays or lists) or an
``ArrowBlock`` around a table (batches are record batches or dicts of Python values). Blocks are
never changed, and batches may be views of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt
import torch

from headrace.convert.arrays import object_array
from headrace.convert.memory import SMALL_COPY_BYTES, block_memory
from headrace.errors import ConversionError
from headrace.matrices import values_at

RowNumbers = npt.NDArray[np.int64]
Array = npt.NDArray[Any]

RAGGED_FORMS = ("list", "pad", "offsets", "nested")
_BATCHES_AT_ONCE = 32
"""Number of batches whose views are made at a time: more would trigger the garbage collector."""


class Column(ABC):
    """The values of some rows under one key of their batches."""

    __slots__ = ()

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of rows."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Number of bytes of the values."""

    @abstractmethod
    def slice(self, start: int, length: int) -> Self:
        """Return consecutive rows, as a view."""

    @abstractmethod
    def take(self, rows: RowNumbers) -> Self:
        """Return rows by number, in this order."""

    @abstractmethod
    def split(self, batch_size: int) -> Iterable[Any]:
        """Return the values of consecutive batches; the column has at least one row."""

    @classmethod
    @abstractmethod
    def concat(cls, columns: Sequence[Self]) -> Self:
        """Return the rows of several columns, in order."""

    @classmethod
    def to_send(cls, columns: Sequence[Self]) -> Self | None:
        """Return the rows of all columns, in order, without other memory than theirs.

        Returns None if batches should be cut before they are sent to another process.
        """
        return columns[0] if len(columns) == 1 else cls.concat(columns)

    def pin(self) -> Column:
        """Return the column with its tensors in pinned memory."""
        return self


class NumberColumn(Column):
    """Numbers of one shape in each row."""

    __slots__ = ()

    @property
    @abstractmethod
    def values(self) -> Any:
        """Tensor or array from which batches are cut; its first dimension is the rows."""

    @property
    @abstractmethod
    def array(self) -> Array:
        """Values as a numpy array on the host."""

    @abstractmethod
    def pin(self) -> NumberColumn: ...

    @abstractmethod
    def padded(self, lengths: RowNumbers) -> Any:
        """Return runs of these lengths, which lie end to end, as rows padded with zeros."""

    @abstractmethod
    def like(self, values: Array) -> NumberColumn:
        """Return other values in a column of this form, in the same kind of memory."""


@dataclass(frozen=True, slots=True, eq=False)
class DenseColumn(NumberColumn):
    """Numbers in the memory of the host, whose batches are tensors or arrays.

    They are kept as numpy arrays: slicing a tensor takes several times as long, and most functions
    of torch release the GIL and then wait to get it back from other threads.
    """

    array: Array = field()  # without it, the property of the base class would be the default
    for_torch: bool

    @classmethod
    def of(cls, values: Array, for_torch: bool) -> DenseColumn:
        """Return a column over an array, or over a copy if it must not be written to."""
        return cls(values if values.flags.writeable else values.copy(), for_torch)

    @property
    def values(self) -> Any:
        return torch.from_numpy(self.array) if self.for_torch else self.array

    def __len__(self) -> int:
        return len(self.array)

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    def slice(self, start: int, length: int) -> DenseColumn:
        return DenseColumn(self.array[start : start + length], self.for_torch)

    def take(self, rows: RowNumbers) -> DenseColumn:
        return DenseColumn(self.array[rows], self.for_torch)

    @classmethod
    def concat(cls, columns: Sequence[DenseColumn]) -> DenseColumn:
        parts = [column.array for column in columns]
        shape = (sum([len(part) for part in parts]), *parts[0].shape[1:])
        if sum([part.nbytes for part in parts]) > SMALL_COPY_BYTES:
            joined = block_memory.get().empty(shape, parts[0].dtype)
            return columns[0].like(np.concatenate(parts, out=joined))
        # Unlike numpy, Python keeps the GIL here: getting it back would take longer than the copy.
        memory = bytearray().join(
            [np.ascontiguousarray(part).view(np.uint8).data for part in parts]
        )
        return columns[0].like(np.ndarray(shape, parts[0].dtype, memory))

    def split(self, batch_size: int) -> Iterable[Any]:
        if self.for_torch:
            # Not a tensor for the array of each batch: freeing such a tensor takes the GIL three
            # times.
            return _tensor_batches(torch.from_numpy(self.array), batch_size)
        starts = range(0, len(self.array), batch_size)
        return [self.array[start : start + batch_size] for start in starts]

    def pin(self) -> NumberColumn:
        return TensorColumn(torch.from_numpy(self.array).pin_memory()) if self.for_torch else self

    def padded(self, lengths: RowNumbers) -> Any:
        values, width = self.array, int(lengths.max(initial=0))
        padded = np.zeros((len(lengths), width, *values.shape[1:]), values.dtype)
        padded[np.arange(width) < lengths[:, None]] = values
        return self.like(padded).values

    def like(self, values: Array) -> DenseColumn:
        return DenseColumn(values, self.for_torch)


@dataclass(frozen=True, slots=True, eq=False)
class TensorColumn(NumberColumn):
    """Numbers in memory that belongs to torch: pinned, or on a device."""

    values: torch.Tensor = field()

    @property
    def array(self) -> Array:
        return self.values.cpu().numpy()

    def __len__(self) -> int:
        return len(self.values)

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    def slice(self, start: int, length: int) -> TensorColumn:
        return TensorColumn(self.values[start : start + length])

    def take(self, rows: RowNumbers) -> TensorColumn:
        return self.select(torch.from_numpy(rows).to(self.values.device))

    def select(self, rows: torch.Tensor) -> TensorColumn:
        """Return rows by number; the numbers are on the device."""
        return TensorColumn(self.values.index_select(0, rows))

    def split(self, batch_size: int) -> Iterable[Any]:
        return _tensor_batches(self.values, batch_size)

    @classmethod
    def concat(cls, columns: Sequence[TensorColumn]) -> TensorColumn:
        return cls(torch.cat([column.values for column in columns]))

    def pin(self) -> TensorColumn:
        return self if self.values.is_cuda else TensorColumn(self.values.pin_memory())

    def padded(self, lengths: RowNumbers) -> torch.Tensor:
        values, width = self.values, int(lengths.max(initial=0))
        padded = values.new_zeros((len(lengths), width, *values.shape[1:]))
        inside = np.arange(width) < lengths[:, None]
        padded[torch.from_numpy(inside).to(values.device)] = values
        return padded

    def like(self, values: Array) -> TensorColumn:
        return TensorColumn(torch.from_numpy(values).to(self.values.device))


def _tensor_batches(values: torch.Tensor, batch_size: int) -> Iterable[torch.Tensor]:
    """Return consecutive batches of a tensor; their views are made a few at a time."""
    at_once = _BATCHES_AT_ONCE * batch_size
    if values.shape[0] <= at_once:
        return _tensor_views(values, batch_size)
    parts = torch.unsafe_split(values, at_once)
    return chain.from_iterable(_tensor_views(part, batch_size) for part in parts)


def _tensor_views(values: torch.Tensor, batch_size: int) -> Sequence[torch.Tensor]:
    """Return consecutive batches of a tensor.

    This function takes half the time of ``split``; no gradient is tracked through blocks.
    """
    full, rest = divmod(values.shape[0], batch_size)
    sizes = [batch_size] * full
    if rest:
        sizes.append(rest)
    return torch.unsafe_split_with_sizes(values, sizes)


@dataclass(frozen=True, slots=True, eq=False)
class StructColumn(Column):
    """Columns by key; batches are dicts.

    Attributes:
        names: The keys.
        columns: A column for each key.
        num_rows: Number of rows; a struct without columns has rows, too.
    """

    names: tuple[str, ...]
    columns: tuple[Column, ...]
    num_rows: int

    def __len__(self) -> int:
        return self.num_rows

    @property
    def nbytes(self) -> int:
        return sum([column.nbytes for column in self.columns])

    def slice(self, start: int, length: int) -> StructColumn:
        columns = tuple([column.slice(start, length) for column in self.columns])
        return StructColumn(self.names, columns, max(0, min(length, self.num_rows - start)))

    def take(self, rows: RowNumbers) -> StructColumn:
        rows = np.require(rows, np.int64, ["C", "W"])
        columns = tuple([column.take(rows) for column in self.columns])
        return StructColumn(self.names, columns, len(rows))

    def split(self, batch_size: int) -> Iterator[dict[str, Any]]:
        return self.batches(batch_size)

    def batches(self, batch_size: int) -> Iterator[dict[str, Any]]:
        """Yield consecutive batches of ``batch_size`` rows; the last one may be shorter."""
        names = self.names
        if not names:
            yield from ({} for _ in range(0, self.num_rows, batch_size))
            return
        for leaves in zip(*[column.split(batch_size) for column in self.columns], strict=True):
            yield dict(zip(names, leaves))  # noqa: B905  (strict costs a tenth of the time)

    @classmethod
    def concat(cls, columns: Sequence[StructColumn]) -> StructColumn:
        children = zip(*[column.columns for column in columns], strict=True)
        joined = tuple([type(parts[0]).concat(parts) for parts in children])
        return cls(columns[0].names, joined, sum(map(len, columns)))

    @classmethod
    def to_send(cls, columns: Sequence[StructColumn]) -> StructColumn | None:
        children = zip(*[column.columns for column in columns], strict=True)
        sent = tuple([type(parts[0]).to_send(parts) for parts in children])
        if None in sent:
            return None
        return cls(columns[0].names, sent, sum(map(len, columns)))

    def pin(self) -> StructColumn:
        return replace(self, columns=tuple([column.pin() for column in self.columns]))


@dataclass(frozen=True, slots=True, eq=False)
class ObjectColumn(Column):
    """Values without a fixed size, which become Python objects when a batch is cut.

    Attributes:
        values: An Arrow array; or cells: bytes of one length, or bytes objects (None for null
            rows).
        fill: The value of null rows.
        as_array: True if batches are numpy arrays of objects, and not lists.
    """

    values: pa.Array | Array
    fill: Any
    as_array: bool

    def __len__(self) -> int:
        return len(self.values)

    @property
    def nbytes(self) -> int:
        if isinstance(self.values, np.ndarray) and self.values.dtype.hasobject:
            return sum([len(value) for value in self.values if value is not None])
        return int(self.values.nbytes)

    def slice(self, start: int, length: int) -> ObjectColumn:
        return replace(self, values=self.values[start : start + length])

    def take(self, rows: RowNumbers) -> ObjectColumn:
        values, is_array = self.values, isinstance(self.values, np.ndarray)
        return replace(self, values=values[rows] if is_array else values_at(values, rows))

    def split(self, batch_size: int) -> Iterator[Any]:
        for start in range(0, len(self.values), batch_size):
            objects = self._objects(self.values[start : start + batch_size])
            yield object_array(objects) if self.as_array else objects

    def _objects(self, values: pa.Array | Array) -> list[Any]:
        if isinstance(values, np.ndarray):
            objects = values.tolist()
        elif _is_large(values.type):
            objects = values.to_numpy(zero_copy_only=False).tolist()  # 10 x faster than to_pylist
        else:
            objects = values.to_pylist()
        if self.fill is not None:
            objects = [copy(self.fill) if value is None else value for value in objects]
        return list(objects)

    @classmethod
    def concat(cls, columns: Sequence[ObjectColumn]) -> ObjectColumn:
        joined = pa.concat_arrays([_in_arrow(column.values) for column in columns])
        return replace(columns[0], values=joined)

    @classmethod
    def to_send(cls, columns: Sequence[ObjectColumn]) -> ObjectColumn | None:
        joined = cls.concat(columns)
        # Strings and bytes are made from Arrow as fast as from a pickle; other objects are not.
        values: Any = joined.values
        return joined if _is_large(values.type) else None


def _in_arrow(values: pa.Array | Array) -> pa.Array:
    if not isinstance(values, np.ndarray):
        return values
    if values.dtype.hasobject:
        return pa.array(values, pa.large_binary())
    ends = np.arange(0, values.nbytes + 1, values.itemsize, dtype=np.int64)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.large_binary(), len(values), buffers, 0)


def _is_large(type_: pa.DataType) -> bool:
    return bool(pt.is_large_string(type_) or pt.is_large_binary(type_))


@dataclass(frozen=True, slots=True, eq=False)
class RaggedColumn(Column):
    """Rows that are runs of one column of values; permuting them moves runs, not values."""

    values: NumberColumn
    starts: RowNumbers
    lengths: RowNumbers
    form: str

    @classmethod
    def of(cls, values: NumberColumn, lengths: RowNumbers, form: str) -> RaggedColumn:
        """Return a column of rows that lie end to end."""
        return cls(values, np.cumsum(lengths) - lengths, lengths, form)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def nbytes(self) -> int:
        per_value = self.values.nbytes // max(len(self.values), 1)
        return int(self.lengths.sum()) * per_value + self.starts.nbytes + self.lengths.nbytes

    def slice(self, start: int, length: int) -> RaggedColumn:
        rows = slice(start, start + length)
        return replace(self, starts=self.starts[rows], lengths=self.lengths[rows])

    def take(self, rows: RowNumbers) -> RaggedColumn:
        return replace(self, starts=self.starts[rows], lengths=self.lengths[rows])

    def split(self, batch_size: int) -> Iterator[Any]:
        for start in range(0, len(self.starts), batch_size):
            batch = self.slice(start, batch_size)
            yield _in_form(batch._run(), batch.lengths, self.form)

    def _run(self) -> NumberColumn:
        """Return the values of all rows end to end: as a view if they already lie so."""
        starts, lengths = self.starts, self.lengths
        total = int(lengths.sum())
        if np.array_equal((starts + lengths)[:-1], starts[1:]):
            return self.values.slice(int(starts[0]) if len(starts) else 0, total)
        within = np.arange(total) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return self.values.take(np.repeat(starts, lengths) + within)

    @classmethod
    def concat(cls, columns: Sequence[RaggedColumn]) -> RaggedColumn:
        values = type(columns[0].values).concat([column._run() for column in columns])
        lengths = np.concatenate([column.lengths for column in columns])
        return cls.of(values, lengths, columns[0].form)

    @classmethod
    def to_send(cls, columns: Sequence[RaggedColumn]) -> RaggedColumn:
        return cls.concat(columns)

    def pin(self) -> RaggedColumn:
        return replace(self, values=self.values.pin())


def _in_form(column: NumberColumn, lengths: RowNumbers, form: str) -> Any:
    """Return the rows of a batch, whose values lie end to end, in the form of ``ragged=``."""
    values: Any = column.values
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    if form == "list":
        if isinstance(values, torch.Tensor):
            return list(torch.split(values, lengths.tolist()))
        return object_array([values[a:b] for a, b in pairwise(offsets.tolist())])
    if form == "pad":
        return column.padded(lengths)
    if form == "offsets":
        return {"values": values, "offsets": column.like(offsets).values}
    ends: Any = column.like(offsets).values
    return torch.nested.nested_tensor_from_jagged(values, ends)


@dataclass(frozen=True, slots=True, eq=False)
class ArrowBlock:
    """A table; batches are record batches, or dicts of lists of Python values.

    Attributes:
        table: The rows.
        as_python: True if batches are dicts.
        makers: By column, a function that makes Python values whose meaning the Arrow type does not
            tell.
    """

    table: pa.Table
    as_python: bool
    makers: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        return int(self.table.num_rows)

    @property
    def nbytes(self) -> int:
        return int(self.table.nbytes)

    def slice(self, start: int, length: int) -> ArrowBlock:
        return replace(self, table=self.table.slice(start, length))

    def batches(self, batch_size: int) -> Iterator[Any]:
        """Yield consecutive batches of ``batch_size`` rows; the last one may be shorter."""
        starts = range(0, self.num_rows, batch_size)
        if self.as_python:
            for start in starts:
                yield self._python_values(self.table.slice(start, batch_size))
            return
        if not starts:
            return
        try:
            whole: Any = _one_batch(self.table)
        except ConversionError:  # each batch may still fit into one piece
            yield from (_one_batch(self.table.slice(start, batch_size)) for start in starts)
            return
        yield from (whole.slice(start, batch_size) for start in starts)

    def _python_values(self, rows: pa.Table) -> dict[str, list[Any]]:
        made = {}
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            make = self.makers.get(name)
            made[name] = _to_pylist(name, column) if make is None else make(column)
        return made

    @classmethod
    def concat(cls, blocks: Sequence[ArrowBlock]) -> ArrowBlock:
        """Return the rows of several blocks, in order."""
        return replace(blocks[0], table=pa.concat_tables([block.table for block in blocks]))

    @classmethod
    def to_send(cls, blocks: Sequence[ArrowBlock]) -> ArrowBlock | None:
        """Return all rows; None if batches should be cut before they are sent."""
        return None if blocks[0].as_python else cls.concat(blocks)

    def pin(self) -> ArrowBlock:
        """Return the block, which has no tensors."""
        return self


Block = StructColumn | ArrowBlock
"""Rows that were converted together, and from which batches are cut."""


def concat(blocks: Sequence[Block]) -> Block:
    """Return the rows of one or more blocks of the same converter, in order."""
    kind: Any = type(blocks[0])
    made: Block = blocks[0] if len(blocks) == 1 else kind.concat(blocks)
    return made


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return a record batch of rows whose strings may lie in several chunks of 2 GiB."""
    try:
        batches = table.combine_chunks().to_batches()
    except pa.ArrowInvalid as error:
        raise ConversionError(
            f"{table.num_rows} rows cannot be brought together in one piece: {error} Columns of "
            "dictionaries need a wider index type, or the type of their values, in schema="
        ) from error
    if len(batches) > 1:
        raise ConversionError(
            f"a batch of {table.num_rows} rows holds more than 2 GiB in one string or binary "
            "column; choose a smaller batch_size, or the type large_string or large_binary"
        )
    return batches[0]


def _to_pylist(name: str, column: pa.ChunkedArray) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError) as error:  # nanoseconds, or a year beyond 9999
        raise ConversionError(
            f"column {name!r} ({column.type}) holds a value that Python has no object for: "
            f"{error}; "
            'give it another type in schema=, or read with output_format="arrow"'
        ) from error
    return values
