"""The columns of a Paimon table, as ids, names and Arrow types, and predicates over them."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pypaimon.common.predicate import Predicate
from pypaimon.common.predicate_builder import PredicateBuilder
from pypaimon.schema.data_types import (
    ArrayType,
    AtomicType,
    DataField,
    DataType,
    MapType,
    PyarrowFieldParser,
    RowType,
    VectorType,
    is_blob_file_type,
)

from headrace.errors import OptionError, near_names
from headrace.sources.tables._columns import NameMapping, TableColumn, unknown_type

VALUE_KIND = TableColumn(-2, "_VALUE_KIND", pa.int8())
"""Column in files of tables with a key that says if a row is added or removes another row."""

_INSIDE = -1
"""Id given to the fields inside lists and maps, which have no id."""
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
"""Largest number of digits of a decimal with which pypaimon computes."""
_UNFIT = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError)
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())


def table_columns(
    fields: Sequence[DataField], wanted: Collection[str] | None
) -> dict[str, TableColumn]:
    """Return columns by name, in the order of the table; unwanted ones may have unknown types."""
    columns: dict[str, TableColumn] = {}
    for field in fields:
        try:
            columns[field.name] = _table_column(field.id, field.name, field.type)
        except ValueError:
            if wanted is None or field.name in wanted:
                raise unknown_type(field.name, field.type) from None
    return columns


def _table_column(id_: int, name: str, type_: DataType) -> TableColumn:
    if isinstance(type_, RowType):
        children = tuple(_table_column(one.id, one.name, one.type) for one in type_.fields)
        arrow = pa.struct([pa.field(child.name, child.type) for child in children])
    elif isinstance(type_, ArrayType):
        children = (_table_column(_INSIDE, "element", type_.element),)
        arrow = pa.list_(children[0].type)
    elif isinstance(type_, MapType):
        children = (
            _table_column(_INSIDE, "key", type_.key),
            _table_column(_INSIDE, "value", type_.value),
        )
        arrow = pa.map_(children[0].type, children[1].type)
    elif is_variant(type_):
        children = ()
        arrow = pa.struct([("value", pa.binary()), ("metadata", pa.binary())])
    else:
        children = ()
        arrow = PyarrowFieldParser.from_paimon_type(type_)
    return TableColumn(id_, name, arrow, children)


def is_variant(type_: DataType) -> bool:
    """Return True if values may be stored in parts."""
    return isinstance(type_, AtomicType) and type_.type.upper() == "VARIANT"


def is_blob(type_: DataType) -> bool:
    """Return True if values are stored in separate files."""
    return bool(is_blob_file_type(type_))


def name_mapping(fields: Sequence[DataField], *, without: Collection[str]) -> NameMapping:
    """Return the ids of the columns in files that were written in a schema.

    Columns by which the table is partitioned are left out, because their values in files are
    ignored.
    """
    columns = [one for name, one in table_columns(fields, ()).items() if name not in without]
    return dict(_paths([VALUE_KIND, *columns], ()))


def _paths(
    columns: Iterable[TableColumn], above: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], int]]:
    for column in columns:
        path = (*above, column.name)
        if column.id != _INSIDE:
            yield path, column.id
        yield from _paths(column.children, path)


def is_readable_as(stored: DataType, wanted: DataType) -> bool:
    """Return True if values of one type become values of another by widening only."""
    if isinstance(stored, RowType) and isinstance(wanted, RowType):
        before = {field.id: field.type for field in stored.fields}
        return all(
            field.id not in before or is_readable_as(before[field.id], field.type)
            for field in wanted.fields
        )
    if isinstance(stored, ArrayType) and isinstance(wanted, ArrayType):
        return is_readable_as(stored.element, wanted.element)
    if isinstance(stored, MapType) and isinstance(wanted, MapType):
        same_keys = is_readable_as(stored.key, wanted.key)
        return same_keys and is_readable_as(stored.value, wanted.value)
    if isinstance(stored, VectorType) and isinstance(wanted, VectorType):
        return stored.length == wanted.length and is_readable_as(stored.element, wanted.element)
    if isinstance(stored, AtomicType) and isinstance(wanted, AtomicType):
        return _widens(_table_column(0, "", stored).type, _table_column(0, "", wanted).type)
    return False


def _widens(stored: pa.DataType, wanted: pa.DataType) -> bool:
    if stored == wanted:
        return True
    if stored in _INTEGERS and wanted in _INTEGERS:
        return bool(stored.bit_width < wanted.bit_width)
    if pa.types.is_decimal128(stored) and pa.types.is_decimal128(wanted):
        return bool(stored.scale == wanted.scale and stored.precision <= wanted.precision)
    return bool(stored == pa.float32() and wanted == pa.float64())


# --- predicates


@dataclass(frozen=True, slots=True)
class PaimonWords:
    """Makes predicates of pypaimon."""

    builder: PredicateBuilder

    def literal(self, value: Any, type_: pa.DataType) -> Any | None:
        """Return a value as pypaimon holds the values of the column; None if uncertain."""
        types = pa.types
        if types.is_decimal128(type_):
            return value if len(value.as_tuple().digits) <= _MOST_DIGITS else None
        is_known = types.is_string(type_) or types.is_integer(type_) or types.is_floating(type_)
        is_day = types.is_date32(type_)
        is_time = types.is_timestamp(type_) and type_.tz is None and type_.unit != "ns"
        return value if is_known or is_day or is_time else None

    def compared(self, name: str, function: str, value: Any) -> Predicate:
        """Return a comparison of a column."""
        return getattr(self.builder, _METHODS[function])(name, value)

    def listed(self, name: str, values: Sequence[Any]) -> Predicate | None:
        """Return a predicate that is true if a column has one of some values; None if too many."""
        return self.builder.is_in(name, values) if len(values) <= _MOST_LISTED else None

    def null(self, name: str, wanted: bool) -> Predicate:
        """Return a predicate that is true if a column is null, or if it is not."""
        return self.builder.is_null(name) if wanted else self.builder.is_not_null(name)

    def joined(self, parts: Sequence[Predicate], all_needed: bool) -> Predicate:
        """Return a predicate that is true if all parts are, or one of them."""
        join = self.builder.and_predicates if all_needed else self.builder.or_predicates
        return join(list(parts))


def partition_expression(
    given: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    keys: Sequence[str],
    columns: Mapping[str, TableColumn],
) -> ds.Expression:
    """Return a filter for partitions with the values of a mapping, which may leave columns out."""
    several = [given] if isinstance(given, Mapping) else given
    if not isinstance(several, list | tuple) or not all(
        isinstance(one, Mapping) and one for one in several or [None]
    ):
        raise OptionError(
            "partition_filter must be values by column, such as {'day': '2026-01-31'}, or a list "
            f"of such mappings, not {given!r}"
        )
    for name in (name for one in several for name in one):
        if name not in keys:
            kind = f"partitioned by {', '.join(map(repr, keys))}" if keys else "not partitioned"
            hint = near_names(str(name), keys) if keys else "filters= is for all columns"
            raise OptionError(f"partition_filter names {name!r}, but the table is {kind}; {hint}")
    wanted = [
        reduce(operator.and_, [_has_value(columns[name], value) for name, value in one.items()])
        for one in several
    ]
    return reduce(operator.or_, wanted)


def _has_value(column: TableColumn, value: Any) -> ds.Expression:
    if value is None:
        return ds.field(column.name).is_null()
    try:
        given = value if isinstance(value, pa.Scalar) else pa.scalar(value)
        typed = given if given.type == column.type else given.cast(column.type)
    except _UNFIT as error:
        raise OptionError(
            f"partition_filter: {value!r} is not a value of the column {column.name!r}, which is "
            f"{column.type}: {error}"
        ) from None
    return ds.field(column.name) == typed
