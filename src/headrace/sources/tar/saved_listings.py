"""Listings of stores elsewhere as they were when these could be reached."""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from headrace.errors import OptionError, ReadError
from headrace.sources.tar.kept_files import KeptFiles
from headrace.storage import Access, FileStatus, Listing, Store, load_manifest, save_manifest
from headrace.storage.manifest import locations_in_manifest

__all__ = ["SavedListing", "SavedListings"]

logger = logging.getLogger(__name__)

Beside = Callable[[Iterable[str], Iterable[FileStatus]], list[FileStatus]]
"""of some files those that belong to tars of these paths"""


@dataclass(frozen=True, slots=True)
class SavedListing:
    """A listing that has all of some locations, and maybe more."""

    path: str
    access: Access
    store: Store
    of: Sequence[str]
    """the locations that were listed"""
    wanted: Sequence[str]

    def listing(self, beside: Beside) -> Listing | None:
        """The part of it that is wanted, with what lies beside the files that are named.

        None if there was nothing at one of the locations, or if the listing is damaged.
        """
        try:
            whole = load_manifest(list(self.of), self.access, self.path)
        except (ReadError, OptionError) as error:
            logger.warning("a listing in the cache is of no use: %s", error)
            return None
        if _ends(self.of) == _ends(self.wanted):
            return whole
        files = {status.path: status for status in whole.files}
        places = [self.store.resolved(location).rstrip("/") for location in self.wanted]
        named = [place for place in places if place in files]
        if not all(place in files or _is_folder(place, files) for place in places):
            return None
        within = tuple(f"{place}/" for place in places)
        found = [status for status in whole.files if status.path.startswith(within)]
        found += [files[place] for place in named] + beside(named, whole.files)
        each_once = {status.path: status for status in found}
        roots = [posixpath.dirname(place) if place in files else place for place in places]
        return replace(
            whole,
            files=[each_once[path] for path in sorted(each_once)],
            roots=list(dict.fromkeys(roots)),
            named=frozenset(named),
            locations=tuple(self.wanted),
        )


@dataclass(frozen=True, slots=True)
class SavedListings:
    """The listings of one store."""

    kept: KeptFiles
    access: Access
    store: Store

    def of(self, locations: Sequence[str]) -> SavedListing | None:
        """That of these locations, or one of folders that they lie in, as far as it tells."""
        own = self._at(locations)
        for path in sorted(self.kept.listings(), key=own.__ne__):
            listed = locations_in_manifest(path)
            if self._at(listed) == path and _has_all(listed, locations):
                self.kept.used(path)
                return SavedListing(path, self.access, self.store, listed, locations)
        return None

    def save(self, listing: Listing, locations: Sequence[str]) -> None:
        self.kept.keep(self._at(locations), lambda path: save_manifest(listing, path))

    def _at(self, locations: Sequence[str]) -> str:
        return self.kept.listing_at(self.store.identity, *locations)


def _has_all(listed: Sequence[str], wanted: Sequence[str]) -> bool:
    within = tuple(f"{location}/" for location in _ends(listed))
    return all(f"{location}/".startswith(within) for location in _ends(wanted))


def _is_folder(place: str, files: Iterable[str]) -> bool:
    return any(path.startswith(f"{place}/") for path in files)


def _ends(locations: Iterable[str]) -> list[str]:
    return [location.rstrip("/") for location in locations]
