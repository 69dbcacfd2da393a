"""Where the index of each tar is: beside it, or in a place of its own, alone or with others."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import pyarrow as pa

from headrace.errors import NothingFoundError, StaleIndexError
from headrace.model import DataFileInfo, FileList
from headrace.sources.tar.arrow_index import INDEX_KEY, ArrowIndexes
from headrace.sources.tar.finding import (
    INDEX_ENDINGS,
    FoundTars,
    Source,
    listed,
    names_of,
    stem_of,
)
from headrace.sources.tar.grouping import Int32Array
from headrace.sources.tar.own_files import newest_fitting, other_form
from headrace.storage import Access, FileStatus, Store, will_read
from headrace.storage.access import protocol_of
from headrace.storage.listing import named_locations
from headrace.storage.store import UNKNOWN_SIZE

__all__ = ["IndexFile", "IndexPlaces", "file_of", "opened_columns", "places_of", "whole_file"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_COLUMNAR = ".arrow"
_ARROW_FILE = b"ARROW1"
"""what a file of Arrow begins with"""


@dataclass(frozen=True, slots=True)
class IndexFile:
    """A file that holds the index of a tar, or of many."""

    store: Store
    file: DataFileInfo

    @property
    def columnar(self) -> bool:
        return self.file.path.endswith(_COLUMNAR)


@dataclass(frozen=True, slots=True, eq=False)
class IndexPlaces:
    """Which file holds the index of each tar, in few objects."""

    stores: Sequence[Store]
    files: FileList
    store_of: Int32Array
    """of each file"""
    file_of: Int32Array
    """of each tar; -1: it has no index"""
    number: Int32Array
    """which of the tars of its file it is"""

    def __getitem__(self, shard: int) -> tuple[IndexFile, int] | None:
        which = int(self.file_of[shard])
        if which < 0:
            return None
        store = self.stores[self.store_of[which]]
        return IndexFile(store, self.files[which]), int(self.number[shard])

    def only(self, shards: Int32Array) -> IndexPlaces:
        """The same for some of the tars."""
        return replace(self, file_of=self.file_of[shards], number=self.number[shards])


def places_of(found: FoundTars, metadata: Source | None, access: Access) -> IndexPlaces:
    """Find the index of each tar: in ``metadata`` first, then beside it, then in one for many."""
    placing = _Placing(found)
    if metadata is not None:
        listing = listed(metadata, _reaching(metadata, found, access))
        files = [s for s in listing.files if s.path.endswith((*INDEX_ENDINGS, _COLUMNAR))]
        if not files:
            raise NothingFoundError(f"metadata: no index in {', '.join(listing.locations)}")
        names = dict(zip(names_of(files, listing.roots), files, strict=True))
        placing.by_name(listing.store, names)
        placing.of_many(listing.store, files)
        if placing.without:
            first = found.names[placing.without[0]]
            logger.info("%d tars have no index in metadata: %s", len(placing.without), first)
    placing.beside(found)
    placing.of_many(found.store, found.indexes.values())
    return placing.places()


class _Placing:
    """Index files given to tars, until each tar has one or there are no more."""

    def __init__(self, found: FoundTars) -> None:
        self._names = found.names
        self._sizes = [None if tar.size == UNKNOWN_SIZE else tar.size for tar in found.tars]
        self._paths = [status.path for status in found.tars]
        self._bases = [_base(name) for name in found.names]
        self._own = _once(self._bases)
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
        """Index files that are called as tars are."""
        by_path = {status.path: status for status in files.values()}
        for shard, status in self._matches(files, INDEX_ENDINGS):
            self._give(shard, store, self._newer(shard, store, status, by_path), 0)

    def beside(self, found: FoundTars) -> None:
        """Index files in the folder of their tar."""
        for shard in self.without:
            stem = stem_of(found.tars[shard].path)
            status = _first(found.indexes, stem, INDEX_ENDINGS)
            if status is not None:
                newer = self._newer(shard, found.store, status, found.indexes)
                self._give(shard, found.store, newer, 0)

    def _newer(
        self, shard: int, store: Store, status: FileStatus, by_path: Mapping[str, FileStatus]
    ) -> FileStatus:
        """An index, or that in the other form if that was written later and fits the tar."""
        if not store.local or other_form(status.path) not in by_path:
            return status
        return by_path[newest_fitting(status.path, self._sizes[shard])]

    def of_many(self, store: Store, files: Iterable[FileStatus]) -> None:
        """Columnar files that are of no single tar, by the names of tars within them."""
        for status in files:
            if not self.without:
                return
            is_given = (self._store_number(store), status.path) in self._files
            if status.path.endswith(_COLUMNAR) and not is_given:
                tars = _tars_in(IndexFile(store, file_of(status)))
                numbers = {stem_of(name): number for number, name in enumerate(tars)}
                for shard, number in self._matches(numbers, ("",)):
                    self._give(shard, store, status, number)

    def _matches(self, known: Mapping[str, T], endings: Iterable[str]) -> Iterator[tuple[int, T]]:
        """What is known of tars by their names.

        Or by as much of the end of their paths as it is known by, where the base name of the tar
        is no other's: what is known of ``train/0`` is not that of ``val/0.tar``.
        """
        deepest = max((name.count("/") for name in known), default=0)
        for shard in self.without:
            match = _first(known, stem_of(self._names[shard]), endings)
            if match is None and self._bases[shard] in self._own:
                ends = _ends(stem_of(self._paths[shard]), deepest)
                matches = (_first(known, end, endings) for end in ends)
                match = next((one for one in matches if one is not None), None)
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

    def places(self) -> IndexPlaces:
        files = FileList(file_of(status) for _, status in self._files.values())
        store_of = np.array([number for number, _ in self._files], np.int32)
        return IndexPlaces(self._stores, files, store_of, self._file_of, self._number)


def opened_columns(place: IndexFile) -> ArrowIndexes:
    """A columnar file: mapped if it is on this machine, else fetched as a whole."""
    if not place.store.local:
        return ArrowIndexes.open(whole_file(place), place.file.path)
    place.store.open(place.file).close()
    return ArrowIndexes.open(place.file.path, place.file.path)


def _tars_in(place: IndexFile) -> Sequence[str]:
    """The tars of a columnar file; none of one that is no index at all, and only lies there."""
    try:
        return opened_columns(place).tars
    except StaleIndexError:
        if _is_index(whole_file(place)):
            raise
    logger.warning("%s is no index of tars, and left out", place.file.path)
    return []


def _is_index(data: pa.Buffer) -> bool:
    """Whether this is an index, however damaged."""
    try:
        return INDEX_KEY in (pa.ipc.open_file(data).schema.metadata or {})
    except pa.ArrowException:
        return bytes(data[: len(_ARROW_FILE)]) == _ARROW_FILE


def whole_file(place: IndexFile) -> pa.Buffer:
    """All bytes of an index file."""
    with place.store.open(place.file) as opened:
        will_read(opened, [(0, place.file.file_size or 0)])
        return opened.read_buffer()


def file_of(status: FileStatus) -> DataFileInfo:
    """A file as it was listed."""
    return DataFileInfo(status.path, status.size, etag=status.etag)


def _reaching(metadata: Source, found: FoundTars, access: Access) -> Access:
    """The same options if it lies in a store of the same kind as the tars, else none."""
    place = named_locations(metadata, as_they_are=False)[0]
    if access.filesystem is None and protocol_of(place) == protocol_of(found.tars[0].path):
        return access
    return replace(access, storage_options={}, filesystem=None)


def _first(known: Mapping[str, T], stem: str, endings: Iterable[str]) -> T | None:
    return next((known[stem + end] for end in endings if stem + end in known), None)


def _ends(path: str, deepest: int) -> Iterator[str]:
    """A path without what it begins with, from as many folders as are wanted down to none."""
    parts = path.split("/")
    for folders in range(min(deepest, len(parts) - 1), -1, -1):
        yield "/".join(parts[-1 - folders :])


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def _once(names: Iterable[str]) -> set[str]:
    return {name for name, times in Counter(names).items() if times == 1}
