"""Objects of a JSON array, or objects that span lines, as one object a line.

Brackets, quotes and commas are found in whole blocks at once; the objects themselves are left
to Arrow's parser. Text is rewritten byte by byte (a comma becomes a newline, a newline a
blank), so that a position in a block is a position in the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import ReadError
from headrace.formats.lines import TextBlock, in_arrow_memory, read_fully

__all__ = ["lines_of_array", "lines_of_objects"]

_QUOTE, _OPEN, _CLOSE, _COMMA, _NEWLINE = 1, 2, 3, 4, 5
_BACKSLASH = 0x5C
_TRAILER_BYTES = 1 << 16
_KIND_OF_BYTE = np.zeros(256, np.uint8)
for _bytes, _kind in (
    (b'"', _QUOTE),
    (b"{[", _OPEN),
    (b"}]", _CLOSE),
    (b",", _COMMA),
    (b"\n", _NEWLINE),
):
    _KIND_OF_BYTE[list(_bytes)] = _kind
_IS_MARK = (_KIND_OF_BYTE > 0).tobytes()
_STEP_OF_KIND = np.array([0, 0, 1, -1, 0, 0], np.int64)

_Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Marks:
    """Where the structure of a text is that starts outside of all objects."""

    starts: _Positions
    """brackets that open an outermost object"""
    ends: _Positions
    """brackets that close one"""
    commas: _Positions
    """commas between outermost objects"""
    newlines: _Positions
    """all outside of strings"""
    inner_newlines: _Positions
    """those inside of objects"""
    end: int | None
    """the bracket that closes what is around the objects"""


def lines_of_objects(
    stream: pa.NativeFile, body_offset: int, block_bytes: int
) -> Iterator[TextBlock]:
    """Objects that follow each other, with or without newlines in and between them."""
    offset = len(read_fully(stream, body_offset))
    pending = b""
    while piece := read_fully(stream, max(block_bytes, len(pending))):
        data = pending + piece
        marks = _marks(data)
        cut = int(marks.ends[-1]) + 1 if len(marks.ends) else 0
        if cut:
            yield _rewritten(data[:cut], offset, blanks=marks.inner_newlines)
        offset, pending = offset + cut, data[cut:]
    if pending.strip():
        yield TextBlock(in_arrow_memory(pending), offset)


def lines_of_array(
    path: str, stream: pa.NativeFile, body_offset: int, block_bytes: int
) -> Iterator[TextBlock]:
    """The objects of an array whose opening bracket is the byte before ``body_offset``."""
    offset = len(read_fully(stream, body_offset))
    pending = b""
    elements = 0
    while piece := read_fully(stream, max(block_bytes, len(pending))):
        data = pending + piece
        marks = _marks(data)
        if marks.end is not None:
            last = data[: marks.end]
            if elements or last.strip():
                yield _elements(path, last, offset, marks, elements)
            _refuse_trailer(path, data[marks.end :], stream, offset + marks.end)
            return
        cut = int(marks.commas[-1]) + 1 if len(marks.commas) else 0
        if cut:
            yield _elements(path, data[: cut - 1], offset, marks, elements)
            elements += len(marks.commas)
        offset, pending = offset + cut, data[cut:]
    raise ReadError(
        f"{path}: the text ends at byte {offset + len(pending)} inside an array, after "
        f"{elements} elements; is the file complete?"
    )


def _elements(path: str, text: bytes, offset: int, marks: _Marks, before: int) -> TextBlock:
    """Whole elements without the comma after the last; each must be one object."""
    commas = marks.commas[marks.commas < len(text)]
    starts = marks.starts[marks.starts < len(text)]
    element_of_start = np.searchsorted(commas, starts)
    expected = np.arange(len(commas) + 1)
    if not np.array_equal(element_of_start, expected):
        counts = np.bincount(element_of_start, minlength=len(expected))
        wrong = int(np.flatnonzero(counts != 1)[0])
        begin = int(commas[wrong - 1]) + 1 if wrong else 0
        raise ReadError(
            f"{path}, element {before + wrong + 1}, at byte {offset + begin}: expected one object "
            f"({{...}}) between commas, found {text[begin : begin + 80]!r}"
        )
    newlines = marks.newlines[marks.newlines < len(text)]
    return _rewritten(text, offset, blanks=newlines, breaks=commas)


def _rewritten(
    text: bytes, offset: int, *, blanks: _Positions, breaks: _Positions | None = None
) -> TextBlock:
    values = np.frombuffer(text, np.uint8).copy()
    values[blanks[blanks < len(values)]] = ord(" ")
    if breaks is not None:
        values[breaks] = ord("\n")
    return TextBlock(in_arrow_memory(values), offset)


def _refuse_trailer(path: str, rest: bytes, stream: pa.NativeFile, offset: int) -> None:
    """What is left must be the closing bracket, and blanks."""
    blank = rest[:1] == b"]" and not rest[1:].strip()
    while blank and (piece := read_fully(stream, _TRAILER_BYTES)):
        rest, blank = rest + piece.lstrip(), not piece.strip()
    if not blank:
        raise ReadError(
            f"{path}: expected a bracket and the end of the file at byte {offset}, "
            f"found {rest[:80]!r}"
        )


def _marks(data: bytes) -> _Marks:
    marked = np.frombuffer(bytearray(data).translate(_IS_MARK), np.bool_)
    if _BACKSLASH in data:
        marked[_escaped(data)] = False
    where = np.flatnonzero(marked)
    kinds = _KIND_OF_BYTE[np.frombuffer(data, np.uint8)[where]]
    quotes = kinds == _QUOTE
    outside = ~(np.logical_xor.accumulate(quotes) | quotes)
    where, kinds = where[outside], kinds[outside]
    depth = np.cumsum(_STEP_OF_KIND[kinds])
    closed = np.flatnonzero(depth < 0)
    end = None
    if len(closed):
        end = int(where[closed[0]])
        where, kinds, depth = (a[: closed[0]] for a in (where, kinds, depth))
    return _Marks(
        starts=where[(kinds == _OPEN) & (depth == 1)],
        ends=where[(kinds == _CLOSE) & (depth == 0)],
        commas=where[(kinds == _COMMA) & (depth == 0)],
        newlines=where[kinds == _NEWLINE],
        inner_newlines=where[(kinds == _NEWLINE) & (depth > 0)],
        end=end,
    )


def _escaped(data: bytes) -> _Positions:
    """The bytes after runs of an odd number of backslashes."""
    slashes = np.flatnonzero(np.frombuffer(data, np.uint8) == _BACKSLASH)
    new_run = np.flatnonzero(np.diff(slashes, prepend=-2) > 1)
    lengths = np.diff(new_run, append=len(slashes))
    after = slashes[new_run] + lengths
    odd: _Positions = after[(lengths % 2 == 1) & (after < len(data))]
    return odd
