"""Checks of an index against its tar: before anything is read by it, at every read, and in depth.

Only hashes find content that was replaced under the same names and sizes (``verify_index``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from headrace.errors import ReadError, StaleIndexError
from headrace.model import DataFileInfo, Int64Array
from headrace.sources.tar._headers import (
    BLOCK,
    MEMBER_KINDS,
    HeaderError,
    decoded,
    header_name,
    header_size,
    is_plain_header,
)
from headrace.sources.tar.index import SIDECARS, TarIndex
from headrace.sources.tar.scan import BrokenTar, Pread, TarBytes, opened_tar, scan_tar, walked
from headrace.storage import Store

_END_BYTES = 22 * BLOCK
"""bytes of the end of a tar: two blocks of zeros, and the rest of a record as tar writes it"""
_NEAR_BYTES = 64 << 10
_NAMED = 10
"""largest number of differences that are listed"""


# --- when an index is loaded


def check_index(index: TarIndex, tar_size: int | None, shown: str) -> None:
    """Refuse an index that points outside of payloads. The tar itself is not read.

    Args:
        index: The index.
        tar_size: The size of the tar as it is now, or None if that is not known.
        shown: The name of the tar in messages.

    Raises:
        StaleIndexError: The index does not match the tar.
    """
    size = index.facts.size
    if tar_size is not None and size is not None and size != tar_size:
        _refuse(
            shown, f"the tar has {tar_size:,} bytes, but its index was made for one of {size:,}"
        )
    if not len(index):
        return
    limit = next((one for one in (tar_size, size) if one is not None), 2**63 - 1)
    offsets, sizes = index.offsets, index.sizes
    overlaps = np.append(offsets[:-1] + sizes[:-1] > offsets[1:] - BLOCK, False)
    for wrong, why in (
        ((offsets < 0) | (sizes < 0), "and an offset or size cannot be negative"),
        (sizes > limit - offsets, f"past the end of the tar, which has {limit:,} bytes"),
        ((offsets % BLOCK != 0) | (offsets < BLOCK), "where a payload cannot begin"),
        (overlaps, "and overlap {next!r} or its header"),
    ):
        for member in np.flatnonzero(wrong)[:1].tolist():
            why = why.format(next=index.name(min(member + 1, len(index) - 1)))
            place = f"lie at {int(offsets[member]):,} and have {int(sizes[member]):,} bytes"
            _refuse(shown, f"member {index.name(member)!r} would {place}, {why}")


def check_end(store: Store, file: DataFileInfo, index: TarIndex) -> None:
    """Refuse an index whose last member is missing in the tar, or that lacks members after it.

    An index that was made from this version of the tar has all of them, so nothing is read. Else
    the end of the tar is: members may have been appended, and the index of another tool may be of
    an earlier state of it, or not whole. Of a remote tar it is read only if there are more bytes
    than the end of a tar takes.

    Raises:
        StaleIndexError: A regular file follows the last member, or the end of the tar is missing.
    """
    if index.facts.last_good is not None:
        return
    if index.facts.etag is not None and index.facts.etag == file.etag:
        return
    if not store.local and file.file_size is not None and file.file_size - index.end <= _END_BYTES:
        return
    may_lack = _MayLack(index)
    with opened_tar(store, file) as source:
        if store.local and len(index):  # another tar may have the same size
            check_header(file.path, index, len(index) - 1, source.window)
        try:
            for stretch in walked(source, start=index.end):
                for name, offset in zip(stretch.names, stretch.offsets, strict=True):
                    if not may_lack(decoded(name)):
                        where = f"{decoded(name)!r} (its header is at byte {offset - BLOCK:,})"
                        _refuse(file.path, f"the tar has {where}, which the index does not have")
        except BrokenTar as broken:
            _refuse(file.path, f"{broken.reason} (byte {broken.at:,}), after the last member")


class _MayLack:
    """Tells which regular files an index may lack.

    Files whose names begin with a dot belong to no sample. An index of another tool may also leave
    out sidecars of samples that it has, if it lists no sidecar of that kind.
    """

    def __init__(self, index: TarIndex) -> None:
        self._index = index
        self._keys: set[str] | None = None

    def __call__(self, name: str) -> bool:
        base = name.rpartition("/")[2]
        kind = base.rpartition(".")[2].lower()
        if base.startswith("."):
            return True
        if self._index.facts.lists_all or kind not in SIDECARS:
            return False
        if self._keys is None:  # without folders, which some indexes do not have
            bases = (other.rpartition("/")[2] for other in self._index.names.to_pylist())
            self._keys = {other.partition(".")[0] for other in bases}
        kinds = {field.rpartition(".")[2] for field in self._index.grouping.field_names}
        return kind not in kinds and base.partition(".")[0] in self._keys


# --- when a member is read


def header_starts(index: TarIndex, members: npt.NDArray[np.integer]) -> Int64Array:
    """Return where the headers of members begin, with those that extend them.

    That is the end of the previous member. If that is far away, members between them are missing in
    the index.
    """
    plain = index.offsets[members] - BLOCK
    before = np.maximum(members - 1, 0)
    ends = -(-(index.offsets[before] + index.sizes[before]) // BLOCK) * BLOCK
    ends = np.where(members > 0, ends, 0)
    starts: Int64Array = np.where(plain - ends <= _NEAR_BYTES, ends, plain)
    return starts


def check_header(
    path: str,
    index: TarIndex,
    member: int,
    pread: Pread,
    data: bytes | None = None,
    at: int = 0,
) -> None:
    """Refuse an index if the block in front of a member is not its header.

    A member that matches is marked in ``index.unchecked``, because an open tar does not change.

    Args:
        path: The tar.
        index: Its index.
        member: A member of the index.
        pread: Reads the tar.
        data: A part of the tar that was read already, with the block in front of the member.
        at: Where that block begins in ``data``.

    Raises:
        StaleIndexError: The member has no header, or the header of another member.
    """
    offsets, sizes, unchecked = index.places
    if data is None:
        data = pread(BLOCK, offsets[member] - BLOCK)
    is_plain = is_plain_header(data, index.name_bytes(member), sizes[member], at)
    if not is_plain and not _fits(path, index, member, pread, data[at : at + BLOCK]):
        where = f"before byte {offsets[member]:,}"
        _refuse(path, f"there is no header of {index.name(member)!r} {where}")
    unchecked[member] = False


def check_file_sizes(
    path: str, index: TarIndex, members: npt.NDArray[np.integer], limit: int
) -> None:
    """Refuse to read a member that is larger than ``max_file_size``; skip negative numbers.

    Raises:
        ReadError: A member is larger.
    """
    large = np.flatnonzero((members >= 0) & (index.sizes[members] > limit))
    if len(large):
        member = int(members[large[0]])
        raise ReadError(
            f"{path}: member {index.name(member)!r} has {int(index.sizes[member]):,} bytes, more "
            f"than max_file_size={limit:,}; raise that limit, leave its field out of columns=, or "
            'skip samples like this with oversized="skip" or on_error="skip"'
        )


def _fits(path: str, index: TarIndex, member: int, pread: Pread, block: bytes) -> bool:
    if len(block) != BLOCK or block[156] not in MEMBER_KINDS:
        return False
    name, offset, size = index.name(member), index.offsets.item(member), index.sizes.item(member)
    try:
        if header_size(block) == size and _is_called(name, header_name(block)):
            return True
        # The name or the size may stand in an extended header before this one.
        end = offset + size
        until = TarBytes(lambda least, at: pread(max(min(least, end - at), 0), at), end, path)
        start = int(header_starts(index, np.array([member]))[0])
        for stretch in walked(until, start=start):
            if stretch.offsets[0] >= offset:
                is_there = (stretch.offsets[0], stretch.sizes[0]) == (offset, size)
                return is_there and _is_called(name, stretch.names[0])
    except (HeaderError, BrokenTar):
        pass
    return False


def _is_called(name: str, other: bytes) -> bool:
    """Return True if two names are equal, or equal after leading folders that one of them lacks."""
    one = f"/{name.removeprefix('./')}"
    texts = (decoded(other), other.decode(errors="replace"))
    paths = [f"/{text.removeprefix('./')}" for text in texts]
    return any(one.endswith(path) or path.endswith(one) for path in paths)


# --- in depth


def verify_index(
    store: Store, file: DataFileInfo, index: TarIndex, *, hash: bool = True
) -> list[str]:
    """Return all differences between an index and its tar; none if the index is right.

    The headers of the tar are read; with ``hash`` also its payloads, if the index has hashes of
    the tar or of members. A tar that cannot be read to its end is a difference, unless the index
    was made of the part that can be read.
    """
    facts = index.facts
    hashed = hash and (index.sha256 is not None or facts.hash_lfs is not None)
    try:
        check_index(index, file.file_size, file.path)
        there = scan_tar(
            store, file, sidecars=False, hash=hashed, keep_going=facts.last_good is not None
        )
    except ReadError as failed:
        return [str(failed)]
    found = [f"{file.path}: {problem}" for problem in _differences(index, there)]
    more = [f"{file.path}: {len(found) - _NAMED:,} more"] if len(found) > _NAMED else []
    if hashed and facts.hash_lfs and facts.hash_lfs.lower() != there.facts.hash_lfs:
        its = there.facts.hash_lfs
        more.append(f"{file.path}: its SHA-256 is {its}, and {facts.hash_lfs} in the index")
    return found[:_NAMED] + more


def _differences(index: TarIndex, there: TarIndex) -> Iterator[str]:
    """Yield members with another place, name, size or hash, and those that the index lacks."""
    in_tar = _rows(there)
    for offset, (name, size, digest) in _rows(index).items():
        where = f"{name!r} (at {offset:,})"
        if offset not in in_tar:
            yield f"the index has {where}, but no member begins there"
            continue
        its_name, its_size, its_digest = in_tar.pop(offset)
        if its_name != name:
            yield f"the index has {where}, but the member there is {its_name!r}"
        if its_size != size:
            yield f"the index has another size for {where}"
        if digest and its_digest and digest.lower() != its_digest:
            yield f"the SHA-256 in the index does not match {where}"
    for offset, (name, *_) in in_tar.items():
        yield f"the index does not have {name!r} (at {offset:,})"


def _rows(index: TarIndex) -> dict[int, tuple[str, int, Any]]:
    """Return name, size and hash of each member by its offset."""
    digests = [None] * len(index) if index.sha256 is None else index.sha256.to_pylist()
    rows = zip(index.names.to_pylist(), index.sizes.tolist(), digests, strict=True)
    return dict(zip(index.offsets.tolist(), rows, strict=True))


def _refuse(shown: str, why: str) -> NoReturn:
    raise StaleIndexError(
        f"{shown}: {why}: the index does not match this tar or is incomplete; make it anew with: "
        "headrace index --force"
    )
