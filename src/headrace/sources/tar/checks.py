"""Whether an index is that of its tar: before anything is read by it, and in depth."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha1
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import ReadError, StaleIndexError
from headrace.model import DataFileInfo, Int64Array
from headrace.sources.tar.headers import BLOCK
from headrace.sources.tar.index import TarFacts, TarIndex
from headrace.sources.tar.scanning import scan_tar
from headrace.storage import Store

__all__ = ["check_index", "verify_index"]

_SHA256_DIGITS = 64
_NAMED = 10
"""members of which the same is wrong that are named one by one"""
_PIECE_BYTES = 8 << 20


def check_index(index: TarIndex, tar_size: int | None, shown: str) -> None:
    """Refuse an index by which wrong bytes could be read; ``shown`` names the tar.

    ``tar_size`` is that of the tar as it is now, None where that is not known. Costs nothing
    beside loading an index: numbers are looked at, the tar is not.
    """
    said = index.facts.size
    if tar_size is not None and said is not None and said != tar_size:
        _refuse(shown, f"the tar has {tar_size:,} bytes, and its index is of one of {said:,}")
    if not len(index):
        return
    limit = tar_size if tar_size is not None else said
    if limit is None:
        limit = 2**63 - 1
    wrong = (index.offsets < 0) | (index.sizes < 0)
    if wrong.any():
        _refuse(shown, f"{_lies(index, wrong)}, which is nowhere in a tar")
    wrong = index.sizes > limit - index.offsets
    if wrong.any():
        _refuse(shown, f"{_lies(index, wrong)}, past the end of the tar, which has {limit:,} bytes")
    wrong = (index.offsets % BLOCK != 0) | (index.offsets < BLOCK)
    if wrong.any():
        _refuse(shown, f"{_lies(index, wrong)}, where no payload can begin")
    wrong = index.offsets[:-1] + index.sizes[:-1] > index.offsets[1:] - BLOCK
    if wrong.any():
        other = index.name(int(np.argmax(wrong)) + 1)
        _refuse(shown, f"{_lies(index, wrong)}, and overlap {other!r} or its header")


def verify_index(
    store: Store, file: DataFileInfo, index: TarIndex, *, hash: bool = True
) -> list[str]:
    """All that an index says otherwise than its tar does; nothing if it is right.

    The headers of the tar are read; with ``hash`` also its payloads, if the index has hashes of
    the tar or of members. A tar that cannot be read to its end is among what is wrong, unless
    the index was made of what is there of it.
    """
    try:
        check_index(index, file.file_size, file.path)
    except StaleIndexError as stale:
        return [str(stale)]
    hashed = hash and (index.sha256 is not None or _tar_sha256(index.facts) is not None)
    try:
        there = scan_tar(
            store,
            file,
            sidecars=False,
            hash=hashed,
            keep_going=index.facts.last_good is not None,
        )
        found = [*_other_members(index, there, file.path)]
        if hash:
            found += _other_hashes(store, file, index.facts, there.facts)
    except ReadError as failed:
        return [str(failed)]
    return found


def _other_members(index: TarIndex, there: TarIndex, shown: str) -> Iterator[str]:
    """Members that lie elsewhere, are called or hashed otherwise, or are not in the index."""
    where = np.searchsorted(there.offsets, index.offsets)
    at = np.minimum(where, max(len(there) - 1, 0))
    begins = np.zeros(len(index), bool) if not len(there) else there.offsets[at] == index.offsets
    yield from _told(shown, "no member begins where the index has", index, ~begins)
    members, at = np.flatnonzero(begins), at[begins]
    same_names = pc.equal(index.names.take(pa.array(members)), there.names.take(pa.array(at)))
    other_size = index.sizes[members] != there.sizes[at]
    other_name = ~same_names.to_numpy(zero_copy_only=False)
    yield from _told(shown, "another member lies where the index has", index, members[other_name])
    yield from _told(shown, "the index has another size for", index, members[other_size])
    if index.sha256 is not None and there.sha256 is not None:
        said = pc.utf8_lower(index.sha256.take(pa.array(members)))
        same = pc.fill_null(pc.equal(said, there.sha256.take(pa.array(at))), True)
        differs = members[~same.to_numpy(zero_copy_only=False)]
        yield from _told(shown, "the SHA-256 in the index is not that of", index, differs)
    unknown = np.setdiff1d(np.arange(len(there)), at)
    yield from _told(shown, "the index does not have", there, unknown)


def _told(shown: str, what: str, index: TarIndex, wrong: Int64Array) -> Iterator[str]:
    members = np.flatnonzero(wrong) if wrong.dtype == bool else wrong
    for member in members[:_NAMED].tolist():
        yield f"{shown}: {what} {index.name(member)!r} (at {int(index.offsets[member]):,})"
    if len(members) > _NAMED:
        yield f"{shown}: {what} {len(members) - _NAMED:,} more"


def _other_hashes(
    store: Store, file: DataFileInfo, said: TarFacts, there: TarFacts
) -> Iterator[str]:
    """Hashes of the tar: SHA-256, or those that git makes of files, as the hub shows them."""
    tar = _tar_sha256(said)
    if tar is not None and tar.lower() != there.hash_lfs:
        yield f"{file.path}: its SHA-256 is {there.hash_lfs}, and {tar} in the index"
    if said.hash is not None and len(said.hash) != _SHA256_DIGITS:
        found = _git_hash(store, file)
        if said.hash.lower() != found:
            yield f"{file.path}: its hash in git is {found}, and {said.hash} in the index"


def _tar_sha256(facts: TarFacts) -> str | None:
    if facts.hash_lfs is None and facts.hash is not None and len(facts.hash) == _SHA256_DIGITS:
        return facts.hash
    return facts.hash_lfs


def _git_hash(store: Store, file: DataFileInfo) -> str:
    with store.open(file) as opened:
        found = sha1(b"blob %d\0" % opened.size(), usedforsecurity=False)
        while piece := opened.read(_PIECE_BYTES):
            found.update(piece)
    return found.hexdigest()


def _lies(index: TarIndex, wrong: np.ndarray) -> str:
    """The first member that is wrong."""
    member = int(np.argmax(wrong))
    offset, size = int(index.offsets[member]), int(index.sizes[member])
    return f"member {index.name(member)!r} would lie at {offset:,} and have {size:,} bytes"


def _refuse(shown: str, why: str) -> NoReturn:
    raise StaleIndexError(
        f"{shown}: {why}: the index is not that of this tar; make it anew with: headrace index"
    )
