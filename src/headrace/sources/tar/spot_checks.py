"""Whether what lies in front of a payload is its header: a tar of the same size may be another.

Names and sizes are compared, and payloads are not: content that was replaced behind equal names
and sizes is found by hashes only (``headrace index --verify``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import StaleIndexError
from headrace.model import DataFileInfo
from headrace.sources.tar.completeness import Listed, Missing, missing_here, refuse_missing
from headrace.sources.tar.headers import (
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
from headrace.sources.tar.index import TarIndex
from headrace.sources.tar.scanning import scan_tar
from headrace.sources.tar.tar_bytes import Read, reading
from headrace.storage import LocalStore, Store

__all__ = [
    "check_all_headers",
    "check_header",
    "check_some_headers",
    "first_misfit",
    "refuse_member",
]

_LOOKED_AT = 8
_LONG_NAME = ord("L")
_EXTENSIONS = b"xXgLK"
_LONGEST_NAME = 100
_MANY = 8
"""headers that are compared all at once"""
_KIND, _PREFIX = 156, 345
_SIZE_DIGITS, _OCTAL = slice(124, 135), 8
_DIGIT_VALUES = 8 ** np.arange(10, -1, -1)
_NAME_PLACES = np.arange(_LONGEST_NAME)
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
        fitting = map(header_fits, repeat(index), some.tolist(), blocks, repeat(read))
        if all(fitting):
            index.unchecked[some] = False
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
    index.unchecked.fill(False)


def _check_all(path: str, index: TarIndex, there: TarIndex) -> None:
    """Refuse an index with a member that is not in its tar."""
    if not len(there):
        refuse_member(path, index, 0)
    at = np.minimum(np.searchsorted(there.offsets, index.offsets), len(there) - 1)
    same = (there.offsets[at] == index.offsets) & (there.sizes[at] == index.sizes)
    if not same.all():
        refuse_member(path, index, int(np.argmin(same)))
    names = there.names.take(pa.array(at))
    differing = np.flatnonzero(~pc.equal(index.names, names).to_numpy(zero_copy_only=False))
    for member in differing.tolist():
        if not _is_called(index.name(member), names[member].as_py().encode()):
            refuse_member(path, index, member)


def check_header(path: str, index: TarIndex, member: int, block: bytes, read: Read) -> None:
    """Refuse an index if a block is not the header of the member that it has there.

    ``read`` gives what lies in front of it, where an extended header may say otherwise; for
    names that no header has room for, it is not asked.
    """
    name = index.name(member)
    named_in_front = len(name) > _LONGEST_NAME or not name.isascii()
    if named_in_front and _room_in_front(index, member) and _has_size(block, index, member):
        return
    if not header_fits(index, member, block, read):
        refuse_member(path, index, member)


def first_misfit(
    index: TarIndex, members: Sequence[int], blocks: Sequence[bytes], read: Read
) -> int | None:
    """Return the first of some members whose block is not its header; None if all are.

    ``read`` gives what lies in front of a header.
    """
    doubtful: Iterable[int] = range(len(members))
    if len(members) >= _MANY:
        doubtful = np.flatnonzero(~_fit_plainly(index, members, blocks)).tolist()
    for place in doubtful:
        if not header_fits(index, members[place], blocks[place], read):
            return members[place]
    return None


def _fit_plainly(
    index: TarIndex, members: Sequence[int], blocks: Sequence[bytes]
) -> npt.NDArray[np.bool_]:
    """Which blocks are headers that say the name and size of their member in the usual way.

    Others may fit as well, and have to be looked at one by one.
    """
    whole = b"".join(blocks)
    if len(whole) != BLOCK * len(blocks):
        return np.zeros(len(members), bool)
    rows = np.frombuffer(whole, np.uint8).reshape(-1, BLOCK)
    places = np.array(members)
    names = index.names.take(pa.array(places))
    _, edges, data = names.buffers()
    ends = np.frombuffer(edges, np.int32, len(names) + 1)
    lengths = ends[1:] - ends[:-1]
    width = int(lengths.max()) + 1
    if width > _LONGEST_NAME or data is None:
        return _fit_plainly_if_short(index, members, blocks, lengths)
    said = np.zeros((len(members), width), np.uint8)
    said[_NAME_PLACES[:width] < lengths[:, None]] = np.frombuffer(data, np.uint8, int(ends[-1]))
    digits = rows[:, _SIZE_DIGITS] - ord("0")  # what is below wraps around
    kinds = rows[:, _KIND]
    fits: npt.NDArray[np.bool_] = (said == rows[:, :width]).all(1)
    fits &= (digits < _OCTAL).all(1)
    fits &= digits @ _DIGIT_VALUES == index.sizes[places]
    fits &= (rows[:, _SIZE_DIGITS.stop] <= ord(" ")) & (rows[:, _PREFIX] == 0)
    fits &= (kinds == MEMBER_KINDS[0]) | (kinds == MEMBER_KINDS[1]) | (kinds == MEMBER_KINDS[2])
    return fits


def _fit_plainly_if_short(
    index: TarIndex,
    members: Sequence[int],
    blocks: Sequence[bytes],
    lengths: npt.NDArray[np.int32],
) -> npt.NDArray[np.bool_]:
    """The same where some names are too long for a header."""
    fits = np.zeros(len(members), bool)
    short = np.flatnonzero((lengths > 0) & (lengths < _LONGEST_NAME)).tolist()
    if short:
        fits[short] = _fit_plainly(
            index, [members[place] for place in short], [blocks[place] for place in short]
        )
    return fits


def refuse_member(path: str, index: TarIndex, member: int) -> NoReturn:
    """Refuse an index that has a member where its tar has another one, or none."""
    raise StaleIndexError(
        f"{path}: there is no header of {index.name(member)!r} before byte "
        f"{int(index.offsets[member]):,}: the index is not that of this tar; make it anew "
        "with: headrace index --force"
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


def header_fits(index: TarIndex, member: int, block: bytes, read: Read) -> bool:
    """Return True if a block is the header of the member that an index has behind it.

    ``read`` gives what lies in front of it, where an extended header may say otherwise.
    """
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
    """Return True if a name is what a header says, but for folders that either does not have.

    Some indices lack the folders that all members share.
    """
    if said == name.encode():
        return True
    one = name.removeprefix("./")
    others = (decoded(said), said.decode(errors="replace"))
    return any(_ends_with(one, other.removeprefix("./")) for other in others)


def _ends_with(one: str, other: str) -> bool:
    return one == other or one.endswith(f"/{other}") or other.endswith(f"/{one}")
