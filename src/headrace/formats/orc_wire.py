"""How the tail of an ORC file is written: protobuf fields in compressed chunks."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

__all__ = ["Message", "decompress", "number_in", "parse_message", "signed", "unpacked"]

Message = dict[int, list[Any]]
"""fields by number, each with all its values: ints, or bytes for the other wire types"""


def parse_message(data: bytes) -> Message:
    fields: Message = {}
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        wire_type = key & 7
        value: int | bytes
        if wire_type == 0:
            value, position = _varint(data, position)
        else:
            if wire_type == 2:
                length, position = _varint(data, position)
            else:
                length = {1: 8, 5: 4}[wire_type]
            value = data[position : position + length]
            if len(value) < length:
                raise ValueError("a field of its footer is cut short")
            position += length
        fields.setdefault(key >> 3, []).append(value)
    return fields


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def signed(zigzag: int) -> int:
    return (zigzag >> 1) ^ -(zigzag & 1)


def number_in(message: Message, number: int) -> int:
    value = message[number][0] if number in message else 0
    if not isinstance(value, int):
        raise ValueError(f"field {number} of its footer is not a number")
    return value


def unpacked(values: list[Any]) -> list[int]:
    """Repeated ints, which a writer may pack into one field or not."""
    numbers: list[int] = []
    for value in values:
        if isinstance(value, int):
            numbers.append(value)
            continue
        position = 0
        while position < len(value):
            number, position = _varint(value, position)
            numbers.append(number)
    return numbers


def decompress(data: bytes, compression: str | None) -> bytes:
    if compression is None:
        return data
    return b"".join(_decompressed_chunks(data, compression))


def _decompressed_chunks(data: bytes, compression: str) -> Iterator[bytes]:
    """Each chunk has a header of 3 bytes: its length, and a bit for "stored as it is"."""
    position = 0
    while position < len(data):
        header = int.from_bytes(data[position : position + 3], "little")
        position += 3
        chunk = data[position : position + (header >> 1)]
        if len(chunk) < header >> 1:
            raise ValueError("a compressed part of its footer is cut short")
        position += len(chunk)
        yield chunk if header & 1 else _inflated(chunk, compression)


def _inflated(chunk: bytes, compression: str) -> bytes:
    if compression == "zlib":
        return zlib.decompress(chunk, -zlib.MAX_WBITS)
    if compression == "zstd":
        return bytes(pa.CompressedInputStream(pa.BufferReader(chunk), "zstd").read())
    size = _varint(chunk, 0)[0] if compression == "snappy" else _lz4_size(chunk)
    return bytes(pa.Codec(compression).decompress(chunk, decompressed_size=size, asbytes=True))


def _lz4_size(block: bytes) -> int:
    """The decompressed size of an LZ4 block, which does not say it: the sum of its copies."""
    size = position = 0
    while True:
        token = block[position]
        literals, position = _lz4_length(block, position + 1, token >> 4)
        size += literals
        position += literals
        if position >= len(block):
            return size
        match, position = _lz4_length(block, position + 2, token & 15)
        size += match + 4


def _lz4_length(block: bytes, position: int, length: int) -> tuple[int, int]:
    if length < 15:
        return length, position
    while True:
        byte = block[position]
        length, position = length + byte, position + 1
        if byte < 255:
            return length, position
