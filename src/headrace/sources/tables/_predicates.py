"""Filters in the words of a table format, to prune partitions and files.

A predicate holds for every row that the filter keeps, and may hold for more: the filter itself is
applied to the rows afterwards. Comparisons with constants, ``isin`` and tests for null of top-level
columns are translated, joined by ``&``, ``|`` and ``~``. Anything else is left out of an ``&`` and
makes an ``|`` untranslatable, so that the set of rows only grows.

A row is kept if the filter is true; null is not. So each part is asked for one of two sets, the
rows where it is true and those where it is false, and ``~`` only turns the question round.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
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

__all__ = ["PredicateWords", "Translator", "pruning_predicate"]

logger = logging.getLogger(__name__)

P = TypeVar("P")

_FAILED_CAST = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)


class PredicateWords(Protocol[P]):
    """Predicates of a table format. Constants are valid, finite and of the type of the column."""

    def compared(self, name: str, function: str, value: pa.Scalar) -> P | None:
        """Return where a column compares so (by a function of pyarrow), or None if unsupported."""

    def listed(self, name: str, values: Sequence[pa.Scalar]) -> P | None:
        """Return where a column has one of some values, or None if unsupported."""

    def null(self, name: str, wanted: bool) -> P:
        """Return where a column is null, or where it is not."""

    def joined(self, parts: Sequence[P], all_needed: bool) -> P:
        """Return where all of the parts hold, or where one of them does."""


@dataclass(slots=True)
class Translator(Generic[P]):
    """Translates filters over columns that are given with their types."""

    words: PredicateWords[P]
    types: Mapping[str, pa.DataType]
    dropped: list[str] = field(default_factory=list)
    """the parts that are not in the predicate, for people to read"""

    def predicate(self, expression: ds.Expression) -> P | None:
        """Return a predicate that holds wherever the expression does; None if there is none."""
        try:
            root = take_apart(expression)
        except NotTakenApart as error:
            self.dropped.append(f"{expression} ({error})")
            return None
        return self._rows(root, True)

    def _rows(self, node: Node, wanted: bool) -> P | None:
        """Return where the node is true, or where it is false."""
        while isinstance(node, FilterCall) and node.function == "invert":
            node, wanted = node.arguments[0], not wanted
        found = self._translated(node, wanted)
        if found is None:
            self.dropped.append(str(node) if wanted else f"not {node}")
        return found

    def _translated(self, node: Node, wanted: bool) -> P | None:
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
        before = len(self.dropped)
        found = [self._rows(part, wanted) for part in parts]
        known = [part for part in found if part is not None]
        if not known or (len(known) < len(found) and not all_needed):
            del self.dropped[before:]
            return None
        return self.words.joined(known, all_needed) if len(known) > 1 else known[0]

    def _comparison(self, function: str, name: str, value: pa.Scalar, wanted: bool) -> P | None:
        exact = self._exact(name, value)
        if exact is None:
            return None
        function = function if wanted else NEGATED[function]
        if pa.types.is_floating(exact.type) and (not wanted or function == "not_equal"):
            return None  # NaN is where comparisons are false, and statistics do not tell of it
        return self.words.compared(name, function, exact)

    def _test(self, function: str, name: str, options: dict[str, Any], wanted: bool) -> P | None:
        match function:
            case "is_null" if "nan_is_null" not in options or not options["nan_is_null"].as_py():
                return self.words.null(name, wanted)
            case "is_valid":
                return self.words.null(name, not wanted)
            case "is_in" if wanted and options["value_set"].values:
                values = [self._exact(name, value) for value in options["value_set"].values]
                known = [value for value in values if value is not None]
                return self.words.listed(name, known) if len(known) == len(values) else None
        return None

    def _exact(self, name: str, constant: pa.Scalar) -> pa.Scalar | None:
        """Return a constant as a value of the column; None if the column cannot hold it."""
        type_ = self.types.get(name)
        if type_ is None or not constant.is_valid or not _is_comparable(type_, constant.type):
            return None
        if pa.types.is_floating(constant.type) and not math.isfinite(constant.as_py()):
            return None
        try:
            if pa.types.is_decimal(type_):  # a cast of integers wants room for the largest one
                return pa.scalar(Decimal(constant.as_py()), type_)
            value = pc.cast(constant, type_)
            same = pc.cast(value, constant.type).equals(constant)
        except _FAILED_CAST:
            return None
        return value if same else None


def pruning_predicate(
    words: PredicateWords[P], types: Mapping[str, pa.DataType], keep: ds.Expression
) -> P | None:
    """Return a predicate of a table format that holds for all rows that a filter keeps."""
    translator = Translator(words, types)
    predicate = translator.predicate(keep)
    logger.info("filters prune files by %.500s", predicate)
    for part in translator.dropped:
        logger.info("applied to rows only: %s", part)
    return predicate


def _is_comparable(column: pa.DataType, constant: pa.DataType) -> bool:
    """Return True if pyarrow compares the exact values of both types, where both can hold them."""
    types = pa.types
    if types.is_floating(column) or types.is_decimal(column):
        own = types.is_floating if types.is_floating(column) else types.is_decimal
        return bool(own(constant) or types.is_integer(constant))
    if types.is_timestamp(column) and types.is_timestamp(constant):
        return (column.tz is None) == (constant.tz is None)
    if types.is_timestamp(column):
        return column.tz is None and bool(types.is_date(constant))
    if types.is_date(column) and types.is_timestamp(constant):
        return constant.tz is None
    kinds = (types.is_integer, types.is_boolean, types.is_date, types.is_time, _is_text, _is_bytes)
    return any(kind(column) and kind(constant) for kind in kinds)


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def _is_bytes(type_: pa.DataType) -> bool:
    types = pa.types
    return any(
        test(type_) for test in (types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
    )
