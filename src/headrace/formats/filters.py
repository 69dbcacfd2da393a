"""Filters as users write them, and what can be known of them without reading rows."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import acero  # or Table.filter imports it, in the middle of the first read

from headrace.errors import OptionError, SchemaError
from headrace.formats.exact_integers import with_exact_integers
from headrace.formats.expressions import once_for_like_files
from headrace.matrices import has_matrices, rows_kept

__all__ = [
    "columns_of",
    "near_names",
    "rows_where",
    "settle_filter",
    "to_expression",
]

_NOT_BOUND = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowKeyError)


def to_expression(filters: ds.Expression | Sequence[Any] | None) -> ds.Expression | None:
    """A pyarrow expression from one, or from the list-of-tuples form (an AND, or an OR of ANDs)."""
    if filters is None or isinstance(filters, ds.Expression):
        return filters
    if isinstance(filters, str) or not isinstance(filters, Sequence):
        raise OptionError(
            "filters must be a pyarrow expression or a list of (column, operator, value) "
            f"tuples, not {filters!r}"
        )
    if not filters:
        return None
    try:
        return pq.filters_to_expression(_with_sorted_sets(list(filters)))
    except (ValueError, TypeError) as error:
        raise OptionError(f"filters={filters!r} cannot be understood: {error}") from error


def _with_sorted_sets(filters: list[Any]) -> list[Any]:
    """Return filters with lists in place of sets, whose order is another one in every process."""
    made: list[Any] = []
    for one in filters:
        if isinstance(one, list | tuple) and len(one) == 3 and isinstance(one[2], set | frozenset):
            values = sorted(one[2], key=lambda value: (type(value).__name__, repr(value)))
            made.append((*one[:2], values))
        else:
            made.append(_with_sorted_sets(one) if isinstance(one, list) else one)
    return made


@once_for_like_files
def columns_of(expression: ds.Expression, schema: pa.Schema) -> Sequence[str]:
    """The top-level columns of ``schema`` that the expression refers to, in order."""
    return _needed(expression, schema, schema.names) if len(schema) else []


def _needed(expression: ds.Expression, schema: pa.Schema, names: list[str]) -> list[str]:
    """Those of some columns without which the expression does not bind.

    They are taken away together; halves that can go together are not looked into.
    """
    if binds(expression, [field for field in schema if field.name not in names]):
        return []
    if len(names) == 1:
        return names
    half = len(names) // 2
    return [
        *_needed(expression, schema, names[:half]),
        *_needed(expression, schema, names[half:]),
    ]


def binds(expression: ds.Expression, fields: Iterable[pa.Field]) -> bool:
    """Whether the expression can be evaluated over these columns alone."""
    try:
        _bind(expression, pa.schema(list(fields)))
    except _NOT_BOUND:
        return False
    return True


def _bind(expression: ds.Expression, schema: pa.Schema) -> None:
    ds.Scanner.from_batches([], schema=schema, filter=expression)


def rows_where(table: pa.Table, expression: ds.Expression) -> pa.Table:
    """Return the rows that an expression keeps, in order.

    Raises:
        OptionError: The expression cannot be computed over these rows (an overflow, a cast that
            fails). It is the filter that is wrong, not the data: ``on_error="skip"`` must not
            take it for a broken file.
    """
    try:
        return _rows_where(table, expression)
    except MemoryError:  # one of Arrow's is an ArrowException too
        raise
    except pa.ArrowException as error:
        raise OptionError(
            f"filters {expression} cannot be applied: {error}; use functions that "
            "have a value for every row (pc.add in place of +, casts with safe=False)"
        ) from error


def _rows_where(table: pa.Table, expression: ds.Expression) -> pa.Table:
    if not has_matrices(table.schema):
        return table.filter(expression)
    steps = [
        acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
        acero.Declaration("project", acero.ProjectNodeOptions([expression], ["keep"])),
    ]
    found = acero.Declaration.from_sequence(steps).to_table(use_threads=False)
    return rows_kept(table, pc.fill_null(found["keep"], False).to_numpy())


def settle_filter(expression: ds.Expression, schema: pa.Schema) -> ds.Expression:
    """Check a filter over the columns of the data set, and return the one that is applied to them.

    Integer columns that are compared with floats are compared with integers instead.

    Raises:
        SchemaError: It cannot be evaluated over these columns.
        OptionError: Its values are not booleans.
    """
    try:
        _bind(expression, schema)
        values = ds.Scanner.from_batches([], schema=schema, columns={"keep": expression})
    except _NOT_BOUND as error:
        raise SchemaError(
            f"filters {expression} cannot be applied: {error}; "
            f"the columns are {', '.join(f'{f.name} ({f.type})' for f in schema)}"
        ) from error
    type_ = values.projected_schema.field("keep").type
    if not pa.types.is_boolean(type_):
        raise OptionError(
            f"filters {expression} is no filter: its values are {type_}, and not bool; compare "
            "them with something"
        )
    return with_exact_integers(expression, schema)


def near_names(name: str, names: Iterable[str]) -> str:
    """A remark on what may have been meant, for the end of a message."""
    known = list(names)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    shown = ", ".join(map(repr, known[:20]))
    return f"there are {shown}{', …' if len(known) > 20 else ''}"
