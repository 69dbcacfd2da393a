"""Any cut of a file of lines gives every line once; compressed and broken texts."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.model import ByteRange
from headrace.sources.files._lines import (
    compression_of,
    first_lines,
    lines_of_range,
    lines_of_stream,
    shortest_failing_lines,
    without_compression,
)

LINES = st.lists(
    st.tuples(st.text("aé数,\r", max_size=6), st.sampled_from(["\n", "\r\n"])), max_size=12
)


def text_of(lines: list[tuple[str, str]], last_newline: bool) -> bytes:
    text = "".join(line + end for line, end in lines).encode()
    return text if last_newline else text.rstrip(b"\r\n")


@settings(deadline=None, max_examples=300)
@given(
    lines=LINES,
    last_newline=st.booleans(),
    header_lines=st.integers(0, 2),
    cuts=st.lists(st.integers(0, 60), max_size=6),
    block_bytes=st.integers(1, 40),
)
def test_every_line_comes_once_whatever_the_cut(
    lines: list[tuple[str, str]],
    last_newline: bool,
    header_lines: int,
    cuts: list[int],
    block_bytes: int,
) -> None:
    text = text_of(lines, last_newline)
    body_offset = 0
    for _ in range(header_lines):
        body_offset = text.find(b"\n", body_offset) + 1 or len(text)
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    got = []
    for start, stop in pairwise(bounds):
        file = pa.BufferReader(text)
        span = ByteRange(start, stop - start)
        for block in lines_of_range(file, span, body_offset, block_bytes):
            data = bytes(block.data)
            assert data
            assert block.offset >= max(start, body_offset)
            assert text[block.offset :].startswith(data)
            assert data.endswith(b"\n") or block.offset + len(data) == len(text)
            first_of_last_line = block.offset + data.rfind(b"\n", 0, -1) + 1
            assert first_of_last_line < stop
            got.append(data)
    assert b"".join(got) == text[body_offset:]


@settings(deadline=None, max_examples=200)
@given(lines=LINES, last_newline=st.booleans(), block_bytes=st.integers(1, 40))
def test_a_stream_gives_whole_lines(
    lines: list[tuple[str, str]], last_newline: bool, block_bytes: int
) -> None:
    text = text_of(lines, last_newline)
    blocks = list(lines_of_stream(pa.BufferReader(text), 0, block_bytes))
    assert b"".join(bytes(block.data) for block in blocks) == text
    assert all(bytes(block.data).endswith(b"\n") for block in blocks[:-1])
    ends = [block.offset + block.data.size for block in blocks]
    assert [block.offset for block in blocks] == [0, *ends[:-1]][: len(blocks)]


def test_a_line_longer_than_the_slack() -> None:
    long = b"x" * 300_000
    text = long + b"\n" + long + b"\ny\n"
    blocks = list(lines_of_range(pa.BufferReader(text), ByteRange(0, len(text)), 0, 10))
    assert [bytes(block.data) for block in blocks] == text.splitlines(keepends=True)
    inside = list(lines_of_range(pa.BufferReader(text), ByteRange(5, 100_000), 0, 10))
    assert inside == []


def test_first_lines_end_at_a_newline() -> None:
    assert first_lines(pa.BufferReader(b"ab\ncd\nef\n"), 4) == (b"ab\n", False)
    assert first_lines(pa.BufferReader(b"ab\ncd"), 100) == (b"ab\ncd", True)
    blanks_first = b"\n" * 5 + b"abcdef\n"
    longer = pa.BufferReader(blanks_first + b"x\n" * 9)
    assert first_lines(longer, 2) == (blanks_first + b"x\nx\n", False)
    assert first_lines(pa.BufferReader(b""), 2) == (b"", True)


def failing(word: bytes) -> Callable[[bytes], Exception | None]:
    """Lines fail if they hold a word."""
    return lambda text: ValueError(text) if word in text else None


@pytest.mark.parametrize("from_start", [True, False])
@pytest.mark.parametrize("bad", range(7))
def test_the_failing_line_is_found(bad: int, from_start: bool) -> None:
    lines = [b"x\n" if i == bad else b"%d\n" % i for i in range(7)]
    found = shortest_failing_lines(b"".join(lines), failing(b"x"), from_start=from_start)
    assert found is not None
    assert found[:2] == (2 * bad, b"x\n")
    assert b"x" in found[2].args[0]


def test_no_line_fails_by_itself() -> None:
    assert shortest_failing_lines(b"a\nb\n", failing(b"\nb"), from_start=False) is None
    found = shortest_failing_lines(b"a\nb", failing(b"a\nb"), from_start=True)
    assert found is not None
    assert found[:2] == (2, b"b")


@pytest.mark.parametrize(
    ("name", "codec", "plain"),
    [
        ("a.csv", None, "a.csv"),
        ("a.csv.gz", "gzip", "a.csv"),
        ("A.JSON.BZ2", "bz2", "A.JSON"),
        ("a.zst", "zstd", "a"),
        ("dir.gz/a.tsv.lz4", "lz4", "dir.gz/a.tsv"),
        ("dir.gz/a", None, "dir.gz/a"),
    ],
)
def test_compression_is_told_by_the_last_extension(
    name: str, codec: str | None, plain: str, tmp_path: Path
) -> None:
    assert compression_of(str(tmp_path / name)) == codec
    assert without_compression(name) == plain
