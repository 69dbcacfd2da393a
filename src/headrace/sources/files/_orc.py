"""ORC: a file consists of stripes, each of which is decoded as a whole.

pyarrow decodes. It does not say how many rows a stripe has, or where the bytes of a column are:
both are read here, from the footers of the file and of its stripes, which are protobuf messages.
They are checked before pyarrow opens a file, because its older versions crash on damaged footers.
Filters exclude no stripe; rows are filtered after reading.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import orc

from headrace.errors import naming
from headrace.matrices import width_of
from headrace.model import DataFileInfo, FileSplit, Int64Array, RowGroups
from headrace.sources.files.protocol import FileFacts, cut_rows, in_blocks, rows_only, shares_of
from headrace.storage import Store, will_read

_MALFORMED = (ValueError, LookupError, TypeError, ArithmeticError, zlib.error)
"""Errors of parsing a damaged footer here; pyarrow raises its own."""
_FIRST_READ_BYTES = 16 << 10
_CODECS = {0: "", 1: "zlib", 2: "snappy", 4: "lz4", 5: "zstd"}
_LONGEST_CHUNK = 8 << 20
"""Length up to which a chunk of a footer is decompressed; a footer has few chunks."""
_DATA, _ROWS = 2, 4
"""Indices in the line of a stripe."""


class OrcFormat:
    """ORC files, with their stripes as row groups.

    The ``size_bytes`` of a group is the size of its numbers and texts in memory, as far as the
    footer gives it, or the length of its data if that is more.
    """

    name = "orc"
    extensions: tuple[str, ...] = (".orc",)

    def inspect(
        self, store: Store, file: DataFileInfo, keep: ds.Expression | None = None
    ) -> FileFacts:
        with naming(file.path, *_MALFORMED), store.open(file) as source:
            opened = _OrcFile(source)
            width = sum(width_of(field.type) or 0 for field in opened.schema)
            width += opened.text_bytes // max(opened.rows, 1)
            sizes = np.maximum(opened.stripes[:, _DATA], np.maximum(opened.counts * width, 1))
            groups = RowGroups.of(opened.counts, sizes)
            return FileFacts(opened.schema.remove_metadata(), opened.rows, groups)

    def read(
        self, store: Store, chunk: FileSplit, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        with naming(chunk, *_MALFORMED), store.open(chunk.file) as source:
            opened = _OrcFile(source)
            columns = [field for field in opened.schema if field.name in set(schema.names)]
            parts = shares_of(chunk.row_range, opened.counts)
            if columns and not store.local:
                opened.announce([part[0] for part in parts], {field.name for field in columns})
            yield from in_blocks((opened.read(*part, columns) for part in parts), block_bytes)


class _OrcFile:
    """An open file: its footer, its stripes, and their rows.

    Attributes:
        stripes: A line for each stripe: its offset, the lengths of its index, data and footer,
            which follow each other in the file, and its rows.
        counts: The rows of each stripe.
        rows: The rows of all stripes.
        text_bytes: Bytes of all texts and binary values, by the statistics of their columns.
        schema: The columns.
    """

    def __init__(self, source: pa.NativeFile) -> None:
        self._source = source
        self._codec, footer = _read_footer(source)
        infos = [
            [_number_in(info, n) for n in range(1, 6)] for info in map(_parse, footer.get(3, []))
        ]
        self.stripes: Int64Array = np.array(infos, np.int64).reshape(-1, 5)
        self._stops: Int64Array = self.stripes[:, :_ROWS].sum(axis=1)
        self.counts: Int64Array = self.stripes[:, _ROWS]
        self.rows = _number_in(footer, 6)
        self.text_bytes = sum(map(_text_bytes, map(_parse, footer.get(7, []))))
        root = _parse(footer[4][0])
        self._first_numbers = [*_varints(b"".join(root.get(2, []))), len(footer[4])]
        fits = (self.stripes >= 0).all() and (self._stops <= source.size()).all()
        fits = fits and len(self._first_numbers) == len(root.get(3, [])) + 1
        if not fits or self.rows != self.counts.sum():
            raise ValueError("its footer is damaged: rows, stripes or columns do not fit together")
        self._reader = orc.ORCFile(source)
        self.schema: pa.Schema = self._reader.schema

    def read(self, number: int, first: int, last: int, columns: list[pa.Field]) -> pa.Table:
        """Return some rows of a stripe."""
        if not columns:
            return rows_only(last - first)
        names = [field.name for field in columns]
        batch = self._reader.read_stripe(number, columns=names)
        if list(batch.schema) != columns:  # pyarrow takes "a.b" for the field b of a struct a
            batch = self._reader.read_stripe(number).select(names)
        return cut_rows(pa.Table.from_batches([batch]), first, last)

    def announce(self, numbers: Sequence[int], names: set[str]) -> None:
        """Announce the columns of some stripes, so that they are fetched together."""
        starts, index, _, footers, _ = self.stripes[numbers].T
        bodies, stops = starts + index, self._stops[numbers]
        of_all = len(names) == len(self.schema)
        begins = bodies if of_all else stops - footers
        ends = list(zip(begins.tolist(), stops.tolist(), strict=True))
        will_read(self._source, ends)
        if of_all:
            return
        places = zip(self.schema.names, pairwise(self._first_numbers), strict=True)
        wanted = {0}.union(*(range(*place) for name, place in places if name in names))
        spans = []
        for end, body, (start, stop) in zip(starts.tolist(), bodies.tolist(), ends, strict=True):
            footer = _decompress(self._source.read_at(stop - start, start), self._codec)
            for stream in map(_parse, _parse(footer).get(1, [])):
                begin, end = end, end + _number_in(stream, 3)
                if begin >= body and _number_in(stream, 2) in wanted:
                    spans.append((begin, end))
        will_read(self._source, spans + ends)


def _text_bytes(statistics: _Message) -> int:
    """Return the bytes of all values of a column of texts or binary values, by its statistics."""
    texts, blobs = statistics.get(4, []), statistics.get(8, [])
    sums = [_number_in(_parse(one), 3) for one in texts] + [
        _number_in(_parse(one), 1) for one in blobs
    ]
    return sum(sums) >> 1  # the lowest bit is the sign


def _read_footer(source: pa.NativeFile) -> tuple[str, _Message]:
    """Return the codec of a file, and its footer, which lies before the postscript at its end."""
    size = source.size()
    end = source.read_at(min(size, _FIRST_READ_BYTES), max(size - _FIRST_READ_BYTES, 0))
    if end[-4:-1] != b"ORC":
        raise ValueError("it does not end like an ORC file; it may be cut short")
    postscript = _parse(end[-1 - end[-1] : -1])
    stop = size - 1 - end[-1]
    start = max(stop - _number_in(postscript, 1), 0)
    raw = end[start - size : stop - size] if size - start <= len(end) else b""
    codec = _CODECS[_number_in(postscript, 2)]
    return codec, _parse(_decompress(raw or source.read_at(stop - start, start), codec))


_Message = dict[int, list[Any]]
"""Fields by number, each with all its values: ints, or bytes for types other than varint."""


def _parse(data: bytes) -> _Message:
    """Return the fields of a message."""
    fields, position = _Message(), 0
    while position < len(data):
        key, position = _varint(data, position)
        value: Any = {0: None, 1: 8, 2: None, 5: 4}.get(key & 7, len(data))
        if value is None:  # the value or its length follows
            value, position = _varint(data, position)
        if key & 7:
            value, position = data[position : position + value], position + value
        fields.setdefault(key >> 3, []).append(value)
    if position > len(data):
        raise ValueError("a footer is cut short or damaged")
    return fields


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the number at a position, and the position after it."""
    value = 0
    for index, byte in enumerate(data[position : position + 10]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, position + index + 1
    raise ValueError("a number in a footer has no end")


def _varints(data: bytes) -> Iterator[int]:
    """Yield numbers that are packed into one field."""
    position = 0
    while position < len(data):
        number, position = _varint(data, position)
        yield number


def _number_in(message: _Message, field: int) -> int:
    """Return the number in a field; a field that is left out is 0."""
    return int(message.get(field, [0])[0])


def _decompress(data: bytes, codec: str) -> bytes:
    """Join the chunks of a footer, each after 3 bytes: its length, and a bit for "stored"."""
    if not codec:
        return data
    whole, position = bytearray(), 0
    while position < len(data) and len(whole) < 8 * _LONGEST_CHUNK:
        header = int.from_bytes(data[position : position + 3], "little")
        start, position = position + 3, position + 3 + (header >> 1)
        chunk = data[start:position]
        whole += chunk if header & 1 else _decompress_chunk(chunk, codec)
    return bytes(whole)


def _decompress_chunk(chunk: bytes, codec: str) -> bytes:
    if codec == "zlib":
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(chunk, _LONGEST_CHUNK)
    if codec == "snappy":
        return bytes(pa.decompress(chunk, min(_varint(chunk, 0)[0], _LONGEST_CHUNK), codec))
    if codec == "lz4":  # pyarrow needs the size of a block, but not of a frame of it
        chunk = b"\x04\x22\x4d\x18`ps" + len(chunk).to_bytes(4, "little") + chunk + bytes(4)
    return bytes(pa.CompressedInputStream(pa.BufferReader(chunk), codec).read(_LONGEST_CHUNK))
