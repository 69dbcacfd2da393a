"""What a row of some columns holds in memory, as far as their types tell."""

from __future__ import annotations

import pyarrow as pa

from headrace.convert.decoded import Kind, Kinds
from headrace.plan import RowCost

__all__ = ["row_cost", "sent_cost"]


def sent_cost(schema: pa.Schema, kinds: Kinds) -> RowCost:
    """The same once batches are made of them: what is lent has been copied by then."""
    held = row_cost(schema)
    lent = any(kinds.get(name) is Kind.LENT for name in schema.names)
    return RowCost(held.fixed_bytes, held.variable or lent)


def row_cost(schema: pa.Schema) -> RowCost:
    """Return what a row of these columns holds in memory once decoded."""
    widths = [_width(field.type) for field in schema]
    return RowCost(sum(w for w in widths if w is not None), any(w is None for w in widths))


def _width(type_: pa.DataType) -> int | None:
    """Bytes of a value of fixed width; None where it depends on the value."""
    if isinstance(type_, pa.BaseExtensionType):
        return _width(type_.storage_type)
    if pa.types.is_fixed_size_list(type_):
        item = _width(type_.value_type)
        return None if item is None else item * type_.list_size
    if pa.types.is_struct(type_):
        parts = [_width(type_.field(i).type) for i in range(type_.num_fields)]
        return None if None in parts else sum(part or 0 for part in parts)
    if pa.types.is_primitive(type_) or pa.types.is_fixed_size_binary(type_):
        return max(int(type_.bit_width) // 8, 1)
    return 1 if pa.types.is_null(type_) else None
