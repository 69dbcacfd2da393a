"""Find tars and their indexes.

A source becomes a sorted list of tars: files, directories, globs, URLs and patterns. The index of a
tar lies in ``metadata``, else beside it: alone under the name of the tar, or with others in one
columnar file. Other indexes, of remote and read-only tars or imported from JSON, are in the cache
folder. Their names contain the tar and its version.
"""

from __future__ import annotations

import logging
import os
import posixpath
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import islice

import pyarrow as pa

from headrace.errors import (
    AccessDeniedError,
    HeadraceError,
    NothingFoundError,
    OptionError,
    ReadError,
    StaleIndexError,
    WriteError,
)
from headrace.model import DataFileInfo
from headrace.options import check_together, parse_bytes
from headrace.sources.tar._json_index import JsonFile
from headrace.sources.tar.index import (
    COLUMNAR_ENDING,
    INDEX_MARK,
    JSON_ENDING,
    IndexFile,
    TarIndex,
)
from headrace.storage import (
    Access,
    DiskCache,
    Listing,
    Options,
    RetryPolicy,
    Store,
    find_files,
    load_manifest,
    named_locations,
    protocol_of,
    save_manifest,
    side_by_side,
    will_read,
)

logger = logging.getLogger(__name__)

PathLike = str | os.PathLike[str]
TarLocation = PathLike | Sequence[PathLike]

_ENDINGS = (JSON_ENDING, COLUMNAR_ENDING)
"""Endings of index files beside tars; if both exist, the last one is used."""
_COLUMNAR = ".arrow"
_COMPRESSED = re.compile(r"\.(tar\.(gz|bz2|xz|zst|lz4)|tgz|tbz2?|txz|tzst)$", re.IGNORECASE)
_MAGIC = re.compile(r"[*?\[]")
_BRACES = re.compile(r"\{(\d+\.\.\d+(?:\.\.-?\d+)?|[^{}]*,[^{}]*)\}")
_SEPARATOR = re.compile(r"(?<=\.tar)::", re.IGNORECASE)
_MOST_NAMES = 1_000_000
_ASKING_THREADS = 24
_RETRIES_BEFORE_SAVED = 4
_CACHED = re.compile(r"[0-9a-f]{64}(\.idx)?\.arrow")


def access_of(
    storage_options: Options | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | str | None = None,
) -> Access:
    """Return the options of stores and of the cache, checked."""
    check_together({"cache_dir": cache_dir, "cache_bytes": cache_bytes})
    limit = None if cache_bytes is None else parse_bytes("cache_bytes", cache_bytes)
    cache = None if cache_dir is None else DiskCache.at(cache_dir, limit)
    return Access(storage_options={} if storage_options is None else storage_options, cache=cache)


# --- patterns


def expanded(source: TarLocation) -> TarLocation:
    """Return a source with patterns of WebDataset resolved; a path that exists stays as it is.

    ``x-{000..127}.tar``, ``x-{0..9..2}.tar`` and ``{a,b}.tar`` stand for many names,
    ``a.tar::b.tar`` for two. Environment variables and ``~`` are replaced.

    Raises:
        OptionError: The source is a command (``pipe:``), or expands to too many names.
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
            f"{text!r} is a command, and commands are never run; name the files, such as "
            "s3://bucket/x.tar, https://host/x.tar, hf://datasets/owner/name/x.tar"
        )
    parts = _SEPARATOR.split(os.path.expandvars(text))
    names = (name for part in parts for name in _without_braces(os.path.expanduser(part)))
    found = list(dict.fromkeys(islice(names, _MOST_NAMES + 1)))
    if len(found) > _MOST_NAMES:
        raise OptionError(f"{text} expands to more than {_MOST_NAMES:,} tars; use fewer")
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
        indexes: Files that may be indexes.
    """

    store: Store
    tars: Sequence[DataFileInfo]
    names: Sequence[str]
    indexes: Sequence[DataFileInfo]


def find_tars(source: TarLocation, access: Access) -> FoundTars:
    """Return the tars of files, directories (recursively), globs, URLs and patterns.

    Raises:
        NothingFoundError: There is no tar.
        OptionError: The tars are compressed.
    """
    listing = listed(source, access, complete=_with_indexes)
    tars = _tars(listing)
    indexes = [s for s in listing.files if s.path.endswith((JSON_ENDING, _COLUMNAR))]
    return FoundTars(listing.store, tars, names_of(tars, listing.roots), indexes)


def listed(
    source: TarLocation,
    access: Access,
    complete: Callable[[Listing], Listing] = lambda listing: listing,
) -> Listing:
    """Return the files of a source.

    If a store cannot be reached, its listing comes from the cache.

    Args:
        source: Locations, or patterns.
        access: Options of stores, and the cache.
        complete: Adds files to a listing before it is kept.
    """
    source = expanded(source)
    store, locations = access.store_for(source)
    if access.cache is None or store.local:
        return complete(find_files(source, access))
    cache = IndexCache.within(access.cache)
    saved = cache.listing_path(store.identity, *locations)
    try:
        retry = access.retry
        if os.path.exists(saved):  # there is something to go on with, without minutes of waiting
            retries = min(retry.retries, _RETRIES_BEFORE_SAVED)
            retry = RetryPolicy(retries, retry.timeout_s, retry.max_elapsed_s)
        listing = complete(find_files(source, replace(access, retry=retry)))
    except AccessDeniedError:
        raise
    except ReadError as error:
        with suppress(HeadraceError):  # no cached listing, or an unusable one
            found = load_manifest(list(locations), access, saved)
            logger.warning(
                "%s cannot be listed; using the cached listing; only cached files can be read: %s",
                ", ".join(locations),
                error,
            )
            return found
        raise
    listing = replace(listing, store=store)
    cache.keep(saved, lambda path: save_manifest(listing, path))
    return listing


def _tars(listing: Listing) -> list[DataFileInfo]:
    """Return the files that end in .tar; if there are none, the files named one by one."""
    compressed = [s.path for s in listing.files if _COMPRESSED.search(s.path)]
    tars = [s for s in listing.files if s.path.lower().endswith(".tar")]
    if not tars:
        others = (*_ENDINGS, *compressed)
        named = [s for s in listing.files if s.path in listing.named]
        tars = [s for s in named if not s.path.endswith(others)]
    asked_for = [path for path in compressed if path in listing.named]
    if asked_for or (compressed and not tars):
        raise OptionError(
            f"{(asked_for or compressed)[0]} is compressed as a whole, so reading a member means "
            "decompressing everything before it; write it as a plain .tar (for example: "
            "gunzip it)"
        )
    if not tars:
        raise NothingFoundError(f"no tar in {', '.join(listing.locations)} or its subdirectories")
    if compressed:
        logger.warning("%d compressed tars are left out: %s", len(compressed), compressed[0])
    return tars


def names_of(files: Sequence[DataFileInfo], roots: Sequence[str]) -> list[str]:
    """Return paths relative to the searched directory, or to the one that holds all files."""
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


def _with_indexes(listing: Listing) -> Listing:
    """Return a listing with the files beside its tars that may be their indexes.

    Searched directories have listed them already; beside tars named one by one they are looked up.
    """
    store = listing.store
    alone = [s.path for s in _tars(listing) if s.path in listing.named]
    wanted = [stem_of(path) + ending for path in alone for ending in _ENDINGS]
    asked: Iterable[DataFileInfo | None]
    if not wanted:
        return listing
    if store.local:
        asked = map(store.status, wanted)
    elif any(_MAGIC.search(place) for place in listing.locations):
        beside = (s for root in listing.roots for s in store.list(root))
        known = set(wanted)
        asked = [status for status in beside if status.path in known]
    else:
        asked = side_by_side(store.status, wanted, threads=_ASKING_THREADS)
    more = [status for status in asked if status is not None]
    files = {status.path: status for status in (*listing.files, *more)}
    return replace(listing, files=[files[path] for path in sorted(files)])


# --- indexes


@dataclass(frozen=True, slots=True)
class IndexPlace:
    """A file that holds the index of a tar, and the number of the tar in that file."""

    store: Store
    file: DataFileInfo
    number: int = 0

    @property
    def is_columnar(self) -> bool:
        """True for a columnar file, False for JSON."""
        return self.file.path.endswith(_COLUMNAR)

    def read(self) -> TarIndex:
        """Return the index, which has not been compared with its tar."""
        return self.open().index(self.number)

    def open(self) -> IndexFile | JsonFile:
        """Open the file; a remote one is fetched as a whole."""
        if not self.is_columnar:
            return JsonFile(self.content(), self.file.path)
        if not self.store.local:
            return IndexFile.open(self.content(), self.file.path)
        self.store.open(self.file).close()  # which refuses a file that has changed
        return IndexFile.open(self.file.path)

    def content(self) -> pa.Buffer:
        """Return all bytes of the file."""
        with self.store.open(self.file) as opened:
            will_read(opened, [(0, self.file.file_size or 0)])
            return opened.read_buffer()


def places_of(
    found: FoundTars, metadata: TarLocation | None, access: Access
) -> list[IndexPlace | None]:
    """Return the place of the index of each tar; None for a tar without an index.

    Raises:
        NothingFoundError: There is no index in ``metadata``.
    """
    places: list[IndexPlace | None] = [None] * len(found.names)
    if metadata is not None:
        listing = listed(metadata, _reaching(metadata, found, access))
        files = [s for s in listing.files if s.path.endswith((JSON_ENDING, _COLUMNAR))]
        if not files:
            raise NothingFoundError(f"metadata: no index in {', '.join(listing.locations)}")
        _place(places, found, _by_stem(listing.store, files, names_of(files, listing.roots)))
        _place_in_files_of_many(places, found, listing.store, files)
        if None in places:
            first = found.names[places.index(None)]
            logger.info("%d tars have no index in metadata: %s", places.count(None), first)
    beside = _by_stem(found.store, found.indexes, [status.path for status in found.indexes])
    for shard, tar in enumerate(found.tars):
        places[shard] = places[shard] or beside.get(stem_of(tar.path))
    _place_in_files_of_many(places, found, found.store, found.indexes)
    return places


def _by_stem(
    store: Store, files: Sequence[DataFileInfo], names: Sequence[str]
) -> dict[str, IndexPlace]:
    """Return indexes of one tar by the beginning of the name of their tar."""
    return {
        name.removesuffix(ending): IndexPlace(store, status)
        for ending in _ENDINGS
        for status, name in zip(files, names, strict=True)
        if name.endswith(ending)
    }


def _place_in_files_of_many(
    places: list[IndexPlace | None], found: FoundTars, store: Store, files: Iterable[DataFileInfo]
) -> None:
    """Find the places of tars in columnar files with the indexes of several tars."""
    for status in files:
        if None not in places:
            return
        place = IndexPlace(store, status)
        if not place.is_columnar or any(one and one.file == place.file for one in places):
            continue
        tars = _tars_in(place)
        own_name = status.path.rpartition("/")[2].removesuffix(COLUMNAR_ENDING)
        if [stem_of(tar.rpartition("/")[2]) for tar in tars] == [own_name]:
            continue  # of a tar of another folder
        _place(
            places, found, {stem_of(tar): replace(place, number=n) for n, tar in enumerate(tars)}
        )


def _place(
    places: list[IndexPlace | None], found: FoundTars, known: Mapping[str, IndexPlace]
) -> None:
    """Place tars by their names.

    A tar whose base name no other tar has may also be known by the end of its path. The index of
    ``train/0`` does not belong to ``val/0.tar``.
    """
    deepest = max((name.count("/") for name in known), default=0)
    bases = Counter(name.rpartition("/")[2] for name in found.names)
    for shard, (tar, name) in enumerate(zip(found.tars, found.names, strict=True)):
        stems = [stem_of(name)]
        if bases[name.rpartition("/")[2]] == 1:
            parts = stem_of(tar.path).split("/")
            depths = range(min(deepest, len(parts) - 1), -1, -1)
            stems += ["/".join(parts[-1 - folders :]) for folders in depths]
        if places[shard] is None:
            places[shard] = next((known[stem] for stem in stems if stem in known), None)


def _tars_in(place: IndexPlace) -> Sequence[str]:
    """Return the tars of a columnar file; an empty result if the file is not an index."""
    try:
        return place.open().tars
    except StaleIndexError:
        if INDEX_MARK in place.content().to_pybytes():
            raise
    logger.warning("%s is not an index of tars and is left out", place.file.path)
    return []


def _reaching(metadata: TarLocation, found: FoundTars, access: Access) -> Access:
    """Return the same options if ``metadata`` lies in a store of the same kind as the tars."""
    place = named_locations(expanded(metadata), as_they_are=False)[0]
    if access.filesystem is None and protocol_of(place) == protocol_of(found.tars[0].path):
        return access
    return replace(access, storage_options={}, filesystem=None)


# --- the cache of indexes and listings


@dataclass(frozen=True, slots=True)
class IndexCache:
    """A folder of indexes and listings; when it is full, the least recently used are removed.

    Attributes:
        folder: The cache folder given by the user, or the default one in the user's home.
        limit_bytes: Limit for indexes and listings; None for half of the free space.
    """

    folder: str
    limit_bytes: int | None = None

    @classmethod
    def within(cls, cache: DiskCache | None) -> IndexCache:
        """Return the index cache in the cache folder given by the user, or in the user's home."""
        if cache is not None:
            return cls(cache.folder, cache.limit_bytes)
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        return cls(os.path.join(home, "headrace"))

    def index_path(self, store: Store, file: DataFileInfo, *source: str) -> str | None:
        """Return the path for the index of this version of a tar; None if the version is unknown.

        Args:
            store: The store of the tar.
            file: The tar.
            source: The file from which the index is made, if it is not the tar.
        """
        if file.etag is None:
            return None
        name = version_digest(store, file, *source) + COLUMNAR_ENDING
        return os.path.join(self.folder, "indexes", name)

    def listing_path(self, *key: str) -> str:
        """Return the path for a listing."""
        return os.path.join(self.folder, "listings", f"{_digest(*key)}.arrow")

    def read_index(self, path: str) -> TarIndex | None:
        """Return an index of the cache, or None if it is absent or unreadable."""
        try:
            index = IndexFile.open(path).index(0)
        except FileNotFoundError:
            return None
        except StaleIndexError as error:
            logger.warning("a cached index is damaged and is made again: %s", error)
            return None
        with suppress(OSError):
            os.utime(path)
        return index

    def keep(self, path: str, write: Callable[[str], None]) -> None:
        """Write a file of the cache, if it fits; a disk that is full or read-only is a warning."""
        try:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            write(path)
            self._remove_oldest()
        except (OSError, OptionError, WriteError) as error:
            logger.warning("%s is not cached: %s", os.path.basename(os.path.dirname(path)), error)

    def _remove_oldest(self) -> None:
        found = sorted(self._files())
        total = sum(size for _, size, _ in found)
        limit = self.limit_bytes
        if limit is None:
            limit = shutil.disk_usage(self.folder).free // 2
        for _, size, path in found:
            if total <= limit:
                break
            with suppress(OSError):
                os.unlink(path)
            total -= size

    def _files(self) -> Iterator[tuple[int, int, str]]:
        """Yield the time of the last use, the size and the path of each file."""
        for kind in ("indexes", "listings"):
            with suppress(FileNotFoundError):
                for entry in os.scandir(os.path.join(self.folder, kind)):
                    with suppress(FileNotFoundError):
                        if _CACHED.fullmatch(entry.name):
                            found = entry.stat()
                            yield found.st_mtime_ns, found.st_size, entry.path


def version_digest(store: Store, file: DataFileInfo, *source: str) -> str:
    """Return a text that identifies this version of a tar, and the source of its index."""
    return _digest(store.identity, file.path, str(file.file_size), file.etag or "", *source)


def _digest(*key: str) -> str:
    return sha256("\0".join(key).encode("utf-8", "surrogateescape")).hexdigest()
