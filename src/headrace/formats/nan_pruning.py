"""Statistics and NaN: least and greatest values do not tell of it, and some filters keep it."""

from __future__ import annotations

import math
from collections.abc import Collection

import pyarrow as pa
import pyarrow.dataset as ds

from headrace.formats.expressions import (
    Call,
    Column,
    Constant,
    Node,
    NotTakenApart,
    once_for_like_files,
    take_apart,
)

__all__ = ["bounds_tell_all"]

_FALSE_OF_NAN = {"equal", "less", "less_equal", "greater", "greater_equal"}
_JOINED = {"and", "and_kleene", "or", "or_kleene"}


@once_for_like_files
def bounds_tell_all(keep: ds.Expression, schema: pa.Schema) -> bool:
    """Whether no row with a NaN can pass a filter that the bounds of its columns rule out.

    A comparison that is false of NaN, and can only help the filter by being true, is safe: without
    it, there is even less that passes. One that is true of NaN is safe where it is negated.
    """
    floats = {column.name for column in schema if _holds_floats(column.type)}
    if not floats:
        return True
    try:
        root = take_apart(keep)
    except NotTakenApart:
        return False
    return _safe(root, True, floats)


def _holds_floats(type_: pa.DataType) -> bool:
    inside = (type_.field(i).type for i in range(type_.num_fields))
    return bool(pa.types.is_floating(type_)) or any(map(_holds_floats, inside))


def _safe(node: Node, wanted: bool, floats: Collection[str]) -> bool:
    """Whether NaN in a column does not help a part of the filter to be ``wanted``."""
    if not _uses(node, floats):
        return True
    if not isinstance(node, Call):
        return False
    if node.function in _JOINED:
        return all(_safe(part, wanted, floats) for part in node.arguments)
    if node.function == "invert":
        return _safe(node.arguments[0], not wanted, floats)
    if not _compares_with_a_number(node):
        return False
    if node.function in _FALSE_OF_NAN:
        return wanted
    return node.function == "not_equal" and not wanted


def _uses(node: Node, columns: Collection[str]) -> bool:
    if isinstance(node, Column):
        return node.path[0] in columns
    return isinstance(node, Call) and any(_uses(part, columns) for part in node.arguments)


def _compares_with_a_number(node: Call) -> bool:
    kinds = {type(part) for part in node.arguments}
    if len(node.arguments) != 2 or kinds != {Column, Constant}:
        return False
    (constant,) = (part.value for part in node.arguments if isinstance(part, Constant))
    if not constant.is_valid:
        return False
    return not pa.types.is_floating(constant.type) or not math.isnan(constant.as_py())
