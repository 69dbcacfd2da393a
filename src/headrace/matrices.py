"""Take and filter rows of tables, also where pyarrow returns wrong values.

From pyarrow 17 on, and at least to 26, ``take`` and ``filter`` ignore the offset of a slice of
fixed-size lists of fixed-size lists, also inside structs and lists: they return the values of other
rows, or of other memory. Filters by expressions slice every table. Arrays that were concatenated
have no offset, and are taken correctly. The functions of this module use that.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headrace.model import Int64Array


def width_of(type_: pa.DataType) -> int | None:
    """Return the number of bytes of a value in memory; None if it depends on the value.

    >>> width_of(pa.list_(pa.float32(), 3)), width_of(pa.string())
    (12, None)
    """
    if isinstance(type_, pa.BaseExtensionType):
        return width_of(type_.storage_type)
    if pt.is_fixed_size_list(type_):
        item = width_of(type_.value_type)
        return None if item is None else item * int(type_.list_size)
    if pt.is_struct(type_):
        parts = [width_of(type_.field(i).type) for i in range(type_.num_fields)]
        return None if None in parts else sum(part or 0 for part in parts)
    if pt.is_primitive(type_) or pt.is_decimal(type_) or pt.is_fixed_size_binary(type_):
        return max(int(type_.bit_width) // 8, 1)
    return 1 if pt.is_null(type_) else None


def rows_at(table: pa.Table, rows: Int64Array) -> pa.Table:
    """Return rows of a table by number, as ``Table.take`` should."""
    # Arrow would check all numbers for each column, which takes as long as copying the rows.
    if len(rows) and not 0 <= rows.min() <= rows.max() < table.num_rows:
        raise IndexError(f"rows {rows.min()} to {rows.max()} of a table of {table.num_rows} rows")
    matrices, places = _matrix_columns(table.schema), pa.array(rows)
    if not matrices:
        return pc.take(table, places, boundscheck=False)
    columns = [
        _of_chunks(column, rows)
        if number in matrices
        else pc.take(column, places, boundscheck=False)
        for number, column in enumerate(table.columns)
    ]
    return pa.Table.from_arrays(columns, schema=table.schema)


def rows_kept(table: pa.Table, keep: npt.NDArray[np.bool_]) -> pa.Table:
    """Return the rows of a table where a mask is True, as ``Table.filter`` should."""
    if not has_matrices(table.schema):
        return table.filter(pa.array(keep))
    return rows_at(table, np.flatnonzero(keep))


def values_at(array: pa.Array, rows: Int64Array) -> pa.Array:
    """Return values of an array by number, as ``Array.take`` should."""
    if not _has_matrices(array.type) or not _may_be_cut(array):
        return array.take(pa.array(rows))
    nothing = array.slice(0, 0)  # one array alone would not be copied
    if len(rows) * _ROWS_A_SLICE < len(array):
        return pa.concat_arrays([nothing, *(array.slice(row, 1) for row in rows.tolist())])
    return pa.concat_arrays([nothing, array]).take(pa.array(rows))


def has_matrices(schema: pa.Schema) -> bool:
    """Return True if pyarrow may take wrong rows of such tables, or filter them wrongly."""
    return bool(_matrix_columns(schema))


def _matrix_columns(schema: pa.Schema) -> frozenset[int]:
    # To compare schemas is much faster than to look at all types, and most tables are alike.
    global _looked_at
    known, found = _looked_at
    if not schema.equals(known):
        found = frozenset([n for n, type_ in enumerate(schema.types) if _has_matrices(type_)])
        _looked_at = schema, found
    return found


def _has_matrices(type_: pa.DataType) -> bool:
    """Return True if there are fixed-size lists of fixed-size lists in a type.

    >>> _has_matrices(pa.struct({"a": pa.list_(pa.list_(pa.int8(), 2), 3)}))
    True
    >>> _has_matrices(pa.struct({"a": pa.list_(pa.list_(pa.int8()), 3)}))
    False
    """
    if isinstance(type_, pa.BaseExtensionType):
        return _has_matrices(type_.storage_type)
    if not type_.num_fields:
        return False
    inside = [type_.field(number).type for number in range(type_.num_fields)]
    is_row = pt.is_fixed_size_list(type_)
    return any((is_row and pt.is_fixed_size_list(each)) or _has_matrices(each) for each in inside)


def _may_be_cut(array: pa.Array) -> bool:
    """Return True if an array, or an array inside it, may be a slice."""
    if isinstance(array, pa.ExtensionArray):
        return _may_be_cut(array.storage)
    type_ = array.type
    if array.offset:
        return True
    if pt.is_fixed_size_list(type_) or pt.is_list(type_) or pt.is_large_list(type_):
        return _may_be_cut(array.values)
    if pt.is_struct(type_):
        return any(_may_be_cut(array.field(number)) for number in range(type_.num_fields))
    return bool(type_.num_fields)  # there is no way to see it


def _of_chunks(column: pa.ChunkedArray, rows: Int64Array) -> pa.Array | pa.ChunkedArray:
    if not column.num_chunks:
        return column
    chunks = column.chunks
    return values_at(chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks), rows)


_ROWS_A_SLICE = 64
"""Number of rows that are copied in the time that it takes to slice and join one row."""

_looked_at: tuple[pa.Schema, frozenset[int]] = pa.schema([]), frozenset()
