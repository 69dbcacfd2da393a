"""One tar to be indexed: whether it has to be, how, and where the index goes."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import sha256

from headrace.errors import OptionError, ReadError, StaleIndexError
from headrace.model import DataFileInfo
from headrace.sources.tar.arrow_index import ArrowIndexes
from headrace.sources.tar.checks import check_index
from headrace.sources.tar.completeness import missing_elsewhere
from headrace.sources.tar.embedded import (
    Compared,
    compared,
    marked_as_written,
    with_words_of,
)
from headrace.sources.tar.headers import BLOCK
from headrace.sources.tar.index import TarIndex
from headrace.sources.tar.own_files import (
    is_index,
    made_folder,
    other_form,
    read_index,
    refuse_what_is_none,
    write_index,
)
from headrace.sources.tar.replacing import clear_partial, turn_in_folder
from headrace.sources.tar.scanning import Progress, scan_tar
from headrace.sources.tar.spot_checks import check_header, check_some_headers
from headrace.sources.tar.tar_bytes import reading
from headrace.storage import Store, will_read

__all__ = ["IndexJob", "Indexed", "Place", "Scope", "kept_name"]

logger = logging.getLogger(__name__)

Place = tuple[str, int]
"""a file, and which of the tars that it is the index of"""


@dataclass(frozen=True, slots=True)
class Scope:
    """How much of a tar is indexed."""

    geometry: bool = False
    sidecars: bool = True
    hash: bool = False
    keep_going: bool = False
    force: bool = False
    """whatever is there"""


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
class _Earlier:
    """An index that was there, of a tar that has the same members."""

    place: Place
    index: TarIndex
    of_this_content: bool
    """the tar was not written to since"""
    words: Compared

    def suffices(self, scope: Scope) -> bool:
        facts = self.index.facts
        return self.of_this_content and not (
            scope.force
            or (facts.size is None)
            or (facts.last_good is not None and not scope.keep_going)
            or (scope.geometry and not facts.has_geometry)
            or (scope.hash and facts.hash_lfs is None)
            or (scope.sidecars and self.words.lacking)
        )


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
        if self.target is not None:
            clear_partial(self.target)
        found = list(self._found())
        there = [one for one in found if one.suffices(self.scope)]
        for one in there:
            if self.target in (None, one.place[0]):
                self._write_other(one.index)
                return self._done(one.place, one.index, was_there=True)
        index = there[0].index if there else self._scanned(_widened(self.scope, found), progress)
        if self.target is not None:
            with turn_in_folder(made_folder(self.target)):
                index = self._written(self.target, index)
            self._write_other(index)
        if self.kept is not None:
            made_folder(self.kept)
            index = self._written(self.kept, index)
        place = self.target if self.target is not None else self.kept
        assert place is not None, "an index goes somewhere"
        return self._done((place, 0), index, was_there=False)

    def _written(self, path: str, index: TarIndex) -> TarIndex:
        """Write an index, with what the earlier ones say."""
        # Looked at again, for captions may have been written meanwhile; the newest come last.
        for one in reversed(list(self._found())):
            index = with_words_of(one.index, index, of_this_content=one.of_this_content)
        write_index(path, self.name, index)
        return index

    def _done(self, place: Place, index: TarIndex, *, was_there: bool) -> Indexed:
        return Indexed(self.name, place, len(index), index.facts.last_good, was_there)

    def _found(self) -> Iterator[_Earlier]:
        """Indices of this tar that are there, what was written last first."""
        own = [] if self.target is None else [self.target, other_form(self.target)]
        places = [*self.earlier, *((path, 0) for path in own)]
        times = {place: _time_of(place[0]) for place in places}
        for place in sorted(times, key=lambda place: times[place], reverse=True):
            earlier = self._fitting(place, times[place])
            if earlier is not None:
                yield earlier
        if self.kept is not None and not self.scope.force:
            yield from self._remembered(self.kept)

    def _remembered(self, path: str) -> Iterator[_Earlier]:
        """What is kept under a name that says which tar it is of."""
        try:
            index = read_index(path)
            check_index(index, self.file.file_size, self.file.path)
        except (FileNotFoundError, StaleIndexError):
            return
        yield _Earlier((path, 0), index, True, Compared())

    def _fitting(self, place: Place, written: int) -> _Earlier | None:
        """The index in a file, if it is that of a tar with the members that this one has now."""
        path, number = place
        if not written:
            return None
        try:
            index = read_index(path, number)
            check_index(index, self.file.file_size, self.file.path)
            if self.store.local:
                missing = check_some_headers(self.file, index)
            else:
                _check_few_headers(self.store, self.file, index)
                missing = missing_elsewhere(self.store, self.file, index)
        except FileNotFoundError:
            return None
        except ReadError:
            if path == self.target:
                refuse_what_is_none(path)
            return None
        older = self.store.local and _time_of(self.file.path) > written
        older = older or missing is not None  # the tar was appended to, or the index never whole
        words = compared(self.store, self.file, index)
        if words.other_json and not older:
            return None
        if words.other_texts and not older and not self.scope.force:
            self._doubt(path)
            index, words = marked_as_written(index), replace(words, other_texts=False)
        return _Earlier(place, index, not older and not words.other_texts, words)

    def _doubt(self, path: str) -> None:
        """Captions that are not those of text files: of another tar, or written by other tools."""
        why = f"the captions in {path} are not those of the text files in {self.file.path}"
        if os.path.dirname(path) != os.path.dirname(self.file.path):
            raise OptionError(
                f"{why}: it may be the index of another tar of that name; have the indices in "
                "another folder (out, --out), or make it anew (force=True, --force)"
            )
        logger.warning("%s, and stay; with force=True (--force) those of the tar are taken", why)

    def _write_other(self, index: TarIndex) -> None:
        """Bring the index in the other form up to date, if it is not that of this tar as it is."""
        if self.target is None:
            return
        path = other_form(self.target)
        if not is_index(path):
            return
        try:
            if path.endswith(".arrow") and len(ArrowIndexes.open(path, path).tars) > 1:
                return
            old = read_index(path)
            check_index(old, self.file.file_size, self.file.path)
            if old.names.equals(index.names) and (old.offsets == index.offsets).all():
                return
        except StaleIndexError:
            pass
        with turn_in_folder(os.path.dirname(path)):
            write_index(path, self.name, index)

    def _scanned(self, scope: Scope, progress: Progress | None) -> TarIndex:
        return scan_tar(
            self.store,
            self.file,
            geometry=scope.geometry,
            sidecars=scope.sidecars,
            hash=scope.hash,
            keep_going=scope.keep_going,
            progress=progress,
        )


def _widened(scope: Scope, found: list[_Earlier]) -> Scope:
    """What was asked for, and what an index says that is of this tar but older than it."""
    old = [one.index for one in found if not one.of_this_content]
    return replace(
        scope,
        geometry=scope.geometry or any(one.facts.has_geometry for one in old),
        sidecars=scope.sidecars or any(one.json is not None for one in old),
        hash=scope.hash or any(one.facts.hash_lfs is not None for one in old),
    )


def _check_few_headers(store: Store, file: DataFileInfo, index: TarIndex) -> None:
    """The same for a tar elsewhere, by few requests."""
    few = sorted({0, len(index) // 2, len(index) - 1}) if len(index) else []
    spans = [(int(index.offsets[one]) - BLOCK, int(index.offsets[one])) for one in few]
    with store.open(file) as opened:
        will_read(opened, spans)
        for member, (start, _) in zip(few, spans, strict=True):
            block = opened.read_at(BLOCK, start)
            check_header(file.path, index, member, block, reading(opened))


def kept_name(store: Store, file: DataFileInfo, scope: Scope) -> str:
    """What the index of a tar as it is now is called where it is kept."""
    tar = (store.identity, file.path, file.file_size, file.etag)
    how = (scope.geometry, scope.sidecars, scope.hash)
    return f"{sha256(repr((tar, how)).encode()).hexdigest()}.idx.arrow"


def _time_of(path: str) -> int:
    """When a file was written; 0 if there is none."""
    try:
        return os.stat(path).st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return 0
