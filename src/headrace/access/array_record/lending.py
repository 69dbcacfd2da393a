"""Bytes of records that batches copy from the records, and nothing before them does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from headrace.archives.packed_cells import NULL, States, bytes_column
from headrace.convert.decoded import HELD, decoded_field
from headrace.convert.lent import LENT_TYPE, held_array

__all__ = ["bytes_or_held", "held_schema"]

_NOT_THERE = -1


def held_schema(schema: pa.Schema) -> pa.Schema:
    """The same columns, but that those of bytes have places in records that are held."""
    return pa.schema(
        [
            decoded_field(field.name, HELD).with_nullable(field.nullable)
            if pt.is_binary(field.type) or pt.is_large_binary(field.type)
            else field
            for field in schema
        ]
    )


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
