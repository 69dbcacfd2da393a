"""A batch of rows that a DataLoader collates for nothing, and a sequence of dicts otherwise."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from headrace.convert.columns import (
    ArrowBlock,
    Block,
    Column,
    DenseColumn,
    ObjectColumn,
    RaggedColumn,
    StructColumn,
)
from headrace.convert.decoded import together
from headrace.convert.packing import Batch, Layout, pack, unpack
from headrace.convert.shared import Bytes

__all__ = ["Row", "RowBatch", "register_collate"]


class Row(dict[str, Any]):
    """A row of a batch. torch's default collate knows it, and asks its batch for the columns."""

    __slots__ = ()


class RowBatch(Sequence[Any]):
    """Rows that were read and converted together: columns at once, rows only when looked at.

    A row is the same object whenever it is looked at, and what is done to it stays.
    """

    __slots__ = ("_block", "_decoded", "_first", "_looks", "_num_rows", "_rows", "output_format")

    def __init__(
        self, block: Block, decoded: Mapping[str, list[Any]], output_format: str, num_rows: int
    ) -> None:
        self._block = block
        self._decoded = decoded
        self._num_rows = num_rows  # which a block without columns does not know
        self._rows: list[Any] | None = None
        self._first: Any = None
        self._looks = 0  # at the first row, alone
        self.output_format = output_format

    @property
    def columns(self) -> Any:
        """The batch in its format: a dict of columns, or a record batch."""
        if self.output_format == "arrow":
            return _record_batch(self._block)
        batch = _columns(self._block)
        for name, values in self._decoded.items():
            batch[name] = together(values, self.output_format)
        return batch

    def row(self, place: int) -> Any:
        """Return one row, without making the others."""
        block = self._block if len(self) == 1 else self._block.slice(place, 1)
        if self.output_format == "arrow":
            return _record_batch(block)
        if isinstance(block, StructColumn):
            row = Row(zip(block.names, map(_first, block.columns), strict=True))
        else:
            row = Row((name, values[0]) for name, values in _columns(block).items())
        for name, values in self._decoded.items():
            row[name] = values[place]
        return row

    def __len__(self) -> int:
        return self._num_rows

    @overload
    def __getitem__(self, place: int) -> Any: ...
    @overload
    def __getitem__(self, place: slice) -> list[Any]: ...
    def __getitem__(self, place: int | slice) -> Any:
        if self._rows is None and place == 0 and len(self):
            self._looks += 1
            if self._first is None:
                self._first = self.row(0)
            return self._first
        return self._all_rows()[place]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._all_rows())

    def __repr__(self) -> str:
        return f"<RowBatch: {len(self)} rows>"

    def collated(self, collate_fn_map: Any) -> Any:
        """Return what torch's default collate makes of the rows, after a user has changed them.

        Columns are there already, and good for all rows that nobody has changed; in a worker such
        that they leave it in one buffer. Collating has itself looked at the first row, once.
        """
        keys = None if self._rows is None and self._looks <= 1 else self._unchanged()
        if keys is None:
            return self.columns if get_worker_info() is None else self.sent
        columns, rows = self.columns, self._all_rows()
        made = {
            key: columns[key]
            if key in keys
            else collate([row[key] for row in rows], collate_fn_map=collate_fn_map)
            for key in rows[0]
        }
        return made if get_worker_info() is None else Batch(made)

    def _unchanged(self) -> set[str] | None:
        """Return the columns that no row has changed; None if all rows are as they were made."""
        pairs = list(zip(self._all_rows(), self._split(), strict=True))
        keys = {
            key
            for key in pairs[0][1]
            if all(key in row and _is_alike(row[key], made[key]) for row, made in pairs)
        }
        return None if all(row.keys() == made.keys() == keys for row, made in pairs) else keys

    @property
    def sent(self) -> Any:
        """The columns as a worker hands them out: they leave it in one buffer."""
        columns, block = self.columns, self._block
        if type(columns) is not dict:
            return columns
        if (
            not self._decoded
            and isinstance(block, StructColumn)
            and all(map(_is_own, block.columns))
        ):
            return SentBatch(columns, block)
        return Batch(columns)

    def transformed(self, function: Callable[[Any], Any]) -> Sequence[Any]:
        """Return what a function makes of each row.

        Where that are dicts, columns that it has left alone are collated as if there were no
        function: those of rows of different lengths too.
        """
        made = [function(row) for row in self._split()]
        if not made or any(type(row) is not dict for row in made):
            return made
        batch = RowBatch(self._block, self._decoded, self.output_format, self._num_rows)
        batch._rows = [Row(row) for row in made]
        return batch

    def __reduce__(self) -> tuple[Any, ...]:
        """Arrive as a list in another process."""
        return list, (self._all_rows(),)

    def _all_rows(self) -> list[Any]:
        if self._rows is None:
            self._rows = self._split()
            if self._first is not None:
                self._rows[0] = self._first
        return self._rows

    def _split(self) -> list[Any]:
        if self.output_format == "arrow":
            return [self.row(place) for place in range(len(self))]
        if not len(self):
            return []
        block = self._block
        if isinstance(block, StructColumn):
            parts = dict(zip(block.names, map(_split, block.columns), strict=True))
        else:
            parts = _columns(block)
        parts.update(self._decoded)
        if not parts:
            return [Row() for _ in range(len(self))]
        return [
            Row(zip(parts, leaves, strict=True)) for leaves in zip(*parts.values(), strict=True)
        ]


class SentBatch(Batch):
    """What a worker hands out. Strings and bytes in it cross in Arrow, and are made on arrival.

    Once somebody has put something else into it, it crosses as any batch does.
    """

    __slots__ = ("_block", "_made")

    def __init__(self, columns: dict[str, Any], block: StructColumn) -> None:
        super().__init__(columns)
        self._block = block
        self._made = {
            key: list(value) if isinstance(value, list) else value for key, value in columns.items()
        }

    def __reduce__(self) -> tuple[Any, ...]:
        block = StructColumn.to_send([self._block]) if self._is_untouched else None
        return super().__reduce__() if block is None else (_arrived, pack(block))

    @property
    def _is_untouched(self) -> bool:
        """Tensors may be written to: they are those of the block."""
        made = self._made
        return self.keys() == made.keys() and all(_is_same(self[key], made[key]) for key in made)


def _is_same(value: Any, made: Any) -> bool:
    if not isinstance(value, list) or not isinstance(made, list):
        return value is made
    return len(value) == len(made) and all(map(operator.is_, value, made))


def _arrived(buffer: Bytes, layout: Layout) -> dict[str, Any]:
    return _columns(unpack(buffer, layout))


def _columns(block: Block) -> dict[str, Any]:
    """Return the batch of all rows, where it is a dict."""
    if isinstance(block, StructColumn):
        columns = map(_whole, block.columns)
        return dict(zip(block.names, columns, strict=True))
    assert isinstance(block, ArrowBlock)
    for batch in block.batches(max(block.num_rows, 1)):
        return dict(batch)
    return {name: [] for name in block.table.schema.names}


def _record_batch(block: Block) -> pa.RecordBatch:
    assert isinstance(block, ArrowBlock)
    for batch in block.batches(max(block.num_rows, 1)):
        return batch
    schema = block.table.schema
    return pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema)


def _whole(column: Column) -> Any:
    """Return what a batch of all rows holds of a column."""
    if isinstance(column, DenseColumn):
        return column.values
    if isinstance(column, StructColumn):
        return dict(zip(column.names, map(_whole, column.columns), strict=True))
    return next(iter(column.split(max(len(column), 1))), [])


def _is_own(column: Column) -> bool:
    """Return True if a batch holds the memory of the column, or a list to be compared."""
    if isinstance(column, ObjectColumn):
        return not column.as_array
    return isinstance(column, DenseColumn)


def _split(column: Column) -> list[Any]:
    """Return the values of each row; there is one at least."""
    if isinstance(column, DenseColumn):
        return list(column.values)
    if isinstance(column, StructColumn):
        leaves = zip(*map(_split, column.columns), strict=True)
        if not column.columns:
            return [{} for _ in range(column.num_rows)]
        return [dict(zip(column.names, values, strict=True)) for values in leaves]
    if isinstance(column, RaggedColumn):
        column = replace(column, form="list")
    return list(_whole(column))


def _first(column: Column) -> Any:
    """Return the value of the first row."""
    if isinstance(column, DenseColumn):
        return column.values[0]
    return _split(column)[0]


def _is_alike(value: Any, made: Any) -> bool:
    """Return True if a row holds what it was made with; tensors may have been written to."""
    if value is made:
        return True
    if type(value) is not type(made):
        return False
    if isinstance(made, torch.Tensor):
        if value.dtype != made.dtype or value.shape != made.shape:
            return False
        is_there = value.data_ptr() == made.data_ptr() and value.stride() == made.stride()
        return is_there or torch.equal(value, made)
    if isinstance(made, np.ndarray):
        if value.dtype != made.dtype or value.shape != made.shape:
            return False
        if made.dtype == object:
            return all(map(_is_alike, value.flat, made.flat))
        return np.array_equal(value, made, equal_nan=made.dtype.kind in "fc")
    if isinstance(made, dict):
        return value.keys() == made.keys() and all(_is_alike(value[k], made[k]) for k in made)
    if isinstance(made, list | tuple):
        return len(value) == len(made) and all(map(_is_alike, value, made))
    return bool(value == made) or _is_nan(value, made)


def _is_nan(*values: Any) -> bool:
    return all(isinstance(value, float | np.floating) and np.isnan(value) for value in values)


def _collate_rows(batch: Any, *, collate_fn_map: Any = None) -> Any:
    if isinstance(batch, RowBatch):
        return batch.collated(collate_fn_map)
    values = {key: [row[key] for row in batch] for key in batch[0]}
    return {key: collate(value, collate_fn_map=collate_fn_map) for key, value in values.items()}


def _collate_record_batches(batch: Any, *, collate_fn_map: Any = None) -> pa.RecordBatch:
    if isinstance(batch, RowBatch):
        return batch.columns
    return pa.Table.from_batches(batch).combine_chunks().to_batches()[0]


def register_collate() -> None:
    """Tell torch's default collate of rows and record batches, in this process."""
    default_collate_fn_map[Row] = _collate_rows
    default_collate_fn_map[pa.RecordBatch] = _collate_record_batches
