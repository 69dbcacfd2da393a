"""Blocks of JSON lines to tables, and which line and field is to blame when that fails."""

from __future__ import annotations

import json
from copy import copy
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.json as pajson

from headrace.errors import ReadError, SchemaError
from headrace.formats.lines import (
    TextBlock,
    in_arrow_memory,
    line_number,
    parsed_in_pieces,
    shortest_failing_lines,
    shown,
)
from headrace.model import DataFileInfo
from headrace.storage import Store

__all__ = ["JsonLines", "readable_schema"]

_CURES = (
    "give the field another type with schema=, leave it out with columns=, or say how the file "
    'is written with format_options={"read_options": ..., "parse_options": ...}'
)
_NO_FIELD = pa.schema([("no field has this name 5d1e", pa.null())])


@dataclass(frozen=True, slots=True)
class JsonLines:
    """Parses lines of one file, each of which holds an object."""

    store: Store
    file: DataFileInfo
    schema: pa.Schema
    """the fields to read, in the types that come out"""
    read: pajson.ReadOptions
    unknown: str
    """what to do with other fields: error, ignore or infer"""

    def table(self, block: TextBlock) -> pa.Table:
        """The rows of a block, parsed on all cores."""
        try:
            return parsed_in_pieces(
                lambda nbytes: self._rows(block.data, self.schema, nbytes),
                block.data.size,
                self.read.block_size,
                pa.ArrowInvalid,
            )
        except pa.ArrowNotImplementedError as error:
            raise SchemaError(f"{self.file.path}: {error}; name another type in schema=") from error
        except pa.ArrowInvalid as error:
            raise self._blame(block, error) from error

    def _rows(
        self, data: pa.Buffer | bytes, schema: pa.Schema, piece_bytes: int | None = None
    ) -> pa.Table:
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

    def _blame(self, block: TextBlock, error: Exception) -> ReadError:
        data = bytes(block.data)
        found = shortest_failing_lines(data, self._fails, from_start=self.unknown == "infer")
        if found is None:
            stop = block.offset + len(data)
            return ReadError(f"{self.file.path}, bytes {block.offset}-{stop}: {error}; {_CURES}")
        offset, line = found
        begin = offset + len(line) - len(line.lstrip())
        number = line_number(self.store, self.file, block.offset + begin)
        return ReadError(
            f"{self.file.path}, line {number}: {self._complaint(line, error)}; {_CURES}"
        )

    def _fails(self, lines: bytes, schema: pa.Schema | None = None) -> bool:
        try:
            self._rows(lines, self.schema if schema is None else schema)
        except pa.ArrowInvalid:
            return True
        return False

    def _complaint(self, line: bytes, error: Exception) -> str:
        try:
            row = json.loads(line)
        except json.JSONDecodeError as problem:
            return f"not JSON: {problem.msg} at character {problem.pos + 1} of {shown(line)}"
        except UnicodeDecodeError:
            return f"bytes that are not UTF-8: {shown(line)}"
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
            if self._fails(value, pa.schema([field])):
                held = shown(json.dumps(row[name], ensure_ascii=False).encode())
                return f"field {name!r} holds {held}, which is not {field.type}"
        return f"{error}: {shown(line)}"


def readable_schema(schema: pa.Schema) -> pa.Schema:
    """The nearest types that Arrow's JSON parser makes of text; the rest is a cast."""
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
    """Arrow's JSON parser lets any bytes through as text."""
    ends = pa.py_buffer(np.array([0, text.size], np.int64))
    pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, text]).cast(pa.large_string())
