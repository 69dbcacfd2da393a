"""JSON: files of one object a line, and files that are one array or one object."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.json as pajson

from headrace.errors import ReadError, naming
from headrace.model import DataFileInfo, FileSplit
from headrace.sources.files._lines import (
    BOM,
    LineParser,
    TextBlock,
    checked_options,
    compression_of,
    in_arrow_memory,
    lines_of_chunk,
    open_text,
    read_fully,
    refuse_parts,
    shown,
)
from headrace.sources.files.protocol import FileFacts
from headrace.storage import Store

_BLANKS = b" \t\r\n"
_GAP = re.compile(r"[ \t\r\n]*")
_find_end = json.JSONDecoder(parse_int=len, parse_float=len, parse_constant=len).raw_decode
"""Function that finds the end of a value without making its numbers."""


def lines_of_objects(
    path: str, stream: pa.NativeFile, body_offset: int, block_bytes: int, *, in_array: bool
) -> Iterator[TextBlock]:
    """Yield objects as lines: the elements of an array, or objects that follow each other.

    Latin-1 has a character for every byte, so that positions in the text are those in the file.

    Args:
        path: The path of the file, for messages.
        stream: The text.
        body_offset: Position of the first byte; for an array, the byte after its bracket.
        block_bytes: Approximate size of a block in bytes.
        in_array: True if commas separate the objects, and a bracket ends them.
    """
    offset = len(read_fully(stream, body_offset))
    text, count, more = "", 0, True
    while more:
        piece = read_fully(stream, max(block_bytes, len(text)))
        text, more = text + piece.decode("latin-1"), bool(piece)
        lines, at, ended, failed = [], 0, False, (0, len(text))
        while not ended:
            start = _after_gap(text, at)
            if in_array and text[start : start + 1] == "]":
                ended = True
                break
            if in_array and count and text[start : start + 1] == ",":
                start = _after_gap(text, start + 1)
            elif in_array and count and start < len(text):
                raise _no_object(path, text, start, offset, count - 1)
            if start == len(text):
                break
            if text[start] != "{":
                raise _no_object(path, text, start, offset, count)
            try:
                end = _find_end(text, start)[1]
            except (ValueError, RecursionError) as error:
                # It is damaged, or goes on after this piece.
                failed = start, getattr(error, "pos", start)
                break
            lines.append(" " * (start - at - 1) + "\n" * (start > at))
            lines.append(text[start:end].replace("\n", " "))
            at, count = end, count + 1
        if lines:
            yield TextBlock(in_arrow_memory("".join(lines).encode("latin-1")), offset)
        offset, text = offset + at, text[at:]
        if ended:
            _refuse_trailer(path, text, stream, offset)
            return
    start, place = failed
    if in_array and place < len(text):
        # The parser of lines reports the line and the error.
        yield TextBlock(in_arrow_memory(text[start:].encode("latin-1")), offset + start)
    if in_array:
        raise ReadError(
            f"{path}: the text ends at byte {offset + len(text)} inside an array, after "
            f"{count} elements; is the file complete?"
        )
    if text.strip():
        yield TextBlock(in_arrow_memory(text.encode("latin-1")), offset)


def _after_gap(text: str, at: int) -> int:
    gap = _GAP.match(text, at)
    return at if gap is None else gap.end()


def _no_object(path: str, text: str, at: int, offset: int, number: int) -> ReadError:
    found = text[at : at + 80].encode("latin-1")
    return ReadError(
        f"{path}, element {number + 1}, at byte {offset + at}: expected one object ({{...}}) "
        f"between commas, found {found!r}"
    )


def _refuse_trailer(path: str, text: str, stream: pa.NativeFile, offset: int) -> None:
    """Raise an error for anything but blanks after the bracket that ends an array."""
    start = _after_gap(text, 0)
    rest = text[start + 1 :].encode("latin-1").strip(_BLANKS)
    while not rest and (piece := read_fully(stream, _TRAILER_BYTES)):
        rest = piece.strip(_BLANKS)
    if rest:
        raise ReadError(
            f"{path}: expected a bracket and the end of the file at byte {offset + start}, "
            f"found {b'] ' + rest[:80]!r}"
        )


_CURES = (
    "give the field another type with schema=, leave it out with columns=, or say how the file "
    'is written with format_options={"read_options": ..., "parse_options": ...}'
)
_NO_FIELD = pa.schema([("no field has this name 5d1e", pa.null())])


@dataclass(frozen=True, slots=True)
class JsonLines(LineParser):
    """Parses lines of one file, each of which holds an object.

    Attributes:
        schema: The fields to read, in the types that come out.
        read: How text is read.
        unknown: The treatment of other fields: error, ignore or infer.
    """

    schema: pa.Schema
    read: pajson.ReadOptions
    unknown: str

    cures = _CURES

    @property
    def piece_bytes(self) -> int:
        return int(self.read.block_size)

    @property
    def depends_on_lines_before(self) -> bool:
        return self.unknown == "infer"

    def rows(self, data: pa.Buffer | bytes, piece_bytes: int | None = None) -> pa.Table:
        schema = self.schema
        text = data if isinstance(data, pa.Buffer) else in_arrow_memory(data)
        _require_utf8(text)
        read = copy(self.read)
        read.block_size = piece_bytes or len(data) + 1
        parse = pajson.ParseOptions(
            explicit_schema=readable_schema(schema) if len(schema) else _NO_FIELD,
            newlines_in_values=False,
            unexpected_field_behavior=self.unknown,
        )
        table = pajson.read_json(pa.BufferReader(text), read, parse)
        if not len(schema):
            table = table.drop_columns(_NO_FIELD.names)
        return _in_types_of(table, schema)

    def complaint(self, line: bytes, error: Exception) -> str:
        try:
            row = json.loads(line)
        except ValueError as problem:
            return f"not JSON: {problem}: {shown(line)}"
        if not isinstance(row, dict):
            return f"expected an object ({{...}}), found {shown(line)}"
        strangers = [name for name in row if name not in self.schema.names]
        if strangers and self.unknown == "error":
            return (
                f"field {strangers[0]!r} is not in the schema of the data set, which comes from "
                "the first block of every file"
            )
        for name in row.keys() & set(self.schema.names):
            field = self.schema.field(name)
            value = json.dumps({name: row[name]}).encode()
            if replace(self, schema=pa.schema([field])).failure_of(value):
                held = shown(json.dumps(row[name], ensure_ascii=False).encode())
                return f"field {name!r} holds {held}, which is not {field.type}"
        return f"{error}: {shown(line)}"


def readable_schema(schema: pa.Schema) -> pa.Schema:
    """Return the nearest types that Arrow's JSON parser makes of text; values are cast later."""
    return pa.schema([pa.field(field.name, _readable(field.type)) for field in schema])


def _readable(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(_readable(kind.value_type))
    if types.is_struct(kind):
        return pa.struct(
            [(kind.field(i).name, _readable(kind.field(i).type)) for i in range(kind.num_fields)]
        )
    if types.is_dictionary(kind):
        return _readable(kind.value_type)
    if types.is_float16(kind):
        return pa.float32()
    if types.is_date(kind):
        return pa.timestamp("s")
    if types.is_duration(kind):
        return pa.int64()
    return kind


def _in_types_of(table: pa.Table, schema: pa.Schema) -> pa.Table:
    for field in schema:
        index = table.schema.get_field_index(field.name)
        if table.schema.field(index).type != field.type:
            table = table.set_column(index, field.name, table.column(index).cast(field.type))
    return table


def _require_utf8(text: pa.Buffer) -> None:
    """Raise ArrowInvalid for text that is not UTF-8, which Arrow's JSON parser would accept."""
    ends = pa.py_buffer(np.array([0, text.size], np.int64))
    pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, text]).cast(pa.large_string())


_OPTION_TYPES = {"read_options": pajson.ReadOptions, "parse_options": pajson.ParseOptions}
_FIRST_BYTES = 1 << 12
_TRAILER_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class _JsonLayout:
    """The layout of a file, by its first bytes.

    Attributes:
        body_offset: Position after a byte order mark, or after the bracket that opens an array.
        in_array: True for the elements of an array, False for objects that follow each other.
        by_lines: True for an object a line; others may span lines.
    """

    body_offset: int
    in_array: bool
    by_lines: bool


class JsonFormat:
    """An array or lines of objects; a field that a row lacks is null.

    ``schema`` gives types to fields by name; the types of other fields are inferred from the first
    block of a file. A field that is not in ``known`` is an error, if all of those are read.
    """

    name = "json"
    extensions: tuple[str, ...] = (".json",)

    def __init__(
        self,
        options: Mapping[str, Any] | None = None,
        *,
        schema: pa.Schema | None = None,
        known: pa.Schema | None = None,
    ) -> None:
        given = checked_options(self.name, options, _OPTION_TYPES)
        self._read = given.get("read_options", pajson.ReadOptions())
        self._parse = given.get("parse_options", pajson.ParseOptions())
        self._given_types = _merged(self._parse.explicit_schema, schema)
        ignored = known is None or self._parse.unexpected_field_behavior == "ignore"
        self._known = None if ignored else known

    def inspect(
        self, store: Store, file: DataFileInfo, keep: ds.Expression | None = None
    ) -> FileFacts:
        """Return fields and types from the first block of a file."""
        layout = self._layout(store, file)
        if layout is None:
            return FileFacts(self._given_types, splittable=compression_of(file.path) is None)
        size = self._read.block_size
        blocks = self._blocks(store, FileSplit(file), layout, size, all_of_it=False)
        first = next(blocks, None)
        blocks.close()
        unknown = self._parse.unexpected_field_behavior
        lines = JsonLines(store, file, self._given_types, self._read, unknown)
        schema = self._given_types if first is None else lines.table(first).schema
        splittable = layout.by_lines and compression_of(file.path) is None
        offset = layout.body_offset if splittable else 0
        return FileFacts(schema.remove_metadata(), body_offset=offset, splittable=splittable)

    def read(
        self, store: Store, chunk: FileSplit, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        """Yield the rows of a chunk; a wanted field that no row has is a column of nulls."""
        layout = self._layout(store, chunk.file)
        if layout is None:
            return
        # If not all columns are read, it is not known which other fields belong to the data.
        strict = self._known is not None and set(self._known.names) <= set(schema.names)
        unknown = "error" if strict else "ignore"
        lines = JsonLines(store, chunk.file, schema, self._read, unknown)
        for block in self._blocks(store, chunk, layout, block_bytes):
            table = lines.table(block)
            if table.num_rows:
                yield table

    def _layout(self, store: Store, file: DataFileInfo) -> _JsonLayout | None:
        """Return the layout of a file; None if the file is empty."""
        with naming(file.path), open_text(store, file) as text:
            head = read_fully(text, _FIRST_BYTES)
            while not (body := head.removeprefix(BOM).lstrip(_BLANKS)):
                piece = read_fully(text, max(_FIRST_BYTES, len(head)))
                if not piece:
                    return None
                head += piece
        if body.startswith(b"["):
            return _JsonLayout(len(head) - len(body) + 1, True, False)
        if not body.startswith(b"{"):
            raise ReadError(
                f"{file.path}: expected an array or objects in UTF-8, found {body[:40]!r}"
            )
        start = len(BOM) if head.startswith(BOM) else 0
        return _JsonLayout(start, False, not self._parse.newlines_in_values)

    def _blocks(
        self,
        store: Store,
        chunk: FileSplit,
        layout: _JsonLayout,
        block_bytes: int,
        *,
        all_of_it: bool = True,
    ) -> Generator[TextBlock, None, None]:
        start = layout.body_offset
        if layout.by_lines:
            yield from lines_of_chunk(store, chunk, start, block_bytes, all_of_it=all_of_it)
            return
        refuse_parts(chunk)
        path = chunk.file.path
        with naming(path), open_text(store, chunk.file, whole=all_of_it) as text:
            yield from lines_of_objects(path, text, start, block_bytes, in_array=layout.in_array)


class JsonLinesFormat(JsonFormat):
    """The same format for files that are named as files of lines."""

    name = "jsonl"
    extensions = (".jsonl", ".ndjson")


def _merged(explicit: pa.Schema | None, schema: pa.Schema | None) -> pa.Schema:
    """Return the types given either way; ``schema`` takes precedence."""
    fields = {field.name: field for given in (explicit, schema) for field in given or ()}
    return pa.schema(fields.values())
