"""Recognise formats by the first bytes of a file, if its extension is missing or wrong.

>>> looks_like(b'{"id": 1}\\n{"id": 2}\\n'), looks_like(b"id,x\\n1,2\\n"), looks_like(b"hello")
('jsonl', 'csv', None)
"""

from __future__ import annotations

import csv
import json
import re
from contextlib import suppress

import pyarrow as pa

from headrace.model import DataFileInfo
from headrace.sources.files._lines import BOM, CODECS, compression_of
from headrace.storage import Store

HEAD_BYTES = 1 << 13
_PIECE_BYTES = 1 << 8
_MAGIC = {b"PAR1": "parquet", b"PARE": "parquet", b"ORC": "orc", b"ARROW1": "arrow"}
_COMPRESSIONS = {
    b"\x1f\x8b": ".gz",
    b"\x28\xb5\x2f\xfd": ".zst",
    b"BZh": ".bz2",
    b"\x04\x22\x4d\x18": ".lz4",
}
"""Extensions of compressed files, by their first bytes."""
_STREAM = re.compile(rb"\xff{4}[\x00-\xf8]..[\x00-\x0f]", re.DOTALL)
"""Beginning of an Arrow IPC stream: a mark, and the length of the schema's message."""
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_ARRAY = re.compile(rb"\[\s*(\{|\]|$)")
_OBJECT = re.compile(rb'\{\s*("|\}|$)')
_TITLES = {"parquet": "Parquet", "arrow": "Arrow IPC"}


def read_head(store: Store, file: DataFileInfo) -> bytes:
    """Return the first bytes of a file; a remote file takes a single small request."""
    with store.open(file) as source:
        return bytes(source.read(HEAD_BYTES))


def looks_like(head: bytes) -> str | None:
    """Return the name of the format that the first bytes of a file look like, or None.

    Compressed text looks like the text in it. Text is CSV if its first lines have the same number
    of values, two or more, with commas between them.
    """
    for magic, name in _MAGIC.items():
        if head.startswith(magic):
            return name
    if _STREAM.match(head):
        return "arrow"
    compression = compression_in(head)
    text = _decompressed(head, compression[0]) if compression else head
    text = text.removeprefix(BOM).lstrip()
    if not text or _BINARY.search(text):
        return None
    if _ARRAY.match(text):
        return "json"
    if _OBJECT.match(text):
        return _lines_or_object(text)
    return "csv" if _has_values_in_lines(text, whole=len(head) < HEAD_BYTES) else None


def compression_in(head: bytes) -> tuple[str, str] | None:
    """Return the compression that the first bytes of a file indicate, with its extension."""
    for magic, extension in _COMPRESSIONS.items():
        if head.startswith(magic):
            return CODECS[extension], extension
    return None


def hint_of(path: str, head: bytes, format_: str) -> str | None:
    """Return advice on a file that cannot be read as a format, if its content suggests any."""
    compression, found = compression_in(head), looks_like(head)
    if compression is not None and not path.lower().endswith(compression[1]):
        what = f"{_title(found)} compressed with {compression[0]}" if found else compression[0]
        return f"this looks like {what}; let its name end in {compression[1]}"
    if compression is None and compression_of(path) is not None:
        what = f", but like {_title(found)}" if found else ""
        return f"this does not look compressed{what}; its name must not end in an extension that is"
    if found is None or found == format_ or {found, format_} == {"json", "jsonl"}:
        return None
    return f"this looks like {_title(found)}; use format={found!r}"


def _title(name: str | None) -> str:
    return _TITLES.get(name or "", (name or "").upper())


def _decompressed(head: bytes, codec: str) -> bytes:
    """Return as much text as the beginning of a compressed file gives."""
    text = b""
    with suppress(OSError, pa.ArrowException), pa.BufferReader(head) as raw:
        stream = pa.CompressedInputStream(raw, codec)
        while len(text) < HEAD_BYTES and (piece := stream.read(_PIECE_BYTES)):
            text += piece
    return text


def _lines_or_object(text: bytes) -> str:
    """Return jsonl if the first line is an object, or json if an object goes on after it."""
    first, newline, _ = text.partition(b"\n")
    try:
        json.loads(first)
    except ValueError:
        # An object that spans lines, unless the first line is too long to be seen whole.
        return "json" if newline else "jsonl"
    return "jsonl"


def _has_values_in_lines(text: bytes, *, whole: bool) -> bool:
    """Return True if the first lines have the same number of values, two or more."""
    lines = text.decode("utf-8", "replace").splitlines(keepends=True)
    if not whole and len(lines) > 1:
        lines.pop()  # cut somewhere
    with suppress(csv.Error):
        widths = {len(row) for row in csv.reader(lines[:20]) if row}
        return len(widths) == 1 and widths.pop() > 1
    return False
