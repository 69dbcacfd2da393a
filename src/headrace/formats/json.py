"""JSON: an array of objects, or objects line by line; the first byte tells which."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.json as pajson

from headrace.errors import ReadError
from headrace.formats.failures import naming
from headrace.formats.json_lines import JsonLines
from headrace.formats.json_objects import lines_of_array, lines_of_objects
from headrace.formats.lines import (
    BOM,
    TextBlock,
    checked_options,
    compression_of,
    lines_of_chunk,
    open_text,
    read_fully,
    refuse_parts,
)
from headrace.formats.protocol import FileFacts
from headrace.model import DataFileInfo, FileSplit
from headrace.storage import Store

__all__ = ["JsonFormat", "JsonLinesFormat"]

_OPTION_TYPES = {"read_options": pajson.ReadOptions, "parse_options": pajson.ParseOptions}
_FIRST_BYTES = 1 << 12
_BLANKS = b" \t\r\n"


class _Kind(Enum):
    LINES = "an object a line"
    OBJECTS = "objects that may span lines"
    ARRAY = "an array of objects"


@dataclass(frozen=True, slots=True)
class _Layout:
    kind: _Kind
    body_offset: int
    """after a byte order mark, or after the bracket that opens an array"""


class JsonFormat:
    """An array or lines of objects; a field that a row lacks is null.

    ``schema`` gives types to fields by name; what it leaves out is inferred from the first block
    of a file. A field that ``read`` was not asked for is an error unless ``ignore_unknown``.
    """

    name = "json"
    extensions: tuple[str, ...] = (".json",)

    def __init__(
        self,
        options: Mapping[str, Any] | None = None,
        *,
        schema: pa.Schema | None = None,
        ignore_unknown: bool = False,
    ) -> None:
        given = checked_options(self.name, options, _OPTION_TYPES)
        self._read = given.get("read_options", pajson.ReadOptions())
        self._parse = given.get("parse_options", pajson.ParseOptions())
        self._given_types = _merged(self._parse.explicit_schema, schema)
        ignored = ignore_unknown or self._parse.unexpected_field_behavior == "ignore"
        self._unknown = "ignore" if ignored else "error"

    def ignoring_unknown(self) -> JsonFormat:
        """Return a copy for which fields that ``read`` was not asked for are no error."""
        other = copy(self)
        other._unknown = "ignore"
        return other

    def inspect(
        self, store: Store, file: DataFileInfo, keep: ds.Expression | None = None
    ) -> FileFacts:
        """Fields and types from the first block; ``keep`` rules out nothing."""
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
        splittable = layout.kind is _Kind.LINES and compression_of(file.path) is None
        offset = layout.body_offset if splittable else 0
        return FileFacts(schema.remove_metadata(), body_offset=offset, splittable=splittable)

    def read(
        self, store: Store, chunk: FileSplit, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        """See `Format.read`. A wanted field that no row has comes as a column of nulls."""
        layout = self._layout(store, chunk.file)
        if layout is None:
            return
        lines = JsonLines(store, chunk.file, schema, self._read, self._unknown)
        for block in self._blocks(store, chunk, layout, block_bytes):
            table = lines.table(block)
            if table.num_rows:
                yield table

    def _layout(self, store: Store, file: DataFileInfo) -> _Layout | None:
        """None for a file that holds nothing."""
        with naming(file.path), open_text(store, file) as text:
            head = read_fully(text, _FIRST_BYTES)
            while not (body := head.removeprefix(BOM).lstrip(_BLANKS)):
                piece = read_fully(text, max(_FIRST_BYTES, len(head)))
                if not piece:
                    return None
                head += piece
        if body.startswith(b"["):
            return _Layout(_Kind.ARRAY, len(head) - len(body) + 1)
        if not body.startswith(b"{"):
            raise ReadError(
                f"{file.path}: expected an array or objects in UTF-8, found {body[:40]!r}"
            )
        kind = _Kind.OBJECTS if self._parse.newlines_in_values else _Kind.LINES
        return _Layout(kind, len(BOM) if head.startswith(BOM) else 0)

    def _blocks(
        self,
        store: Store,
        chunk: FileSplit,
        layout: _Layout,
        block_bytes: int,
        *,
        all_of_it: bool = True,
    ) -> Generator[TextBlock, None, None]:
        start = layout.body_offset
        if layout.kind is _Kind.LINES:
            yield from lines_of_chunk(store, chunk, start, block_bytes, all_of_it=all_of_it)
            return
        refuse_parts(chunk)
        path = chunk.file.path
        with naming(path), open_text(store, chunk.file, whole=all_of_it) as text:
            if layout.kind is _Kind.ARRAY:
                yield from lines_of_array(path, text, start, block_bytes)
            else:
                yield from lines_of_objects(text, start, block_bytes)


class JsonLinesFormat(JsonFormat):
    """The same under the names that files of lines go by."""

    name = "jsonl"
    extensions = (".jsonl", ".ndjson")


def _merged(explicit: pa.Schema | None, schema: pa.Schema | None) -> pa.Schema:
    """The types given either way; ``schema`` wins."""
    fields = {field.name: field for given in (explicit, schema) for field in given or ()}
    return pa.schema(fields.values())
