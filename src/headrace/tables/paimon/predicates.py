"""A pyarrow filter as a pypaimon predicate that prunes partitions, buckets and files.

The predicate holds for every row that the filter keeps, and may hold for more: the filter itself
is applied to the rows afterwards. A row is kept if the filter is true; null is not. So each part
is asked for one of two sets, the rows where it is true and those where it is false. What cannot be
said is left out of an ``&`` and makes an ``|`` unsayable. Statistics of files know nothing of NaN,
which is where comparisons are false: of floats only what is true of numbers is said.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pypaimon.common.predicate import Predicate
from pypaimon.common.predicate_builder import PredicateBuilder

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
from headrace.tables.iceberg.filters.constants import compared_value, listed_values

__all__ = ["Translation", "literal_of"]

_METHODS = {
    "equal": "equal",
    "not_equal": "not_equal",
    "less": "less_than",
    "less_equal": "less_or_equal",
    "greater": "greater_than",
    "greater_equal": "greater_or_equal",
}
_EPOCH = datetime(1970, 1, 1)
_MOST_LISTED = 1000
_EXACT_IN_DOUBLE = 1 << 53


@dataclass(slots=True)
class Translation:
    """Says what can be said of columns, which are named with their types."""

    builder: PredicateBuilder
    types: Mapping[str, pa.DataType]
    dropped: list[str] = field(default_factory=list)
    """the parts that are not in the predicate, for people to read"""

    def predicate(self, expression: ds.Expression) -> Predicate | None:
        """What holds wherever the expression does; None if nothing can be said."""
        try:
            root = take_apart(expression)
        except NotTakenApart as error:
            self.dropped.append(f"{expression} ({error})")
            return None
        return self._rows(root, True)

    def _rows(self, node: Node, wanted: bool) -> Predicate | None:
        while isinstance(node, Call) and node.function == "invert":
            node, wanted = node.arguments[0], not wanted
        said = self._said(node, wanted) if isinstance(node, Call) else None
        if said is None:
            self.dropped.append(str(node) if wanted else f"not {node}")
        return said

    def _said(self, node: Call, wanted: bool) -> Predicate | None:
        match node.function, node.arguments:
            case "and" | "and_kleene" | "or" | "or_kleene", parts:
                said = [self._rows(part, wanted) for part in parts]
                return self._joined(said, node.function.startswith("and") == wanted)
            case function, (one, other) if function in _METHODS:
                return self._comparison(function, one, other, wanted)
            case function, (Column((name,)),) if name in self.types:
                return self._tested(function, name, node, wanted)
        return None

    def _joined(self, parts: Sequence[Predicate | None], all_needed: bool) -> Predicate | None:
        known = [part for part in parts if part is not None]
        if all_needed:
            return self.builder.and_predicates(known) if known else None
        return self.builder.or_predicates(known) if len(known) == len(parts) else None

    def _comparison(self, function: str, one: Node, other: Node, wanted: bool) -> Predicate | None:
        if isinstance(one, Constant):
            one, other, function = other, one, MIRRORED[function]
        match one, other:
            case Column((name,)), Constant(value) if name in self.types and value.is_valid:
                pass
            case _:
                return None
        type_ = self.types[name]
        function = function if wanted else NEGATED[function]
        if pa.types.is_floating(type_) and (not wanted or function == "not_equal"):
            return None
        exact = compared_value(type_, value)
        if exact is None or _rounds(type_, value.type, exact):
            return None
        if pa.types.is_integer(type_):
            function, exact = _of_integers(function, exact)
        literal = literal_of(type_, exact)
        if literal is None:
            return None
        return getattr(self.builder, _METHODS[function])(name, literal)

    def _tested(self, function: str, name: str, node: Call, wanted: bool) -> Predicate | None:
        options: dict[str, Any] = {} if node.options is None else dict(node.options.items())
        match function:
            case "is_null" if not ("nan_is_null" in options and options["nan_is_null"].as_py()):
                return self._null(name, wanted)
            case "is_valid":
                return self._null(name, not wanted)
            case "starts_with" if wanted and not options["ignore_case"].as_py():
                if pa.types.is_string(self.types[name]):
                    return self.builder.startswith(name, options["pattern"].as_py())
            case "is_in" if wanted:
                return self._listed(name, options)
        return None

    def _null(self, name: str, wanted: bool) -> Predicate:
        return self.builder.is_null(name) if wanted else self.builder.is_not_null(name)

    def _listed(self, name: str, options: Mapping[str, Any]) -> Predicate | None:
        type_, members = self.types[name], options["value_set"].values
        listed = None if members is None else listed_values(type_, members)
        if listed is None or listed.has_null or listed.has_nan or len(members) > _MOST_LISTED:
            return None
        literals = [literal_of(type_, value) for value in listed.values]
        if not literals or any(literal is None for literal in literals):
            return None
        return self.builder.is_in(name, literals)


def _rounds(column: pa.DataType, constant: pa.DataType, exact: Any) -> bool:
    """Whether pyarrow compares values that are not exactly those of the column."""
    if pa.types.is_floating(column):
        return False
    if not pa.types.is_floating(constant):
        return False
    return not pa.types.is_integer(column) or not (
        isinstance(exact, Fraction) and abs(exact) < _EXACT_IN_DOUBLE
    )


def _of_integers(function: str, value: Any) -> tuple[str, Any]:
    """The same of integers, where a column of them is compared with a fraction."""
    if not isinstance(value, Fraction) or value.denominator == 1:
        return function, value
    if function in ("less", "less_equal"):
        return "less_equal", Fraction(math.floor(value))
    if function in ("greater", "greater_equal"):
        return "greater_equal", Fraction(math.ceil(value))
    return function, None


def literal_of(type_: pa.DataType, exact: Any) -> Any | None:
    """A value as pypaimon has those of such a column; None if it has none, or we are not sure."""
    if pa.types.is_string(type_):
        return exact if isinstance(exact, str) else None
    if not isinstance(exact, Fraction):
        return None
    if pa.types.is_integer(type_):
        return int(exact) if exact.denominator == 1 else None
    if pa.types.is_floating(type_):
        return float(exact) if Fraction(float(exact)) == exact else None
    if pa.types.is_decimal128(type_):
        return _decimal(exact, type_.scale)
    try:
        if pa.types.is_date32(type_):
            days = exact / 86_400
            return date(1970, 1, 1) + timedelta(int(days)) if days.denominator == 1 else None
        if pa.types.is_timestamp(type_) and type_.tz is None and type_.unit != "ns":
            micros = exact * 10**6
            if micros.denominator == 1:
                return _EPOCH + timedelta(microseconds=int(micros))
    except OverflowError:
        return None
    return None


def _decimal(exact: Fraction, scale: int) -> Decimal | None:
    unscaled = exact * 10**scale
    if unscaled.denominator != 1:
        return None
    return Decimal(int(unscaled)).scaleb(-scale) if abs(unscaled) < 10**28 else None
