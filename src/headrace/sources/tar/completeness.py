"""Whether an index has all members of its tar.

What an index lists is compared with headers elsewhere. Here, what it does not list is looked at:
the bytes in front of its members, which extended headers and folders may take, and those behind
the last one, which are zeros. Only a regular file among them is a member that is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headrace.errors import StaleIndexError
from headrace.model import DataFileInfo, Int64Array, computed_once
from headrace.sources.tar.grouping import sample_keys
from headrace.sources.tar.headers import (
    BLOCK,
    WITHOUT_PAYLOAD,
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
from headrace.sources.tar.index import SIDECARS, TarIndex
from headrace.sources.tar.json_form import JsonForm
from headrace.sources.tar.tar_bytes import Read, reading
from headrace.storage import Store, will_read

__all__ = [
    "Listed",
    "Missing",
    "missing_beside",
    "missing_elsewhere",
    "missing_here",
    "refuse_missing",
]

_NO_BLOCK = bytes(BLOCK)
_FILES = b"0\0"
_LONG_NAME = ord("L")
_EXTENDED, _GLOBAL = b"xX", ord("g")
_LONGEST_EXTENSION = 1 << 20
_STEPS = 1024
"""from header to header within a gap, at most"""
_LARGEST_GAPS, _OTHER_GAPS = 32, 8
"""of a tar of this machine that are looked into when its index is loaded"""
_TAIL_BYTES = 64 << 10
"""behind the last member that are looked at"""
_END_BYTES = 2 * BLOCK + 20 * BLOCK
"""of the end of a tar: two blocks of zeros, and the rest of a record as tar writes it"""
_EXTENSION_BYTES = 8 * BLOCK
"""that extended headers in front of a member usually have at most"""


class Missing(NamedTuple):
    """A member that an index does not have."""

    name: str
    at: int
    """where its header lies"""


def missing_here(index: TarIndex, tar_size: int, read: Read) -> Missing | None:
    """Return a member of a tar of this machine that its index lacks, or None if none is found.

    The bytes behind the last member and a few dozen gaps are looked at, the largest among them.
    """
    if index.facts.last_good is None:
        missing = _missing_behind(index, tar_size, read)
        if missing is not None:
            return missing
    for member in _suspects(_gaps(index)):
        missing = _missing_in_front(index, member, read)
        if missing is not None:
            return missing
    return None


def missing_elsewhere(store: Store, file: DataFileInfo, index: TarIndex) -> Missing | None:
    """Return a member of a remote tar that its index lacks, or None if none is found.

    The tar is read, by one request, only if more lies behind the members or in front of one than
    tars usually have there. Fewer bytes are looked at when the members beside them are read.
    """
    if file.file_size is None:
        return None
    end, gaps = _end(index), _gaps(index)
    suspect = int(np.argmax(gaps)) if len(gaps) else -1
    if index.facts.last_good is None and (not len(index) or file.file_size - end > _END_BYTES):
        span = end, min(end + _TAIL_BYTES, file.file_size)
    elif suspect >= 0 and gaps[suspect] > _EXTENSION_BYTES:
        start = _start_of_gap(index, suspect)
        span = start, min(start + _TAIL_BYTES, int(index.offsets[suspect]) - BLOCK)
    else:
        return None
    with store.open(file) as opened:
        will_read(opened, [span])
        return _first_needed(index, reading(opened), *span)


def missing_beside(
    index: TarIndex, member: int, tar_size: int, read: Read, *, follows: bool
) -> Missing | None:
    """Return a member beside one of a remote tar, if the index lacks it.

    What lies in front of the member is looked at if it ``follows`` one that was just read: both
    were fetched together. Behind the last member one more block is looked at.
    """
    if follows and _start_of_gap(index, member) < int(index.offsets[member]) - BLOCK:
        missing = _missing_in_front(index, member, read)
        if missing is not None:
            return missing
    is_last = member == len(index) - 1 and index.facts.last_good is None
    if is_last and tar_size - _end(index) <= _END_BYTES:
        return _missing_behind(index, tar_size, read)
    return None


def _missing_behind(index: TarIndex, tar_size: int, read: Read) -> Missing | None:
    """Return the member that follows the last one of an index, if there is one."""
    end = _end(index)
    block = read(end, min(end + BLOCK, tar_size))
    if not block.strip(b"\0") and tar_size - end <= _END_BYTES:
        return None
    return _first_needed(index, read, end, min(end + _TAIL_BYTES, tar_size))


def _missing_in_front(index: TarIndex, member: int, read: Read) -> Missing | None:
    """Return a member that lies between a member of an index and the one before it."""
    stop = int(index.offsets[member]) - BLOCK
    return _first_needed(index, read, _start_of_gap(index, member), stop)


def refuse_missing(path: str, missing: Missing | None) -> None:
    """Refuse an index that lacks a member, if it does."""
    if missing is not None:
        raise StaleIndexError(
            f"{path}: the tar has a member {missing.name!r} (its header is at byte "
            f"{missing.at:,}) that the index does not have: the index is not that of this tar, or "
            "not whole; make it anew with: headrace index --force"
        )


class Listed:
    """What an index lists, and so should list."""

    def __init__(self, index: TarIndex) -> None:
        self._index = index

    def lacks(self, name: str, at: int) -> bool:
        """Return True if the index should have a regular file whose header lies at a place.

        It may lack files that belong to no sample (their names begin with a dot), and earlier
        ones of a name that it has: in a JSON object a name stands once. An index of another tool
        may also leave out sidecars of samples that it has, if it lists no sidecar of that kind.
        """
        base = name.rpartition("/")[2]
        if base.startswith(".") or self._places.get(name, 0) > at:
            return False
        kind = base.rpartition(".")[2].lower()
        if kind not in SIDECARS or self._is_ours or kind in self._kinds:
            return True
        key: str = sample_keys(pa.array([name]))[0].as_py()
        return key.rpartition("/")[2] not in self._keys

    @computed_once
    def _places(self) -> dict[str, int]:
        """The last place of each name."""
        return dict(zip(self._index.names.to_pylist(), self._index.offsets.tolist(), strict=True))

    @computed_once
    def _keys(self) -> set[str]:
        """Keys of samples without their folders, which some indices do not have."""
        return {key.rpartition("/")[2] for key in sample_keys(self._index.names).to_pylist()}

    @computed_once
    def _kinds(self) -> set[str]:
        return {field.rpartition(".")[2] for field in self._index.grouping.field_names}

    @computed_once
    def _is_ours(self) -> bool:
        """Return True if it looks like an index of this library, which lists all regular files."""
        form, facts = JsonForm.of(self._index), self._index.facts
        return facts.size is not None and form.name_key is None and form.length_key == "length"


def _gaps(index: TarIndex) -> Int64Array:
    """Return how many bytes lie between each header and the member before it."""
    ends = -(-(index.offsets + index.sizes) // BLOCK) * BLOCK
    gaps: Int64Array = index.offsets - BLOCK - np.concatenate([[0], ends[:-1]])
    return gaps


def _start_of_gap(index: TarIndex, member: int) -> int:
    """Where the member before one ends, with its padding."""
    if not member:
        return 0
    return padded(int(index.offsets[member - 1]) + int(index.sizes[member - 1]))


def _end(index: TarIndex) -> int:
    """Where the last member ends, with its padding."""
    return padded(int(index.offsets[-1]) + int(index.sizes[-1])) if len(index) else 0


def _suspects(gaps: Int64Array) -> list[int]:
    """Members that something lies in front of: the largest gaps, and some of the others.

    In tars whose members all have extended headers most gaps are equal, and not remarkable.
    """
    members = np.flatnonzero(gaps > 0)
    if not len(members):
        return []
    sizes, times = np.unique(gaps[members], return_counts=True)
    usual = sizes[np.argmax(times)] if times.max() * 2 > len(gaps) else 0
    remarkable = members[gaps[members] != usual]
    largest = remarkable[np.argsort(-gaps[remarkable], kind="stable")][:_LARGEST_GAPS]
    others = members[np.linspace(0, len(members) - 1, _OTHER_GAPS).astype(np.int64)]
    return list(dict.fromkeys([*largest.tolist(), *others.tolist()]))


def _first_needed(index: TarIndex, read: Read, start: int, stop: int) -> Missing | None:
    listed = Listed(index)
    return next((one for one in _files(read, start, stop) if listed.lacks(*one)), None)


def _files(read: Read, start: int, stop: int) -> Iterator[Missing]:
    """Regular files whose headers lie between two places, as far as these can be walked over."""
    records: dict[bytes, bytes] = {}
    lasting: dict[bytes, bytes] = {}
    long_name = b""
    at = start
    for _ in range(_STEPS):
        block = read(at, at + BLOCK) if at + BLOCK <= stop else b""
        if len(block) < BLOCK:
            return
        if block == _NO_BLOCK:
            at += BLOCK
            continue
        if first_broken(header_rows([block])) is not None:
            return
        try:
            kind, size = block[156], header_size(block)
            if kind in (_LONG_NAME, _GLOBAL) or kind in _EXTENDED:
                payload = read(at + BLOCK, at + BLOCK + min(size, _LONGEST_EXTENSION))
                if kind == _LONG_NAME:
                    long_name = payload.partition(b"\0")[0]
                elif kind == _GLOBAL:
                    lasting.update(pax_records(payload))
                else:
                    records = pax_records(payload)
            elif kind != ord("K"):
                said = lasting | records
                name = said.get(b"path") or long_name or header_name(block)
                size = decimal_size(said[b"size"]) if said.get(b"size") else size
                records, long_name = {}, b""
                if kind in _FILES and not name.endswith(b"/"):
                    yield Missing(decoded(name), at)
        except HeaderError:
            return
        at += BLOCK + (0 if kind in WITHOUT_PAYLOAD else padded(size))
