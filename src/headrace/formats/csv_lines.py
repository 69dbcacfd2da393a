"""Blocks of CSV lines to tables, and which line, column and value is to blame when that fails."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.csv as pacsv

from headrace.errors import ReadError, SchemaError
from headrace.formats.lines import (
    BOM,
    TextBlock,
    in_arrow_memory,
    line_number,
    parsed_in_pieces,
    shortest_failing_lines,
    shown,
)
from headrace.model import DataFileInfo
from headrace.storage import Store

__all__ = ["CURES", "UNREADABLE", "CsvLines", "names_in"]

UNREADABLE = (pa.ArrowInvalid, UnicodeDecodeError)
CURES = (
    "give the column another type with schema=, or say how the file is written with "
    'format_options={"read_options": ..., "parse_options": ..., "convert_options": ...}'
)
_LINE_FEED = 0x0A
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class CsvLines:
    """Parses whole lines of one file; the header is not among them."""

    store: Store
    file: DataFileInfo
    names: list[str]
    """of all columns of the file"""
    read: pacsv.ReadOptions
    parse: pacsv.ParseOptions
    convert: pacsv.ConvertOptions
    """with the columns to read, and their types"""

    def table(self, block: TextBlock) -> pa.Table:
        """The rows of a block, parsed on all cores."""
        try:
            table = parsed_in_pieces(
                lambda nbytes: self._rows(block.data, self.convert, nbytes),
                block.data.size,
                min(self.read.block_size, _PIECE_BYTES),
                *UNREADABLE,
            )
        except pa.ArrowNotImplementedError as error:
            raise SchemaError(f"{self.file.path}: {error}; name another type in schema=") from error
        except UNREADABLE as error:
            raise self._blame(block, error) from error
        if self.ends_inside_quotes(block, table.num_rows):
            raise ReadError(self._unclosed_quote(block))
        return table

    def count_rows(self, data: bytes) -> int:
        """How many rows some lines hold, whatever is in their columns."""
        counting = self._as_bytes(self.names[:1])
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
            # Arrow takes one off the beginning of every text; here it belongs to the first value.
            data = BOM + bytes(data)
        source = pa.BufferReader(data if isinstance(data, pa.Buffer) else in_arrow_memory(data))
        return pacsv.read_csv(source, read, self.parse, convert)

    def ends_inside_quotes(self, block: TextBlock, rows: int) -> bool:
        """Whether a value of the block, which has so many rows, goes on after its end.

        Arrow takes an open quote at the end of a text for a closed one: rows would be garbled
        in silence. Where there are quotes a row is appended, to see whether it comes out as one.
        """
        quote = self.parse.quote_char
        if not quote or quote.encode() not in block:
            return False
        if rows == block.count(_LINE_FEED) + (not block.ends_with_newline):
            # Every line is a row, so the last line tells it all.
            data = block.last_line()
            if quote.encode() not in data:
                return False
        else:
            data = bytes(block.data)
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

    def _as_bytes(self, names: list[str]) -> pacsv.ConvertOptions:
        types = dict.fromkeys(names, pa.binary())
        return pacsv.ConvertOptions(include_columns=names, column_types=types)

    def _blame(self, block: TextBlock, error: Exception) -> ReadError:
        data = bytes(block.data)
        found = shortest_failing_lines(
            data, lambda lines: self._fails(lines, self.convert), from_start=False
        )
        if found is None:
            stop = block.offset + len(data)
            return ReadError(f"{self.file.path}, bytes {block.offset}-{stop}: {error}; {CURES}")
        offset, line = found
        number = line_number(self.store, self.file, block.offset + offset)
        return ReadError(f"{self.file.path}, line {number}: {self._complaint(line)}; {CURES}")

    def _fails(self, lines: bytes, convert: pacsv.ConvertOptions) -> bool:
        try:
            self._rows(lines, convert)
        except UNREADABLE:
            return True
        return False

    def _complaint(self, line: bytes) -> str:
        numbered = pacsv.ReadOptions(encoding=self.read.encoding, autogenerate_column_names=True)
        found = len(names_in(line, numbered, self.parse))
        if found != len(self.names):
            return f"{found} columns where {len(self.names)} are expected: {shown(line)}"
        for name in self.convert.include_columns or self.names:
            alone = copy(self.convert)
            alone.include_columns = [name]
            if self._fails(line, alone):
                value = self._rows(line, self._as_bytes([name])).column(0)[0].as_py()
                wanted = self.convert.column_types.get(name)
                if wanted == pa.string():
                    wanted = f"text in the encoding {self.read.encoding}"
                return f"column {name!r} holds {shown(value)}, which is not {wanted}"
        return f"it cannot be parsed: {shown(line)}"


def names_in(line: bytes, read: pacsv.ReadOptions, parse: pacsv.ParseOptions) -> list[str]:
    """The values of a line as names of columns; f0, f1... where the options ask for those."""
    header = pacsv.ReadOptions(
        encoding=read.encoding, autogenerate_column_names=read.autogenerate_column_names
    )
    return list(pacsv.read_csv(pa.BufferReader(in_arrow_memory(line)), header, parse).column_names)
