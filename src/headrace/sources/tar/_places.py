"""Where the index of each tar lies, and how it is read from there.

An index lies in ``metadata``, else beside its tar: alone under the name of the tar, or with others
in one columnar file.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import pyarrow as pa

from headrace.errors import NothingFoundError, StaleIndexError
from headrace.model import DataFileInfo
from headrace.sources.tar._json_index import read_json_index
from headrace.sources.tar._locate import (
    INDEX_ENDINGS,
    FoundTars,
    TarLocation,
    expanded,
    listed,
    names_of,
    stem_of,
)
from headrace.sources.tar.index import COLUMNAR_ENDING, IndexFile, TarIndex
from headrace.storage import Access, FileStatus, Store, named_locations, protocol_of, will_read

__all__ = ["IndexPlace", "file_of", "places_of", "whole_file"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_COLUMNAR = ".arrow"


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
        if self.is_columnar:
            return self.open_columns().index(self.number)
        text = memoryview(whole_file(self.store, self.file))
        return read_json_index(text, self.file.path)

    def open_columns(self) -> IndexFile:
        """Open a columnar file; a remote one is fetched as a whole."""
        if not self.store.local:
            return IndexFile.open(whole_file(self.store, self.file), self.file.path)
        self.store.open(self.file).close()  # which refuses a file that has changed
        return IndexFile.open(self.file.path)


def whole_file(store: Store, file: DataFileInfo) -> pa.Buffer:
    """Return all bytes of a file."""
    with store.open(file) as opened:
        will_read(opened, [(0, file.file_size or 0)])
        return opened.read_buffer()


def file_of(status: FileStatus) -> DataFileInfo:
    """Return a file as it was listed."""
    return DataFileInfo(status.path, status.size, etag=status.etag)


def places_of(
    found: FoundTars, metadata: TarLocation | None, access: Access
) -> list[IndexPlace | None]:
    """Return where the index of each tar lies; None for a tar that has none.

    Raises:
        NothingFoundError: There is no index in ``metadata``.
    """
    places: list[IndexPlace | None] = [None] * len(found.names)
    if metadata is not None:
        listing = listed(metadata, _reaching(metadata, found, access))
        files = [s for s in listing.files if s.path.endswith((*INDEX_ENDINGS, _COLUMNAR))]
        if not files:
            raise NothingFoundError(f"metadata: no index in {', '.join(listing.locations)}")
        named = {
            name: IndexPlace(listing.store, file_of(status))
            for status, name in zip(files, names_of(files, listing.roots), strict=True)
        }
        _place(places, found, named, INDEX_ENDINGS)
        _place_in_files_of_many(places, found, listing.store, files)
        if None in places:
            first = found.names[places.index(None)]
            logger.info("%d tars have no index in metadata: %s", places.count(None), first)
    for shard, tar in enumerate(found.tars):
        beside = _first(found.indexes, stem_of(tar.path), INDEX_ENDINGS)
        if places[shard] is None and beside is not None:
            places[shard] = IndexPlace(found.store, file_of(beside))
    _place_in_files_of_many(places, found, found.store, found.indexes.values())
    return places


def _place_in_files_of_many(
    places: list[IndexPlace | None], found: FoundTars, store: Store, files: Iterable[FileStatus]
) -> None:
    """Place tars in the columnar files that name them, and are not the index of one tar."""
    for status in files:
        if None not in places:
            return
        place = IndexPlace(store, file_of(status))
        if not place.is_columnar or any(one and one.file == place.file for one in places):
            continue
        tars = _tars_in(place)
        own_name = status.path.rpartition("/")[2].removesuffix(COLUMNAR_ENDING)
        if [stem_of(tar.rpartition("/")[2]) for tar in tars] == [own_name]:
            continue  # of a tar of another folder
        numbered = {stem_of(tar): replace(place, number=n) for n, tar in enumerate(tars)}
        _place(places, found, numbered, ("",))


def _place(
    places: list[IndexPlace | None],
    found: FoundTars,
    known: Mapping[str, IndexPlace],
    endings: Iterable[str],
) -> None:
    """Place tars by their names.

    A tar whose base name no other tar has may also be known by the end of its path. What is known
    of ``train/0`` does not belong to ``val/0.tar``.
    """
    deepest = max((name.count("/") for name in known), default=0)
    bases = Counter(name.rpartition("/")[2] for name in found.names)
    for shard, (tar, name) in enumerate(zip(found.tars, found.names, strict=True)):
        if places[shard] is not None:
            continue
        places[shard] = _first(known, stem_of(name), endings)
        if bases[name.rpartition("/")[2]] == 1:
            parts = stem_of(tar.path).split("/")
            for folders in range(min(deepest, len(parts) - 1), -1, -1):
                places[shard] = places[shard] or _first(
                    known, "/".join(parts[-1 - folders :]), endings
                )


def _tars_in(place: IndexPlace) -> Sequence[str]:
    """Return the tars of a columnar file; none of a file that is no index, and only lies there."""
    try:
        return place.open_columns().tars
    except StaleIndexError:
        if b"headrace.tar_index" in memoryview(whole_file(place.store, place.file)).tobytes():
            raise
    logger.warning("%s is no index of tars, and left out", place.file.path)
    return []


def _reaching(metadata: TarLocation, found: FoundTars, access: Access) -> Access:
    """Return the same options if ``metadata`` lies in a store of the same kind as the tars."""
    place = named_locations(expanded(metadata), as_they_are=False)[0]
    if access.filesystem is None and protocol_of(place) == protocol_of(found.tars[0].path):
        return access
    return replace(access, storage_options={}, filesystem=None)


def _first(known: Mapping[str, T], stem: str, endings: Iterable[str]) -> T | None:
    return next((known[stem + end] for end in endings if stem + end in known), None)
