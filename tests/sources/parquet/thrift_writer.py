"""Write structs in the compact protocol of Thrift, from fields by number with their kinds."""

from __future__ import annotations

from typing import Any

FLAG, NO_FLAG, BYTE, SHORT, I32, I64, DOUBLE, BINARY, LIST, STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 9, 12

Tree = dict[int, tuple[int, Any]]
"""Integers are ints, binaries are bytes, doubles are their eight bytes, structs are such dicts, and
a list is (kind, values)."""


def write_struct(fields: Tree) -> bytes:
    out = bytearray()
    _write_fields(out, fields)
    return bytes(out)


def plain(fields: Tree) -> dict[int, Any]:
    """The values without their kinds, as they are read."""
    return {number: _plain(kind, value) for number, (kind, value) in fields.items()}


def _plain(kind: int, value: Any) -> Any:
    if kind == LIST:
        return [_plain(value[0], one) for one in value[1]]
    return plain(value) if kind == STRUCT else value


def _write_fields(out: bytearray, fields: Tree) -> None:
    last = 0
    for number, (kind, value) in sorted(fields.items()):
        if 0 < number - last < 16:
            out.append((number - last) << 4 | kind)
        else:
            out.append(kind)
            _write_integer(out, number)
        last = number
        if kind > NO_FLAG:
            _write_value(out, kind, value)
    out.append(0)


def _write_value(out: bytearray, kind: int, value: Any) -> None:
    if SHORT <= kind <= I64:
        _write_integer(out, value)
    elif kind == BINARY:
        _write_varint(out, len(value))
        out += value
    elif kind == STRUCT:
        _write_fields(out, value)
    elif kind == LIST:
        inside, values = value
        out.append(min(len(values), 15) << 4 | inside)
        if len(values) >= 15:
            _write_varint(out, len(values))
        for one in values:
            _write_value(out, inside, one)
    elif kind == DOUBLE:
        out += value
    else:
        out.append(value)


def _write_integer(out: bytearray, value: int) -> None:
    _write_varint(out, value << 1 if value >= 0 else (-value << 1) - 1)


def _write_varint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
