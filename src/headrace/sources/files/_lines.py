"""Text files as whole lines: byte ranges aligned at newlines, compressed streams, line numbers.

A range [a, b) means the lines whose first byte lies in it, so that ranges that follow each other
give every line exactly once, wherever they are cut, even inside a line or between \\r and \\n.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from headrace.errors import OptionError, ReadError, SchemaError, naming
from headrace.model import ByteRange, DataFileInfo, FileSplit
from headrace.storage import Store, will_read

BOM = b"\xef\xbb\xbf"
INFERENCE_BYTES = 1 << 20
_SLACK_BYTES = 1 << 16
_SHOWN_CHARACTERS = 80
_VISIBLE = re.compile(rb"\S")
CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
"""Arrow's names of codecs, by the extensions of files."""


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Whole lines of a file; only the last of the file may lack its newline."""

    data: pa.Buffer
    """Text, outside of Python's memory; see `in_arrow_memory`."""
    offset: int
    """Position of the first byte in the (decompressed) text."""


def in_arrow_memory(text: bytes | memoryview | pa.Buffer) -> pa.Buffer:
    """Return a copy of a text that Arrow's threads may free at any time.

    They free it after the parser has returned. If Python is ending at that time, freeing memory of
    Python aborts the process ("terminate called without an active exception").
    """
    copied = pa.allocate_buffer(len(text))
    pa.FixedSizeBufferWriter(copied).write(text)
    return copied


def compression_of(path: str) -> str | None:
    """Return Arrow's name of the codec of the last extension."""
    return CODECS.get(os.path.splitext(path)[1].lower())


def without_compression(path: str) -> str:
    """Return a path without the suffix of a compression."""
    stem, extension = os.path.splitext(path)
    return stem if extension.lower() in CODECS else path


def checked_options(
    name: str, options: Mapping[str, Any] | None, types: Mapping[str, type]
) -> dict[str, Any]:
    """Return copies of the option objects of pyarrow that the user gave for the format ``name``."""
    known = ", ".join(f"{key!r} (a {_full_name(kind)})" for key, kind in types.items())
    for key, value in (options or {}).items():
        if key not in types:
            raise OptionError(f"{name} has no option {key!r}; format_options knows {known}")
        if not isinstance(value, types[key]):
            raise OptionError(f"{name} option {key!r} is {value!r}; format_options knows {known}")
    return {key: copy(value) for key, value in (options or {}).items()}


def _full_name(kind: type) -> str:
    return f"{kind.__module__.replace('._', '.')}.{kind.__name__}"


@contextmanager
def open_text(store: Store, file: DataFileInfo, *, whole: bool = False) -> Iterator[pa.NativeFile]:
    """Open the text of a file, decompressed; at random offsets if it is not compressed.

    ``whole``: True if all of it will be read, from its beginning.
    """
    codec = compression_of(file.path)
    with store.open(file) as raw:
        if whole:
            will_read(raw, [(0, raw.size())])
        if codec is None:
            yield raw
        else:
            with pa.CompressedInputStream(raw, codec) as text:
                yield text


def lines_of_chunk(
    store: Store, chunk: FileSplit, body_offset: int, block_bytes: int, *, all_of_it: bool = True
) -> Iterator[TextBlock]:
    """Yield the lines of a chunk after the header, in blocks of about ``block_bytes``.

    ``all_of_it``: False if only the first blocks will be requested.
    """
    whole = compression_of(chunk.file.path) is not None or chunk.row_range is not None
    with naming(chunk.file.path), open_text(store, chunk.file, whole=whole and all_of_it) as text:
        if whole:
            refuse_parts(chunk)
            yield from lines_of_stream(text, body_offset, block_bytes)
        else:
            span = chunk.byte_range or ByteRange(0, text.size())
            if all_of_it:
                will_read(text, [(max(span.offset - 1, 0), span.stop + _SLACK_BYTES)])
            yield from lines_of_range(text, span, body_offset, block_bytes)


def refuse_parts(chunk: FileSplit) -> None:
    """Raise an OptionError for a part of a file that can only be read as a whole."""
    if chunk.row_range is not None or chunk.byte_range is not None:
        raise OptionError(f"{chunk}: this file cannot be cut; only the whole can be read")


def lines_of_range(
    file: pa.NativeFile, span: ByteRange, body_offset: int, block_bytes: int
) -> Iterator[TextBlock]:
    """Yield the lines that start in ``span`` and after the header, in blocks of about that size."""
    size = file.size()
    stop = min(span.stop, size)
    start = body_offset if span.offset <= body_offset else _line_start(file, span.offset, size)
    while start < stop:
        block = _lines_between(file, start, min(start + max(block_bytes, 1), stop), size)
        yield block
        start += block.data.size


def lines_of_stream(
    stream: pa.NativeFile, body_offset: int, block_bytes: int
) -> Iterator[TextBlock]:
    """Yield all lines after the header of a text that can only be read from its beginning."""
    offset = len(read_fully(stream, body_offset))
    pending: list[bytes] = []
    while piece := read_fully(stream, block_bytes):
        cut = piece.rfind(b"\n") + 1
        if cut:
            data = b"".join([*pending, piece[:cut]])
            yield TextBlock(in_arrow_memory(data), offset)
            offset += len(data)
            pending = []
        if cut < len(piece):
            pending.append(piece[cut:])
    if pending:
        yield TextBlock(in_arrow_memory(b"".join(pending)), offset)


def first_lines(text: pa.NativeFile, at_least: int) -> tuple[bytes, bool]:
    """Return the first lines of a text, of ``at_least`` bytes, and True if there are no more.

    A longer first line is returned whole; leading blanks come together with the next text.
    """
    data = b""
    while True:
        wanted = max(at_least, len(data))
        piece = read_fully(text, wanted)
        data = data + piece if data else piece
        if len(piece) < wanted:
            return data, True
        cut = data.rfind(b"\n") + 1
        if _VISIBLE.search(data, len(BOM) if data.startswith(BOM) else 0, cut):
            return data[:cut], False


def read_fully(stream: pa.NativeFile, nbytes: int) -> bytes:
    """Return ``nbytes`` bytes, or all that are left; a decompressor may return fewer at once."""
    pieces: list[bytes] = []
    missing = nbytes
    while missing > 0 and (piece := stream.read(missing)):
        pieces.append(piece)
        missing -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def line_number(store: Store, file: DataFileInfo, offset: int) -> int:
    """Return the number of the line, from 1 on, that holds byte ``offset`` of the text."""
    with open_text(store, file) as text:
        newlines = 0
        while offset > 0 and (piece := read_fully(text, min(offset, INFERENCE_BYTES))):
            newlines += piece.count(b"\n")
            offset -= len(piece)
    return newlines + 1


def shown(value: bytes) -> str:
    """Return a value as an error message quotes it, shortened."""
    text = value.decode("utf-8", "backslashreplace").rstrip("\r\n")
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}...")


def _line_start(file: pa.NativeFile, position: int, size: int) -> int:
    """Return the first line start at or after ``position``, which is not in the first line."""
    at = position - 1
    while at < size:
        file.seek(at)
        piece: bytes = file.read(min(_SLACK_BYTES, size - at))
        newline = piece.find(b"\n")
        if newline >= 0:
            return at + newline + 1
        if not piece:
            break
        at += len(piece)
    return size


def _lines_between(file: pa.NativeFile, start: int, stop: int, size: int) -> TextBlock:
    """Return text from a line start to the end of the line that holds byte ``stop - 1``.

    This takes one request, unless a line is very long; bytes read beyond it are read again.
    """
    slack = _SLACK_BYTES
    while True:
        file.seek(start)
        data = file.read_buffer(min(stop + slack, size) - start)
        tail = bytes(memoryview(data)[stop - 1 - start :])
        newline = tail.find(b"\n")
        if newline >= 0 or stop + slack >= size:
            lines = data.slice(0, stop - start + newline) if newline >= 0 else data
            in_python = isinstance(file, pa.PythonFile)
            return TextBlock(in_arrow_memory(lines) if in_python else lines, start)
        slack = max(2 * slack, data.size)


@dataclass(frozen=True, slots=True)
class LineParser(ABC):
    """Parses whole lines of one file, and finds the line that cannot be parsed.

    Attributes:
        store: Reaches the file.
        file: The file.
    """

    store: Store
    file: DataFileInfo

    failures: ClassVar[tuple[type[Exception], ...]] = (pa.ArrowInvalid,)
    """Errors of lines that cannot be parsed."""
    cures: ClassVar[str]
    """Advice to the user about such lines."""

    @property
    @abstractmethod
    def piece_bytes(self) -> int:
        """Size of the pieces of a block that are parsed on several cores."""

    @abstractmethod
    def rows(self, data: pa.Buffer | bytes, piece_bytes: int | None = None) -> pa.Table:
        """Return the rows of some lines, parsed in pieces; None for all at once."""

    @abstractmethod
    def complaint(self, line: bytes, error: Exception) -> str:
        """Return a description of what is wrong with a line."""

    @property
    def depends_on_lines_before(self) -> bool:
        """True if a line may fail because of the lines before it."""
        return False

    def table(self, block: TextBlock) -> pa.Table:
        """Return the rows of a block.

        Small pieces keep all cores busy until the end; a line longer than a piece fails in them.

        Raises:
            SchemaError: A type cannot be read from text.
            ReadError: A line cannot be parsed.
        """
        try:
            with suppress(*self.failures):
                return self.rows(block.data, self.piece_bytes)
            return self.rows(block.data)
        except pa.ArrowNotImplementedError as error:
            raise SchemaError(f"{self.file.path}: {error}; name another type in schema=") from error
        except self.failures as error:
            raise self._blame(block, error) from error

    def _blame(self, block: TextBlock, error: Exception) -> ReadError:
        """Return an error that names the first line that cannot be parsed, and what is wrong."""
        data = bytes(block.data)
        from_start = self.depends_on_lines_before
        found = shortest_failing_lines(data, self.failure_of, from_start=from_start)
        if found is None:
            place, reason = f"bytes {block.offset}-{block.offset + len(data)}", str(error)
        else:
            offset, line, error = found
            begin = block.offset + offset + len(line) - len(line.lstrip())
            place = f"line {line_number(self.store, self.file, begin)}"
            reason = self.complaint(line, error)
        return ReadError(f"{self.file.path}, {place}: {reason}; {self.cures}")

    def failure_of(self, lines: bytes) -> Exception | None:
        """Return the error of parsing some lines, if there is one."""
        try:
            self.rows(lines)
        except self.failures as error:
            return error
        return None


def shortest_failing_lines(
    data: bytes, failure_of: Callable[[bytes], Exception | None], *, from_start: bool
) -> tuple[int, bytes, Exception] | None:
    """Return offset, text and error of the line that fails; None if no single line does.

    ``from_start``: True if a line may fail because of the lines before it. Every try then begins
    with the first line; otherwise lines are tried by themselves.
    """
    ends = (np.flatnonzero(np.frombuffer(data, np.uint8) == 0x0A) + 1).tolist()
    if not data.endswith(b"\n"):
        ends.append(len(data))
    good, bad = 0, len(ends)
    while bad - good > 1:
        middle = (good + bad) // 2
        begin = 0 if from_start or not good else ends[good - 1]
        if failure_of(data[begin : ends[middle - 1]]):
            bad = middle
        else:
            good = middle
    begin = ends[good - 1] if good else 0
    line = data[begin : ends[bad - 1]]
    error = failure_of(data[: ends[bad - 1]] if from_start else line)
    return None if error is None else (begin, line, error)
