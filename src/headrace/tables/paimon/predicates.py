"""Predicates of pypaimon, by which a scan rules out partitions, buckets and files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pypaimon.common.predicate import Predicate
from pypaimon.common.predicate_builder import PredicateBuilder

__all__ = ["PaimonWords"]

_METHODS = {
    "equal": "equal",
    "not_equal": "not_equal",
    "less": "less_than",
    "less_equal": "less_or_equal",
    "greater": "greater_than",
    "greater_equal": "greater_or_equal",
}
_MOST_LISTED = 1000
_MOST_DIGITS = 28
"""of a decimal: those of the context in which pypaimon computes"""


@dataclass(frozen=True, slots=True)
class PaimonWords:
    """Makes predicates of pypaimon."""

    builder: PredicateBuilder

    def compared(self, name: str, function: str, value: pa.Scalar) -> Predicate | None:
        """Return a comparison of a column."""
        made = _literal(value)
        return None if made is None else getattr(self.builder, _METHODS[function])(name, made)

    def listed(self, name: str, values: Sequence[pa.Scalar]) -> Predicate | None:
        """Return where a column has one of some values."""
        literals = [made for made in map(_literal, values) if made is not None]
        if len(literals) < len(values) or len(literals) > _MOST_LISTED:
            return None
        return self.builder.is_in(name, literals)

    def null(self, name: str, wanted: bool) -> Predicate:
        """Return where a column is null, or where it is not."""
        return self.builder.is_null(name) if wanted else self.builder.is_not_null(name)

    def joined(self, parts: Sequence[Predicate], all_needed: bool) -> Predicate:
        """Return where all parts hold, or one of them."""
        join = self.builder.and_predicates if all_needed else self.builder.or_predicates
        return join(list(parts))


def _literal(value: pa.Scalar) -> Any | None:
    """Return a value as pypaimon has those of such a column; None if that is not sure."""
    types, type_ = pa.types, value.type
    if types.is_decimal128(type_):
        exact = value.as_py()
        return exact if len(exact.as_tuple().digits) <= _MOST_DIGITS else None
    is_known = types.is_string(type_) or types.is_integer(type_) or types.is_floating(type_)
    is_day = types.is_date32(type_)
    is_time = types.is_timestamp(type_) and type_.tz is None and type_.unit != "ns"
    if not (is_known or is_day or is_time):
        return None
    try:
        return value.as_py()
    except (OverflowError, ValueError):  # a time that Python has no object for
        return None
