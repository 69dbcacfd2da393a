"""Whether values that were made anew can keep the type of the column whose place they take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from headrace.convert.arrays import storage_type

__all__ = ["CANNOT", "of_type"]

CANNOT = (pa.ArrowInvalid, pa.ArrowTypeError, NotImplementedError, OverflowError)
"""what Arrow raises where it has no type for values, or a type no place for them"""

_KINDS = (
    pt.is_boolean,
    pt.is_integer,
    pt.is_floating,
    pt.is_decimal,
    pt.is_date,
    pt.is_time,
    pt.is_duration,
    lambda type_: pt.is_string(type_) or pt.is_large_string(type_) or pt.is_string_view(type_),
    lambda type_: (
        pt.is_binary(type_)
        or pt.is_large_binary(type_)
        or pt.is_binary_view(type_)
        or pt.is_fixed_size_binary(type_)
    ),
)


def of_type(values: Any, inferred: pa.Array | None, type_: pa.DataType) -> pa.Array | None:
    """The values in a type, if nothing of them is lost and they are of its kind.

    ``inferred``: what Arrow makes of them by itself, if it can.
    """
    if inferred is not None and inferred.type == type_:
        return inferred
    try:
        if inferred is not None and (_is_wide(values) or isinstance(type_, pa.BaseExtensionType)):
            made = inferred.cast(type_)
        else:
            made = pa.array(values, type_)
    except CANNOT:
        return None
    if inferred is None or _has_map(type_):
        return made if _reads_as(made, values) else None
    known = _completed(inferred.type, type_)
    return made if known is not None and _is_same(made, inferred, known) else None


def _is_wide(values: Any) -> bool:
    return isinstance(values, np.ndarray) and values.ndim > 1


def _reads_as(made: pa.Array, values: Any) -> bool:
    try:
        return bool(made.to_pylist() == list(values))
    except ValueError:  # arrays among them
        return False


def _completed(new: pa.DataType, old: pa.DataType) -> pa.DataType | None:
    """A type that values suggest, with the old one where all are null; None: of another kind."""
    old = storage_type(old)
    if pt.is_null(new) or new == old:
        return old
    new = storage_type(new)
    if _is_list(new) and _is_list(old):
        inner = _completed(new.value_type, old.value_type)
        return None if inner is None else pa.large_list(inner)
    if pt.is_struct(new) and pt.is_struct(old):
        return _completed_struct(new, old)
    if pt.is_timestamp(new) and pt.is_timestamp(old):
        return new if new.tz == old.tz else None
    return new if any(is_kind(new) and is_kind(old) for is_kind in _KINDS) else None


def _completed_struct(new: pa.StructType, old: pa.StructType) -> pa.DataType | None:
    if [field.name for field in new] != [field.name for field in old]:
        return None
    inner = [_completed(a.type, b.type) for a, b in zip(new, old, strict=True)]
    if any(type_ is None for type_ in inner):
        return None
    return pa.struct([pa.field(a.name, type_) for a, type_ in zip(new, inner, strict=True)])


def _is_list(type_: pa.DataType) -> bool:
    return bool(pt.is_list(type_) or pt.is_large_list(type_) or pt.is_fixed_size_list(type_))


def _has_map(type_: pa.DataType) -> bool:
    """Whether there are maps, whose values are tuples, for which Arrow has no type."""
    type_ = storage_type(type_)
    inside = (type_.field(number).type for number in range(type_.num_fields))
    return bool(pt.is_map(type_)) or any(map(_has_map, inside))


def _is_same(made: pa.Array, inferred: pa.Array, known: pa.DataType) -> bool:
    try:
        one, other = made.cast(known), inferred.cast(known)
    except CANNOT:
        return bool(made.to_pylist() == inferred.to_pylist())
    while _is_list(one.type) and one.is_null().equals(other.is_null()):
        if not one.value_lengths().equals(other.value_lengths()):
            return False
        one, other = one.flatten(), other.flatten()
    if pt.is_floating(one.type):  # in which Arrow holds no NaN for the same as another
        return np.array_equal(
            one.to_numpy(zero_copy_only=False),
            other.to_numpy(zero_copy_only=False),
            equal_nan=True,
        )
    return bool(one.equals(other))
