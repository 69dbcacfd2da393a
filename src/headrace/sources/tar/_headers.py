"""The blocks of a tar: the fields of a header, and of headers that extend one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

BLOCK = 512
MEMBER_KINDS = b"0\x007"
"""regular files; those of a tar from before ustar are of kind NUL"""
WITHOUT_PAYLOAD = b"123456"
"""links, devices, directories and pipes, whatever their size field says"""

_PLAIN_KINDS = b"0\0"
_LARGEST = 1 << 62
"""largest size of a member; offsets after it still fit into 64 bits"""
_CHECKSUM = slice(148, 156)
_SIZE = slice(124, 136)
_PREFIX = slice(345, 500)
_MAGIC_OF_USTAR = b"ustar\0"
_DIGIT_VALUES = 8 ** np.arange(5, -1, -1)
COMPRESSED = {
    b"\x1f\x8b": "gzip -d",
    b"BZh": "bzip2 -d",
    b"\xfd7zXZ\0": "xz -d",
    b"\x28\xb5\x2f\xfd": "zstd -d --rm",
    b"\x04\x22\x4d\x18": "lz4 -d --rm",
}
"""First bytes of compressed files, and the commands that uncompress them."""


class HeaderError(Exception):
    """A block is not the header of a member that can be indexed; the text says why."""


def padded(size: int) -> int:
    """Return the bytes that a payload takes, in whole blocks."""
    return (size + BLOCK - 1) & -BLOCK


def header_size(block: bytes) -> int:
    """Return the size field: octal digits, or a number to the base of 256 for large members."""
    field = block[_SIZE]
    if field[0] & 0x80:
        if field[0] & 0x40:
            raise HeaderError("the size of a member is negative")
        return _possible(int.from_bytes(field, "big") - (1 << 95))
    return _octal(field, "size")


def decimal_size(text: bytes) -> int:
    """Return the size in an extended header."""
    if not text.isdigit():
        raise HeaderError("the size in an extended header is not a number")
    return _possible(int(text) if len(text) < len(str(_LARGEST)) else _LARGEST)


def _possible(size: int) -> int:
    if size >= _LARGEST:
        raise HeaderError("the size of a member is larger than any file")
    return size


def header_name(block: bytes) -> bytes:
    """Return the name field, behind the prefix of a ustar header."""
    name = block[:100].partition(b"\0")[0]
    if block.startswith(_MAGIC_OF_USTAR, 257) and block[345]:
        return block[_PREFIX].partition(b"\0")[0] + b"/" + name
    return name


def is_plain_header(data: bytes, name: bytes, size: int, at: int = 0) -> bool:
    """Return True if ``data`` has at a place a header of a file that plainly says a name and size.

    The other forms of the same header have to be parsed.
    """
    return (
        len(data) >= at + BLOCK
        and data.startswith(name, at)
        and data.find(b"\0", at, at + 100) == (at + len(name) if len(name) < 100 else -1)
        and data.startswith(b"%011o\0" % size, at + _SIZE.start)
        and data[at + 156] in _PLAIN_KINDS
        and not data[at + _PREFIX.start]
    )


def header_rows(blocks: Sequence[bytes]) -> npt.NDArray[np.uint8]:
    """Return headers as the rows of an array."""
    return np.frombuffer(b"".join(blocks), np.uint8).reshape(-1, BLOCK)


def header_names(rows: npt.NDArray[np.uint8]) -> list[bytes]:
    """Return the names of many headers; see ``header_name``."""
    field = rows[:, :100]
    names: list[bytes] = np.ascontiguousarray(field).view("S100").ravel().tolist()
    ends = field == 0
    unusual = (ends[:, :-1] & ~ends[:, 1:]).any(1) | (rows[:, _PREFIX.start] != 0)
    for row in np.flatnonzero(unusual).tolist():
        names[row] = header_name(rows[row].tobytes())
    return names


def first_broken(rows: npt.NDArray[np.uint8]) -> list[int]:
    """Return the first header that does not have the checksum that it names, if there is one."""
    field = rows[:, _CHECKSUM]
    sums = rows.sum(1, dtype=np.int32) - field.sum(1, dtype=np.int32) + 8 * ord(" ")
    digits = field[:, :6].astype(np.int32) - ord("0")
    plain = ((digits >= 0) & (digits < 8)).all(1) & ((field[:, 6] == 0) | (field[:, 6] == 32))
    doubtful = np.flatnonzero(~plain | (digits @ _DIGIT_VALUES != sums))
    return [row for row in doubtful.tolist() if not _has_checksum(rows[row])][:1]


def _has_checksum(row: npt.NDArray[np.uint8]) -> bool:
    """Return True if a checksum is right, of unsigned or, as some tools sum up, of signed bytes."""
    try:
        named = _octal(row[_CHECKSUM].tobytes(), "checksum")
    except HeaderError:
        return False
    rest = np.delete(row, _CHECKSUM)
    spaces = 8 * ord(" ")
    return named in (int(rest.sum()) + spaces, int(rest.view(np.int8).sum()) + spaces)


def _octal(field: bytes, what: str) -> int:
    digits = field.partition(b"\0")[0].strip(b" ")
    if not digits:
        return 0
    if digits.strip(b"01234567"):
        raise HeaderError(f"the {what} in a header is not a number")
    return int(digits, 8)


def pax_records(data: bytes) -> dict[bytes, bytes]:
    """Return the records of an extended header: lines of their length, a name and any bytes.

    An empty value means that the value of the header itself applies again.
    """
    records: dict[bytes, bytes] = {}
    at = 0
    while at < len(data) and data[at]:
        length, space, _ = data[at : at + 20].partition(b" ")
        if not space or not length.isdigit():
            raise HeaderError("an extended header is damaged")
        end = at + int(length)
        name, equals, value = data[at + len(length) + 1 : end - 1].partition(b"=")
        if not equals or data[end - 1 : end] != b"\n":
            raise HeaderError("an extended header is damaged")
        records[name] = value
        at = end
    return records


def decoded(name: bytes) -> str:
    """Return a name as text: UTF-8, or Latin-1, which every name can be read as."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        return name.decode("latin-1")


def string_array(names: Sequence[bytes]) -> pa.StringArray:
    """Return names as text; see ``decoded``."""
    try:
        return pa.array(names, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([decoded(name) for name in names], pa.string())
