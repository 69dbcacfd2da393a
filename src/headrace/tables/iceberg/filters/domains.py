"""The values that an Iceberg column can have, and which of them lie next to a constant.

A constant need not be one of them (1.5 beside an int column, nanoseconds beside microseconds):
``below`` and ``above`` round it to the column's values, both to itself if it is one of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from pyiceberg.expressions.literals import (
    BinaryLiteral,
    DateLiteral,
    DecimalLiteral,
    DoubleLiteral,
    FixedLiteral,
    Literal,
    LongLiteral,
    StringLiteral,
    TimeLiteral,
    TimestampLiteral,
    UUIDLiteral,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from pyiceberg.utils.decimal import unscaled_to_decimal

__all__ = ["Domain", "Floats", "arrow_type_of", "domain_of"]

_DAY_S = 86_400
_FIRST_DAY_SAID, _LAST_DAY_SAID = -719_161, 2_932_895
"""the second day of the year 1 and the last but one of 9999: pyiceberg projects a time onto
partitions by ``datetime``, and steps one further"""


class Domain(Protocol):
    """Values are fractions, ±inf, texts or bytes; elements are what the column can hold of them."""

    def below(self, value: Any) -> Any | None:
        """The largest element that is not above the value."""

    def above(self, value: Any) -> Any | None:
        """The smallest element that is not below the value."""

    def literal(self, element: Any) -> Literal[Any] | None:
        """The element as pyiceberg has it, or None where it cannot deal with it."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Integer multiples of a unit: ints, decimals, dates and times."""

    unit: Fraction
    lowest: int
    highest: int
    make: Callable[[int], Literal[Any]]
    said: range | None = None
    """the elements that pyiceberg can be told; all if None"""

    def below(self, value: Fraction | float) -> int | None:
        if isinstance(value, float):
            return self.highest if value > 0 else None
        element = math.floor(value / self.unit)
        return None if element < self.lowest else min(element, self.highest)

    def above(self, value: Fraction | float) -> int | None:
        if isinstance(value, float):
            return self.lowest if value < 0 else None
        element = math.ceil(value / self.unit)
        return None if element > self.highest else max(element, self.lowest)

    def literal(self, element: int) -> Literal[Any] | None:
        if self.said is not None and element not in self.said:
            return None
        return self.make(element)


@dataclass(frozen=True, slots=True)
class Floats:
    """Floating-point numbers with both infinities; NaN has no place in an order."""

    dtype: type[np.floating[Any]]

    @property
    def largest(self) -> float:
        return float(np.finfo(self.dtype).max)

    def below(self, value: Fraction | float) -> float:
        near = self._near(value)
        return near if near <= value else float(np.nextafter(self.dtype(near), self.dtype("-inf")))

    def above(self, value: Fraction | float) -> float:
        near = self._near(value)
        return near if near >= value else float(np.nextafter(self.dtype(near), self.dtype("inf")))

    def _near(self, value: Fraction | float) -> float:
        number = float(value)
        if abs(number) > self.largest:
            return math.copysign(math.inf, number)
        # -0.0 and 0.0 are equal, and one of them is enough.
        return float(self.dtype(number)) + 0.0

    def literal(self, element: float) -> Literal[Any] | None:
        # pyiceberg takes an infinite literal of a float column for one beyond all its values.
        return None if math.isinf(element) else DoubleLiteral(element)


@dataclass(frozen=True, slots=True)
class Bytes:
    """Texts and byte strings, ordered by their bytes; each is an element."""

    make: Callable[[Any], Literal[Any]]
    width: int | None = None
    """the length of all, where it is fixed"""

    def below(self, value: Any) -> Any:
        return value

    def above(self, value: Any) -> Any:
        return value

    def literal(self, element: Any) -> Literal[Any] | None:
        return self.make(element) if self.width in (None, len(element)) else None


class NanosecondLiteral(LongLiteral):  # type: ignore[misc]
    """What pyiceberg has no literal for, though its statistics and partitions can be compared."""

    def to(self, type_var: IcebergType) -> Literal[Any]:
        if isinstance(type_var, TimestampNanoType | TimestamptzNanoType):
            return self
        converted: Literal[Any] = super().to(type_var)
        return converted


def _integers(bits: int) -> tuple[int, int]:
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def _instants(per_second: int, make: Callable[[int], Literal[Any]]) -> Steps:
    per_day = _DAY_S * per_second
    said = range(_FIRST_DAY_SAID * per_day, _LAST_DAY_SAID * per_day)
    return Steps(Fraction(1, per_second), *_integers(64), make, said)


def _decimals(precision: int, scale: int) -> Steps:
    highest = 10**precision - 1

    def make(unscaled: int) -> Literal[Any]:
        return DecimalLiteral(unscaled_to_decimal(unscaled, scale))

    return Steps(Fraction(1, 10**scale), -highest, highest, make)


def domain_of(iceberg_type: IcebergType) -> Domain | None:
    """None for types that have no order that pyiceberg knows, and for booleans."""
    match iceberg_type:
        case IntegerType():
            return Steps(Fraction(1), *_integers(32), LongLiteral)
        case LongType():
            return Steps(Fraction(1), *_integers(64), LongLiteral)
        case FloatType():
            return Floats(np.float32)
        case DoubleType():
            return Floats(np.float64)
        case DecimalType():
            return _decimals(iceberg_type.precision, iceberg_type.scale)
        case DateType():
            said = range(_FIRST_DAY_SAID, _LAST_DAY_SAID)
            return Steps(Fraction(_DAY_S), *_integers(32), DateLiteral, said)
        case TimeType():
            return Steps(Fraction(1, 10**6), 0, _DAY_S * 10**6 - 1, TimeLiteral)
        case TimestampType() | TimestamptzType():
            return _instants(10**6, TimestampLiteral)
        case TimestampNanoType() | TimestamptzNanoType():
            return _instants(10**9, NanosecondLiteral)
        case StringType():
            return Bytes(StringLiteral)
        case BinaryType():
            return Bytes(BinaryLiteral)
        case FixedType():
            return Bytes(FixedLiteral, len(iceberg_type))
        case UUIDType():
            return Bytes(UUIDLiteral, 16)
    return None


_PLAIN_TYPES: dict[type[IcebergType], pa.DataType] = {
    BooleanType: pa.bool_(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    FloatType: pa.float32(),
    DoubleType: pa.float64(),
    DateType: pa.date32(),
    TimeType: pa.time64("us"),
    TimestampType: pa.timestamp("us"),
    TimestamptzType: pa.timestamp("us", "UTC"),
    TimestampNanoType: pa.timestamp("ns"),
    TimestamptzNanoType: pa.timestamp("ns", "UTC"),
    StringType: pa.string(),
    BinaryType: pa.binary(),
    UUIDType: pa.binary(16),
}


def arrow_type_of(iceberg_type: IcebergType) -> pa.DataType | None:
    """The Arrow type that holds just the values of the Iceberg type; None for nested ones."""
    match iceberg_type:
        case DecimalType():
            return pa.decimal128(iceberg_type.precision, iceberg_type.scale)
        case FixedType():
            return pa.binary(len(iceberg_type))
    return _PLAIN_TYPES.get(type(iceberg_type))
