"""Parsing of the Range header."""

from __future__ import annotations

import re


class UnsatisfiableRange(ValueError):
    """The range begins after the last byte."""


def parse_range(header: str, size: int) -> range | None:
    """Return the requested bytes, or None if the header is ignored, as for several ranges."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", header.strip())
    if match is None or header.strip() == "bytes=-":
        return None
    first, last = match.groups()
    if not first:
        start, stop = max(0, size - int(last)), size
    else:
        start, stop = int(first), min(int(last) + 1, size) if last else size
        if last and int(last) < start:
            return None
    if start >= size or start == stop:
        raise UnsatisfiableRange(header)
    return range(start, stop)
