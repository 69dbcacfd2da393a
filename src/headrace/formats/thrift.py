"""Thrift's compact protocol without any schema: bytes to a tree of numbered fields, and back."""

from __future__ import annotations

from typing import Any

__all__ = ["BINARY", "I32", "I64", "LIST", "STRUCT", "Struct", "parse_struct", "write_struct"]

TRUE, FALSE, I8, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)

Struct = dict[int, tuple[int, Any]]
"""fields by number, each with its kind and value.

Integers are ints, binaries bytes, doubles their eight bytes, structs such dicts; a list or set is
(kind, values), a map (kind of keys, kind of values, pairs).
"""


def parse_struct(data: bytes | memoryview, start: int = 0) -> tuple[Struct, int]:
    """The struct that begins at ``start``, and where it ends. ValueError if there is none."""
    reader = _Reader(data, start)
    try:
        return reader.struct(), reader.at
    except IndexError:
        raise ValueError("a Thrift struct is cut short") from None


def write_struct(fields: Struct) -> bytes:
    """The bytes of a struct."""
    out = bytearray()
    _write_fields(out, fields)
    return bytes(out)


class _Reader:
    __slots__ = ("at", "data")

    def __init__(self, data: bytes | memoryview, start: int) -> None:
        self.data = data
        self.at = start

    def struct(self) -> Struct:
        fields: Struct = {}
        number = 0
        while True:
            head = self.data[self.at]
            self.at += 1
            if head == 0:
                return fields
            number = number + (head >> 4) if head >> 4 else self._integer()
            kind = head & 15
            value = kind == TRUE if kind <= FALSE else self._value(kind)
            fields[number] = kind, value

    def _value(self, kind: int) -> Any:
        if I16 <= kind <= I64:
            return self._integer()
        if kind == BINARY:
            return self._raw(self._varint())
        if kind == STRUCT:
            return self.struct()
        if kind in (LIST, SET):
            return self._list()
        if kind == DOUBLE:
            return self._raw(8)
        if kind == MAP:
            return self._map()
        if kind <= I8:  # also a flag inside a list, which takes a byte there
            return self._raw(1)[0]
        raise ValueError(f"Thrift has no kind {kind}")

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            if byte < 0x80:
                return value | byte << shift
            value |= (byte & 0x7F) << shift
            shift += 7

    def _integer(self) -> int:
        zigzag = self._varint()
        return (zigzag >> 1) ^ -(zigzag & 1)

    def _raw(self, length: int) -> bytes:
        start = self.at
        self.at += length  # if that is beyond the end, so is what has to come after it
        return bytes(self.data[start : self.at])

    def _list(self) -> tuple[int, list[Any]]:
        head = self._raw(1)[0]
        kind, size = head & 15, head >> 4
        if size == 15:
            size = self._varint()
        return kind, [self._value(kind) for _ in range(size)]

    def _map(self) -> tuple[int, int, list[tuple[Any, Any]]]:
        size = self._varint()
        if size == 0:
            return 0, 0, []
        kinds = self._raw(1)[0]
        keys, values = kinds >> 4, kinds & 15
        return keys, values, [(self._value(keys), self._value(values)) for _ in range(size)]


def _write_fields(out: bytearray, fields: Struct) -> None:
    last = 0
    for number, (kind, value) in sorted(fields.items()):
        if 0 < number - last < 16:
            out.append((number - last) << 4 | kind)
        else:
            out.append(kind)
            _write_integer(out, number)
        last = number
        if kind > FALSE:
            _write_value(out, kind, value)
    out.append(0)


def _write_value(out: bytearray, kind: int, value: Any) -> None:
    if I16 <= kind <= I64:
        _write_integer(out, value)
    elif kind == BINARY:
        _write_varint(out, len(value))
        out += value
    elif kind == STRUCT:
        _write_fields(out, value)
    elif kind in (LIST, SET):
        inside, values = value
        out.append(min(len(values), 15) << 4 | inside)
        if len(values) >= 15:
            _write_varint(out, len(values))
        for one in values:
            _write_value(out, inside, one)
    elif kind == DOUBLE:
        out += value
    elif kind == MAP:
        _write_map(out, *value)
    else:
        out.append(value)


def _write_map(out: bytearray, keys: int, values: int, pairs: list[tuple[Any, Any]]) -> None:
    _write_varint(out, len(pairs))
    if pairs:
        out.append(keys << 4 | values)
    for key, value in pairs:
        _write_value(out, keys, key)
        _write_value(out, values, value)


def _write_integer(out: bytearray, value: int) -> None:
    _write_varint(out, value << 1 if value >= 0 else (-value << 1) - 1)


def _write_varint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
