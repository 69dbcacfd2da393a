"""Predicates of pyiceberg, by which a scan rules out manifests, partitions and files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.expressions import (
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
    NotEqualTo,
    NotNull,
    Or,
)
from pyiceberg.expressions.literals import (
    DateLiteral,
    Literal,
    TimeLiteral,
    TimestampLiteral,
    literal,
)
from pyiceberg.schema import Schema
from pyiceberg.types import PrimitiveType, TimestampNanoType, TimestamptzNanoType, UUIDType

from headrace.tables.iceberg.schema import column_of

__all__ = ["IcebergWords", "prunable_columns"]

_PREDICATES = {
    "equal": EqualTo,
    "not_equal": NotEqualTo,
    "less": LessThan,
    "less_equal": LessThanOrEqual,
    "greater": GreaterThan,
    "greater_equal": GreaterThanOrEqual,
}
_NOT_COMPARED = (TimestampNanoType, TimestamptzNanoType, UUIDType)
"""pyiceberg has no literals of nanoseconds, and compares partitions by UUID wrongly"""
_MOST_LISTED = 200
"""longer lists are not compared with the bounds of files by pyiceberg; their ends still are"""
_DAYS = range(-719_161, 2_932_895)
"""from the second day of the year 1 to the last but one of 9999: pyiceberg projects times onto
partitions by ``datetime``, and steps one further"""
_DAY_MICROSECONDS = 86_400 * 10**6


def prunable_columns(schema: Schema) -> dict[str, pa.DataType]:
    """Return the Arrow types of the columns of a table that predicates may name."""
    return {
        field.name: column_of(field).type
        for field in schema.fields
        if isinstance(field.field_type, PrimitiveType)
        and not isinstance(field.field_type, _NOT_COMPARED)
        # A field of a struct may have the same dotted name.
        and schema.find_field(field.name).field_id == field.field_id
    }


class IcebergWords:
    """Makes predicates of pyiceberg."""

    def compared(self, name: str, function: str, value: pa.Scalar) -> BooleanExpression | None:
        """Return a comparison of a column."""
        made = _literal(value)
        return None if made is None else _PREDICATES[function](name, made)

    def listed(self, name: str, values: Sequence[pa.Scalar]) -> BooleanExpression | None:
        """Return where a column has one of some values."""
        literals = [made for made in map(_literal, values) if made is not None]
        if len(literals) < len(values):
            return None
        found = In(name, literals)
        if len(literals) <= _MOST_LISTED:
            return found
        ordered = sorted(literals, key=lambda made: made.value)
        return And(found, GreaterThanOrEqual(name, ordered[0]), LessThanOrEqual(name, ordered[-1]))

    def null(self, name: str, wanted: bool) -> BooleanExpression:
        """Return where a column is null, or where it is not."""
        return IsNull(name) if wanted else NotNull(name)

    def joined(self, parts: Sequence[BooleanExpression], all_needed: bool) -> BooleanExpression:
        """Return where all parts hold, or one of them."""
        return And(*parts) if all_needed else Or(*parts)


def _literal(value: pa.Scalar) -> Literal[Any] | None:
    """Return a value of a column as pyiceberg has it; None where pyiceberg cannot handle it."""
    if pa.types.is_date(value.type):
        return DateLiteral(value.value) if value.value in _DAYS else None
    if pa.types.is_timestamp(value.type):
        in_range = value.value // _DAY_MICROSECONDS in _DAYS
        return TimestampLiteral(value.value) if in_range else None
    if pa.types.is_time(value.type):
        return TimeLiteral(value.value)
    if pa.types.is_floating(value.type):
        return literal(value.as_py() + 0.0)  # 0.0 for -0.0
    return literal(value.as_py())
