"""From the fields of a schema to the columns they become: decided once, applied to every block.

``nulls=`` says what stands where a value is null; without it, a null is an error."""

from __future__ import annotations

import difflib
import math
import numbers
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
import torch

from headrace.convert.arrays import Dense, dense_cells, dense_values, null_mask, storage, writable
from headrace.convert.columns import (
    ArrayColumn,
    Column,
    ObjectColumn,
    RaggedColumn,
    StructColumn,
    TensorColumn,
)
from headrace.errors import ConversionError, OptionError, SchemaError

__all__ = [
    "REFUSE",
    "Builder",
    "DenseBuilder",
    "ObjectBuilder",
    "RaggedBuilder",
    "Remedies",
    "Remedy",
    "StructBuilder",
    "dense_fill",
    "null_error",
    "object_fill",
    "rebuild",
]


class _Refuse:
    """The absence of a fill value, which None is not: None can be one."""

    def __repr__(self) -> str:
        return "REFUSE"

    def __reduce__(self) -> str:
        return "REFUSE"


REFUSE: Final = _Refuse()


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to do with nulls of one column."""

    mask: bool = False
    """a boolean companion tells where they are"""
    fill: Any = REFUSE
    """the user's value for them"""


@dataclass(frozen=True, slots=True)
class Remedies:
    """The ``nulls`` option: ``"mask"`` for all columns, or a remedy by (dotted) name."""

    everywhere: bool
    by_name: Mapping[str, Any]

    @classmethod
    def parse(cls, nulls: object, paths: Iterable[str]) -> Remedies:
        """Check the option against the names of all columns and fields of structs."""
        if nulls is None or nulls == "mask":
            return cls(nulls == "mask", {})
        if not isinstance(nulls, Mapping):
            raise OptionError(
                f'nulls must be "mask" or a mapping of column names to a fill value or "mask", '
                f"not {nulls!r}"
            )
        known = Counter(paths)
        for name in nulls:
            if known[name] == 0:
                near = difflib.get_close_matches(str(name), known, n=3)
                hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "no such column"
                raise SchemaError(f"nulls names the column {name!r}, which is not read; {hint}")
            if known[name] > 1:
                raise SchemaError(
                    f"nulls names {name!r}, which is both a column and a field of a struct; "
                    "leave one of them out of columns="
                )
        return cls(False, dict(nulls))

    def of(self, path: str, nullable: bool, above: Remedy) -> Remedy:
        """The remedy for a column or field; a struct's mask goes for its fields, too."""
        if path not in self.by_name:
            return Remedy(mask=(self.everywhere and nullable) or above.mask)
        chosen = self.by_name[path]
        if isinstance(chosen, str) and chosen == "mask":
            return Remedy(mask=True)
        return Remedy(fill=chosen)


def dense_fill(remedy: Remedy, dense: Dense, path: str) -> Any:
    """The number for null values of a column of numbers; REFUSE when there is none."""
    if remedy.fill is not REFUSE:
        return _number(remedy.fill, dense, path)
    if dense.dtype.kind == "f":
        return math.nan
    return np.zeros((), dense.dtype)[()] if remedy.mask else REFUSE


def _number(value: Any, dense: Dense, path: str) -> Any:
    kind = dense.dtype.kind
    if kind == "b" and isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, bool | np.bool_):
        raise _unfit(value, path, dense)
    if kind == "f" and isinstance(value, numbers.Real | Decimal):
        return float(value)
    if kind in "iu" and isinstance(value, numbers.Integral):
        limits = np.iinfo(dense.dtype)
        if limits.min <= int(value) <= limits.max:
            return int(value)
    if pt.is_temporal(dense.leaf):
        return _moment(value, dense, path)
    raise _unfit(value, path, dense)


def _moment(value: Any, dense: Dense, path: str) -> Any:
    """A date, time or duration, given as such or as a number of the column's units."""
    try:
        stored = pa.scalar(value, dense.leaf).cast(_integer_of(dense.leaf)).as_py()
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
        stored = None
    if stored is None:
        raise _unfit(value, path, dense)
    return np.array(stored, np.int64).view(dense.dtype)[()]


def _integer_of(type_: pa.DataType) -> pa.DataType:
    return pa.int32() if type_.bit_width == 32 else pa.int64()


def _unfit(value: Any, path: str, dense: Dense) -> OptionError:
    return OptionError(
        f"nulls={{{path!r}: {value!r}}}: the column has the type {dense.leaf} and becomes "
        f"{dense.dtype}, which cannot hold this value"
    )


def object_fill(remedy: Remedy, empty: Any, type_: pa.DataType, path: str) -> Any:
    """The Python value for null rows of a column of objects; ``empty`` stands beside a mask."""
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
    """For a column with nulls and no remedy; ``example`` is a fill value that would fit."""
    return ConversionError(
        f"column {path!r} ({type_}) holds {count} null values in {rows} rows, and there is no "
        f"place for them. Fill them: nulls={{{path!r}: {example!r}}}; mark them in a boolean "
        f'{path + "_mask"!r}: nulls={{{path!r}: "mask"}} (or nulls="mask" for all columns); keep '
        f"only other rows with a filter on is_valid; or leave the column out of columns="
    )


Mask = npt.NDArray[np.bool_]

_BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)


class Builder(Protocol):
    """Makes the columns of one field."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys under which the columns stand in a batch."""
        ...

    def build(self, array: pa.Array) -> list[Column]:
        """One column for each key; any thread may call this."""
        ...


@dataclass(frozen=True, slots=True)
class DenseBuilder:
    """Numbers, or lists of numbers of one shape."""

    path: str
    keys: tuple[str, ...]
    """the field, and its mask where it has one"""
    dense: Dense
    fill: Any
    for_torch: bool

    def build(self, array: pa.Array) -> list[Column]:
        values, nulls = dense_values(array, self.dense, self.path)
        if nulls is not None and nulls.any():
            values = _filled(values, nulls, self.fill, self.path, self.dense, len(array))
        return self._columns(values, nulls)

    @property
    def takes_cells(self) -> bool:
        """Whether it builds from the bytes of each row, equally many, where none is null."""
        return self.dense.cast is None

    def of_cells(self, cells: npt.NDArray[Any]) -> list[Column]:
        """What is built of the rows that have these bytes."""
        return self._columns(dense_cells(cells, self.dense, self.path), None)

    def _columns(self, values: npt.NDArray[Any], nulls: Mask | None) -> list[Column]:
        if len(self.keys) == 1:
            return [dense_column(values, self.for_torch)]
        mask = np.zeros(values.shape, np.bool_) if nulls is None else nulls
        return [dense_column(values, self.for_torch), dense_column(mask, self.for_torch)]


@dataclass(frozen=True, slots=True)
class RaggedBuilder:
    """Lists of any length of numbers, or of lists of numbers of one shape."""

    path: str
    keys: tuple[str, ...]
    """the field, its lengths where it is padded, and its mask where it has one"""
    type_: pa.DataType
    dense: Dense
    """of the elements"""
    fill: Any
    """for null elements"""
    empty_rows: bool
    """whether null rows become empty ones"""
    form: str
    for_torch: bool

    def build(self, array: pa.Array) -> list[Column]:
        array = storage(array)
        if array.null_count and not self.empty_rows:
            raise null_error(self.path, self.type_, array.null_count, len(array), [])
        lengths = pc.list_value_length(array).fill_null(0).cast(pa.int64())
        counts = lengths.to_numpy().copy()
        column = RaggedColumn.of(self._elements(array), counts, self.form)
        companions = {f"{self.keys[0]}_length": counts}
        if self.keys[-1] == f"{self.keys[0]}_mask":
            nulls = null_mask(array)
            companions[self.keys[-1]] = np.zeros(len(array), np.bool_) if nulls is None else nulls
        return [column, *(dense_column(companions[k], self.for_torch) for k in self.keys[1:])]

    def _elements(self, array: pa.Array) -> TensorColumn | ArrayColumn:
        elements = array.flatten()  # leaves out what null rows hide
        values, nulls = dense_values(elements, self.dense, self.path)
        if nulls is not None and nulls.any():
            values = _filled(values, nulls, self.fill, self.path, self.dense, len(array))
        return dense_column(values, self.for_torch)


@dataclass(frozen=True, slots=True)
class ObjectBuilder:
    """Strings, bytes, maps and lists of such: Python objects in the batch."""

    path: str
    keys: tuple[str, ...]
    type_: pa.DataType
    """of the rows, without dictionaries at any depth"""
    fill: Any
    example: Any
    """a fill value that would fit, for messages"""
    for_torch: bool

    def build(self, array: pa.Array) -> list[Column]:
        array = storage(array)
        if array.type != self.type_:
            array = array.cast(self.type_)
        nulls = null_mask(array)
        if nulls is not None and self.fill is REFUSE:
            raise null_error(self.path, self.type_, array.null_count, len(array), self.example)
        fill = None if self.fill is REFUSE else self.fill
        return self._columns(ObjectColumn.of(array, fill, not self.for_torch), len(array), nulls)

    @property
    def takes_cells(self) -> bool:
        """Whether it builds from the bytes of each row, equally many, where none is null."""
        return any(is_bytes(self.type_) for is_bytes in _BYTES)

    def of_cells(self, cells: npt.NDArray[Any]) -> list[Column]:
        """What is built of the rows that have these bytes."""
        return self._columns(ObjectColumn(cells, None, not self.for_torch), len(cells), None)

    def _columns(self, values: Column, rows: int, nulls: Mask | None) -> list[Column]:
        if len(self.keys) == 1:
            return [values]
        mask = np.zeros(rows, np.bool_) if nulls is None else nulls
        return [values, dense_column(mask, self.for_torch)]


@dataclass(frozen=True, slots=True)
class StructBuilder:
    """A dict of the fields; a null struct makes its fields null."""

    keys: tuple[str, ...]
    fields: tuple[Builder, ...]
    for_torch: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The keys of the inner dict."""
        return tuple(key for field in self.fields for key in field.keys)

    def build(self, array: pa.Array) -> list[Column]:
        array = storage(array)
        parts = zip(self.fields, _fields_of(array), strict=True)
        inner = tuple(column for field, part in parts for column in field.build(part))
        columns: list[Column] = [StructColumn(self.names, inner, len(array))]
        if len(self.keys) > 1:
            nulls = null_mask(array)
            mask = np.zeros(len(array), np.bool_) if nulls is None else nulls
            columns.append(dense_column(mask, self.for_torch))
        return columns


def _fields_of(array: pa.StructArray) -> list[pa.Array]:
    """The fields, null where the struct is.

    Run-ends have no place for such nulls and are decoded before they come in; dictionaries only
    after that, because the codes that a null struct hides may point nowhere.
    """
    fields = [array.field(i) for i in range(array.type.num_fields)]
    if not fields or array.null_count == 0:
        return fields
    decoded = [storage(f) if pa.types.is_run_end_encoded(f.type) else f for f in fields]
    names = [str(i) for i in range(len(fields))]
    parts: list[pa.Array] = pa.StructArray.from_arrays(
        decoded, names, mask=array.is_null()
    ).flatten()
    return parts


def dense_column(values: npt.NDArray[Any], for_torch: bool) -> TensorColumn | ArrayColumn:
    """A column over an array, which it may write to."""
    values = writable(values)
    return TensorColumn(torch.from_numpy(values)) if for_torch else ArrayColumn(values)


def rebuild(
    builders: Sequence[Builder], arrays: Iterator[npt.NDArray[Any]], num_rows: int
) -> list[Column]:
    """Columns over arrays that came from ``Column.arrays``, in the same order."""
    columns: list[Column] = []
    for builder in builders:
        companions = builder.keys
        if isinstance(builder, StructBuilder):
            inner = tuple(rebuild(builder.fields, arrays, num_rows))
            columns.append(StructColumn(builder.names, inner, num_rows))
            companions = builder.keys[1:]
        elif not isinstance(builder, DenseBuilder):
            raise OptionError(f"column {builder.keys[0]!r} does not consist of arrays of rows")
        columns.extend(dense_column(next(arrays), builder.for_torch) for _ in companions)
    return columns


def _filled(
    values: npt.NDArray[Any], nulls: Mask, fill: Any, path: str, dense: Dense, rows: int
) -> npt.NDArray[Any]:
    if fill is REFUSE:
        count = int(np.count_nonzero(nulls))
        example = False if dense.dtype.kind == "b" else 0
        raise null_error(path, dense.leaf, count, rows, example)
    filled = values.copy()  # Arrow's memory stays as it was read
    filled[nulls] = fill
    return filled
