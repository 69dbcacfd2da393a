"""The option ``nulls=``: values that replace nulls. Without it, a null is an error."""

from __future__ import annotations

import math
import numbers
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from headrace.convert.arrays import Dense, storage_type
from headrace.errors import ConversionError, OptionError, SchemaError, near_names


class _Refuse(Enum):
    """Marks the absence of a fill value; None cannot, because it may be a fill value."""

    REFUSE = "no fill value"


REFUSE: Final = _Refuse.REFUSE


@dataclass(frozen=True, slots=True)
class Remedy:
    """The treatment of nulls in one column.

    Attributes:
        mask: True if a boolean companion marks the nulls.
        fill: The user's value for the nulls.
    """

    mask: bool = False
    fill: Any = REFUSE


@dataclass(frozen=True, slots=True)
class Remedies:
    """The option ``nulls``: ``"mask"`` for all columns, or a remedy by (dotted) name."""

    everywhere: bool
    by_name: Mapping[str, Any]

    @classmethod
    def parse(cls, nulls: object, schema: pa.Schema) -> Remedies:
        """Check the option against the names of all columns and fields of structs."""
        if nulls is None or nulls == "mask":
            return cls(nulls == "mask", {})
        if not isinstance(nulls, Mapping):
            raise OptionError(
                f'nulls must be "mask" or a mapping of column names to a fill value or "mask", '
                f"not {nulls!r}"
            )
        known = Counter(field_paths(schema))
        for name in nulls:
            if known[name] == 0:
                hint = near_names(str(name), known)
                raise SchemaError(f"nulls names the column {name!r}, which is not read; {hint}")
            if known[name] > 1:
                raise SchemaError(
                    f"nulls names {name!r}, which is both a column and a field of a struct; "
                    "leave one of them out of columns="
                )
        return cls(False, dict(nulls))

    def of(self, path: str, nullable: bool, above: Remedy) -> Remedy:
        """Return the remedy for a column or field; fields share the mask of their struct."""
        if path not in self.by_name:
            return Remedy(mask=(self.everywhere and nullable) or above.mask)
        chosen = self.by_name[path]
        if isinstance(chosen, str) and chosen == "mask":
            return Remedy(mask=True)
        return Remedy(fill=chosen)


def field_paths(fields: Iterable[pa.Field], above: str = "") -> Iterator[str]:
    """Yield the dotted names of all columns and of the fields of structs."""
    for field in fields:
        path = above + field.name
        yield path
        type_ = storage_type(field.type)
        if pt.is_struct(type_):
            yield from field_paths(type_, path + ".")


def dense_fill(remedy: Remedy, dense: Dense, path: str) -> Any:
    """Return the number for null values of a column of numbers; REFUSE if there is none."""
    if remedy.fill is not REFUSE:
        number = _number(remedy.fill, dense)
        if number is None:
            raise OptionError(
                f"nulls={{{path!r}: {remedy.fill!r}}}: the column has the type {dense.leaf} and "
                f"becomes {dense.dtype}, which cannot hold this value"
            )
        return number
    if dense.dtype.kind == "f":
        return math.nan
    return np.zeros((), dense.dtype)[()] if remedy.mask else REFUSE


def _number(value: Any, dense: Dense) -> Any:
    """Return a fill value as the column holds it; None if it cannot."""
    kind = dense.dtype.kind
    if isinstance(value, bool | np.bool_):
        return bool(value) if kind == "b" else None
    if kind == "f" and isinstance(value, numbers.Real | Decimal):
        return float(value)
    if kind in "iu" and isinstance(value, numbers.Integral):
        limits = np.iinfo(dense.dtype)
        if limits.min <= int(value) <= limits.max:
            return int(value)
    if not pt.is_temporal(dense.leaf):
        return None
    # A date, time or duration, given as an object or as a number of the column's units.
    integer = pa.int32() if dense.leaf.bit_width == 32 else pa.int64()
    try:
        stored = pa.scalar(value, dense.leaf).cast(integer).as_py()
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        return None
    return None if stored is None else np.array(stored, np.int64).view(dense.dtype)[()]


def object_fill(remedy: Remedy, empty: Any, type_: pa.DataType, path: str) -> Any:
    """Return the value for null rows of a column of objects; with a mask it is ``empty``."""
    if remedy.fill is REFUSE:
        return empty if remedy.mask else REFUSE
    if remedy.fill is None or isinstance(remedy.fill, type(empty)):
        return remedy.fill
    raise OptionError(
        f"nulls={{{path!r}: {remedy.fill!r}}}: the column has the type {type_}; its fill value "
        f"is None or a {type(empty).__name__}"
    )


def null_error(
    path: str, type_: pa.DataType, count: int, rows: int, example: Any
) -> ConversionError:
    """Return the error of a column with nulls and no remedy.

    Args:
        path: The dotted name of the column.
        type_: Its type.
        count: Number of null values.
        rows: Number of rows that were converted.
        example: A fill value that would fit.
    """
    return ConversionError(
        f"column {path!r} ({type_}) holds {count} null values in {rows} rows, and there is no "
        f"place for them. Fill them: nulls={{{path!r}: {example!r}}}; mark them in a boolean "
        f'{path + "_mask"!r}: nulls={{{path!r}: "mask"}} (or nulls="mask" for all columns); keep '
        f"only other rows with a filter on is_valid; or leave the column out of columns="
    )
