"""One tar to be indexed: whether it has to be, how, and where the index goes."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from hashlib import sha256

import pyarrow.compute as pc

from penstock.archives.tar.arrow_index import ArrowIndexes, write_arrow_indexes
from penstock.archives.tar.checks import check_index
from penstock.archives.tar.index import TarIndex
from penstock.archives.tar.json_index import json_index, read_json_index
from penstock.archives.tar.replacing import replaced_file
from penstock.archives.tar.scanning import Progress, scan_tar
from penstock.errors import OptionError, StaleIndexError
from penstock.model import DataFileInfo
from penstock.storage import Store

__all__ = [
    "IndexJob",
    "Indexed",
    "Place",
    "Scope",
    "kept_name",
    "place_below",
    "read_index",
    "write_index",
]

Place = tuple[str, int]
"""a file, and which of the tars that it is the index of"""


@dataclass(frozen=True, slots=True)
class Scope:
    """How much of a tar is indexed."""

    geometry: bool = False
    sidecars: bool = True
    hash: bool = False
    keep_going: bool = False


@dataclass(frozen=True, slots=True)
class Indexed:
    """What became of one tar."""

    name: str
    place: Place
    """where its index is now"""
    members: int
    last_good: str | None
    """of a tar that breaks off, the last member that is whole"""
    was_there: bool
    """there was an index already that says all that was asked for"""


@dataclass(frozen=True, slots=True)
class IndexJob:
    """A tar that is to have an index. Pickles, so that a process of its own may run it."""

    store: Store
    file: DataFileInfo
    name: str
    scope: Scope
    target: str | None
    """the file for the index; None: it is only kept"""
    kept: str | None
    """a columnar file that keeps it until all tars are done"""
    earlier: tuple[Place, ...] = ()
    """where else there may be an index"""

    def run(self, progress: Progress | None = None) -> Indexed:
        """Write the index, unless there is one. What is no index is never written over."""
        written: TarIndex | None = None
        enough: TarIndex | None = None
        own = [(path, 0) for path in (self.target, self.kept) if path is not None]
        for place in [*self.earlier, *own]:
            index = self._fitting(place)
            if index is not None and self._suffices(index):
                if self.target in (None, place[0]):
                    return self._done(place, index, was_there=True)
                enough = enough or index
            written = written or index
        index = enough or self._scanned(progress)
        if written is not None:
            index = _with_words_of(written, index)
        for path, _ in own:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            write_index(path, self.name, index)
        return self._done(own[0], index, was_there=False)

    def _done(self, place: Place, index: TarIndex, *, was_there: bool) -> Indexed:
        return Indexed(self.name, place, len(index), index.facts.last_good, was_there)

    def _fitting(self, place: Place) -> TarIndex | None:
        """The index in a file, if it is that of this tar as it is now."""
        path, number = place
        try:
            written = os.stat(path).st_mtime_ns
            if self.store.local and os.stat(self.file.path).st_mtime_ns > written:
                _refuse_what_is_none(path)
                return None
            index = read_index(path, number)
            check_index(index, self.file.file_size, self.file.path)
        except FileNotFoundError:
            return None
        except StaleIndexError:
            _refuse_what_is_none(path)
            return None
        return index

    def _suffices(self, index: TarIndex) -> bool:
        scope = self.scope
        return not (
            (index.facts.size is None)
            or (index.facts.last_good is not None and not scope.keep_going)
            or (scope.geometry and not index.facts.has_geometry)
            or (scope.hash and index.facts.hash_lfs is None)
            or (scope.sidecars and index.json is None and (index.members_as("json") >= 0).any())
        )

    def _scanned(self, progress: Progress | None) -> TarIndex:
        return scan_tar(
            self.store,
            self.file,
            geometry=self.scope.geometry,
            sidecars=self.scope.sidecars,
            hash=self.scope.hash,
            keep_going=self.scope.keep_going,
            progress=progress,
        )


def kept_name(store: Store, file: DataFileInfo, scope: Scope) -> str:
    """What the index of a tar as it is now is called where it is kept."""
    tar = (store.identity, file.path, file.file_size, file.etag)
    how = (scope.geometry, scope.sidecars, scope.hash)
    return f"{sha256(repr((tar, how)).encode()).hexdigest()}.idx.arrow"


def _refuse_what_is_none(path: str) -> None:
    """An index that is stale is made anew; any other file is somebody's and stays."""
    if not path.endswith(".json"):
        return
    with open(path, "rb") as file:
        if b'"files"' not in file.read():
            raise OptionError(
                f"{path} is where the index would be, but holds something else; move it, or "
                "have the indices in another folder (out, --out)"
            )


def _with_words_of(old: TarIndex, new: TarIndex) -> TarIndex:
    """The new index, with captions that were written into the old one of the same tar."""
    same = old.names.equals(new.names) and (old.offsets == new.offsets).all()
    if not same or old.captions is None:
        return new
    written = old.captions if new.captions is None else pc.coalesce(old.captions, new.captions)
    return replace(new, captions=written)


def read_index(path: str, number: int = 0) -> TarIndex:
    """The index in a file of this machine, in either form; of many in one file, which it is."""
    if path.endswith(".arrow"):
        return ArrowIndexes.open(path, path).index(number)
    with open(path, "rb") as file:
        return read_json_index(file.read(), path)


def write_index(path: str, name: str, index: TarIndex) -> None:
    """Put an index into a file, which appears when it is whole."""
    if path.endswith(".arrow"):
        write_arrow_indexes(path, [(name, index)])
        return
    with replaced_file(path) as file:
        file.write(json_index(index))


def place_below(folder: str, name: str) -> str:
    """The path of something in a folder; a name that leads out of it is refused."""
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in name or "\0" in name:
        raise OptionError(
            f"{name!r} cannot be the name of a file in {folder}; index that tar by itself"
        )
    return os.path.join(folder, *parts)
