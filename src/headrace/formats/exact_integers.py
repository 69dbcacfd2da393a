"""Comparisons of integer columns with floats, rewritten as comparisons with integers.

pyarrow compares the two as floats. It raises for integers that a float cannot hold, and so the same
filter works on some values and fails on others (above 2^24 or 2^53). ``id > 0.5`` is the same as
``id > 0``, which works on any values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.dataset as ds

from headrace.formats.expressions import (
    MIRRORED,
    Call,
    Column,
    Constant,
    Node,
    NotTakenApart,
    once_for_like_files,
    put_together,
    take_apart,
)

__all__ = ["with_exact_integers"]


@once_for_like_files
def with_exact_integers(expression: ds.Expression, schema: pa.Schema) -> ds.Expression:
    """Return the expression with integer columns of ``schema`` compared with integers only."""
    try:
        root = take_apart(expression)
    except NotTakenApart:
        return expression
    rewritten = _rewritten(root, schema)
    return expression if rewritten is root else put_together(rewritten)


def _rewritten(node: Node, schema: pa.Schema) -> Node:
    """Return the node itself if nothing in it changes."""
    match node:
        case Call("is_in", (Column() as column,)):
            return _listed(node, _integer_type(column, schema))
        case Call(function, (Column() as column, Constant(value))) if function in MIRRORED:
            return _compared(node, function, column, value, schema)
        case Call(function, (Constant(value), Column() as column)) if function in MIRRORED:
            return _compared(node, MIRRORED[function], column, value, schema)
        case Call(_, arguments):
            parts = tuple(_rewritten(argument, schema) for argument in arguments)
            if any(part is not argument for part, argument in zip(parts, arguments, strict=True)):
                return replace(node, arguments=parts)
    return node


def _compared(
    node: Call, function: str, column: Column, value: pa.Scalar, schema: pa.Schema
) -> Call:
    type_ = _integer_type(column, schema)
    if type_ is None or not pa.types.is_floating(value.type):
        return node
    bound: int | None = None
    if value.is_valid:
        function, bound = _integer_comparison(function, float(value.as_py()), *_limits(type_))
    constant = Constant(pa.scalar(bound, type_))
    return replace(node, function=function, arguments=(column, constant))


def _integer_comparison(function: str, number: float, lowest: int, highest: int) -> tuple[str, int]:
    """Return the comparison that holds of the same integers between two limits.

    One that holds of all or of none is said by the lowest: nulls stay null.
    """
    of_all, of_none = ("greater_equal", lowest), ("less", lowest)
    if math.isnan(number):
        return of_all if function == "not_equal" else of_none
    if function in ("equal", "not_equal"):
        if lowest <= number <= highest and number.is_integer():
            return function, int(number)
        return of_none if function == "equal" else of_all
    if number > highest:
        return of_all if function.startswith("less") else of_none
    if number < lowest:
        return of_none if function.startswith("less") else of_all
    rounds_up = function in ("less", "greater_equal")
    return function, math.ceil(number) if rounds_up else math.floor(number)


def _listed(node: Call, type_: pa.DataType | None) -> Call:
    options = {} if node.options is None else dict(node.options.items())
    members = options["value_set"].values if "value_set" in options else None
    if type_ is None or members is None or not pa.types.is_floating(members.type):
        return node
    lowest, highest = _limits(type_)
    numbers = [float(member.as_py()) for member in members if member.is_valid]
    held: list[int | None] = [
        int(number) for number in numbers if lowest <= number <= highest and number.is_integer()
    ]
    if members.null_count:
        held.append(None)
    values = pa.ListArray.from_arrays([0, len(held)], pa.array(held, type_))
    columns = [
        values if name == "value_set" else pa.repeat(value, 1) for name, value in options.items()
    ]
    return replace(node, options=pa.StructArray.from_arrays(columns, names=list(options))[0])


def _limits(type_: pa.DataType) -> tuple[int, int]:
    if pa.types.is_signed_integer(type_):
        half = 1 << (type_.bit_width - 1)
        return -half, half - 1
    return 0, (1 << type_.bit_width) - 1


def _integer_type(column: Column, schema: pa.Schema) -> pa.DataType | None:
    """Return the type of a column of integers; None if there is no such column, or several."""
    level: Sequence[pa.Field] = list(schema)
    found: pa.DataType | None = None
    for name in column.path:
        types = [one.type for one in level if one.name == name]
        if len(types) != 1:
            return None
        found = types[0]
        level = list(found) if pa.types.is_struct(found) else []
    return found if found is not None and pa.types.is_integer(found) else None
