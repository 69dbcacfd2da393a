"""Cells of packed rows: columns taken apart into bytes, and put together again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt
from pyarrow import ipc

from headrace.archives.row_types import Layout, width_of
from headrace.errors import ReadError
from headrace.model import Int64Array

__all__ = [
    "MESSAGE",
    "NULL",
    "VALUE",
    "BytesColumn",
    "States",
    "Where",
    "bytes_column",
    "cells_of",
    "column_of_cells",
    "fixed_column",
    "fixed_values",
    "nulls_of",
    "opened_cells",
]

VALUE, NULL, MESSAGE = 0, 1, 2
"""states of a cell: there is a value, there is none, it is an Arrow message"""
States = npt.NDArray[np.uint8]

Where = Callable[[int], str]
"""what to call the record at a place of a list, in messages"""
BytesColumn = Callable[[Sequence[Any], pa.DataType, States | None], pa.Array]
"""makes a column of a type of cells of bytes, as ``bytes_column`` does"""

# --- columns to cells


def nulls_of(column: pa.Array) -> npt.NDArray[np.bool_]:
    if not column.null_count:
        return np.zeros(len(column), np.bool_)
    nulls: npt.NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    return nulls


def fixed_values(column: pa.Array) -> npt.NDArray[Any]:
    width = width_of(column.type)
    data = column.buffers()[1]
    if data is None:  # of a column of nulls only
        return np.zeros(len(column), f"V{width}")
    values = np.frombuffer(data, f"V{width}", count=column.offset + len(column))
    return values[column.offset :]


def cells_of(column: pa.Array, layout: Layout, states: States) -> list[Any]:
    """The cells of a column; lists that have nulls in them become messages."""
    if layout is Layout.MESSAGE:
        messages = np.flatnonzero(states == VALUE)
        cells: list[Any] = [b""] * len(column)
    elif layout is Layout.BYTES:
        messages = np.empty(0, np.int64)
        offsets = _offsets(column)
        cells = _views(column.buffers()[2], offsets, states)
    else:
        width = width_of(column.type.value_type)
        items = column.values
        first = items.offset
        offsets = _offsets(column)
        cells = _views(items.buffers()[1], (offsets + first) * width, states)
        holes = np.concatenate([[0], np.cumsum(nulls_of(items))])
        messages = np.flatnonzero((holes[offsets[1:]] > holes[offsets[:-1]]) & (states == VALUE))
    for row in messages.tolist():
        one = pa.record_batch([column.slice(row, 1)], names=["v"])
        cells[row] = one.serialize()
    states[messages] = MESSAGE
    return [memoryview(cell) if isinstance(cell, pa.Buffer) else cell for cell in cells]


def _offsets(column: pa.Array) -> Int64Array:
    """Where each value begins, and where the last one ends, in what holds all of them."""
    stop = column.offset + len(column) + 1
    if pt.is_fixed_size_list(column.type):
        places: Int64Array = np.arange(column.offset, stop, dtype=np.int64) * column.type.list_size
        return places
    kind = np.int64 if _is_large(column.type) else np.int32
    held = np.frombuffer(column.buffers()[1], kind, count=stop)
    offsets: Int64Array = held[column.offset :].astype(np.int64)
    return offsets


def _views(data: pa.Buffer | None, offsets: Int64Array, states: States) -> list[Any]:
    view = memoryview(data if data is not None else b"")
    places = offsets.tolist()
    return [
        b"" if state else view[start:stop]
        for state, start, stop in zip(states.tolist(), places[:-1], places[1:], strict=True)
    ]


# --- cells to columns


def fixed_column(
    values: npt.NDArray[Any], layout: Layout, type_: pa.DataType, states: States
) -> pa.Array:
    """A column from the fixed parts of records."""
    if layout is Layout.BOOL:
        return pa.array(values != 0, mask=states == NULL)
    return pa.Array.from_buffers(type_, len(values), [_validity(states), _buffer(values)])


def column_of_cells(
    cells: Sequence[memoryview], layout: Layout, type_: pa.DataType, states: States, where: Where
) -> pa.Array:
    """A column from what lies behind the fixed parts."""
    if layout is Layout.MESSAGE or (states == MESSAGE).any():
        return _column_with_messages(cells, layout, type_, states, where)
    if layout is Layout.BYTES:
        return bytes_column(cells, type_, states)
    lengths = _lengths(cells)
    width = width_of(type_.value_type)
    fixed = pt.is_fixed_size_list(type_)
    there = states != NULL
    wrong = (lengths != width * type_.list_size) & there if fixed else lengths % width != 0
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        raise ReadError(f"{where(first)} has {lengths[first]} bytes for a {type_}")
    if fixed and not there.all():  # what is not there has its place among the items
        nothing = memoryview(bytes(width * type_.list_size))
        cells = [cell if it else nothing for cell, it in zip(cells, there.tolist(), strict=True)]
    data = b"".join(cells)
    count = len(data) // width
    items = pa.Array.from_buffers(type_.value_type, count, [None, pa.py_buffer(data)])
    buffers = [_validity(states)]
    if not fixed:
        buffers.append(_offsets_buffer(lengths // width, type_))
    return pa.Array.from_buffers(type_, len(cells), buffers, children=[items])


def bytes_column(
    cells: Sequence[Any], type_: pa.DataType, states: States | None = None
) -> pa.Array:
    """A column of bytes or text; joined in one go, which is faster than a builder is."""
    validity = None if states is None else _validity(states)
    offsets = _offsets_buffer(_lengths(cells), type_)
    return pa.Array.from_buffers(
        type_, len(cells), [validity, offsets, pa.py_buffer(b"".join(cells))]
    )


def opened_cells(
    cells: Sequence[Any], type_: pa.DataType, states: States, where: Where
) -> tuple[Sequence[Any], States]:
    """Cells of bytes or text of which none is a message any more."""
    if not (states == MESSAGE).any():
        return cells, states
    column = _column_with_messages(cells, Layout.BYTES, type_, states, where)
    nulls = np.where(nulls_of(column), NULL, VALUE).astype(np.uint8)
    return cells_of(column, Layout.BYTES, nulls), nulls


def _column_with_messages(
    cells: Sequence[memoryview], layout: Layout, type_: pa.DataType, states: States, where: Where
) -> pa.Array:
    schema = pa.schema([pa.field("v", type_)])
    pieces = []
    for place, (cell, state) in enumerate(zip(cells, states.tolist(), strict=True)):
        if state == NULL:
            pieces.append(pa.nulls(1, type_))
        elif state == MESSAGE or layout is Layout.MESSAGE:
            try:
                batch = ipc.read_record_batch(pa.py_buffer(cell), schema)
            except (pa.ArrowException, OSError) as error:
                raise ReadError(f"{where(place)} has no {type_} in it: {error}") from error
            pieces.append(batch.column(0))
        else:
            one = states[place : place + 1]
            pieces.append(column_of_cells([cell], layout, type_, one, _shifted(where, place)))
    return pa.concat_arrays(pieces)


def _shifted(where: Where, places: int) -> Where:
    return lambda place: where(places + place)


def _lengths(cells: Sequence[Any]) -> Int64Array:
    return np.fromiter(map(len, cells), np.int64, len(cells))


def _validity(states: States) -> pa.Buffer | None:
    there = states != NULL
    return None if there.all() else _buffer(np.packbits(there, bitorder="little"))


def _offsets_buffer(lengths: Int64Array, type_: pa.DataType) -> pa.Buffer:
    kind = np.int64 if _is_large(type_) else np.int32
    return _buffer(np.concatenate([[0], np.cumsum(lengths)]).astype(kind))


def _buffer(values: npt.NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(values.tobytes())


def _is_large(type_: pa.DataType) -> bool:
    return bool(pt.is_large_list(type_) or pt.is_large_binary(type_) or pt.is_large_string(type_))
