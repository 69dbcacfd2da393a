"""What pyarrow compares when it compares a column of one type with constants of another."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Constants", "compared_value", "is_lossless", "listed_values", "plain", "same_kind"]

Kind = Literal["boolean", "number", "civil", "instant", "time", "string", "binary"]

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_FAILED_CAST = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)
_FLOAT_WIDTHS = {16: 11, 32: 24, 64: 53}
"""bits of a float type, and the integers of so many bits that it holds"""


@dataclass(frozen=True, slots=True)
class Constants:
    """The members of a list, as exact values."""

    values: list[Any]
    has_null: bool
    has_nan: bool


def plain(arrow_type: pa.DataType) -> pa.DataType:
    """The type of the values behind a dictionary or an extension."""
    while True:
        if isinstance(arrow_type, pa.BaseExtensionType):
            arrow_type = arrow_type.storage_type
        elif isinstance(arrow_type, pa.DictionaryType):
            arrow_type = arrow_type.value_type
        else:
            return arrow_type


def same_kind(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether the values of both types lie on one scale. A date is a time without a zone."""
    kind = _kind(one)
    return kind is not None and kind == _kind(other)


def _kind(arrow_type: pa.DataType) -> Kind | None:
    types = pa.types
    if types.is_boolean(arrow_type):
        return "boolean"
    if _is_number(arrow_type):
        return "number"
    if types.is_timestamp(arrow_type):
        return "civil" if arrow_type.tz is None else "instant"
    if types.is_date(arrow_type):
        return "civil"
    if types.is_time(arrow_type):
        return "time"
    if _is_one_of(arrow_type, "is_string", "is_large_string", "is_string_view"):
        return "string"
    if _is_one_of(
        arrow_type, "is_binary", "is_large_binary", "is_binary_view", "is_fixed_size_binary"
    ):
        return "binary"
    return None


def _is_one_of(arrow_type: pa.DataType, *tests: str) -> bool:
    return any(getattr(pa.types, test)(arrow_type) for test in tests)


def _is_number(arrow_type: pa.DataType) -> bool:
    return _is_one_of(arrow_type, "is_integer", "is_floating", "is_decimal")


def _is_float(arrow_type: pa.DataType) -> bool:
    return _is_one_of(arrow_type, "is_floating")


def is_lossless(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a safe cast leaves all values, and so all comparisons, as they are (or raises)."""
    if source.equals(target):
        return True
    if not same_kind(source, target):
        return False
    if _is_number(source):
        return _is_lossless_number(source, target)
    return _ticks_per_day(source) <= _ticks_per_day(target)


def _is_lossless_number(source: pa.DataType, target: pa.DataType) -> bool:
    types = pa.types
    if types.is_integer(source):
        if types.is_integer(target):
            same_sign = types.is_signed_integer(source) == types.is_signed_integer(target)
            return bool(same_sign and source.bit_width <= target.bit_width)
        return _is_float(target) and bool(source.bit_width <= _FLOAT_WIDTHS[target.bit_width])
    if _is_float(source):
        return _is_float(target) and bool(source.bit_width <= target.bit_width)
    more_scale = target.scale - source.scale if types.is_decimal(target) else -1
    return bool(0 <= more_scale <= target.precision - source.precision)


def _ticks_per_day(arrow_type: pa.DataType) -> int:
    if pa.types.is_date64(arrow_type):
        return 86_400_000
    unit = getattr(arrow_type, "unit", None)
    return 1 if unit is None or pa.types.is_date(arrow_type) else 86_400 * _PER_SECOND[unit]


def compared_value(column_type: pa.DataType, constant: pa.Scalar) -> Any | None:
    """The exact value that a column of this type is compared with; None if they do not compare.

    pyarrow casts one or both to a type that has room for both, and raises where a value has
    none. Only numbers beside a float column may change by that.
    """
    if not same_kind(column_type, constant.type):
        return None
    if pa.types.is_floating(column_type):
        try:
            constant = pc.cast(constant, pa.float64())
        except _FAILED_CAST:
            return None
    return _exact(constant)


def listed_values(column_type: pa.DataType, members: pa.Array) -> Constants | None:
    """The exact values that ``isin`` looks a column of this type up in.

    pyarrow casts the list to the type of the column, and where that fails the column to the type
    of the list.
    """
    if isinstance(members, pa.DictionaryArray):
        members = members.dictionary_decode()
    if isinstance(members, pa.ExtensionArray):
        members = members.storage
    try:
        members = members.cast(column_type)
    except _FAILED_CAST:
        if not same_kind(column_type, members.type) or _rounds(column_type, members.type):
            return None
    values = [_exact(member) for member in members if member.is_valid]
    numbers = [value for value in values if not _is_nan(value)]
    return Constants(numbers, members.null_count > 0, len(numbers) < len(values))


def _rounds(column_type: pa.DataType, list_type: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(column_type)) and _is_float(list_type)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _exact(scalar: pa.Scalar) -> Any:
    """Numbers and times (in seconds) as fractions, save for NaN and the infinities."""
    arrow_type = scalar.type
    types = pa.types
    if types.is_date32(arrow_type):
        return Fraction(scalar.value * 86_400)
    if types.is_date64(arrow_type):
        return Fraction(scalar.value, 1000)
    if types.is_timestamp(arrow_type) or types.is_time(arrow_type):
        return Fraction(scalar.value, _PER_SECOND[arrow_type.unit])
    value = scalar.as_py()
    if types.is_floating(arrow_type):
        value = float(value)
        return Fraction(value) if math.isfinite(value) else value
    return Fraction(value) if _is_number(arrow_type) else value
