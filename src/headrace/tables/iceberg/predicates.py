"""A pyarrow filter as a pyiceberg predicate that prunes partitions and files.

The predicate holds for every row that the filter keeps, and may hold for more: the filter itself
is applied to the rows afterwards. A row is kept if the filter is true; null is not. So each part
is asked for one of two sets, the rows where it is true and those where it is false, and ``~``
only turns the question round. What cannot be said is left out of an ``&`` and makes an ``|``
unsayable, so that every set only grows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, BooleanExpression, Or
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform

from headrace.formats.expressions import (
    MIRRORED,
    NEGATED,
    Call,
    Column,
    Constant,
    Node,
    NotTakenApart,
    take_apart,
)
from headrace.tables.iceberg.filters.columns import OPERATORS, TableColumn, all_of, any_of
from headrace.tables.iceberg.filters.constants import (
    compared_value,
    is_lossless,
    listed_values,
    plain,
    same_kind,
)
from headrace.tables.iceberg.filters.paths import ColumnFinder

__all__ = ["Translated", "to_iceberg"]

_CONSTANT_CAST_FAILED = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)
_MATCH_NULLS, _SKIP_NULLS = 0, 1


@dataclass(frozen=True, slots=True)
class Translated:
    predicate: BooleanExpression | None
    """None if nothing can be said"""
    whole: bool
    """no part was dropped or widened: it keeps the same rows, but for nulls and NaN"""
    dropped: tuple[str, ...] = ()
    """the parts that are not in the predicate, for people to read"""


def to_iceberg(
    expression: ds.Expression,
    schema: pa.Schema,
    table_schema: Schema,
    *,
    specs: Iterable[PartitionSpec] | None = None,
) -> Translated:
    """A predicate over ``table_schema`` that holds wherever the expression over ``schema`` does.

    Comparisons of UUID columns need the table's partition ``specs``: pyiceberg compares a
    partition by a plain UUID wrongly, so those of such columns, or of all, are dropped.
    """
    try:
        root = take_apart(expression)
    except NotTakenApart as error:
        return Translated(None, False, (f"{expression} ({error})",))
    finder = ColumnFinder(schema, table_schema, _by_plain_value(specs))
    said = _Translation(finder).rows(root, True)
    whole = said.exact and not said.dropped
    if said.predicate is AlwaysTrue() and not whole:
        return Translated(None, False, said.dropped)
    return Translated(said.predicate, whole, said.dropped)


def _by_plain_value(specs: Iterable[PartitionSpec] | None) -> frozenset[int] | None:
    if specs is None:
        return None
    return frozenset(
        part.source_id
        for spec in specs
        for part in spec.fields
        if isinstance(part.transform, IdentityTransform)
    )


@dataclass(frozen=True, slots=True)
class _Said:
    """What was said of a part of the expression."""

    predicate: BooleanExpression | None
    exact: bool = True
    dropped: tuple[str, ...] = ()


_NOTHING = _Said(None, False)


@dataclass(frozen=True, slots=True)
class _Translation:
    columns: ColumnFinder

    def rows(self, node: Node, wanted: bool) -> _Said:
        """The rows where the node is true, or those where it is false."""
        while isinstance(node, Call) and node.function == "invert":
            node, wanted = node.arguments[0], not wanted
        said = self._said(node, wanted)
        if said.predicate is None:
            return _Said(None, False, (str(node) if wanted else f"not {node}",))
        return said

    def _said(self, node: Node, wanted: bool) -> _Said:
        match node:
            case Constant(value):
                return _constant_rows(value, wanted)
            case Column():
                column = self._column(node)
                if column is None or not column.is_boolean:
                    return _NOTHING
                return _Said(column.truth([wanted]))
        match node.function, node.arguments:
            case "and" | "and_kleene" | "or" | "or_kleene", parts:
                said = [self.rows(part, wanted) for part in parts]
                return _joined(said, node.function, node.function.startswith("and") == wanted)
            case "and_not" | "and_not_kleene", (one, other):
                said = [self.rows(one, wanted), self.rows(other, not wanted)]
                return _joined(said, node.function, wanted)
            case function, (one, other) if function in OPERATORS:
                return self._comparison(function, one, other, wanted)
            case function, (operand,):
                column = self._column(operand)
                return _NOTHING if column is None else _tested(column, function, node, wanted)
        return _NOTHING

    def _comparison(self, function: str, one: Node, other: Node, wanted: bool) -> _Said:
        column, constant = self._column(one), _constant(other)
        if column is None or constant is None:
            column, constant = self._column(other), _constant(one)
            function = MIRRORED[function]
        if column is None or constant is None:
            return _NOTHING
        if not constant.is_valid:
            return _Said(AlwaysFalse())
        return _compared(column, function, constant, wanted)

    def _column(self, node: Node) -> TableColumn | None:
        """The column, also behind casts that change no comparison."""
        if isinstance(node, Column):
            return self.columns.find(node.path)
        cast = _cast(node)
        if cast is None:
            return None
        inner, target = cast
        column = self._column(inner)
        if column is None or not is_lossless(column.arrow_type, target):
            return None
        return replace(column, arrow_type=target)


def _joined(parts: Sequence[_Said], function: str, all_needed: bool) -> _Said:
    known = [part.predicate for part in parts if part.predicate is not None]
    dropped = tuple(text for part in parts for text in part.dropped)
    exact = all(part.exact for part in parts)
    if all_needed:
        return _Said(all_of(known) if known else None, exact, dropped)
    if len(known) < len(parts):
        return _NOTHING
    # Without Kleene's logic a null on one side hides what the other side says.
    return _Said(any_of(known), exact and function.endswith("_kleene"), dropped)


def _constant_rows(value: pa.Scalar, wanted: bool) -> _Said:
    if not value.is_valid:
        return _Said(AlwaysFalse())
    if not pa.types.is_boolean(value.type):
        return _NOTHING
    return _Said(AlwaysTrue() if value.as_py() is wanted else AlwaysFalse())


def _constant(node: Node) -> pa.Scalar | None:
    """The value of a constant, also of one that is cast."""
    if isinstance(node, Constant):
        value = node.value
        while isinstance(value, pa.DictionaryScalar | pa.ExtensionScalar):
            value = value.value
        return value if value is not None else pa.scalar(None)
    cast = _cast(node)
    if cast is None:
        return None
    inner, target = cast
    constant = _constant(inner)
    try:
        return None if constant is None else pc.cast(constant, target)
    except _CONSTANT_CAST_FAILED:
        return None


def _cast(node: Node) -> tuple[Node, pa.DataType] | None:
    """What the node casts to which type, if it is a cast that raises where values would change."""
    if not isinstance(node, Call) or node.function != "cast" or node.options is None:
        return None
    options = dict(node.options.items())
    if any(value.as_py() for name, value in options.items() if name.startswith("allow_")):
        return None
    return node.arguments[0], plain(options["to_type"].type)


def _compared(column: TableColumn, function: str, constant: pa.Scalar, wanted: bool) -> _Said:
    value = compared_value(column.arrow_type, constant)
    if value is None:
        return _NOTHING
    if column.is_boolean:
        holds = OPERATORS[function]
        return _Said(column.truth(t for t in (False, True) if holds(t, value) is wanted))
    if isinstance(value, float) and math.isnan(value):
        always = (function == "not_equal") is wanted
        return _Said(column.valid() if always else AlwaysFalse())
    comparison = function if wanted else NEGATED[function]
    rounded = pa.types.is_decimal(column.arrow_type) and pa.types.is_floating(constant.type)
    if rounded and not isinstance(value, float):
        return _Said(column.compared_as_double(comparison, value), False)
    said = column.compared(comparison, value)
    # NaN is unequal to everything, and neither less nor greater: it is where these are false.
    if said is not None and (function == "not_equal") is wanted:
        said = Or(said, column.nan())
    return _Said(said)


def _tested(column: TableColumn, function: str, node: Call, wanted: bool) -> _Said:
    options: dict[str, Any] = {} if node.options is None else dict(node.options.items())
    match function:
        case "is_null" if "nan_is_null" in options and options["nan_is_null"].as_py():
            return _null_or_nan(column, wanted)
        case "is_null":
            return _Said(column.null() if wanted else column.valid())
        case "is_valid":
            return _Said(column.valid() if wanted else column.null())
        case "is_nan" if same_kind(column.arrow_type, pa.float64()):
            return _Said(column.nan() if wanted else column.a_number())
        case "starts_with" if not options["ignore_case"].as_py():
            if not same_kind(column.arrow_type, pa.string()):
                return _NOTHING
            return _Said(column.starting_with(options["pattern"].as_py(), wanted=wanted))
        case "is_in":
            return _listed(column, options, wanted)
    return _NOTHING


def _null_or_nan(column: TableColumn, wanted: bool) -> _Said:
    if not wanted:
        return _Said(column.a_number())
    null = column.null()
    return _NOTHING if null is None else _Said(Or(null, column.nan()))


def _listed(column: TableColumn, options: dict[str, Any], wanted: bool) -> _Said:
    members = options["value_set"].values
    listed = None if members is None else listed_values(column.arrow_type, members)
    if listed is None:
        return _NOTHING
    nulls = options["null_matching_behavior"].as_py()
    if column.is_boolean:
        said: BooleanExpression | None = column.truth(
            t for t in (False, True) if (t in listed.values) is wanted
        )
    elif wanted:
        said = column.listed(listed.values)
    else:
        said = column.not_listed(listed.values)
    if wanted and listed.has_nan and said is not None:
        said = Or(said, column.nan())
    null_is_listed = listed.has_null and nulls == _MATCH_NULLS
    if nulls in (_MATCH_NULLS, _SKIP_NULLS) and null_is_listed is wanted:
        null = column.null()
        said = None if said is None or null is None else Or(said, null)
    return _Said(said, not column.is_blurred(listed.values))
