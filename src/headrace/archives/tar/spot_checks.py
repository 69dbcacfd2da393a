"""Whether what lies in front of a payload is its header: a tar of the same size may be another.

Names and sizes are compared, and payloads are not: content that was replaced behind equal names
and sizes is found by hashes only (``headrace index --verify``).
"""

from __future__ import annotations

from itertools import repeat
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.archives.tar.completeness import Listed, Missing, missing_here, refuse_missing
from headrace.archives.tar.headers import (
    BLOCK,
    MEMBER_KINDS,
    HeaderError,
    decimal_size,
    decoded,
    first_broken,
    header_name,
    header_rows,
    header_size,
    padded,
    pax_records,
)
from headrace.archives.tar.index import TarIndex
from headrace.archives.tar.scanning import scan_tar
from headrace.archives.tar.tar_bytes import Read, reading
from headrace.errors import StaleIndexError
from headrace.model import DataFileInfo
from headrace.storage import LocalStore, Store

__all__ = ["check_all_headers", "check_header", "check_some_headers"]

_LOOKED_AT = 8
_LONG_NAME = ord("L")
_EXTENSIONS = b"xXgLK"
_LONGEST_NAME = 100
_FARTHEST_BYTES = 64 << 10
"""in front of a header in which what extends it is looked for"""


def check_some_headers(file: DataFileInfo, index: TarIndex) -> Missing | None:
    """Look at the headers of a few members of a tar of this machine, the last one among them.

    If one of them does not fit, all are looked at: what is said for the whole tar stands at its
    beginning.

    Returns:
        A member of the tar that the index lacks, if one is found; see ``missing_here``.
    """
    spread = np.linspace(0, len(index) - 1, _LOOKED_AT).astype(np.int64)
    some = np.unique(spread) if len(index) else np.empty(0, np.int64)
    store = LocalStore()
    with store.open(file) as opened:
        read = reading(opened)
        starts = [int(index.offsets[member]) for member in some]
        blocks = [read(start - BLOCK, start) for start in starts]
        fitting = map(_fits, repeat(index), some.tolist(), blocks, repeat(read))
        if all(fitting):
            return missing_here(index, int(opened.size()), read)
    check_all_headers(store, file, index)
    return None


def check_all_headers(store: Store, file: DataFileInfo, index: TarIndex) -> None:
    """Refuse an index that does not have the members which the headers of its tar say."""
    there = scan_tar(store, file, sidecars=False, keep_going=True)
    if len(index):
        _check_all(file.path, index, there)
    listed = Listed(index)
    for member in np.flatnonzero(~np.isin(there.offsets, index.offsets)).tolist():
        missing = Missing(there.name(member), int(there.offsets[member]) - BLOCK)
        if listed.lacks(*missing):
            refuse_missing(file.path, missing)


def _check_all(path: str, index: TarIndex, there: TarIndex) -> None:
    """Refuse an index with a member that is not in its tar."""
    if not len(there):
        _refuse(path, index, 0)
    at = np.minimum(np.searchsorted(there.offsets, index.offsets), len(there) - 1)
    same = (there.offsets[at] == index.offsets) & (there.sizes[at] == index.sizes)
    if not same.all():
        _refuse(path, index, int(np.argmin(same)))
    names = there.names.take(pa.array(at))
    differing = np.flatnonzero(~pc.equal(index.names, names).to_numpy(zero_copy_only=False))
    for member in differing.tolist():
        if not _is_called(index.name(member), names[member].as_py().encode()):
            _refuse(path, index, member)


def check_header(path: str, index: TarIndex, member: int, block: bytes, read: Read) -> None:
    """Refuse an index if a block is not the header of the member that it has there.

    ``read`` gives what lies in front of it, where an extended header may say otherwise; for
    names that no header has room for, it is not asked.
    """
    name = index.name(member)
    named_in_front = len(name) > _LONGEST_NAME or not name.isascii()
    if named_in_front and _room_in_front(index, member) and _has_size(block, index, member):
        return
    if not _fits(index, member, block, read):
        _refuse(path, index, member)


def _refuse(path: str, index: TarIndex, member: int) -> NoReturn:
    raise StaleIndexError(
        f"{path}: there is no header of {index.name(member)!r} before byte "
        f"{int(index.offsets[member]):,}: the index is not that of this tar; make it anew "
        "with: headrace index"
    )


def _room_in_front(index: TarIndex, member: int) -> int:
    """How many bytes lie between a header and the member before it in the index."""
    before = 0
    if member:
        before = padded(int(index.offsets[member - 1]) + int(index.sizes[member - 1]))
    return int(index.offsets[member]) - BLOCK - before


def _has_size(block: bytes, index: TarIndex, member: int) -> bool:
    try:
        return _is_member(block) and header_size(block) == index.sizes[member]
    except HeaderError:
        return False


def _is_member(block: bytes) -> bool:
    return len(block) == BLOCK and block[156] in MEMBER_KINDS


def _fits(index: TarIndex, member: int, block: bytes, read: Read) -> bool:
    name, size = index.name(member), int(index.sizes[member])
    if not _is_member(block):
        return False
    try:
        said_name, said_size = header_name(block), header_size(block)
        if said_size == size and _is_called(name, said_name):
            return True
        room = min(_room_in_front(index, member), _FARTHEST_BYTES)
        if room <= BLOCK:
            return False
        at = int(index.offsets[member]) - BLOCK
        records = _said_in_front(read(at - room, at))
        said_size = decimal_size(records[b"size"]) if records.get(b"size") else said_size
    except HeaderError:
        return False
    return said_size == size and _is_called(name, records.get(b"path") or said_name)


def _said_in_front(data: bytes) -> dict[bytes, bytes]:
    """What the extended headers say that end where the bytes end; the last of them prevails."""
    records: dict[bytes, bytes] = {}
    long_name = b""
    end = len(data)
    while (start := _last_extension(data, end)) is not None:
        block, payload = data[start : start + BLOCK], data[start + BLOCK : end]
        payload = payload[: header_size(block)]
        if block[156] == _LONG_NAME:
            long_name = long_name or payload.partition(b"\0")[0]
        elif block[156] in b"xXg":
            records = pax_records(payload) | records
        end = start
    return {b"path": long_name} | {key: value for key, value in records.items() if value}


def _last_extension(data: bytes, end: int) -> int | None:
    """Where the extended header begins whose payload ends there."""
    for start in range(end - 2 * BLOCK, -1, -BLOCK):
        block = data[start : start + BLOCK]
        if block[156] in _EXTENSIONS and first_broken(header_rows([block])) is None:
            return start if start + BLOCK + padded(header_size(block)) == end else None
    return None


def _is_called(name: str, said: bytes) -> bool:
    """Folders are left out, for some indices do not have those that all members share."""
    base = said.rpartition(b"/")[2]
    return name.rpartition("/")[2] in (decoded(base), base.decode(errors="replace"))
