"""Filters: expressions and tuples, the columns that they need, and the rows that they keep.

pyarrow compares integers with floats by rounding the integers, which is wrong above 2**53 and an
error above 2**24. Such comparisons are rewritten to compare integers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import acero  # or Table.filter imports it, in the middle of the first read

from headrace.errors import OptionError, SchemaError
from headrace.matrices import has_matrices, rows_kept

T = TypeVar("T")

MAX_DEPTH = 100
"""Number of levels of nesting, not counting chains of the same ``&`` or ``|``."""

MIRRORED = {
    "equal": "equal",
    "not_equal": "not_equal",
    "less": "greater",
    "less_equal": "greater_equal",
    "greater": "less",
    "greater_equal": "less_equal",
}
"""Comparisons with their sides exchanged."""
NEGATED = {
    "equal": "not_equal",
    "not_equal": "equal",
    "less": "greater_equal",
    "less_equal": "greater",
    "greater": "less_equal",
    "greater_equal": "less",
}
"""Comparisons that are true of numbers for which others are false."""

_CHAINED = {"and", "and_kleene", "or", "or_kleene"}
_SHOWN_CHARACTERS = 60


class NotTakenApart(Exception):
    """The expression has no serialized form, or one that is not understood."""


@dataclass(frozen=True, slots=True)
class FilterColumn:
    """A column that a filter uses, or a field inside of a column.

    Attributes:
        path: Names from the outermost struct inwards; one for a plain column.
    """

    path: tuple[str, ...]
    depth: int = field(default=1, init=False)

    def __str__(self) -> str:
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class Constant:
    """A value in a filter."""

    value: pa.Scalar
    depth: int = field(default=1, init=False)

    def __str__(self) -> str:
        return _scalar_text(self.value)


@dataclass(frozen=True, slots=True)
class FilterCall:
    """A function of pyarrow, such as a comparison, with its arguments.

    Attributes:
        function: The name of the function.
        arguments: More than two for ``and`` and ``or``, whose chains are flattened.
        options: The options of the function, such as the values of ``is_in``.
        depth: Number of levels of nesting.
    """

    function: str
    arguments: tuple[Node, ...]
    options: pa.StructScalar | None
    depth: int

    def __str__(self) -> str:
        shown = [str(argument) for argument in self.arguments[:10]]
        if len(self.arguments) > 10:
            shown.append(f"… {len(self.arguments)} in all")
        return f"{self.function}({', '.join(shown)})"


Node: TypeAlias = FilterColumn | Constant | FilterCall


def take_apart(expression: ds.Expression) -> Node:
    """Return the tree of an expression.

    Raises:
        NotTakenApart: It has positions in place of names, or is nested too deeply.
    """
    try:
        serialised = expression.__reduce__()[1][0]
        batch = pa.ipc.open_file(serialised).get_batch(0)
    except (pa.ArrowException, OSError) as error:
        raise NotTakenApart(str(error)) from error
    entries = iter(_entries(batch.schema))
    constants = [column[0] for column in batch.columns]
    root = _parsed_node(entries, constants)
    if next(entries, None) is not None:
        raise NotTakenApart("its serialised form goes on after its end")
    if root.depth > MAX_DEPTH:
        raise NotTakenApart(f"it is nested {root.depth} levels deep")
    return root


def put_together(root: Node) -> ds.Expression:
    """Return the expression of a tree that has a constant in it."""
    entries: list[tuple[str, str]] = []
    constants: list[pa.Scalar] = []
    _serialize(root, entries, constants)
    schema = pa.schema(
        [pa.field("", constant.type) for constant in constants],
        metadata=pa.KeyValueMetadata(entries),
    )
    columns = [pa.repeat(constant, 1) for constant in constants]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch(columns, schema=schema))
    return ds.Expression._deserialize(sink.getvalue())


def _serialize(node: Node, entries: list[tuple[str, str]], constants: list[pa.Scalar]) -> None:
    """Append a node in the form in which pyarrow serializes expressions."""
    match node:
        case Constant(value):
            entries.append(("literal", str(len(constants))))
            constants.append(value)
        case FilterColumn((name,)):
            entries.append(("field_ref", name))
        case FilterColumn(path):
            entries.append(("nested_field_ref", str(len(path))))
            entries.extend(("field_ref", name) for name in path)
        case FilterCall(function, arguments, options):
            # Chains were flattened; a call of pyarrow's ``and`` has two arguments.
            links = len(arguments) - 1 if function in _CHAINED else 1
            entries.extend([("call", function)] * links)
            for place, argument in enumerate(arguments):
                _serialize(argument, entries, constants)
                if links > 1 and 0 < place < links:
                    entries.append(("end", function))
            if options is not None:
                entries.append(("options", str(len(constants))))
                constants.append(options)
            entries.append(("end", function))


@dataclass(slots=True)
class _OpenCall:
    """A call whose end was not read yet."""

    function: str
    arguments: list[Node]
    options: pa.StructScalar | None = None

    def absorbs(self, inner: _OpenCall) -> bool:
        """Return True if the inner call, now at its end, is a link of the same chain."""
        if inner.function != self.function or self.function not in _CHAINED:
            return False
        if self.arguments:
            self.arguments.extend(inner.arguments)
        else:
            self.arguments = inner.arguments
        return True

    def closed(self) -> FilterCall:
        depth = 1 + max((argument.depth for argument in self.arguments), default=0)
        return FilterCall(self.function, tuple(self.arguments), self.options, depth)


def _parsed_node(entries: Iterator[tuple[str, str]], constants: list[pa.Scalar]) -> Node:
    """Return one node with its contents, without recursion: a chain may be 10,000 long."""
    open_calls: list[_OpenCall] = []
    for kind, text in entries:
        done: Node
        match kind:
            case "call":
                open_calls.append(_OpenCall(text, []))
                continue
            case "options" if open_calls:
                open_calls[-1].options = constants[int(text)]
                continue
            case "end" if open_calls and open_calls[-1].function == text:
                call = open_calls.pop()
                if open_calls and open_calls[-1].absorbs(call):
                    continue
                done = call.closed()
            case "literal":
                done = Constant(constants[int(text)])
            case "field_ref":
                done = FilterColumn((text,))
            case "nested_field_ref":
                done = _nested(entries, int(text))
            case _:
                raise NotTakenApart(f"its serialised form has an entry {kind!r}")
        if not open_calls:
            return done
        open_calls[-1].arguments.append(done)
    raise NotTakenApart("its serialised form has no end")


def _nested(entries: Iterator[tuple[str, str]], count: int) -> FilterColumn:
    parts = [next(entries, ("", "")) for _ in range(count)]
    if any(kind != "field_ref" for kind, _ in parts):
        raise NotTakenApart("it refers to a field of a struct by its position")
    return FilterColumn(tuple(name for _, name in parts))


_ENTRY = re.compile(
    r"^(call|end|field_ref|literal|nested_field_ref|options): '(.*?)'$"
    r"(?=\Z|\n(?:call|end|field_ref|literal|nested_field_ref|options): ')",
    re.DOTALL | re.MULTILINE,
)


def _entries(schema: pa.Schema) -> list[tuple[str, str]]:
    """Return the metadata in order and with equal keys, which ``schema.metadata`` loses.

    Only the text of pyarrow has all of them. A name that looks like several entries makes that text
    ambiguous, so the entries found are compared with the metadata.
    """
    shown = schema.to_string(truncate_metadata=False, show_field_metadata=False)
    entries = _ENTRY.findall(shown.partition("-- schema metadata --\n")[2])
    read = pa.schema(list(schema), metadata=pa.KeyValueMetadata(entries))
    if not read.equals(schema, check_metadata=True):
        raise NotTakenApart("its serialised form has other entries, or names that look like some")
    return entries


def _scalar_text(value: pa.Scalar) -> str:
    try:
        text = str(value)
    except (ValueError, OverflowError):  # a time that Python has no object for
        text = f"a {value.type}"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def once_for_like_files(
    answer: Callable[[ds.Expression, pa.Schema], T],
) -> Callable[[ds.Expression, pa.Schema], T]:
    """Keep the last answer, because the files of one data set follow each other."""
    last: tuple[ds.Expression, pa.Schema, T] | None = None

    @wraps(answer)
    def remembered(expression: ds.Expression, schema: pa.Schema) -> T:
        nonlocal last
        known = last
        if known is None or known[0] is not expression or not known[1].equals(schema):
            known = last = expression, schema, answer(expression, schema)
        return known[2]

    return remembered


@once_for_like_files
def with_exact_integers(expression: ds.Expression, schema: pa.Schema) -> ds.Expression:
    """Return the expression with integer columns of ``schema`` compared with integers only."""
    return _changed(expression, lambda node: _with_integers(node, schema))


def _changed(expression: ds.Expression, change: Callable[[Node], Node]) -> ds.Expression:
    """Return the expression after a change of each node; the same object if nothing changes."""

    def changed(node: Node) -> Node:
        if isinstance(node, FilterCall):
            parts = tuple(map(changed, node.arguments))
            node = node if parts == node.arguments else replace(node, arguments=parts)
        return change(node)

    try:
        root = take_apart(expression)
    except NotTakenApart:
        return expression
    found = changed(root)
    return expression if found is root else put_together(found)


def _with_integers(node: Node, schema: pa.Schema) -> Node:
    """Return a comparison of a column of integers with integers, and any other node unchanged."""
    match node:
        case FilterCall("is_in", (FilterColumn() as column,)):
            return _with_integer_members(node, _integer_type(column, schema))
        case FilterCall(function, (FilterColumn() as column, Constant(value))) if (
            function in MIRRORED
        ):
            return _with_integer_bound(node, function, column, value, schema)
        case FilterCall(function, (Constant(value), FilterColumn() as column)) if (
            function in MIRRORED
        ):
            return _with_integer_bound(node, MIRRORED[function], column, value, schema)
    return node


def _with_integer_bound(
    node: FilterCall, function: str, column: FilterColumn, value: pa.Scalar, schema: pa.Schema
) -> FilterCall:
    """Return a comparison with a float as one with an integer that keeps the same rows."""
    type_ = _integer_type(column, schema)
    if type_ is None or not pa.types.is_floating(value.type):
        return node
    bound: int | None = None
    if value.is_valid:
        function, bound = _integer_comparison(function, float(value.as_py()), *_limits(type_))
    constant = Constant(pa.scalar(bound, type_))
    return replace(node, function=function, arguments=(column, constant))


def _integer_comparison(function: str, number: float, lowest: int, highest: int) -> tuple[str, int]:
    """Return the comparison that is true of the same integers between two limits.

    A comparison that is true of all or of none uses the lowest limit: nulls stay null.
    """
    of_all, of_none = ("greater_equal", lowest), ("less", lowest)
    if math.isnan(number):
        return of_all if function == "not_equal" else of_none
    if function in ("equal", "not_equal"):
        if lowest <= number <= highest and number.is_integer():
            return function, int(number)
        return of_none if function == "equal" else of_all
    if number > highest:
        return of_all if function.startswith("less") else of_none
    if number < lowest:
        return of_none if function.startswith("less") else of_all
    rounds_up = function in ("less", "greater_equal")
    return function, math.ceil(number) if rounds_up else math.floor(number)


def _with_integer_members(node: FilterCall, type_: pa.DataType | None) -> FilterCall:
    """Return ``is_in`` with the floats that are integers of the type, as integers."""
    options = {} if node.options is None else dict(node.options.items())
    members = options["value_set"].values if "value_set" in options else None
    if type_ is None or members is None or not pa.types.is_floating(members.type):
        return node
    lowest, highest = _limits(type_)
    numbers = [float(member.as_py()) for member in members if member.is_valid]
    held: list[int | None] = [
        int(number) for number in numbers if lowest <= number <= highest and number.is_integer()
    ]
    if members.null_count:
        held.append(None)
    values = pa.ListArray.from_arrays([0, len(held)], pa.array(held, type_))
    columns = [
        values if name == "value_set" else pa.repeat(value, 1) for name, value in options.items()
    ]
    return replace(node, options=pa.StructArray.from_arrays(columns, names=list(options))[0])


def _limits(type_: pa.DataType) -> tuple[int, int]:
    if pa.types.is_signed_integer(type_):
        half = 1 << (type_.bit_width - 1)
        return -half, half - 1
    return 0, (1 << type_.bit_width) - 1


def _integer_type(column: FilterColumn, schema: pa.Schema) -> pa.DataType | None:
    """Return the type of a column of integers; None if there is no such column, or several."""
    level: Sequence[pa.Field] = list(schema)
    found: pa.DataType | None = None
    for name in column.path:
        types = [one.type for one in level if one.name == name]
        if len(types) != 1:
            return None
        found = types[0]
        level = list(found) if pa.types.is_struct(found) else []
    return found if found is not None and pa.types.is_integer(found) else None


_NOT_BOUND = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowKeyError)


def to_expression(filters: ds.Expression | Sequence[Any] | None) -> ds.Expression | None:
    """Return a filter as an expression; a list of tuples is an AND, or an OR of ANDs."""
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
    """Return filters with lists in place of sets, whose order differs between processes."""
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
    """Return the columns of ``schema`` that an expression refers to, in order; all if in doubt."""
    named = names_in(expression)
    return [name for name in schema.names if named is None or name in named]


def rows_where(table: pa.Table, expression: ds.Expression) -> pa.Table:
    """Return the rows that an expression keeps, in order.

    Raises:
        OptionError: The expression cannot be computed over these rows (an overflow, a cast that
            fails). The filter is wrong, and not the data, so ``on_error="skip"`` must not skip the
            file.
    """
    try:
        return _rows_where(table, expression)
    except MemoryError:  # Arrow's MemoryError is an ArrowException, too
        raise
    except pa.ArrowException as error:
        raise OptionError(
            f"filters {expression} cannot be applied: {error}; use functions that "
            "have a value for every row (pc.add in place of +, casts with safe=False)"
        ) from error


def values_where(
    values: Sequence[Mapping[str, Any]], schema: pa.Schema, expression: ds.Expression
) -> list[bool]:
    """Return True for each row that an expression keeps; a row is given as values by column."""
    table = pa.Table.from_pylist(list(values), schema=schema)
    place = "\0place"
    table = table.append_column(place, pa.array(range(len(values))))
    kept = set(rows_where(table, expression)[place].to_pylist())
    return [index in kept for index in range(len(values))]


def _rows_where(table: pa.Table, expression: ds.Expression) -> pa.Table:
    if not has_matrices(table.schema):
        return table.filter(expression)
    steps = [
        acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
        acero.Declaration("project", acero.ProjectNodeOptions([expression], ["keep"])),
    ]
    found = acero.Declaration.from_sequence(steps).to_table(use_threads=False)
    return rows_kept(table, pc.fill_null(found["keep"], False).to_numpy())


def names_in(expression: ds.Expression | None) -> set[str] | None:
    """Return the names of columns that a filter may refer to; None if they are not known."""
    if expression is None:
        return set()
    try:
        return _columns_in(take_apart(expression))
    except NotTakenApart:
        return None


def relaxed(expression: ds.Expression, names: Collection[str]) -> ds.Expression:
    """Return a filter over some columns alone that is true wherever ``expression`` is.

    Parts that use other columns are taken for true.
    """
    try:
        root = take_apart(expression)
    except NotTakenApart:
        return ds.scalar(True)
    found = _relaxed(root, names)
    return expression if found is root else put_together(found)


def _relaxed(node: Node, names: Collection[str]) -> Node:
    if isinstance(node, FilterCall) and node.function in _CHAINED:
        parts = tuple(_relaxed(part, names) for part in node.arguments)
        return node if parts == node.arguments else replace(node, arguments=parts)
    return node if _columns_in(node) <= set(names) else Constant(pa.scalar(True))


def _columns_in(root: Node) -> set[str]:
    """Return the names of columns in a tree; of a name with dots also what is before the first."""
    names: set[str] = set()
    left = [root]
    while left:
        match left.pop():
            case FilterColumn(path):
                names |= {path[0], path[0].partition(".")[0]}
            case FilterCall(_, arguments):
                left.extend(arguments)
    return names


def _with_nested_fields(expression: ds.Expression, schema: pa.Schema) -> ds.Expression:
    """Return the expression with ``s.a`` as a field of the struct s, if no column has that name."""

    def resolved(node: Node) -> Node:
        if isinstance(node, FilterColumn) and len(node.path) == 1:
            (name,) = node.path
            if name not in schema.names and (path := nested_path(name, schema)):
                return FilterColumn(path)
        return node

    return _changed(expression, resolved)


def nested_path(name: str, schema: pa.Schema) -> tuple[str, ...]:
    """Return the names from a column to the field that a name with dots means.

    >>> nested_path("s.a", pa.schema([("s", pa.struct([("a", pa.int64())]))]))
    ('s', 'a')
    >>> nested_path("s.b", pa.schema([("s", pa.struct([("a", pa.int64())]))]))
    ()
    """
    fields: Sequence[pa.Field] = list(schema)
    path = name.split(".")
    for part in path:
        found = [field for field in fields if field.name == part]
        if len(found) != 1:
            return ()
        fields = list(found[0].type) if pa.types.is_struct(found[0].type) else []
    return tuple(path) if len(path) > 1 else ()


def settle_filter(expression: ds.Expression, schema: pa.Schema) -> ds.Expression:
    """Check a filter over the columns of the data set, and return the one that is applied to them.

    Integer columns that are compared with floats are compared with integers instead. A name such as
    ``s.a`` means the field a of the struct s, unless there is a column of that name.

    Raises:
        SchemaError: It cannot be evaluated over these columns.
        OptionError: Its values are not booleans.
    """
    expression = _with_nested_fields(expression, schema)
    try:
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
