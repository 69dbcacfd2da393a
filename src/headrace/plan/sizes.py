"""Sizes in bytes as people write them."""

from __future__ import annotations

import re
from fractions import Fraction

from headrace.errors import OptionError

__all__ = ["parse_bytes"]

_UNITS = {
    "": 1,
    "b": 1,
    **{f"{p}{b}": 1000 ** (i + 1) for i, p in enumerate("kmgt") for b in ("", "b")},
    **{f"{p}ib": 1024 ** (i + 1) for i, p in enumerate("kmgt")},
}


def parse_bytes(name: str, value: int | str) -> int:
    """A number of bytes; ``name`` is the option that an error names.

    >>> parse_bytes("split_bytes", "128MiB"), parse_bytes("split_bytes", "1.5 kB")
    (134217728, 1500)
    """
    given = value
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
        if match and match[2].lower() in _UNITS:
            value = int(Fraction(match[1]) * _UNITS[match[2].lower()])
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(
            f'{name} must be a positive number of bytes, or text such as "64MiB"; got {given!r}'
        )
    return value
