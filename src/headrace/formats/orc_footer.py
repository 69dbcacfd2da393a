"""The tail of an ORC file: where its stripes are, how many rows each has, and statistics.

The tail is protobuf: a postscript that is never compressed, and before it the footer and the
metadata (statistics by stripe), both compressed in chunks like the data. pyarrow reads the
same bytes but does not say how many rows a stripe has.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.formats.orc_wire import (
    Message,
    decompress,
    number_in,
    parse_message,
    signed,
    unpacked,
)

__all__ = [
    "MALFORMED",
    "ColumnStatistics",
    "Stripe",
    "Tail",
    "column_statistics",
    "read_stripe_statistics",
    "read_tail",
]

_FIRST_READ_BYTES = 16 << 10
_COMPRESSIONS = {0: None, 1: "zlib", 2: "snappy", 4: "lz4_raw", 5: "zstd"}
_WIDTHS = {0: 1, 1: 1, 2: 2, 3: 4, 4: 8, 5: 4, 6: 8, 7: 4, 8: 4, 9: 8}
_WIDTHS |= {10: 4, 11: 4, 13: 5, 14: 16, 15: 4, 16: 4, 17: 4, 18: 8}

MALFORMED = (
    ValueError,
    IndexError,
    KeyError,
    TypeError,
    AttributeError,
    struct.error,
    zlib.error,
    OSError,
)
"""what parsing bytes that are not an ORC tail may raise; pyarrow's errors are among them"""


@dataclass(frozen=True, slots=True)
class Stripe:
    """Where a stripe lies in the file, and its rows."""

    offset: int
    index_length: int
    data_length: int
    footer_length: int
    rows: int

    @property
    def stop(self) -> int:
        """The byte after the stripe."""
        return self.offset + self.index_length + self.data_length + self.footer_length


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """Of one column over a stripe or a file, in the raw values of the file."""

    values: int
    """how many are not null"""
    bounds: tuple[Any, Any] | None
    """least and greatest value that is not null; None where they are not known"""
    text_bytes: int
    """length of all strings or binaries together"""


@dataclass(frozen=True, slots=True)
class Tail:
    """What the end of the file tells."""

    stripes: tuple[Stripe, ...]
    column_ids: dict[str, int]
    """the ids of the top-level columns, by name"""
    types: int
    """columns at all levels"""
    row_bytes: float
    """average size of a row when decoded, by the statistics of the file; 0 without them"""
    trusted: bool
    """False for the first writers, whose statistics were wrong"""
    compression: str | None
    metadata: bytes
    """statistics by stripe, as they are in the file"""

    @property
    def rows(self) -> int:
        """Rows of the whole file."""
        return sum(stripe.rows for stripe in self.stripes)

    def ids_of(self, name: str) -> range:
        """The ids of a top-level column and of all within it, which follow it."""
        first = self.column_ids[name]
        after = (number for number in self.column_ids.values() if number > first)
        return range(first, min(after, default=self.types))


def read_tail(file: pa.NativeFile) -> Tail:
    """Parse the tail; what is not ORC raises one of ``MALFORMED``."""
    size = file.size()
    end = _read_end(file, size, min(size, _FIRST_READ_BYTES))
    if end[-4:-1] != b"ORC":
        raise ValueError("it does not end like an ORC file; it may be cut short")
    postscript_length = end[-1] + 1
    postscript = parse_message(end[-postscript_length:-1])
    compression = _COMPRESSIONS[number_in(postscript, 2)]
    footer_length, metadata_length = number_in(postscript, 1), number_in(postscript, 5)
    needed = postscript_length + footer_length + metadata_length
    if needed > size:
        raise ValueError(f"its footer would begin {needed - size} bytes before the file")
    if needed > len(end):
        end = _read_end(file, size, needed)
    footer_stop = len(end) - postscript_length
    footer_start = footer_stop - footer_length
    footer = parse_message(decompress(end[footer_start:footer_stop], compression))
    tail = Tail(
        stripes=tuple(_stripe(parse_message(raw)) for raw in footer.get(3, [])),
        column_ids=_column_ids(footer),
        types=len(footer[4]),
        row_bytes=_row_bytes(footer),
        trusted=number_in(postscript, 6) > 0,
        compression=compression,
        metadata=end[footer_start - metadata_length : footer_start],
    )
    if any(stripe.stop > size for stripe in tail.stripes):
        raise ValueError("a stripe goes beyond the end of the file")
    if tail.rows != number_in(footer, 6):
        raise ValueError(
            f"its stripes hold {tail.rows} rows, its footer says {number_in(footer, 6)}"
        )
    return tail


def read_stripe_statistics(tail: Tail) -> list[list[bytes]]:
    """For each stripe its columns' statistics, by column id, to give to ``column_statistics``.

    Empty where the writer kept none or is known to have kept wrong ones.
    """
    if not tail.trusted:
        return []
    metadata = parse_message(decompress(tail.metadata, tail.compression))
    return [parse_message(raw).get(1, []) for raw in metadata.get(1, [])]


def column_statistics(raw: bytes) -> ColumnStatistics:
    """Statistics of one column; bounds for ints, floats without NaN, bools, strings and dates."""
    message = parse_message(raw)
    values = number_in(message, 1)
    bounds: tuple[Any, Any] | None = None
    text_bytes = 0
    for number in message.keys() & _BOUNDS.keys():
        inner = parse_message(message[number][0])
        bounds = _BOUNDS[number](inner, values)
        if number == 4:
            text_bytes = signed(number_in(inner, 3))
        elif number == 8:
            text_bytes = signed(number_in(inner, 1))
    return ColumnStatistics(values, bounds, max(0, text_bytes))


def _read_end(file: pa.NativeFile, size: int, length: int) -> bytes:
    file.seek(size - length)
    return bytes(file.read(length))


def _stripe(message: Message) -> Stripe:
    return Stripe(*(number_in(message, number) for number in range(1, 6)))


def _column_ids(footer: Message) -> dict[str, int]:
    root = parse_message(footer[4][0])
    names = [name.decode() for name in root.get(3, [])]
    return dict(zip(names, unpacked(root.get(2, [])), strict=True))


def _row_bytes(footer: Message) -> float:
    """Nested columns have ids and statistics of their own, so that adding all up is enough."""
    rows, total = number_in(footer, 6), 0
    for raw_type, raw_statistics in zip(footer[4], footer.get(7, []), strict=False):
        statistics = column_statistics(raw_statistics)
        width = _WIDTHS.get(number_in(parse_message(raw_type), 1), 0)
        total += width * statistics.values + statistics.text_bytes
    return total / rows if rows else 0.0


def _int_bounds(message: Message, values: int) -> tuple[int, int] | None:
    if 1 not in message or 2 not in message:
        return None
    return signed(message[1][0]), signed(message[2][0])


def _float_bounds(message: Message, values: int) -> tuple[float, float] | None:
    """Writers leave NaN out of least and greatest, but not out of the sum."""
    if not message.keys() >= {1, 2, 3}:
        return None
    least, greatest, total = (struct.unpack("<d", message[n][0])[0] for n in (1, 2, 3))
    return None if total != total else (least, greatest)


def _text_bounds(message: Message, values: int) -> tuple[str, str] | None:
    if 1 not in message or 2 not in message:
        return None
    try:
        return message[1][0].decode(), message[2][0].decode()
    except UnicodeDecodeError:  # a file may hold any bytes as text; it is read all the same
        return None


def _bool_bounds(message: Message, values: int) -> tuple[bool, bool] | None:
    true_values = unpacked(message.get(1, []))
    return (true_values[0] == values, true_values[0] > 0) if true_values else None


def _no_bounds(message: Message, values: int) -> None:
    return None


_BOUNDS: dict[int, Any] = {
    2: _int_bounds,
    3: _float_bounds,
    4: _text_bounds,
    5: _bool_bounds,
    7: _int_bounds,
    8: _no_bounds,
}
