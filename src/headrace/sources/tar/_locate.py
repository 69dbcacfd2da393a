"""From the source that a user names to tars: patterns, listings, and relative names."""

from __future__ import annotations

import logging
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from headrace.errors import AccessDeniedError, NothingFoundError, OptionError, ReadError
from headrace.sources.tar._index_cache import IndexCache
from headrace.sources.tar.index import COLUMNAR_ENDING, JSON_ENDING
from headrace.storage import (
    Access,
    FileStatus,
    Listing,
    RetryPolicy,
    Store,
    find_files,
    load_manifest,
    named_locations,
    save_manifest,
    side_by_side,
)

__all__ = [
    "INDEX_ENDINGS",
    "FoundTars",
    "TarLocation",
    "expanded",
    "find_tars",
    "listed",
    "names_of",
]
__all__ += ["stem_of"]

logger = logging.getLogger(__name__)

PathLike = str | os.PathLike[str]
TarLocation = PathLike | Sequence[PathLike]

INDEX_ENDINGS = (COLUMNAR_ENDING, JSON_ENDING)
"""Endings of index files beside tars; of two the first is taken."""
_COMPRESSED = re.compile(r"\.(tar\.(gz|bz2|xz|zst|lz4)|tgz|tbz2?|txz|tzst)$", re.IGNORECASE)
_MAGIC = re.compile(r"[*?\[]")
_BRACES = re.compile(r"\{(\d+\.\.\d+(?:\.\.-?\d+)?|[^{}]*,[^{}]*)\}")
_SEPARATOR = re.compile(r"(?<=\.tar)::", re.IGNORECASE)
_MOST_NAMES = 1_000_000
_ASKING_THREADS = 24
_RETRIES_BEFORE_SAVED = 4


# --- patterns


def expanded(source: TarLocation) -> TarLocation:
    """Return a source with patterns of WebDataset resolved; a path that exists stays as it is.

    ``x-{000..127}.tar``, ``x-{0..9..2}.tar`` and ``{a,b}.tar`` stand for many names,
    ``a.tar::b.tar`` for two. Environment variables and ``~`` are replaced.

    Raises:
        OptionError: The source is a command (``pipe:``), or stands for too many names.
    """
    if isinstance(source, str | os.PathLike):
        names = _expanded(source)
        return source if names == [source] else names
    return [name for one in source for name in _expanded(one)]


def _expanded(source: PathLike) -> list[PathLike]:
    text = os.fspath(source) if isinstance(source, str | os.PathLike) else None
    if not isinstance(text, str) or os.path.exists(text):
        return [source]
    if text.startswith("pipe:"):
        raise OptionError(
            f"{text!r} is a command, and commands are not run; name the files themselves, such as "
            "s3://bucket/x.tar, https://host/x.tar, hf://datasets/owner/name/x.tar"
        )
    parts = _SEPARATOR.split(os.path.expandvars(text))
    names = (name for part in parts for name in _without_braces(os.path.expanduser(part)))
    found = list(dict.fromkeys(islice(names, _MOST_NAMES + 1)))
    if len(found) > _MOST_NAMES:
        raise OptionError(f"{text} stands for more than {_MOST_NAMES:,} tars")
    return [source] if found == [text] else [*found]


def _without_braces(text: str) -> Iterator[str]:
    braces = _BRACES.search(text)
    if braces is None:
        yield text
        return
    for choice in _choices(braces[1]):
        yield from _without_braces(text[: braces.start()] + choice + text[braces.end() :])


def _choices(text: str) -> Iterable[str]:
    if "," in text:
        return text.split(",")
    first, last, *steps = text.split("..")
    is_padded = any(len(one) > 1 and one.startswith("0") for one in (first, last))
    width = max(len(first), len(last)) if is_padded else 0
    start, stop = int(first), int(last)
    step = abs(int(steps[0])) or 1 if steps else 1
    numbers = range(start, stop + 1, step) if start <= stop else range(start, stop - 1, -step)
    return (str(number).zfill(width) for number in numbers)


# --- tars


@dataclass(frozen=True, slots=True)
class FoundTars:
    """Tars of one store, sorted by path.

    Attributes:
        store: The store.
        tars: The tars.
        names: Paths relative to the source, or to the folder that holds all tars; all differ.
        indexes: Files that may be indexes, by path.
    """

    store: Store
    tars: Sequence[FileStatus]
    names: Sequence[str]
    indexes: Mapping[str, FileStatus]


def find_tars(source: TarLocation, access: Access) -> FoundTars:
    """Return the tars of files, directories (recursively), globs, URLs and patterns.

    Raises:
        NothingFoundError: There is no tar.
        OptionError: The tars are compressed.
    """
    listing = listed(source, access, complete=_with_indexes)
    tars = _tars(listing)
    indexes = {s.path: s for s in listing.files if s.path.endswith((*INDEX_ENDINGS, ".arrow"))}
    return FoundTars(listing.store, tars, names_of(tars, listing.roots), indexes)


def listed(
    source: TarLocation,
    access: Access,
    complete: Callable[[Listing], Listing] = lambda listing: listing,
) -> Listing:
    """Return the files of a source.

    With a cache, the listing of a store that cannot be reached comes from there.

    Args:
        source: Locations, or patterns.
        access: Options of stores, and the cache.
        complete: Adds files to a listing before it is kept.
    """
    source = expanded(source)
    given = named_locations(source, as_they_are=access.filesystem is not None)
    store, locations = access.store_for(given)
    if access.cache is None or store.local:
        return complete(find_files(source, access))
    cache = IndexCache.within(access.cache)
    saved = cache.listing_path(store.identity, *locations)
    try:
        hasty = _hasty(access) if os.path.exists(saved) else access
        listing = complete(find_files(source, hasty))
    except AccessDeniedError:
        raise
    except ReadError as error:
        found = _saved_listing(saved, list(locations), access)
        if found is None:
            raise
        logger.warning(
            "%s cannot be listed; going on with the listing in the cache, as far as files are "
            "there too: %s",
            ", ".join(locations),
            error,
        )
        return found
    listing = replace(listing, store=store)
    cache.keep(saved, lambda path: save_manifest(listing, path))
    return listing


def _saved_listing(path: str, locations: list[str], access: Access) -> Listing | None:
    if not os.path.exists(path):
        return None
    try:
        return load_manifest(locations, access, path)
    except (ReadError, OptionError) as error:
        logger.warning("a listing in the cache is of no use: %s", error)
        return None


def _hasty(access: Access) -> Access:
    """Return options that do not wait for minutes where there is a listing to go on with."""
    retry = access.retry
    retries = min(retry.retries, _RETRIES_BEFORE_SAVED)
    return replace(access, retry=RetryPolicy(retries, retry.timeout_s, retry.max_elapsed_s))


def _tars(listing: Listing) -> list[FileStatus]:
    """Return files that are called tars; where none is, those that the user named one by one."""
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
    """Return paths below the directory that was searched, or below the one that holds all files."""
    within = [root.rstrip("/") + "/" for root in sorted(roots, key=len, reverse=True)]
    names = [_below(status.path, within) for status in files]
    if len(set(names)) == len(names):
        return names
    shared = posixpath.commonpath([posixpath.dirname(status.path) for status in files])
    return [status.path[len(shared) :].lstrip("/") for status in files]


def _below(path: str, roots: Iterable[str]) -> str:
    root = next((root for root in roots if path.startswith(root)), None)
    return path.rpartition("/")[2] if root is None else path[len(root) :]


def stem_of(path: str) -> str:
    """Return the path of a tar without its ending."""
    return path[:-4] if path.lower().endswith(".tar") else path


# --- index files beside tars that were not found by searching directories


def _with_indexes(listing: Listing) -> Listing:
    """Return a listing with the files beside its tars that may be their indexes."""
    known = {status.path for status in listing.files}
    alone = [s.path for s in _tars(listing) if s.path in listing.named]
    if not alone:
        return listing
    if not listing.store.local and any(_MAGIC.search(place) for place in listing.locations):
        wanted = {stem_of(path) + ending for path in alone for ending in INDEX_ENDINGS}
        beside = (s for root in listing.roots for s in listing.store.list(root))
        more: Iterable[FileStatus] = [status for status in beside if status.path in wanted]
    else:
        more = _asked_for(listing.store, alone, known)
    files = {status.path: status for status in (*listing.files, *more)}
    return replace(listing, files=[files[path] for path in sorted(files)])


def _asked_for(store: Store, tars: Sequence[str], known: set[str]) -> Iterator[FileStatus]:
    """Yield files with the names of indexes; a store is asked for many at a time."""
    left = list(tars)
    for ending in INDEX_ENDINGS:
        places = [stem_of(path) + ending for path in left]
        if store.local:
            found = [store.status(place) for place in places]
        else:
            found = list(side_by_side(store.status, places, threads=_ASKING_THREADS))
        yield from (status for status in found if status is not None and status.path not in known)
        left = [path for path, status in zip(left, found, strict=True) if status is None]
