"""Translate filters to predicates of a table format, to prune partitions and files.

A predicate is true for every row that the filter keeps, and may be true for more: the filter itself
is applied to the rows afterwards. Comparisons with constants, ``isin`` and tests for null of
top-level columns are translated, joined by ``&``, ``|`` and ``~``. Other parts are left out of an
``&``, and make an ``|`` untranslatable, so that the set of rows only grows.

A row is kept if the filter is true, but not if it is null. So each part is translated to one of two
sets, the rows where it is true or those where it is false, and ``~`` exchanges the two.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from headrace.sources.files.filters import (
    MIRRORED,
    NEGATED,
    Constant,
    FilterCall,
    FilterColumn,
    Node,
    NotTakenApart,
    take_apart,
)

logger = logging.getLogger(__name__)

P = TypeVar("P")

_NOT_HELD = (pa.ArrowNotImplementedError, pa.ArrowTypeError, ValueError, OverflowError)
"""Errors for a constant that the column cannot hold, or a time outside of Python's range."""


_TYPE_KINDS: Mapping[str, Sequence[Callable[[pa.DataType], bool]]] = {
    "integer": (pa.types.is_integer,),
    "float": (pa.types.is_floating,),
    "decimal": (pa.types.is_decimal,),
    "flag": (pa.types.is_boolean,),
    "day": (pa.types.is_date,),
    "time of day": (pa.types.is_time,),
    "text": (pa.types.is_string, pa.types.is_large_string),
    "bytes": (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary),
}
_EXACT = {("float", "integer"), ("decimal", "integer"), ("time", "day"), ("day", "time")}
"""Pairs of different kinds of columns and constants that are compared exactly."""


class PredicateWords(Protocol[P]):
    """Makes predicates of a table format."""

    def literal(self, value: Any, type_: pa.DataType) -> Any | None:
        """Return a value of a column as the format holds it, or None if unsupported.

        Args:
            value: The value, in Python's form of the type; finite.
            type_: The type of the column.
        """

    def compared(self, name: str, function: str, value: Any) -> P:
        """Return the comparison of a column with a literal, by a comparison function of pyarrow."""

    def listed(self, name: str, values: Sequence[Any]) -> P | None:
        """Return a predicate for one of some literals, or None if there are too many."""

    def null(self, name: str, wanted: bool) -> P:
        """Return a predicate that is true if a column is null, or if it is not."""

    def joined(self, parts: Sequence[P], all_needed: bool) -> P:
        """Return a predicate that is true if all parts are, or if one of them is."""


@dataclass(slots=True)
class Translator(Generic[P]):
    """Translates filters over columns of given types."""

    words: PredicateWords[P]
    types: Mapping[str, pa.DataType]
    dropped: list[str] = field(default_factory=list)
    """Parts that are not in the predicate, as text for messages."""

    def predicate(self, expression: ds.Expression) -> P | None:
        """Return a predicate that is true wherever the expression is; None if impossible."""
        try:
            root = take_apart(expression)
        except NotTakenApart as error:
            self.dropped.append(f"{expression} ({error})")
            return None
        return self._rows(root, True)

    def _rows(self, node: Node, wanted: bool) -> P | None:
        """Return a predicate for the rows where the node is true, or where it is false."""
        while isinstance(node, FilterCall) and node.function == "invert":
            node, wanted = node.arguments[0], not wanted
        found = self._translated(node, wanted)
        if found is None:
            self.dropped.append(str(node) if wanted else f"not {node}")
        return found

    def _translated(self, node: Node, wanted: bool) -> P | None:
        """Return the predicate of a node that is not a negation."""
        match node:
            case FilterColumn((name,)):
                return self._comparison("equal", name, pa.scalar(wanted), True)
            case FilterCall("and" | "and_kleene" | "or" | "or_kleene" as function, parts):
                return self._joined(parts, wanted, function.startswith("and") == wanted)
            case FilterCall(function, (FilterColumn((name,)), Constant(value))) if (
                function in NEGATED
            ):
                return self._comparison(function, name, value, wanted)
            case FilterCall(function, (Constant(value), FilterColumn((name,)))) if (
                function in NEGATED
            ):
                return self._comparison(MIRRORED[function], name, value, wanted)
            case FilterCall(function, (FilterColumn((name,)),), options) if name in self.types:
                return self._test(function, name, dict(options.items()) if options else {}, wanted)
        return None

    def _joined(self, parts: Sequence[Node], wanted: bool, all_needed: bool) -> P | None:
        """Translate ``and`` and ``or``; with a part left out, only an ``and`` keeps enough rows."""
        before = len(self.dropped)
        found = [self._rows(part, wanted) for part in parts]
        known = [part for part in found if part is not None]
        if not known or (len(known) < len(found) and not all_needed):
            del self.dropped[before:]
            return None
        return self.words.joined(known, all_needed) if len(known) > 1 else known[0]

    def _comparison(self, function: str, name: str, value: pa.Scalar, wanted: bool) -> P | None:
        literal = self._literal(name, value)
        if literal is None:
            return None
        function = function if wanted else NEGATED[function]
        if pa.types.is_floating(self.types[name]) and (not wanted or function == "not_equal"):
            return None  # comparisons with NaN are false, and statistics do not show NaN
        return self.words.compared(name, function, literal)

    def _test(self, function: str, name: str, options: dict[str, Any], wanted: bool) -> P | None:
        """Translate tests for null and ``is_in``."""
        match function:
            case "is_null" if "nan_is_null" not in options or not options["nan_is_null"].as_py():
                return self.words.null(name, wanted)
            case "is_valid":
                return self.words.null(name, not wanted)
            case "is_in" if wanted and options["value_set"].values:
                literals = [self._literal(name, value) for value in options["value_set"].values]
                known = all(literal is not None for literal in literals)
                return self.words.listed(name, literals) if known else None
        return None

    def _literal(self, name: str, constant: pa.Scalar) -> Any | None:
        """Return a constant as a literal; None if the column or the format cannot hold it."""
        type_ = self.types.get(name)
        if type_ is None or not constant.is_valid or not _is_comparable(type_, constant.type):
            return None
        if pa.types.is_floating(constant.type) and not math.isfinite(constant.as_py()):
            return None
        try:
            if pa.types.is_decimal(type_):  # a cast of integers needs room for the largest one
                value = pa.scalar(Decimal(constant.as_py()), type_)
            else:
                value = pc.cast(constant, type_)
                if not pc.cast(value, constant.type).equals(constant):
                    return None
            return self.words.literal(value.as_py(), type_)
        except _NOT_HELD:
            return None


def pruning_predicate(
    words: PredicateWords[P], types: Mapping[str, pa.DataType], keep: ds.Expression
) -> P | None:
    """Return a predicate of a table format that is true for all rows that a filter keeps."""
    translator = Translator(words, types)
    predicate = translator.predicate(keep)
    logger.info("filters prune files by %.500s", predicate)
    for part in translator.dropped:
        logger.info("applied to rows only: %s", part)
    return predicate


def _is_comparable(column: pa.DataType, constant: pa.DataType) -> bool:
    """Return True if pyarrow compares the exact values of both types, where both can hold them."""
    kinds = _type_kind(column), _type_kind(constant)
    return kinds in _EXACT or (kinds[0] == kinds[1] and kinds[0] is not None)


def _type_kind(type_: pa.DataType) -> str | None:
    if pa.types.is_timestamp(type_):
        return "time" if type_.tz is None else "time with zone"
    return next(
        (kind for kind, tests in _TYPE_KINDS.items() if any(test(type_) for test in tests)), None
    )
