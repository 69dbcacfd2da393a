"""From what a user calls a source to tars, what to call them, and the index files beside them."""

from __future__ import annotations

import logging
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.errors import AccessDeniedError, NothingFoundError, OptionError, ReadError
from headrace.sources.tar.braces import without_braces
from headrace.sources.tar.kept_files import KeptFiles
from headrace.sources.tar.saved_listings import SavedListings
from headrace.storage import (
    Access,
    FileStatus,
    Listing,
    RetryPolicy,
    Store,
    find_files,
    side_by_side,
)
from headrace.storage.listing import named_locations

__all__ = [
    "INDEX_ENDINGS",
    "FoundTars",
    "Source",
    "find_tars",
    "listed",
    "names_of",
    "stem_of",
]

logger = logging.getLogger(__name__)

Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

INDEX_ENDINGS = (".idx.arrow", ".json")
"""of the index of a tar, in place of its own; elsewhere the first one that is there is taken, and
on this machine the newer one that fits"""
_COMPRESSED = re.compile(r"\.(tar\.(gz|bz2|xz|zst|lz4)|tgz|tbz2?|txz|tzst)$", re.IGNORECASE)
_MAGIC = re.compile(r"[*?\[]")
_ASKING_THREADS = 24
_RETRIES_BEFORE_SAVED = 4


@dataclass(frozen=True, slots=True)
class FoundTars:
    """Tars of one store, sorted by path."""

    store: Store
    tars: Sequence[FileStatus]
    names: Sequence[str]
    """paths relative to the source, or to what all of them lie in; each of them once"""
    indexes: Mapping[str, FileStatus]
    """files that may be an index, by path: all of searched directories, else those of the tars"""


def find_tars(source: Source, access: Access) -> FoundTars:
    """List the tars of files, directories (recursively), globs, URLs and ``x-{00..31}.tar``."""
    listing = listed(source, access, complete=_with_indexes)
    tars = _tars(listing)
    indexes = {s.path: s for s in listing.files if s.path.endswith(INDEX_ENDINGS)}
    return FoundTars(listing.store, tars, names_of(tars, listing.roots), indexes)


def listed(
    source: Source, access: Access, complete: Callable[[Listing], Listing] = lambda listing: listing
) -> Listing:
    """What there is at a source. A listing of a store that cannot be reached comes from the cache.

    ``complete`` adds files to a listing that was just made, before it is kept for such times.
    """
    source = without_braces(source)
    given = named_locations(source, as_they_are=access.filesystem is not None)
    store, locations = access.store_for(given)
    if access.cache is None or store.local:
        return complete(find_files(source, access))
    kept = SavedListings(KeptFiles.within(access.cache), access, store)
    saved = kept.of(locations)
    try:
        listing = complete(find_files(source, access if saved is None else _hasty(access)))
    except AccessDeniedError:
        raise
    except ReadError as error:
        found = None if saved is None else saved.listing(_beside)
        if found is None:
            raise
        logger.warning(
            "%s cannot be listed; going on with what was found there before, as far as it is in "
            "the cache: %s",
            ", ".join(locations),
            error,
        )
        return found
    listing = replace(listing, store=store)
    kept.save(listing, locations)
    return listing


def _hasty(access: Access) -> Access:
    """Not to wait for minutes where there is something to go on with."""
    retry = access.retry
    retries = min(retry.retries, _RETRIES_BEFORE_SAVED)
    return replace(access, retry=RetryPolicy(retries, retry.timeout_s, retry.max_elapsed_s))


# --- which files are tars


def _tars(listing: Listing) -> list[FileStatus]:
    """Files that are called tars; where none is, those that the user named one by one."""
    compressed = [s.path for s in listing.files if _COMPRESSED.search(s.path)]
    tars = [s for s in listing.files if s.path.lower().endswith(".tar")]
    if not tars:
        others = (*INDEX_ENDINGS, *compressed)
        named = [s for s in listing.files if s.path in listing.named]
        tars = [s for s in named if not s.path.endswith(others)]
    asked_for = [path for path in compressed if path in listing.named]
    if asked_for or (compressed and not tars):
        raise OptionError(
            f"{(asked_for or compressed)[0]} is compressed as a whole, so that no member of it can "
            "be read without all before it; write it as a plain .tar (for example: gunzip it)"
        )
    if not tars:
        raise NothingFoundError(f"no tar in {', '.join(listing.locations)} or below")
    if compressed:
        logger.warning("%d compressed tars are left out: %s", len(compressed), compressed[0])
    return tars


def names_of(files: Sequence[FileStatus], roots: Sequence[str]) -> list[str]:
    """Paths below the directory that was searched; if two were alike, below what holds them all."""
    within = [root.rstrip("/") + "/" for root in sorted(roots, key=len, reverse=True)]
    names = [_below(status.path, within) for status in files]
    if len(set(names)) == len(names):
        return names
    shared = posixpath.commonpath([posixpath.dirname(status.path) for status in files])
    return [status.path[len(shared) :].lstrip("/") for status in files]


def _below(path: str, roots: Iterable[str]) -> str:
    root = next((root for root in roots if path.startswith(root)), None)
    return path.rpartition("/")[2] if root is None else path[len(root) :]


# --- index files beside tars that were not found by searching directories


def _with_indexes(listing: Listing) -> Listing:
    """The listing, and the files beside its tars that may be their indices."""
    known = {status.path for status in listing.files}
    alone = [s.path for s in _tars(listing) if s.path in listing.named]
    if not alone:
        return listing
    if not listing.store.local and any(_MAGIC.search(place) for place in listing.locations):
        more: Iterable[FileStatus] = _beside(
            alone, (s for root in listing.roots for s in listing.store.list(root))
        )
    else:
        more = _asked_for(listing.store, alone, known)
    files = {status.path: status for status in (*listing.files, *more)}
    return replace(listing, files=[files[path] for path in sorted(files)])


def _beside(tars: Iterable[str], files: Iterable[FileStatus]) -> list[FileStatus]:
    wanted = {stem_of(path) + ending for path in tars for ending in INDEX_ENDINGS}
    return [status for status in files if status.path in wanted]


def _asked_for(store: Store, tars: Sequence[str], known: set[str]) -> Iterator[FileStatus]:
    """What is there under the names of indices: asked for side by side, if that takes time."""
    left = list(tars)
    for ending in INDEX_ENDINGS:
        places = [stem_of(path) + ending for path in left]
        if store.local:
            found = [store.status(place) for place in places]
        else:
            found = list(side_by_side(store.status, places, threads=_ASKING_THREADS))
        yield from (status for status in found if status is not None and status.path not in known)
        if not store.local:  # of two, the newer one is taken, and here only is that known
            left = [path for path, status in zip(left, found, strict=True) if status is None]


def stem_of(path: str) -> str:
    """The path of a tar without its ending."""
    return path[:-4] if path.lower().endswith(".tar") else path
