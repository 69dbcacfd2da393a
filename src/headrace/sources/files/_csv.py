"""CSV: text is read in parallel, cut at the ends of lines that are not within quotes."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.dataset as ds

from headrace.errors import ReadError, SchemaError, naming
from headrace.model import DataFileInfo, FileSplit
from headrace.sources.files._lines import (
    BOM,
    LineParser,
    TextBlock,
    checked_options,
    compression_of,
    first_lines,
    in_arrow_memory,
    line_number,
    lines_of_chunk,
    open_text,
    refuse_parts,
    shown,
    without_compression,
)
from headrace.sources.files._sniffing import HEAD_BYTES, looks_like
from headrace.sources.files.protocol import FileFacts
from headrace.storage import Store

_UNREADABLE = (pa.ArrowInvalid, UnicodeDecodeError)
_CURES = (
    "give the column another type with schema=, or say how the file is written with "
    'format_options={"read_options": ..., "parse_options": ..., "convert_options": ...}'
)
_PIECE_BYTES = 1 << 20
_COLUMN_NUMBER = re.compile(r"In CSV column #(\d+)")
"""How Arrow calls a column in an error."""


@dataclass(frozen=True, slots=True)
class CsvLines(LineParser):
    """Parses whole lines of one file; the header is not among them.

    Attributes:
        names: The names of all columns of the file.
        read: How text is read.
        parse: How lines are parsed.
        convert: The columns to read, and their types.
    """

    names: list[str]
    read: pacsv.ReadOptions
    parse: pacsv.ParseOptions
    convert: pacsv.ConvertOptions

    failures = _UNREADABLE
    cures = _CURES

    @property
    def piece_bytes(self) -> int:
        return min(int(self.read.block_size), _PIECE_BYTES)

    def rows(self, data: pa.Buffer | bytes, piece_bytes: int | None = None) -> pa.Table:
        return self._rows(data, self.convert, piece_bytes)

    def table(self, block: TextBlock) -> pa.Table:
        table = LineParser.table(self, block)
        if self.ends_inside_quotes(block, table.num_rows):
            raise ReadError(self._unclosed_quote(block))
        return table

    def count_rows(self, data: bytes) -> int:
        """Return the number of rows of some lines, whatever their columns hold."""
        name = self.names[0]
        counting = pacsv.ConvertOptions(include_columns=[name], column_types={name: pa.binary()})
        rows: int = self._rows(data, counting).num_rows
        return rows

    def _rows(
        self, data: pa.Buffer | bytes, convert: pacsv.ConvertOptions, piece_bytes: int | None = None
    ) -> pa.Table:
        read = copy(self.read)
        read.column_names = self.names
        read.autogenerate_column_names = False
        read.block_size = piece_bytes or len(data) + 1
        if bytes(memoryview(data)[: len(BOM)]) == BOM:
            # Arrow removes a mark from the beginning of every text; here it belongs to the first
            # value.
            data = BOM + bytes(data)
        source = pa.BufferReader(data if isinstance(data, pa.Buffer) else in_arrow_memory(data))
        return pacsv.read_csv(source, read, self.parse, convert)

    def ends_inside_quotes(self, block: TextBlock, rows: int) -> bool:
        """Return True if a value of a block of ``rows`` rows continues after the end of the block.

        Arrow takes an open quote at the end of a text for a closed one, and would garble rows in
        silence. If there are quotes, a row is appended, to see if it comes out as a row.
        """
        quote = self.parse.quote_char
        data = bytes(block.data)
        if not quote or quote.encode() not in data:
            return False
        if rows == data.count(b"\n") + (not data.endswith(b"\n")):
            # Every line is a row, so that the last line suffices.
            data = data[data.rfind(b"\n", 0, -1) + 1 :]
            if quote.encode() not in data:
                return False
        one_more = "0" + self.parse.delimiter * (len(self.names) - 1)
        longer = data.removesuffix(b"\n") + b"\n" + one_more.encode() + b"\n"
        return self.count_rows(longer) == self.count_rows(data)

    def _unclosed_quote(self, block: TextBlock) -> str:
        last = line_number(self.store, self.file, block.offset + block.data.size - 1)
        return (
            f"{self.file.path}: a quoted value goes on after the end of line {last}; if values may "
            'hold newlines, give format_options={"parse_options": '
            "pyarrow.csv.ParseOptions(newlines_in_values=True)}, else close the quote"
        )

    def complaint(self, line: bytes, error: Exception) -> str:
        def named(column: re.Match[str]) -> str:
            return f"column {self.names[int(column[1])]!r}"

        return f"{_COLUMN_NUMBER.sub(named, str(error))} ({shown(line)})"


def _names_in(line: bytes, read: pacsv.ReadOptions, parse: pacsv.ParseOptions) -> list[str]:
    """Return the values of a line as names of columns; f0, f1, ... if the options ask for those."""
    header = pacsv.ReadOptions(
        encoding=read.encoding, autogenerate_column_names=read.autogenerate_column_names
    )
    return list(pacsv.read_csv(pa.BufferReader(in_arrow_memory(line)), header, parse).column_names)


_OPTION_TYPES = {
    "read_options": pacsv.ReadOptions,
    "parse_options": pacsv.ParseOptions,
    "convert_options": pacsv.ConvertOptions,
}
_HEADER_BYTES = 1 << 14
_VISIBLE = re.compile(rb"[^\r\n]")
_LINE_END = re.compile(rb"\r\n|\r|\n")
_ASCII_COMPATIBLE = ("utf-8", "ascii", "iso8859", "cp125", "koi8")


@dataclass(frozen=True, slots=True)
class _CsvLayout:
    """The layout of a file, by its first lines."""

    names: list[str]
    body_offset: int
    rows_are_lines: bool
    """False if a row may hold a newline, so that rows are found only from the top."""


class CsvFormat:
    """Comma-separated values; ``.tsv`` files have tabs unless the options differ.

    ``options`` holds pyarrow's own option objects. ``schema`` gives types to columns by name; the
    types of other columns are inferred from the first block of a file.
    """

    name = "csv"
    extensions: tuple[str, ...] = (".csv", ".tsv")

    def __init__(
        self, options: Mapping[str, Any] | None = None, *, schema: pa.Schema | None = None
    ) -> None:
        given = checked_options("csv", options, _OPTION_TYPES)
        self._read = given.get("read_options", pacsv.ReadOptions())
        self._parse = given.get("parse_options", pacsv.ParseOptions())
        self._convert = given.get("convert_options", pacsv.ConvertOptions())
        self._tabs_in_tsv = "parse_options" not in given
        self._plain = not given
        if schema is not None:
            types = dict(zip(schema.names, schema.types, strict=True))
            self._convert.column_types = {**self._convert.column_types, **types}

    def inspect(
        self, store: Store, file: DataFileInfo, keep: ds.Expression | None = None
    ) -> FileFacts:
        """Return names, types and the end of the header, from the first block of a file.

        A column without a value has the type null, which can be combined with any other type.
        """
        with naming(file.path), open_text(store, file) as text:
            head, whole = first_lines(text, self._read.block_size)
        if _blank(head) and not self._read.column_names:
            return FileFacts(pa.schema([]), splittable=compression_of(file.path) is None)
        if self._plain and looks_like(head[:HEAD_BYTES]) not in ("csv", None):
            raise ReadError(f"{file.path}: the first lines are not CSV")
        layout = self._layout(store, file, head, whole)
        schema = self._infer(store, file, head, layout)
        splittable = layout.rows_are_lines and compression_of(file.path) is None
        return FileFacts(schema, body_offset=layout.body_offset, splittable=splittable)

    def read(
        self, store: Store, chunk: FileSplit, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        """Yield the rows of a chunk in the types of ``schema``; nothing is inferred again."""
        file = chunk.file
        with naming(file.path), open_text(store, file) as text:
            nbytes = _HEADER_BYTES if file.splittable else self._read.block_size
            head, whole = first_lines(text, nbytes)
        if _blank(head):
            return
        layout = self._layout(store, file, head, whole)
        convert = self._conversion(layout.names, schema)
        if layout.rows_are_lines:
            blocks = lines_of_chunk(store, chunk, layout.body_offset, block_bytes)
            lines = self._lines(store, file, layout.names, convert)
            tables: Iterator[pa.Table] = map(lines.table, blocks)
        else:
            refuse_parts(chunk)
            tables = self._stream(store, file, convert, block_bytes)
        counted_only = not set(layout.names) & set(schema.names)
        for table in tables:
            if table.num_rows:
                yield table.select([]) if counted_only else table

    def _parsing(self, file: DataFileInfo) -> pacsv.ParseOptions:
        """Return the options of lines, which have tabs in ``.tsv`` files by default."""
        if not self._tabs_in_tsv or not without_compression(file.path).lower().endswith(".tsv"):
            return self._parse
        parse = copy(self._parse)
        parse.delimiter = "\t"
        return parse

    def _conversion(self, names: list[str], schema: pa.Schema) -> pacsv.ConvertOptions:
        """Return options for the wanted columns; if a file has none, for one to count rows by."""
        convert = copy(self._convert)
        type_of = dict(zip(schema.names, schema.types, strict=True))
        types = {name: type_of[name] for name in names if name in type_of}
        convert.column_types = types or {names[0]: pa.binary()}
        convert.include_columns = list(types) or names[:1]
        convert.include_missing_columns = False
        return convert

    def _lines(
        self, store: Store, file: DataFileInfo, names: list[str], convert: pacsv.ConvertOptions
    ) -> CsvLines:
        return CsvLines(store, file, names, self._read, self._parsing(file), convert)

    def _layout(self, store: Store, file: DataFileInfo, head: bytes, whole: bool) -> _CsvLayout:
        """Find names and the end of the header; rows may also turn out to hold newlines."""
        with naming(file.path, *_UNREADABLE):
            if not self._lines_can_be_cut(head):
                return self._layout_of_stream(store, file)
            start = len(head) - len(head.removeprefix(BOM))
            if self._read.column_names:
                names = list(self._read.column_names)
                body_offset = start
            else:
                start = start if not self._parse.ignore_empty_lines else _skip_blank(head, start)
                end = _line_end(head, start)
                names = _names_in(head[start:end] + b"\n", self._read, self._parsing(file))
                body_offset = start if self._read.autogenerate_column_names else end
        lines = self._lines(store, file, names, self._convert)
        if _newlines_in_quotes(lines, head[body_offset:], whole):
            return self._layout_of_stream(store, file)
        return _CsvLayout(names, body_offset, True)

    def _lines_can_be_cut(self, head: bytes) -> bool:
        """Return True if options and line ends allow reading to start at any newline."""
        codec = codecs.lookup(self._read.encoding).name
        return (
            codec.startswith(_ASCII_COMPATIBLE)
            and not self._parse.newlines_in_values
            and not self._parse.escape_char
            and not self._read.skip_rows
            and not self._read.skip_rows_after_names
            and (b"\n" in head or b"\r" not in head)
        )

    def _layout_of_stream(self, store: Store, file: DataFileInfo) -> _CsvLayout:
        """Return the layout of a file that is read from its beginning only."""
        return _CsvLayout(self._stream_schema(store, file, pacsv.ConvertOptions()).names, 0, False)

    def _infer(
        self, store: Store, file: DataFileInfo, head: bytes, layout: _CsvLayout
    ) -> pa.Schema:
        """Return the columns with the types that pyarrow infers from the first block."""
        body = head[layout.body_offset :]
        if not layout.rows_are_lines:
            return self._stream_schema(store, file, self._convert)
        if _blank(body):
            types = self._convert.column_types
            names = self._convert.include_columns or layout.names
            return pa.schema([(name, types.get(name, pa.null())) for name in names])
        block = TextBlock(in_arrow_memory(body), layout.body_offset)
        schema = self._lines(store, file, layout.names, self._convert).table(block).schema
        undecoded = [f.name for f in schema if _undecoded(f, self._convert)]
        if undecoded:
            strict = copy(self._convert)
            strict.column_types = {**strict.column_types, undecoded[0]: pa.string()}
            self._lines(store, file, layout.names, strict).table(block)
        return schema

    def _stream_schema(
        self, store: Store, file: DataFileInfo, convert: pacsv.ConvertOptions
    ) -> pa.Schema:
        with (
            naming(file.path, *_UNREADABLE),
            open_text(store, file) as text,
            self._open(text, file, convert, 0) as reader,
        ):
            return reader.schema

    def _stream(
        self, store: Store, file: DataFileInfo, convert: pacsv.ConvertOptions, block_bytes: int
    ) -> Iterator[pa.Table]:
        """Yield the rows of a file that is read from its beginning only."""
        rows = 0
        with naming(file.path), open_text(store, file, whole=True) as text:
            try:
                with self._open(text, file, convert, block_bytes) as reader:
                    for batch in reader:
                        rows += batch.num_rows
                        yield pa.Table.from_batches([batch])
            except pa.ArrowNotImplementedError as error:
                raise SchemaError(f"{file.path}: {error}; name another type in schema=") from error
            except _UNREADABLE as error:
                raise ReadError(f"{file.path}, after row {rows}: {error}; {_CURES}") from error

    def _open(
        self, text: pa.NativeFile, file: DataFileInfo, convert: pacsv.ConvertOptions, nbytes: int
    ) -> pacsv.CSVStreamingReader:
        read, parse = copy(self._read), copy(self._parsing(file))
        read.block_size = max(nbytes, read.block_size)
        parse.newlines_in_values = True
        return pacsv.open_csv(text, read, parse, convert)


def _newlines_in_quotes(lines: CsvLines, body: bytes, whole: bool) -> bool:
    """Return True if some of the first rows take more than a line; broken ones do not count.

    A quote that stays open until the end of the file is a broken row, and does not count.
    """
    quote = lines.parse.quote_char
    if not quote or quote.encode() not in body:
        return False
    try:
        rows = lines.count_rows(body)
        if rows == sum(1 for line in body.split(b"\n") if line.strip(b"\r")):
            return False
        return not (whole and lines.ends_inside_quotes(TextBlock(in_arrow_memory(body), 0), rows))
    except _UNREADABLE:
        return False


def _blank(text: bytes) -> bool:
    return _skip_blank(text, len(BOM) if text.startswith(BOM) else 0) == len(text)


def _skip_blank(head: bytes, start: int) -> int:
    visible = _VISIBLE.search(head, start)
    return visible.start() if visible else len(head)


def _line_end(head: bytes, start: int) -> int:
    """Return the place after the line end, which is any of the three that Arrow knows."""
    end = _LINE_END.search(head, start)
    return end.end() if end else len(head)


def _undecoded(field: pa.Field, convert: pacsv.ConvertOptions) -> bool:
    """Return True if Arrow made bytes of a column that is not text in the encoding."""
    values = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    return pa.types.is_binary(values) and field.name not in convert.column_types
