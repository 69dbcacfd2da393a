"""Finding the files that a user names: sorted, each once, nothing hidden."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from headrace.errors import AccessDeniedError, NothingFoundError, OptionError
from headrace.storage._threads import side_by_side
from headrace.storage.access import Access, protocol_of
from headrace.storage.store import FileStatus, Store

__all__ = ["Listing", "find_files", "named_locations"]

logger = logging.getLogger(__name__)

_MAGIC = re.compile(r"[*?\[]")
_ASKING_THREADS = 48


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of some locations, all in one store.

    Attributes:
        store: Where they are.
        files: The files, sorted by path.
        roots: The directories that were searched, or that hold the files that were named.
        named: Paths that were given in full or by a glob, and not found by walking a directory.
        locations: The locations that the user named, without secrets.
        walked: The directories of which everything was listed.
        hidden_folders: Folders in them whose files are left out because of their names.
    """

    store: Store
    files: Sequence[FileStatus]
    roots: Sequence[str]
    named: frozenset[str]
    locations: Sequence[str] = ()
    walked: Sequence[str] = ()
    hidden_folders: frozenset[str] = frozenset()


def find_files(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    access: Access | None = None,
) -> Listing:
    """List files, directories (recursively) and globs.

    Hidden files, and those that begin with an underscore (``_SUCCESS``, ``_metadata``), are
    left out unless they are named in full.

    Raises:
        NothingFoundError: There is no file at a location.
    """
    access = access or Access()
    as_they_are = access.filesystem is not None
    store, locations = access.store_for(named_locations(path, as_they_are=as_they_are))
    search = _Search(store)
    places = locations if store.local else list(map(store.resolved, locations))
    statuses: Iterator[FileStatus | None] = map(store.status, places)
    if not store.local and len(places) > 1:
        statuses = side_by_side(store.status, places, threads=_ASKING_THREADS)
    files: dict[str, FileStatus] = {}
    for location, place, status in zip(locations, places, statuses, strict=True):
        found = search.expand(place, status)
        if not found:
            raise NothingFoundError(_nothing_found(store, location))
        twice = found.keys() & files.keys()
        if twice:
            logger.warning("%d files are named twice and read once: %s", len(twice), min(twice))
        files.update(found)
    return Listing(
        store,
        list(map(files.__getitem__, sorted(files))),
        list(dict.fromkeys(search.roots)),
        frozenset(search.named),
        tuple(locations),
        search.walked,
        frozenset(search.hidden),
    )


def named_locations(path: object, *, as_they_are: bool) -> list[str]:
    """Return absolute paths and URLs for what a user calls a path.

    Args:
        path: A path, a URL, or several.
        as_they_are: Change nothing: only a filesystem that is given knows what its paths mean.
    """
    several = [path] if isinstance(path, str | os.PathLike) else path
    if not isinstance(several, Iterable) or isinstance(several, bytes):
        raise OptionError(f"path must be a str, a Path or a list of them, not {path!r}")
    locations: list[str] = []
    for one in several:
        location = os.fspath(one) if isinstance(one, str | os.PathLike) else None
        if not isinstance(location, str):
            raise OptionError(f"path must be a str, a Path or a list of them, not {one!r}")
        if not location:
            raise OptionError("path is empty; give a file, a directory or a glob")
        protocol, separator, rest = location.partition("://")
        if as_they_are:
            pass
        elif not separator:
            location = os.path.abspath(os.path.expanduser(location))
        elif protocol in ("file", "local"):
            local = rest.removeprefix("localhost")
            # Some people escape the path of such a URL, and others do not.
            location = os.path.abspath(local if os.path.exists(local) else unquote(local))
        locations.append(location)
    if not locations:
        raise OptionError("path is an empty list; give a file, a directory or a glob")
    return locations


class _Search:
    """Collects what was found on the way; the attributes are those of ``Listing``."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.roots: list[str] = []
        self.named: set[str] = set()
        self.walked: list[str] = []
        self.hidden: set[str] = set()

    def expand(self, location: str, status: FileStatus | None) -> dict[str, FileStatus]:
        """Return the files of a location. A path that exists is itself, also if it looks a glob."""
        if status is not None and not self._marks_a_folder(status):
            self.roots.append(location.rpartition("/")[0])
            self.named.add(status.path)
            return {status.path: status}
        found = dict(self._walk(location))
        magic = _MAGIC.search(location)
        if found or magic is None:
            self.roots.append(location)
            self.walked.append(location)
            return found
        root = location[: magic.start()].rpartition("/")[0]
        self.roots.append(root)
        for match, status in self._store.glob(location):
            if _hidden_part(match[len(root) :], location[len(root) :]) >= 0:
                continue
            if match == status.path:
                self.named.add(status.path)
            elif _hidden_part(status.path[len(match) :]) >= 0:
                continue
            found[status.path] = status
        return found

    def _walk(self, directory: str) -> Iterator[tuple[str, FileStatus]]:
        """Yield the files below a directory; note the folders that are left out."""
        directory = directory.rstrip("/")
        for status in self._store.list(directory):
            below = status.path[len(directory) :]
            part = _hidden_part(below)
            if part < 0:
                yield status.path, status
            elif (end := below.find("/", part)) >= 0:
                self.hidden.add(directory + below[:end])

    def _marks_a_folder(self, status: FileStatus) -> bool:
        """Return True for an empty object that some tool has put where a folder with others is."""
        if status.size or self._store.local or protocol_of(status.path) in ("http", "https"):
            return False
        try:
            return any(True for _ in self._walk(status.path))
        except AccessDeniedError:  # objects may be readable where listing is not allowed
            return False


def _hidden_part(relative: str, pattern: str = "") -> int:
    """Return where the first part of a path begins that starts with . or _, or -1.

    Args:
        relative: A path below a directory.
        pattern: A glob; parts of it that start so make such parts of the path visible.
    """
    place = 0
    for part in relative.split("/"):
        if part[:1] in ("_", ".") and "=" not in part and f"/{part[0]}" not in f"/{pattern}":
            return place
        place += len(part) + 1
    return -1


def _nothing_found(store: Store, location: str) -> str:
    if _MAGIC.search(location):
        return f"no file matches {location}"
    if store.local and os.path.isdir(location):
        return (
            f"no data file in {location} or below it (hidden files and those "
            "that begin with an underscore are not counted)"
        )
    return f"{location} does not exist"
