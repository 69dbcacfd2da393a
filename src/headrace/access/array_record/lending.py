"""Bytes of records that batches copy from the records, and nothing before them does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from headrace.archives.packed_cells import NULL, States, bytes_column
from headrace.convert.decoded import STORED_TYPES, Kind, Kinds
from headrace.convert.lent import LENT_TYPE, held_array

__all__ = ["bytes_or_held", "held_schema"]

_NOT_THERE = -1


def held_schema(schema: pa.Schema) -> tuple[pa.Schema, Kinds]:
    """Return the same columns with positions in place of bytes, and the kinds of those columns."""
    kinds = {
        field.name: Kind.HELD
        for field in schema
        if pt.is_binary(field.type) or pt.is_large_binary(field.type)
    }
    held = STORED_TYPES[Kind.HELD]
    return pa.schema([f.with_type(held) if f.name in kinds else f for f in schema]), kinds


def bytes_or_held(
    cells: Sequence[Any], type_: pa.DataType, states: States | None = None
) -> pa.Array:
    """A column of cells, which are held if their type says so, and else joined."""
    if type_ != LENT_TYPE:
        return bytes_column(cells, type_, states)
    sizes = np.fromiter(map(len, cells), np.int64, len(cells))
    if states is not None:
        sizes[states == NULL] = _NOT_THERE
    return held_array(cells, sizes)
