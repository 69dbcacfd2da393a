"""Where the index of each tar lies, and how it is loaded from there.

An index lies beside its tar, or in ``metadata``: alone under the name of the tar, or with others in
one columnar file. A tar that has none is scanned when it is first needed. What was scanned, or
imported from JSON, is kept in the cache folder.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from headrace.errors import NothingFoundError, StaleIndexError
from headrace.model import DataFileInfo, FileList
from headrace.process import PerProcess
from headrace.sources.tar.checks import check_end, check_index
from headrace.sources.tar.grouping import Int32Array
from headrace.sources.tar.index import COLUMNAR_ENDING, IndexFile, TarIndex
from headrace.sources.tar.index_cache import IndexCache
from headrace.sources.tar.json_index import read_json_index
from headrace.sources.tar.locate import (
    INDEX_ENDINGS,
    FoundTars,
    Source,
    expanded,
    listed,
    names_of,
    stem_of,
)
from headrace.sources.tar.scan import scan_tar
from headrace.storage import Access, FileStatus, Parts, RemoteStore, Store, will_read
from headrace.storage.access import protocol_of
from headrace.storage.listing import named_locations

__all__ = ["HeldIndexes", "IndexPlace", "IndexPlaces", "file_of", "places_of", "whole_file"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_COLUMNAR = ".arrow"
_LIMIT_BYTES = 512 << 20
_DERIVED_BYTES = 16
"""of a member, for what is computed from an index"""
_ALL = -1
_WORTH_KEEPING = 10_000
"""members of a tar of this machine whose index is faster to load than to make again"""


@dataclass(frozen=True, slots=True)
class IndexPlace:
    """A file that holds the index of a tar, and its number among the tars of that file."""

    store: Store
    file: DataFileInfo
    number: int = 0

    @property
    def is_columnar(self) -> bool:
        return self.file.path.endswith(_COLUMNAR)

    def open_columns(self) -> IndexFile:
        """Open a columnar file; a remote one is fetched as a whole."""
        if not self.store.local:
            return IndexFile.open(whole_file(self.store, self.file), self.file.path)
        self.store.open(self.file).close()  # which refuses a file that has changed
        return IndexFile.open(self.file.path)


class IndexPlaces:
    """The index files of the tars of a collection. Pickles without what it has opened."""

    def __init__(
        self,
        stores: Sequence[Store],
        files: FileList,
        store_of: Int32Array,
        file_of: Int32Array,
        number: Int32Array,
        cache: IndexCache,
    ) -> None:
        """Few arrays say it of many tars.

        Args:
            stores: Stores of index files.
            files: Index files.
            store_of: The store of each file.
            file_of: The file of each tar; -1 if it has no index.
            number: The number of each tar within its file.
            cache: The folder for indexes that lie nowhere else.
        """
        self.stores, self._files, self._store_of = stores, files, store_of
        self._file_of, self._number, self._cache = file_of, number, cache
        self._opened: dict[str, IndexFile] = {}

    def __getitem__(self, shard: int) -> IndexPlace | None:
        which = int(self._file_of[shard])
        if which < 0:
            return None
        store = self.stores[self._store_of[which]]
        return IndexPlace(store, self._files[which], int(self._number[shard]))

    def only(self, shards: Int32Array) -> IndexPlaces:
        """Return the places of some of the tars."""
        file_of, number = self._file_of[shards], self._number[shards]
        return IndexPlaces(self.stores, self._files, self._store_of, file_of, number, self._cache)

    def load(self, shard: int, store: Store, file: DataFileInfo) -> TarIndex:
        """Return the index of a tar, checked against the tar.

        Args:
            shard: The number of the tar.
            store: The store of the tar.
            file: The tar.

        Raises:
            StaleIndexError: The index is not that of the tar as it is now, or damaged.
            ReadError: The tar has no index, and cannot be scanned.
        """
        place = self[shard]
        kept = self._kept_path(place, store, file)
        index = None if kept is None else self._cache.read_index(kept)
        if index is not None:
            return _checked(index, store, file)
        index = self.read(shard)
        if index is None:
            logger.info("%s has no index, and its headers are read; see: headrace index", file.path)
            index = scan_tar(_aside(store), file, sidecars=False)
            index.unchecked.fill(False)
        else:
            index = _checked(index, store, file)
        if kept is not None and (len(index) >= _WORTH_KEEPING or not store.local):
            index = replace(index, facts=replace(index.facts, etag=file.etag))
            self._cache.keep_index(kept, file.path.rpartition("/")[2], index)
        return index

    def _kept_path(self, place: IndexPlace | None, store: Store, file: DataFileInfo) -> str | None:
        """Return the path for an index in the cache, if it is to lie there."""
        if place is None:
            return self._cache.index_path(store, file)
        if place.is_columnar or place.file.etag is None:
            return None
        return self._cache.index_path(store, file, place.file.path, place.file.etag)

    def read(self, shard: int) -> TarIndex | None:
        """Return the index of a tar as it lies there, unchecked; None if there is none."""
        place = self[shard]
        if place is None:
            return None
        if place.is_columnar:
            return self._columns(place).index(place.number)
        text = memoryview(whole_file(place.store, place.file))
        return read_json_index(text, place.file.path)

    def _columns(self, place: IndexPlace) -> IndexFile:
        path = place.file.path
        if path not in self._opened:
            opened = place.open_columns()
            if len(opened.tars) == 1:
                return opened
            self._opened[path] = opened
        return self._opened[path]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": {}}


def _checked(index: TarIndex, store: Store, file: DataFileInfo) -> TarIndex:
    check_index(index, file.file_size, file.path)
    check_end(_aside(store), file, index)
    return index


def _aside(store: Store) -> Store:
    """Return the same store, which does not keep for workers what is read for an index."""
    return replace(store, parts=Parts()) if isinstance(store, RemoteStore) else store


def whole_file(store: Store, file: DataFileInfo) -> pa.Buffer:
    """Return all bytes of a file."""
    with store.open(file) as opened:
        will_read(opened, [(0, file.file_size or 0)])
        return opened.read_buffer()


def file_of(status: FileStatus) -> DataFileInfo:
    """Return a file as it was listed."""
    return DataFileInfo(status.path, status.size, etag=status.etag)


# --- in memory


class HeldIndexes:
    """Indexes in memory; those not used for longest go when there are too many.

    Threads of a process load an index once. A forked child goes on with the indexes of its parent,
    and with locks of its own.
    """

    def __init__(self, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._limit = limit_bytes
        self._held: OrderedDict[int, tuple[TarIndex, int]] = OrderedDict()
        self._total = 0
        self._locks: PerProcess[dict[int, threading.Lock]] = PerProcess(dict)

    def get(self, shard: int, load: Callable[[int], TarIndex]) -> TarIndex:
        """Return the index of a tar, by ``load`` if it is not here."""
        found = self._known(shard)
        if found is None:
            with self._lock(shard):
                found = self._known(shard)
                if found is None:
                    found = load(shard)
                    self._keep(shard, found)
            self._locks.get().pop(shard, None)
        return found

    def _known(self, shard: int) -> TarIndex | None:
        try:
            self._held.move_to_end(shard)
            return self._held[shard][0]
        except KeyError:  # it is not here, or another thread has just let go of it
            return None

    def _keep(self, shard: int, index: TarIndex) -> None:
        size = index.nbytes + _DERIVED_BYTES * len(index)
        with self._lock(_ALL):
            self._held[shard] = index, size
            self._total += size
            while self._total > self._limit and len(self._held) > 1:
                _, (_, dropped) = self._held.popitem(last=False)
                self._total -= dropped

    def _lock(self, shard: int) -> threading.Lock:
        return self._locks.get().setdefault(shard, threading.Lock())


# --- finding them


def places_of(found: FoundTars, metadata: Source | None, access: Access) -> IndexPlaces:
    """Return where the index of each tar lies: in ``metadata``, else beside the tar."""
    placing = _Placing(found)
    if metadata is not None:
        listing = listed(metadata, _reaching(metadata, found, access))
        files = [s for s in listing.files if s.path.endswith((*INDEX_ENDINGS, _COLUMNAR))]
        if not files:
            raise NothingFoundError(f"metadata: no index in {', '.join(listing.locations)}")
        placing.by_name(
            listing.store, dict(zip(names_of(files, listing.roots), files, strict=True))
        )
        placing.of_many(listing.store, files)
        if placing.without:
            first = found.names[placing.without[0]]
            logger.info("%d tars have no index in metadata: %s", len(placing.without), first)
    placing.beside(found)
    placing.of_many(found.store, found.indexes.values())
    return placing.places(IndexCache.within(access.cache))


class _Placing:
    """Gives index files to tars, until each tar has one or there are no more."""

    def __init__(self, found: FoundTars) -> None:
        self._names = found.names
        self._paths = [status.path for status in found.tars]
        bases = [name.rpartition("/")[2] for name in found.names]
        counts = Counter(bases)
        self._is_only = [counts[base] == 1 for base in bases]
        self._stores: list[Store] = []
        self._files: dict[tuple[int, str], tuple[int, FileStatus]] = {}
        self._file_of = np.full(len(found.names), -1, np.int32)
        self._number = np.zeros(len(found.names), np.int32)

    @property
    def without(self) -> list[int]:
        """The tars that have no index yet."""
        left: list[int] = np.flatnonzero(self._file_of < 0).tolist()
        return left

    def by_name(self, store: Store, files: Mapping[str, FileStatus]) -> None:
        """Give index files to the tars that they are called after."""
        for shard, status in self._matches(files, INDEX_ENDINGS):
            self._give(shard, store, status, 0)

    def beside(self, found: FoundTars) -> None:
        """Give index files to the tars in whose folder they lie."""
        for shard in self.without:
            status = _first(found.indexes, stem_of(self._paths[shard]), INDEX_ENDINGS)
            if status is not None:
                self._give(shard, found.store, status, 0)

    def of_many(self, store: Store, files: Iterable[FileStatus]) -> None:
        """Give columnar files that are of no single tar to the tars that are named in them."""
        for status in files:
            if not self.without:
                return
            is_given = (self._store_number(store), status.path) in self._files
            if status.path.endswith(_COLUMNAR) and not is_given:
                tars = _tars_in(IndexPlace(store, file_of(status)))
                own_name = status.path.rpartition("/")[2].removesuffix(COLUMNAR_ENDING)
                if [stem_of(tar.rpartition("/")[2]) for tar in tars] == [own_name]:
                    continue  # of a tar of another folder
                numbers = {stem_of(name): number for number, name in enumerate(tars)}
                for shard, number in self._matches(numbers, ("",)):
                    self._give(shard, store, status, number)

    def _matches(self, known: Mapping[str, T], endings: Iterable[str]) -> Iterator[tuple[int, T]]:
        """Yield what is known of tars by their names.

        A tar whose base name no other tar has may also be known by the end of its path. What is
        known of ``train/0`` does not belong to ``val/0.tar``.
        """
        deepest = max((name.count("/") for name in known), default=0)
        for shard in self.without:
            match = _first(known, stem_of(self._names[shard]), endings)
            if match is None and self._is_only[shard]:
                parts = stem_of(self._paths[shard]).split("/")
                for folders in range(min(deepest, len(parts) - 1), -1, -1):
                    match = _first(known, "/".join(parts[-1 - folders :]), endings)
                    if match is not None:
                        break
            if match is not None:
                yield shard, match

    def _store_number(self, store: Store) -> int:
        numbers = (number for number, known in enumerate(self._stores) if known is store)
        return next(numbers, len(self._stores))

    def _give(self, shard: int, store: Store, status: FileStatus, number: int) -> None:
        which = self._store_number(store)
        if which == len(self._stores):
            self._stores.append(store)
        at, _ = self._files.setdefault((which, status.path), (len(self._files), status))
        self._file_of[shard], self._number[shard] = at, number

    def places(self, cache: IndexCache) -> IndexPlaces:
        files = FileList(file_of(status) for _, status in self._files.values())
        store_of = np.array([number for number, _ in self._files], np.int32)
        return IndexPlaces(self._stores, files, store_of, self._file_of, self._number, cache)


def _tars_in(place: IndexPlace) -> Sequence[str]:
    """Return the tars of a columnar file; none of a file that is no index, and only lies there."""
    try:
        return place.open_columns().tars
    except StaleIndexError:
        if b"headrace.tar_index" in memoryview(whole_file(place.store, place.file)).tobytes():
            raise
    logger.warning("%s is no index of tars, and left out", place.file.path)
    return []


def _reaching(metadata: Source, found: FoundTars, access: Access) -> Access:
    """Return the same options if ``metadata`` lies in a store of the same kind as the tars."""
    place = named_locations(expanded(metadata), as_they_are=False)[0]
    if access.filesystem is None and protocol_of(place) == protocol_of(found.tars[0].path):
        return access
    return replace(access, storage_options={}, filesystem=None)


def _first(known: Mapping[str, T], stem: str, endings: Iterable[str]) -> T | None:
    return next((known[stem + end] for end in endings if stem + end in known), None)
