"""Batches of rows: columns for torch's default collate, a sequence of dicts for other functions.

A loader of torch requests the rows of a batch from a dataset and collates them. The rows of a
`RowBatch` are made only when they are used. torch's default collate knows the class of a row and
asks the batch for its columns. A column that no row has changed is handed out as it was converted;
any other is collated from the values of rows.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

import pyarrow as pa
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from headrace.convert.columns import (
    ArrowBlock,
    Block,
    Column,
    NumberColumn,
    RaggedColumn,
    StructColumn,
)
from headrace.convert.decoded import DecodedColumn, together
from headrace.convert.kinds import Kind
from headrace.convert.packing import Batch

_Parts = list[Any] | dict[str, Any]
"""Values of a column, row by row; for a struct, by field."""


class Row(dict[str, Any]):
    """A row of a batch; torch's default collate knows it, and asks its batch for the columns."""

    __slots__ = ()


class RowBatch(Sequence[Any]):
    """Rows that were read and converted together.

    A row is always the same object, so that changes to it stay.

    Args:
        block: The converted columns.
        decoded: Values of decoded columns, by name.
        output_format: "torch", "numpy", "arrow" or "dict".
        num_rows: Number of rows, because a block without columns has no number of rows.
    """

    __slots__ = ("_block", "_decoded", "_format", "_head", "_looks", "_num_rows", "_parts", "_rows")

    def __init__(
        self, block: Block, decoded: Mapping[str, list[Any]], output_format: str, num_rows: int
    ) -> None:
        self._block = block
        self._decoded = decoded
        self._format = output_format
        self._num_rows = num_rows
        self._rows: list[Any] | None = None
        self._parts: dict[str, _Parts] = {}
        self._head: RowBatch | None = None  # the first row, when only this one was asked for
        self._looks = 0

    @property
    def columns(self) -> Any:
        """The batch in its format: a dict of columns, or a record batch."""
        if self._format == "arrow":
            return _record_batch(self._block)
        batch = _columns(self._block)
        for name, values in self._decoded.items():
            batch[name] = together(values, self._format)
        return batch

    def __len__(self) -> int:
        return self._num_rows

    @overload
    def __getitem__(self, place: int) -> Any: ...
    @overload
    def __getitem__(self, place: slice) -> list[Any]: ...
    def __getitem__(self, place: int | slice) -> Any:
        if self._rows is None and place == 0 and len(self) > 1:
            self._looks += 1
            if self._head is None:
                decoded = {name: values[:1] for name, values in self._decoded.items()}
                self._head = RowBatch(self._block.slice(0, 1), decoded, self._format, 1)
            return self._head[0]
        return self._all_rows()[place]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._all_rows())

    def __repr__(self) -> str:
        return f"<RowBatch: {len(self)} rows>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a list, so another process gets a list."""
        return list, (self._all_rows(),)

    def transformed(self, function: Callable[[Any], Any]) -> Sequence[Any]:
        """Return the results of a function for all rows.

        If they are dicts, columns that the function did not change are collated as without a
        function, also if their rows have different lengths.
        """
        made = [function(row) for row in self._all_rows()]
        if not made or any(type(row) is not dict for row in made):
            return made
        self._rows = [Row(row) for row in made]
        return self

    def collated(self, collate_fn_map: Any) -> Any:
        """Return the collated rows, which the user may have changed.

        In a worker the result leaves the process in one buffer.
        """
        if self._rows is None and self._looks <= 1:  # collating has itself read one row
            made = self.columns
        else:
            rows = self._all_rows()
            made = {
                key: self._collated_column(key, [row[key] for row in rows], collate_fn_map)
                for key in rows[0]
            }
        return made if get_worker_info() is None else Batch(made)

    def _collated_column(self, key: str, values: list[Any], collate_fn_map: Any) -> Any:
        if key not in self._parts:
            return collate(values, collate_fn_map=collate_fn_map)
        column, block = None, self._block
        if isinstance(block, StructColumn) and key not in self._decoded:
            column = block.columns[block.names.index(key)]
        return _collated(column, self._parts[key], values, self._format, collate_fn_map)

    def _all_rows(self) -> list[Any]:
        if self._rows is None:
            self._rows = self._split()
            if self._head is not None:
                self._rows[0] = self._head[0]
                _replace_first(self._parts, self._head._parts)
        return self._rows

    def _split(self) -> list[Any]:
        if self._format == "arrow":
            return [_record_batch(self._block.slice(n, 1)) for n in range(len(self))]
        if not len(self):
            return []
        block = self._block
        if isinstance(block, StructColumn):
            self._parts = dict(zip(block.names, map(_parts, block.columns), strict=True))
        else:
            self._parts = dict(_columns(block))
        self._parts.update({name: list(values) for name, values in self._decoded.items()})
        return [Row(row) for row in _in_rows(self._parts, len(self))]


def _columns(block: Block) -> dict[str, Any]:
    """Return the batch of all rows, if it is a dict."""
    if isinstance(block, StructColumn):
        return dict(zip(block.names, map(_whole, block.columns), strict=True))
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
    """Return the values of a column in a batch of all rows."""
    if isinstance(column, NumberColumn):
        return column.values
    if isinstance(column, StructColumn):
        return dict(zip(column.names, map(_whole, column.columns), strict=True))
    return next(iter(column.split(max(len(column), 1))), [])


def _parts(column: Column) -> _Parts:
    """Return the values of each row; there is at least one row."""
    if isinstance(column, NumberColumn):
        return list(column.values)
    if isinstance(column, StructColumn):
        return dict(zip(column.names, map(_parts, column.columns), strict=True))
    if isinstance(column, RaggedColumn):
        column = replace(column, form="list")
    return list(_whole(column))


def _in_rows(parts: _Parts, count: int) -> list[Any]:
    """Return values row by row; the values of a struct are dicts."""
    if not isinstance(parts, dict):
        return parts
    if not parts:
        return [{} for _ in range(count)]
    leaves = zip(*(_in_rows(part, count) for part in parts.values()), strict=True)
    return [dict(zip(parts, values, strict=True)) for values in leaves]


def _replace_first(parts: _Parts, others: _Parts) -> None:
    """Replace the first values by the values of other parts, which have the same form."""
    if isinstance(parts, dict):
        for name in parts:
            _replace_first(parts[name], others[name])  # type: ignore[call-overload]
    else:
        parts[0] = others[0]  # type: ignore[index]


def _collated(
    column: Column | None, parts: _Parts, values: list[Any], output_format: str, fn_map: Any
) -> Any:
    """Return a column of a batch whose rows have been handed out.

    Args:
        column: The column as it was converted; None if it is a list of values.
        parts: The values from which rows were made.
        values: The values that rows have now. Tensors and arrays may have been changed in place,
            because they are views of the column, except for decoded ones.
        output_format: The format of the batch.
        fn_map: The functions of torch's default collate, for values that have changed.
    """
    if isinstance(parts, dict):
        if isinstance(column, StructColumn) and all(_has_keys(value, parts) for value in values):
            pairs = zip(column.names, column.columns, strict=True)
            return {
                name: _collated(
                    inner, parts[name], [value[name] for value in values], output_format, fn_map
                )
                for name, inner in pairs
            }
    elif all(map(operator.is_, values, parts)):
        if column is None or (isinstance(column, DecodedColumn) and column.kind is not Kind.JSON):
            return together(values, output_format)
        return _whole(column)
    return collate(values, collate_fn_map=fn_map)


def _has_keys(value: object, parts: Mapping[str, Any]) -> bool:
    return type(value) is dict and value.keys() == parts.keys()


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
    """Register rows and record batches with torch's default collate, in this process."""
    default_collate_fn_map[Row] = _collate_rows
    default_collate_fn_map[pa.RecordBatch] = _collate_record_batches
