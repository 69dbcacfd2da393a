"""What members of a tar are called, and their headers: the same bytes for the same sample."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from typing import Any

from headrace.errors import OptionError
from headrace.sources.tar.grouping import WHOLE

__all__ = ["BLOCK_BYTES", "KEY", "RECORD_BYTES", "checked_fields", "checked_key", "header", "room"]

KEY = "__key__"
BLOCK_BYTES = 512
RECORD_BYTES = 10240
"""a tar is a multiple of these, with at least two blocks of zeros at its end"""
_MODE = 0o644
_MOST_NAME_BYTES, _MOST_SIZE = 100, 8**11 - 1
"""of what a plain header holds"""


def header(name: str, size: int) -> bytes:
    """All blocks before a payload: one of ustar, after a PAX header where one is needed.

    Owner, mode and time are always the same.
    """
    encoded = name.encode()
    if len(encoded) == len(name) <= _MOST_NAME_BYTES and size <= _MOST_SIZE:
        block = b"%s%011o%s" % (encoded.ljust(_MOST_NAME_BYTES, b"\0") + _OWNER, size, _TIME)
        total = sum(block) + sum(_BEHIND) + 8 * ord(" ")
        return b"%s%06o\0 %s" % (block, total, _BEHIND)
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, _MODE
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def room(header_bytes: int, size: int) -> int:
    """How much of a tar a member takes."""
    return header_bytes + size + -size % BLOCK_BYTES


def checked_key(sample: Mapping[str, Any]) -> str:
    """The key of a sample; an OptionError if it would not come back as it is."""
    key = sample.get(KEY)
    if not isinstance(key, str) or not key:
        raise OptionError(f"a sample needs a {KEY}, which is a text that is not empty: {key!r}")
    parts = key.split("/")
    if key.startswith("/") or ".." in parts:
        raise OptionError(f"the key {key!r} leads out of the archive; give a path below it")
    if "" in parts or "." in parts:
        raise OptionError(f"the key {key!r} has a part that names nothing; leave that out")
    if "." in parts[-1]:
        raise OptionError(
            f"the key {key!r} has a dot in its last part: what follows it would be read as a part "
            "of the field; replace the dot, by _ say"
        )
    return _checked_text("key", key)


def checked_fields(key: str, sample: Mapping[str, Any]) -> dict[str, Any]:
    """Values by the names of their members. Names like ``__url__`` tell of a sample: no fields.

    What is None is left out.
    """
    found: dict[str, Any] = {}
    seen: dict[str, str] = {}
    for field, value in sample.items():
        if not isinstance(field, str):
            raise OptionError(f"fields of a sample are named by texts, not {field!r} ({key})")
        if value is None or (field.startswith("__") and field.endswith("__") and field != WHOLE):
            continue
        other = seen.setdefault(field.lower(), field)
        if other != field:
            raise OptionError(f"{key}: {other!r} and {field!r} would be one field; rename one")
        found[_member_name(key, field)] = value
    if not found:
        raise OptionError(f"the sample {key!r} has no field, so that nothing of it would be left")
    return found


def _member_name(key: str, field: str) -> str:
    if field == WHOLE:
        return key
    if not field or field.startswith(".") or "/" in field:
        raise OptionError(
            f"{key}: a field is named like an extension, such as jpg or seg.png, not {field!r}"
        )
    return f"{key}.{_checked_text('field', field)}"


def _checked_text(what: str, text: str) -> str:
    if "\0" in text:
        raise OptionError(f"the {what} {text!r} has a NUL in it, where a name in a tar ends")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise OptionError(f"the {what} {text!r} is no text that UTF-8 can hold") from None
    return text


_OWNER = b"%07o\0%07o\0%07o\0" % (_MODE, 0, 0)
_TIME = b"\0%011o\0" % 0
_BEHIND = (b"0".ljust(101, b"\0") + b"ustar\x0000").ljust(BLOCK_BYTES - 156, b"\0")
"""what follows the checksum of a plain header: a regular file, and no link, owner or prefix"""
