"""Rows and sizes of the record batches of an Arrow IPC file or stream, without their bodies.

Messages and the footer are flatbuffers: a table is found by an offset, a field of it by the
table's vtable. Only the few fields that are needed are followed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from headrace.storage import will_read

__all__ = [
    "FILE_MAGIC",
    "MALFORMED",
    "Batch",
    "Blocks",
    "body_expansion",
    "file_batches",
    "file_blocks",
    "stream_batches",
]

FILE_MAGIC = b"ARROW1"
MALFORMED = (ValueError, IndexError, struct.error, OSError)
"""what parsing bytes that are not Arrow IPC may raise; pyarrow's errors are among them"""

_CONTINUATION = -1
_RECORD_BATCH = 3
_BLOCK_BYTES = 24
_PAIR_BYTES = 16


@dataclass(frozen=True, slots=True)
class Batch:
    """One record batch: its rows, and where its body is."""

    rows: int
    body_offset: int
    body_length: int
    nodes: tuple[tuple[int, int], ...]
    """(length, nulls) of each array, those inside of others too"""
    buffers: tuple[tuple[int, int], ...]
    """(offset in the body, length) of each buffer"""
    compressed: bool
    annotated: bool
    """whether there is more to its message, such as the compression of early versions, or something
    that does not agree with the footer: pyarrow knows what to do"""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Where a file says that its messages are, as (offset, length of metadata, of the body)."""

    batches: list[tuple[int, int, int]]
    dictionaries: list[tuple[int, int, int]]
    little_endian: bool = True


def file_blocks(file: pa.NativeFile) -> Blocks:
    """What the footer of the file format tells."""
    size = file.size()
    end = file.read_at(10, max(0, size - 10))
    if end[4:] != FILE_MAGIC:
        raise ValueError("it does not end like an Arrow IPC file; it may be cut short")
    footer_length = struct.unpack_from("<i", end)[0]
    if not 0 < footer_length <= size - 10:
        raise ValueError(f"its footer would be {footer_length} bytes long, the file is {size}")
    footer = file.read_at(footer_length, size - 10 - footer_length)
    dictionaries, batches = (_blocks(footer, number, size) for number in (2, 3))
    return Blocks(batches, dictionaries, _is_little_endian(footer))


def file_batches(
    file: pa.NativeFile, blocks: Sequence[tuple[int, int, int]] | None = None
) -> list[Batch]:
    """The record batches of the file format, or those at some of its blocks."""
    blocks = file_blocks(file).batches if blocks is None else blocks
    will_read(file, [(offset, offset + length) for offset, length, _ in blocks])
    batches = []
    for offset, metadata_length, body_length in blocks:
        message, agrees = _message(file.read_at(metadata_length, offset), body_length)
        batch = _batch(message, offset + metadata_length, body_length)
        if batch is None:
            raise ValueError(f"what its footer calls a record batch, at byte {offset}, is none")
        batches.append(batch if agrees else replace(batch, annotated=True))
    return batches


def _blocks(footer: bytes, number: int, size: int) -> list[tuple[int, int, int]]:
    blocks: list[tuple[int, int, int]] = [
        struct.unpack_from("<qi4xq", footer, position)
        for position in _vector(footer, _field(footer, _root(footer), number), _BLOCK_BYTES)
    ]
    for offset, length, body in blocks:
        if not 0 <= offset <= offset + length <= offset + length + body <= size:
            raise ValueError(f"the record batch at byte {offset} goes beyond the end of the file")
    return blocks


def _is_little_endian(footer: bytes) -> bool:
    schema = _field(footer, _root(footer), 1)
    order = None if schema is None else _field(footer, _target(footer, schema), 0)
    return order is None or footer[order] == 0


def stream_batches(file: pa.NativeFile) -> Iterator[Batch]:
    """The record batches of the stream format, found by going from message to message."""
    size, position = file.size(), 0
    while position < size:
        prefix = file.read_at(8, position)
        start = 8 if prefix[:4] == b"\xff\xff\xff\xff" else 4
        length = struct.unpack_from("<i", prefix, start - 4)[0]
        if length == 0:
            return
        message = file.read_at(max(length, 0), position + start) if length <= size else b""
        if len(message) < max(length, 1):
            raise ValueError(f"it is no Arrow IPC, or cut short, at byte {position}")
        body = position + start + length
        body_length = _int64(message, _field(message, _root(message), 3))
        position = body + body_length
        if not body <= position <= size:
            raise ValueError(f"the message at byte {body} goes on after the end of the file")
        batch = _batch(message, body, body_length)
        if batch is not None:
            yield batch


def body_expansion(file: pa.NativeFile, batches: list[Batch], sample_bytes: int) -> float:
    """Uncompressed over compressed bytes, by a sample of one read from the first batch.

    Each compressed buffer begins with its uncompressed length, -1 where it is stored as it is.
    """
    batch = next((batch for batch in batches if batch.rows), None)
    if batch is None or not batch.compressed:
        return 1.0
    sample = file.read_at(min(batch.body_length, sample_bytes), batch.body_offset)
    stored = expanded = 0
    for offset, length in batch.buffers:
        if length >= 8 and 0 <= offset <= len(sample) - 8:
            full_length = struct.unpack_from("<q", sample, offset)[0]
            stored += length
            expanded += length - 8 if full_length < 0 else full_length
    return expanded / stored if stored else 1.0


def _batch(message: bytes, body_offset: int, body_length: int) -> Batch | None:
    root = _root(message)
    kind = _field(message, root, 1)
    header = _field(message, root, 2)
    if kind is None or header is None or message[kind] != _RECORD_BATCH:
        return None
    table = _target(message, header)
    places = [_field(message, table, number) for number in (1, 2)]
    if None in places:
        raise ValueError("the metadata of a record batch does not say what it consists of")
    nodes, buffers = (_pairs(message, place) for place in places)
    rows = _int64(message, _field(message, table, 0))
    if rows < 0 or (nodes and nodes[0][0] != rows):
        first = f", and its first column {nodes[0][0]}" if nodes else ""
        raise ValueError(f"a record batch claims to have {rows} rows{first}")
    return Batch(
        rows,
        body_offset,
        body_length,
        nodes,
        buffers,
        _field(message, table, 3) is not None,
        _field(message, root, 4) is not None,
    )


def _pairs(data: bytes, position: int | None) -> tuple[tuple[int, int], ...]:
    items = _vector(data, position, _PAIR_BYTES)
    pairs: Iterator[tuple[int, int]] = struct.iter_unpack("<qq", data[items.start : items.stop])
    return tuple(pairs)


def _message(data: bytes, body_length: int) -> tuple[bytes, bool]:
    """A message without what comes before it, and whether it is as long as the footer says.

    Files before Arrow 0.15 have the length alone, later ones a mark before it.
    """
    start = 8 if struct.unpack_from("<i", data)[0] == _CONTINUATION else 4
    message = data[start:]
    body = _int64(message, _field(message, _root(message), 3))
    length = struct.unpack_from("<i", data, start - 4)[0]
    return message, length == len(message) and body == body_length


def _root(data: bytes) -> int:
    return _target(data, 0)


def _target(data: bytes, position: int) -> int:
    return position + int(struct.unpack_from("<I", data, position)[0])


def _field(data: bytes, table: int, index: int) -> int | None:
    """Where a field of a table is, or None when it has its default."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    if vtable < 0:
        raise ValueError("its metadata is no flatbuffer")
    slot = 4 + 2 * index
    if slot >= struct.unpack_from("<H", data, vtable)[0]:
        return None
    offset = struct.unpack_from("<H", data, vtable + slot)[0]
    return table + offset if offset else None


def _vector(data: bytes, position: int | None, item_bytes: int) -> range:
    """Where the items of a vector of structs are."""
    if position is None:
        return range(0)
    vector = _target(data, position)
    count = struct.unpack_from("<I", data, vector)[0]
    return range(vector + 4, vector + 4 + count * item_bytes, item_bytes)


def _int64(data: bytes, position: int | None) -> int:
    return 0 if position is None else int(struct.unpack_from("<q", data, position)[0])
