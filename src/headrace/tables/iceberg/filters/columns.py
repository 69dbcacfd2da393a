"""A column of the table, and what can be said of it to pyiceberg.

Each method gives a predicate that holds for all rows that it names, and may hold for more. None
stands for "nothing can be said".
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pyarrow as pa
from pyiceberg.expressions import (
    AlwaysFalse,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    NotEqualTo,
    NotIn,
    NotNaN,
    NotNull,
    NotStartsWith,
    Or,
    StartsWith,
    UnboundPredicate,
)
from pyiceberg.expressions.literals import BooleanLiteral, Literal, StringLiteral
from pyiceberg.schema import Schema

from headrace.tables.iceberg.filters.domains import Domain, Floats

__all__ = ["OPERATORS", "TableColumn", "all_of", "any_of"]

OPERATORS = {
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}

_MOST_LISTED = 200
"""longer lists are not compared with the bounds of files by pyiceberg; their ends still are"""

_DECIMAL_ERROR = Fraction(1, 2**50)
"""how far the double that pyarrow makes of a decimal may be off, generously"""


def all_of(parts: Sequence[BooleanExpression]) -> BooleanExpression:
    return parts[0] if len(parts) == 1 else And(*parts)


def any_of(parts: Sequence[BooleanExpression]) -> BooleanExpression:
    return parts[0] if len(parts) == 1 else Or(*parts)


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of the table as an expression sees it."""

    name: str
    arrow_type: pa.DataType
    """its type in the comparison, which a cast may have made wider than the column's own"""
    domain: Domain | None
    """its values by the table's schema; None for a boolean, or if they are not to be compared"""
    is_boolean: bool
    nulls_unseen: bool
    """required in a struct that may be null: pyiceberg says that it is never null"""
    table_schema: Schema

    @property
    def is_float(self) -> bool:
        return isinstance(self.domain, Floats)

    def valid(self) -> BooleanExpression:
        return NotNull(self.name)

    def null(self) -> BooleanExpression | None:
        return None if self.nulls_unseen else IsNull(self.name)

    def nan(self) -> BooleanExpression:
        return IsNaN(self.name) if self.is_float else AlwaysFalse()

    def a_number(self) -> BooleanExpression:
        return And(self.valid(), NotNaN(self.name)) if self.is_float else self.valid()

    def starting_with(self, prefix: str, *, wanted: bool) -> BooleanExpression | None:
        if not prefix:
            return self.valid() if wanted else AlwaysFalse()
        if wanted:
            return self._bound(StartsWith(self.name, StringLiteral(prefix)))
        refused = self._bound(NotStartsWith(self.name, StringLiteral(prefix)))
        return None if refused is None else And(refused, self.valid())

    def truth(self, truths: Iterable[bool]) -> BooleanExpression:
        """The rows where a boolean column has one of these values."""
        wanted = set(truths)
        if len(wanted) == 1:
            return EqualTo(self.name, BooleanLiteral(wanted.pop()))
        return self.valid() if wanted else AlwaysFalse()

    def compared(self, comparison: str, value: Any) -> BooleanExpression | None:
        """The rows where the column compares so with a value; NaN compares with nothing."""
        if self.domain is None:
            return None
        below, above = self.domain.below(value), self.domain.above(value)
        if below == above:
            return self._with_element(comparison, below)
        match comparison:
            case "equal":
                return AlwaysFalse()
            case "not_equal":
                return self.a_number()
            case "less" | "less_equal":
                return AlwaysFalse() if below is None else self._with_element("less_equal", below)
        return AlwaysFalse() if above is None else self._with_element("greater_equal", above)

    def compared_as_double(self, comparison: str, value: Fraction) -> BooleanExpression | None:
        """Rows of a decimal column of which some, rounded to a double, may compare so."""
        error = abs(value) * _DECIMAL_ERROR
        at_least = self.compared("greater_equal", value - error)
        at_most = self.compared("less_equal", value + error)
        if at_least is None or at_most is None:
            return None
        match comparison:
            case "equal":
                return And(at_least, at_most)
            case "not_equal":
                return self.valid()
        return at_most if comparison.startswith("less") else at_least

    def _with_element(self, comparison: str, element: Any) -> BooleanExpression | None:
        if isinstance(element, float) and math.isinf(element):
            return self._with_infinity(comparison, element)
        literal = None if self.domain is None else self.domain.literal(element)
        if literal is None:
            return None
        if comparison == "not_equal":
            other = self._bound(NotEqualTo(self.name, literal))
            return None if other is None else And(other, self.a_number())
        return self._bound(_PREDICATES[comparison](self.name, literal))

    def _with_infinity(self, comparison: str, infinity: float) -> BooleanExpression | None:
        """Said by the largest finite number, for pyiceberg has no infinite float literals."""
        holds_for_itself = comparison in ("equal", "less_equal", "greater_equal")
        outwards = "greater" if infinity > 0 else "less"
        if comparison == outwards:
            return AlwaysFalse()
        if holds_for_itself and comparison != "equal" and not comparison.startswith(outwards):
            return self.a_number()
        assert isinstance(self.domain, Floats)
        largest = math.copysign(self.domain.largest, infinity)
        if holds_for_itself:
            return self._with_element(outwards, largest)
        return self._with_element("less_equal" if infinity > 0 else "greater_equal", largest)

    def listed(self, values: Iterable[Any]) -> BooleanExpression | None:
        """The rows whose value is in a list without null and NaN."""
        elements = self._elements(values)
        parts: list[BooleanExpression | None] = []
        parts += [self.compared("equal", value) for value in elements if _is_infinite(value)]
        finite = [value for value in elements if not _is_infinite(value)]
        literals = self._literals(finite)
        if literals is None:
            return None
        if literals:
            parts.append(self._bound(In(self.name, literals)))
        if len(literals) > _MOST_LISTED:
            ends = (("greater_equal", min(finite)), ("less_equal", max(finite)))
            in_range = [self._with_element(comparison, end) for comparison, end in ends]
            parts[-1] = _all_known([parts[-1], *in_range])
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        return any_of(known) if known else AlwaysFalse()

    def not_listed(self, values: Iterable[Any]) -> BooleanExpression | None:
        """Rows with a value or NaN among which are all whose value is not in the list.

        0.0 and -0.0 are one to pyiceberg but not to ``isin``: neither is left out.
        """
        elements = [e for e in self._elements(values) if not self.is_blurred([e])]
        literals = self._literals(elements)
        if literals is None:
            return None
        if not literals:
            return self.valid()
        others = self._bound(NotIn(self.name, literals))
        return None if others is None else And(others, self.valid())

    def is_blurred(self, values: Iterable[Any]) -> bool:
        """Whether a list has members that are not told apart, or not left out: ±0.0 and ±inf."""
        return self.is_float and any(value == 0 or _is_infinite(value) for value in values)

    def _elements(self, values: Iterable[Any]) -> list[Any]:
        if self.domain is None:
            return []
        elements: dict[Any, None] = {}
        for value in values:
            below = self.domain.below(value)
            if below is not None and below == self.domain.above(value):
                elements[below] = None
        return list(elements)

    def _literals(self, elements: Iterable[Any]) -> list[Literal[Any]] | None:
        if self.domain is None:
            return None
        literals = [self.domain.literal(element) for element in elements]
        known = [literal for literal in literals if literal is not None]
        return known if len(known) == len(literals) else None

    def _bound(self, predicate: BooleanExpression) -> BooleanExpression | None:
        """The predicate, if pyiceberg can apply it to the column."""
        if isinstance(predicate, UnboundPredicate):
            try:
                predicate.bind(self.table_schema, case_sensitive=True)
            except (TypeError, ValueError, OverflowError):
                return None
        return predicate


_PREDICATES = {
    "equal": EqualTo,
    "less": LessThan,
    "less_equal": LessThanOrEqual,
    "greater": GreaterThan,
    "greater_equal": GreaterThanOrEqual,
}


def _all_known(parts: Sequence[BooleanExpression | None]) -> BooleanExpression | None:
    known = [part for part in parts if part is not None]
    return all_of(known) if len(known) == len(parts) else None


def _is_infinite(value: Any) -> bool:
    return isinstance(value, float) and math.isinf(value)
