"""Take rows of types that are left to Arrow, batch by batch, and bring them into order."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from headrace.matrices import values_at
from headrace.model import Int64Array
from headrace.sources.files.protocol import rows_only


def take_from(
    arrays: Mapping[int, pa.Array], batches: Int64Array, rows: Int64Array
) -> pa.Array | pa.ChunkedArray:
    """Return rows of several arrays; ``batches`` gives the array of each row."""
    order = np.argsort(batches, kind="stable")
    held, begins = np.unique(batches[order], return_index=True)
    places = np.split(order, begins[1:])
    parts = [
        _taken(arrays[number], rows[place])
        for number, place in zip(held.tolist(), places, strict=True)
    ]
    if len(parts) == 1 and len(order):
        return parts[0]
    try:
        joined = pa.concat_arrays(parts)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return _row_by_row(arrays, batches, rows)
    return _taken(joined, np.argsort(order))


def in_order(table: pa.Table, order: Int64Array) -> pa.Table:
    """Return rows of a table that is not empty in their places: row n belongs to ``order[n]``."""
    if not table.num_columns:
        return rows_only(len(order))
    places = np.argsort(order)
    columns = [_taken_of(column, places) for column in table.columns]
    return pa.Table.from_arrays(columns, schema=table.schema)


def _taken_of(column: pa.ChunkedArray, places: Int64Array) -> pa.Array | pa.ChunkedArray:
    try:
        return _taken(pa.concat_arrays(column.chunks), places)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.chunked_array([column.chunk(0)[:0], *(_one(column, n) for n in places.tolist())])


def _one(column: pa.ChunkedArray, row: int) -> pa.Array:
    return column.slice(row, 1).chunk(0)


def _taken(array: pa.Array, rows: Int64Array) -> pa.Array:
    try:
        return values_at(array, rows)
    except pa.ArrowNotImplementedError:
        return pa.concat_arrays([array.slice(row, 1) for row in rows.tolist()])


def _row_by_row(
    arrays: Mapping[int, pa.Array], batches: Int64Array, rows: Int64Array
) -> pa.ChunkedArray:
    """Return chunks of one row each, for rows that do not fit into one array."""
    places = zip(batches.tolist(), rows.tolist(), strict=True)
    return pa.chunked_array([arrays[number].slice(row, 1) for number, row in places])


def pick(column: pa.ChunkedArray, places: Int64Array) -> pa.Array:
    """Return values at ascending places; pyarrow would copy all of a chunked array to take some."""
    if column.num_chunks == 1:
        return values_at(column.chunk(0), places)
    ends = np.cumsum([len(chunk) for chunk in column.chunks])
    cuts = np.searchsorted(places, ends)
    taken = [
        values_at(chunk, mine - (end - len(chunk)))
        for chunk, end, mine in zip(column.chunks, ends, np.split(places, cuts[:-1]), strict=True)
        if len(mine)
    ]
    return pa.concat_arrays(taken) if taken else pa.array([], column.type)


def as_stream(table: pa.Table) -> pa.Buffer:
    """Return a table as an Arrow IPC stream, which holds the rows of a slice and no others."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def copied(table: pa.Table) -> pa.Table:
    """Return a copy that does not keep files, or rows outside of a slice, in memory."""
    return pa.ipc.open_stream(as_stream(table)).read_all() if table.num_columns else table
