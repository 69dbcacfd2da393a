"""A pyarrow expression taken apart into calls, columns and constants, and put together again.

Pickling an expression writes a record batch: the metadata of its schema lists the tree in prefix
order, and each constant and each options object is a column of one row. That says every function
and every type exactly, where ``to_substrait`` refuses ``isin``, ``starts_with`` and decimals.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from typing import TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.dataset as ds

__all__ = [
    "MAX_DEPTH",
    "MIRRORED",
    "NEGATED",
    "Call",
    "Column",
    "Constant",
    "Node",
    "NotTakenApart",
    "once_for_like_files",
    "put_together",
    "take_apart",
]

T = TypeVar("T")

MAX_DEPTH = 100
"""levels of nesting, chains of the same ``&`` or ``|`` not counted"""

MIRRORED = {
    "equal": "equal",
    "not_equal": "not_equal",
    "less": "greater",
    "less_equal": "greater_equal",
    "greater": "less",
    "greater_equal": "less_equal",
}
"""comparisons with their sides exchanged"""
NEGATED = {
    "equal": "not_equal",
    "not_equal": "equal",
    "less": "greater_equal",
    "less_equal": "greater",
    "greater": "less_equal",
    "greater_equal": "less",
}
"""comparisons that hold of numbers where others do not"""

_CHAINED = {"and", "and_kleene", "or", "or_kleene"}
_SHOWN_CHARACTERS = 60


class NotTakenApart(Exception):
    """The expression has no serialised form, or one that is not understood."""


@dataclass(frozen=True, slots=True)
class Column:
    path: tuple[str, ...]
    """names from the outermost struct inwards; one for a plain column"""
    depth: int = field(default=1, init=False)

    def __str__(self) -> str:
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class Constant:
    value: pa.Scalar
    depth: int = field(default=1, init=False)

    def __str__(self) -> str:
        return _scalar_text(self.value)


@dataclass(frozen=True, slots=True)
class Call:
    function: str
    arguments: tuple[Node, ...]
    """more than two for ``and`` and ``or``, whose chains are laid flat"""
    options: pa.StructScalar | None
    depth: int

    def __str__(self) -> str:
        shown = [str(argument) for argument in self.arguments[:10]]
        if len(self.arguments) > 10:
            shown.append(f"… {len(self.arguments)} in all")
        if self.options is not None:
            shown.append(_options_text(self.options))
        return f"{self.function}({', '.join(shown)})"


Node: TypeAlias = Column | Constant | Call


def take_apart(expression: ds.Expression) -> Node:
    """The tree of the expression; NotTakenApart if it has positions instead of names in it."""
    try:
        serialised = expression.__reduce__()[1][0]
        batch = pa.ipc.open_file(serialised).get_batch(0)
    except (pa.ArrowException, OSError) as error:
        raise NotTakenApart(str(error)) from error
    entries = iter(list(_metadata(batch.schema)))
    constants = [column[0] for column in batch.columns]
    root = _node(entries, constants)
    if next(entries, None) is not None:
        raise NotTakenApart("its serialised form goes on after its end")
    if root.depth > MAX_DEPTH:
        raise NotTakenApart(f"it is nested {root.depth} levels deep")
    return root


def put_together(root: Node) -> ds.Expression:
    """Return the expression of a tree that has a constant in it."""
    entries: list[tuple[str, str]] = []
    constants: list[pa.Scalar] = []
    _write(root, entries, constants)
    schema = pa.schema(
        [pa.field("", constant.type) for constant in constants],
        metadata=pa.KeyValueMetadata(entries),
    )
    columns = [pa.repeat(constant, 1) for constant in constants]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch(columns, schema=schema))
    return ds.Expression._deserialize(sink.getvalue())


def _write(node: Node, entries: list[tuple[str, str]], constants: list[pa.Scalar]) -> None:
    match node:
        case Constant(value):
            entries.append(("literal", str(len(constants))))
            constants.append(value)
        case Column((name,)):
            entries.append(("field_ref", name))
        case Column(path):
            entries.append(("nested_field_ref", str(len(path))))
            entries.extend(("field_ref", name) for name in path)
        case Call(function, arguments, options):
            # Chains were laid flat; a call of pyarrow's ``and`` has two arguments.
            links = len(arguments) - 1 if function in _CHAINED else 1
            entries.extend([("call", function)] * links)
            for place, argument in enumerate(arguments):
                _write(argument, entries, constants)
                if links > 1 and 0 < place < links:
                    entries.append(("end", function))
            if options is not None:
                entries.append(("options", str(len(constants))))
                constants.append(options)
            entries.append(("end", function))


@dataclass(slots=True)
class _OpenCall:
    function: str
    arguments: list[Node]
    options: pa.StructScalar | None = None

    def absorbs(self, inner: _OpenCall) -> bool:
        """Whether the inner call, now at its end, is a link of the same chain."""
        if inner.function != self.function or self.function not in _CHAINED:
            return False
        if self.arguments:
            self.arguments.extend(inner.arguments)
        else:
            self.arguments = inner.arguments
        return True

    def closed(self) -> Call:
        depth = 1 + max((argument.depth for argument in self.arguments), default=0)
        return Call(self.function, tuple(self.arguments), self.options, depth)


def _node(entries: Iterator[tuple[str, str]], constants: list[pa.Scalar]) -> Node:
    """One node with all that is in it. Not recursive: a chain of ``|`` may be 10,000 long."""
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
                done = Column((text,))
            case "nested_field_ref":
                done = _nested(entries, int(text))
            case _:
                raise NotTakenApart(f"its serialised form has an entry {kind!r}")
        if not open_calls:
            return done
        open_calls[-1].arguments.append(done)
    raise NotTakenApart("its serialised form has no end")


def _nested(entries: Iterator[tuple[str, str]], count: int) -> Column:
    parts = [next(entries, ("", "")) for _ in range(count)]
    if any(kind != "field_ref" for kind, _ in parts):
        raise NotTakenApart("it refers to a field of a struct by its position")
    return Column(tuple(name for _, name in parts))


class _CSchema(ctypes.Structure):
    """``struct ArrowSchema`` of the Arrow C data interface."""

    _fields_ = (
        ("format", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("children", ctypes.c_void_p),
        ("dictionary", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    )


_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _metadata(schema: pa.Schema) -> Iterator[tuple[str, str]]:
    """The metadata in order and with equal keys, which the dict of ``schema.metadata`` loses."""
    capsule = schema.__arrow_c_schema__()
    exported = _CSchema.from_address(_capsule_pointer(capsule, b"arrow_schema"))
    address = exported.metadata
    if not address:
        return
    count, address = _int32(address)
    for _ in range(count):
        key, address = _text(address)
        value, address = _text(address)
        yield key, value


def _int32(address: int) -> tuple[int, int]:
    return ctypes.c_int32.from_address(address).value, address + 4


def _text(address: int) -> tuple[str, int]:
    length, address = _int32(address)
    return ctypes.string_at(address, length).decode(), address + length


def _options_text(options: pa.StructScalar) -> str:
    shown = []
    for name, value in options.items():
        if name == "_type_name" or (name.startswith("allow_") and not value.as_py()):
            continue
        if isinstance(value, pa.ListScalar) and value.values is not None:
            members = ", ".join(_scalar_text(member) for member in value.values[:5])
            count = len(value.values)
            text = f"[{members}{f', … {count} in all' if count > 5 else ''}]"
        else:
            text = str(value.type) if name == "to_type" else _scalar_text(value)
        shown.append(f"{name}={text}")
    return ", ".join(shown)


def _scalar_text(value: pa.Scalar) -> str:
    try:
        text = str(value)
    except (ValueError, OverflowError):  # a time that Python has no object for
        text = f"a {value.type}"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def once_for_like_files(
    answer: Callable[[ds.Expression, pa.Schema], T],
) -> Callable[[ds.Expression, pa.Schema], T]:
    """Keep the last answer: it is the same for files of one data set, one after the other."""
    last: tuple[ds.Expression, pa.Schema, T] | None = None

    @wraps(answer)
    def remembered(expression: ds.Expression, schema: pa.Schema) -> T:
        nonlocal last
        known = last
        if known is None or known[0] is not expression or not known[1].equals(schema):
            known = last = expression, schema, answer(expression, schema)
        return known[2]

    return remembered
