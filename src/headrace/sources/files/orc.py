"""ORC: a file is stripes, each of which decodes as a whole.

pyarrow decodes. It does not tell how many rows a stripe has, nor where the bytes of a column lie:
both are read here, from the footers of the file and of its stripes, which are protobuf messages.
They are checked before pyarrow opens a file: its older versions crash on damaged footers.
A filter rules no stripe out; rows are filtered after reading.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import orc

from headrace.matrices import width_of
from headrace.model import DataFileInfo, FileSplit, RowGroups, RowRange
from headrace.sources.files.blocks import cut_rows, in_blocks, rows_only
from headrace.sources.files.failures import naming
from headrace.sources.files.protocol import FileFacts
from headrace.storage import Store, will_read

__all__ = ["OrcFormat"]

_MALFORMED = (ValueError, LookupError, TypeError, ArithmeticError, zlib.error)
"""what a damaged footer raises here; pyarrow has errors of its own"""
_FIRST_READ_BYTES = 16 << 10
_CODECS = {0: "", 1: "zlib", 2: "snappy", 4: "lz4", 5: "zstd"}
_LONGEST_FOOTER = 64 << 20
"""Length of a decompressed footer beyond which it is not looked at."""
_LONGEST_CHUNK = 8 << 20


class OrcFormat:
    """ORC files, with their stripes as row groups.

    The ``size_bytes`` of a group is the length of its data, or the size of its numbers in memory if
    that is more.
    """

    name = "orc"
    extensions: tuple[str, ...] = (".orc",)

    def inspect(
        self, store: Store, file: DataFileInfo, keep: ds.Expression | None = None
    ) -> FileFacts:
        with naming(file.path, *_MALFORMED), store.open(file) as source:
            opened = _OrcFile(source)
            rows = [stripe.rows for stripe in opened.stripes]
            width = sum(width_of(field.type) or 0 for field in opened.schema)
            sizes = [max(s.data_length, s.rows * width, 1) for s in opened.stripes]
            groups = RowGroups.of(rows, sizes)
            return FileFacts(opened.schema.remove_metadata(), opened.rows, groups)

    def read(
        self, store: Store, chunk: FileSplit, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        with naming(chunk, *_MALFORMED), store.open(chunk.file) as source:
            opened = _OrcFile(source)
            columns = [field for field in opened.schema if field.name in set(schema.names)]
            parts = list(opened.parts(chunk.row_range))
            if columns and not store.local:
                stripes = [opened.stripes[index] for index, _, _ in parts]
                opened.announce(stripes, {column.name for column in columns})
            yield from in_blocks((opened.read(*part, columns) for part in parts), block_bytes)


class _Stripe(NamedTuple):
    """A stripe: index, data and footer, which follow each other in the file."""

    offset: int
    index_length: int
    data_length: int
    footer_length: int
    rows: int

    @property
    def stop(self) -> int:
        return self.offset + self.index_length + self.data_length + self.footer_length


class _OrcFile:
    """An open file: its footer, its stripes, and the rows of these."""

    def __init__(self, source: pa.NativeFile) -> None:
        self._source = source
        self._codec, self._footer = _read_footer(source)
        infos = map(_parse, self._footer.get(3, []))
        self.stripes = [_Stripe(*(_number(info, field) for field in range(1, 6))) for info in infos]
        self.rows = sum(stripe.rows for stripe in self.stripes)
        root = _parse(self._footer[4][0])
        self._first_numbers = [*_unpacked(root.get(2, [])), len(self._footer[4])]
        if (
            self.rows != _number(self._footer, 6)
            or any(stripe.stop > source.size() for stripe in self.stripes)
            or len(self._first_numbers) != len(root.get(3, [])) + 1
        ):
            raise ValueError("its footer is damaged: rows, stripes or columns do not fit together")
        self._reader = orc.ORCFile(source)
        self.schema: pa.Schema = self._reader.schema

    def parts(self, rows: RowRange | None) -> Iterator[tuple[int, int, int]]:
        """Yield each stripe that has some of the rows, with the first and last of them in it."""
        rows = rows or RowRange(0, self.rows)
        if rows.stop > self.rows:
            raise ValueError(f"the file has {self.rows} rows only")
        start = 0
        for index, stripe in enumerate(self.stripes):
            first, last = max(rows.offset - start, 0), min(rows.stop - start, stripe.rows)
            if first < last:
                yield index, first, last
            start += stripe.rows

    def read(self, index: int, first: int, last: int, columns: list[pa.Field]) -> pa.Table:
        """Return some rows of a stripe."""
        if not columns:
            return rows_only(last - first)
        names = [field.name for field in columns]
        batch = self._reader.read_stripe(index, columns=names)
        if list(batch.schema) != columns:  # pyarrow takes "a.b" for the field b of a struct a
            batch = self._reader.read_stripe(index).select(names)
        return cut_rows(pa.Table.from_batches([batch]), first, last)

    def announce(self, stripes: Sequence[_Stripe], names: set[str]) -> None:
        """Have the columns of some stripes fetched together."""
        if len(names) == len(self.schema):
            will_read(self._source, [(one.offset + one.index_length, one.stop) for one in stripes])
            return
        footers = [(one.stop - one.footer_length, one.stop) for one in stripes]
        will_read(self._source, footers)
        wanted, spans = self._numbers(names), []
        for stripe, (start, stop) in zip(stripes, footers, strict=True):
            footer = _decompress(self._source.read_at(stop - start, start), self._codec)
            end = stripe.offset
            for stream in map(_parse, _parse(footer).get(1, [])):
                begin, end = end, end + _number(stream, 3)
                if begin >= stripe.offset + stripe.index_length and _number(stream, 2) in wanted:
                    spans.append((begin, end))
        will_read(self._source, spans + footers)

    def _numbers(self, names: set[str]) -> set[int]:
        """Return the numbers of some columns, of all within them, and of the row itself."""
        spans = zip(self.schema.names, pairwise(self._first_numbers), strict=True)
        return {0}.union(*(range(*span) for name, span in spans if name in names))


def _read_footer(source: pa.NativeFile) -> tuple[str, _Message]:
    """Return the codec of a file, and its footer, which lies before the postscript at its end."""
    size = source.size()
    end = source.read_at(min(size, _FIRST_READ_BYTES), max(size - _FIRST_READ_BYTES, 0))
    if end[-4:-1] != b"ORC":
        raise ValueError("it does not end like an ORC file; it may be cut short")
    postscript = _parse(end[-1 - end[-1] : -1])
    stop = size - 1 - end[-1]
    start = stop - _number(postscript, 1)
    if start < 0:
        raise ValueError(f"its footer would begin {-start} bytes before the file")
    raw = end[start - size : stop - size] if size - start <= len(end) else b""
    codec = _CODECS[_number(postscript, 2)]
    return codec, _parse(_decompress(raw or source.read_at(stop - start, start), codec))


_Message = dict[int, list[Any]]
"""fields by number, each with all its values: ints, or bytes for what is not a varint"""


def _parse(data: bytes) -> _Message:
    """Return the fields of a message."""
    fields, position = _Message(), 0
    while position < len(data):
        key, position = _varint(data, position)
        value: Any = {0: None, 1: 8, 2: None, 5: 4}.get(key & 7, len(data))
        if value is None:  # then the value or its length is written here
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


def _unpacked(values: list[Any]) -> list[int]:
    """Return repeated numbers, which a writer may pack into one field or not."""
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


def _number(message: _Message, field: int) -> int:
    """Return the number in a field, which is left out if it is 0."""
    return int(message.get(field, [0])[0])


def _decompress(data: bytes, codec: str) -> bytes:
    """Join the chunks of a footer, each after 3 bytes: its length, and a bit for "as it is"."""
    if not codec:
        return data
    whole, position = bytearray(), 0
    while position < len(data) and len(whole) < _LONGEST_FOOTER:
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
    if codec == "lz4":  # pyarrow has to be told how long a block becomes, but not a frame of it
        chunk = b"\x04\x22\x4d\x18`ps" + len(chunk).to_bytes(4, "little") + chunk + bytes(4)
    return bytes(pa.CompressedInputStream(pa.BufferReader(chunk), codec).read(_LONGEST_CHUNK))
