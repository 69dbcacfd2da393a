"""From what a user calls a path to the files that are meant: sorted, each once, nothing hidden."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from headrace.errors import AccessDeniedError, NothingFoundError, OptionError
from headrace.storage.access import Access, protocol_of
from headrace.storage.store import FileStatus, LocalStore, Store
from headrace.storage.threads import side_by_side

__all__ = ["Listing", "find_files", "named_locations"]

logger = logging.getLogger(__name__)

_MAGIC = re.compile(r"[*?\[]")
_ASKING_THREADS = 48


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of some locations, all in one store."""

    store: Store
    files: Sequence[FileStatus]
    """sorted by path"""
    roots: Sequence[str]
    """the directories that were searched, or that hold the files that were named"""
    named: frozenset[str]
    """paths that were given in full or by a glob, and not found by walking a directory"""
    locations: Sequence[str] = ()
    """what the user named, without secrets"""
    walked: Sequence[str] = ()
    """the directories of which everything was listed"""
    hidden_folders: frozenset[str] = frozenset()
    """folders in them whose files are left out, because of their names"""


def find_files(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    access: Access | None = None,
) -> Listing:
    """List files, directories (recursively) and globs; a location without a file is an error.

    Hidden files, and those that begin with an underscore (``_SUCCESS``, ``_metadata``), are
    left out unless they are named in full.
    """
    access = access or Access()
    store, locations = access.store_for(
        named_locations(path, as_they_are=access.filesystem is not None)
    )
    files: dict[str, FileStatus] = {}
    roots: list[str] = []
    named: set[str] = set()
    walked: list[str] = []
    hidden: set[str] = set()
    places = [store.resolved(location) for location in locations]
    for location, place, status in zip(locations, places, _statuses(store, places), strict=True):
        before = len(roots)
        found = dict(_expand(store, place, status, roots, named, hidden))
        walked += [root for root in roots[before:] if root == place]
        if not found:
            raise NothingFoundError(_nothing_found(store, location))
        twice = found.keys() & files.keys()
        if twice:
            logger.warning("%d files are named twice and read once: %s", len(twice), min(twice))
        files.update(found)
    found_files = [files[path] for path in sorted(files)]
    each_once = list(dict.fromkeys(roots))
    return Listing(
        store,
        found_files,
        each_once,
        frozenset(named),
        tuple(locations),
        walked,
        frozenset(hidden),
    )


def named_locations(path: object, *, as_they_are: bool) -> list[str]:
    """Absolute paths and URLs; only a filesystem that is given knows what its paths mean."""
    if isinstance(path, str | os.PathLike):
        return [_location(path, as_they_are)]
    if not isinstance(path, Iterable) or isinstance(path, bytes):
        raise OptionError(f"path must be a str, a Path or a list of them, not {path!r}")
    locations = [_location(one, as_they_are) for one in path]
    if not locations:
        raise OptionError("path is an empty list; give a file, a directory or a glob")
    return locations


def _location(path: object, as_they_are: bool) -> str:
    location = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(location, str):
        raise OptionError(f"path must be a str, a Path or a list of them, not {path!r}")
    if not location:
        raise OptionError("path is empty; give a file, a directory or a glob")
    if as_they_are:
        return location
    protocol, separator, rest = location.partition("://")
    if separator and protocol in ("file", "local"):
        return os.path.abspath(_unquoted(rest.removeprefix("localhost")))
    return location if separator else os.path.abspath(os.path.expanduser(location))


def _unquoted(path: str) -> str:
    """The path of a ``file://`` URL, which some people escape and others do not."""
    return path if os.path.exists(path) else unquote(path)


def _statuses(store: Store, locations: list[str]) -> Iterator[FileStatus | None]:
    """What is at exactly these locations, asked side by side where each answer takes time."""
    if store.local or len(locations) == 1:
        yield from map(store.status, locations)
    else:
        yield from side_by_side(store.status, locations, threads=_ASKING_THREADS)


def _expand(
    store: Store,
    location: str,
    status: FileStatus | None,
    roots: list[str],
    named: set[str],
    hidden: set[str],
) -> Iterator[tuple[str, FileStatus]]:
    """Files of one location. A path that exists is itself, also if it looks like a glob."""
    if status is not None and not _marks_a_folder(store, status):
        roots.append(location.rpartition("/")[0])
        named.add(status.path)
        yield status.path, status
        return
    walked = dict(_walk(store, location, hidden))
    magic = _MAGIC.search(location)
    if walked or magic is None:
        roots.append(location)
        yield from walked.items()
        return
    root = location[: magic.start()].rpartition("/")[0]
    roots.append(root)
    for match, status in store.glob(location):
        is_named = match == status.path
        if _hidden(match[len(root) :], location[len(root) :]):
            continue
        if is_named:
            named.add(status.path)
        elif _hidden(status.path[len(match) :]):
            continue
        yield status.path, status


def _marks_a_folder(store: Store, status: FileStatus) -> bool:
    """Whether it is an empty object that some tool has put where a folder is, with others in it."""
    if status.size or store.local or protocol_of(status.path) in ("http", "https"):
        return False
    try:
        return any(True for _ in _walk(store, status.path, set()))
    except AccessDeniedError:  # who may read an object need not be allowed to list
        return False


def _walk(store: Store, directory: str, hidden: set[str]) -> Iterator[tuple[str, FileStatus]]:
    """Yield the files below a directory; add the folders that are left out to ``hidden``."""
    directory = directory.rstrip("/")
    for status in store.list(directory):
        below = status.path[len(directory) :]
        if not _hidden(below):
            yield status.path, status
        elif (end := below.find("/", _hidden_part(below))) >= 0:
            hidden.add(directory + below[:end])


def _hidden(relative: str, pattern: str = "") -> bool:
    """Whether a part of the path starts with . or _, unless the pattern spells such a part out."""
    return _hidden_part(relative, pattern) >= 0


def _hidden_part(relative: str, pattern: str = "") -> int:
    """Return where the first part of a path begins that starts with . or _, or -1."""
    spelled = {part[0] for part in pattern.split("/") if part}
    place = 0
    for part in relative.split("/"):
        if part and part[0] in "._" and part[0] not in spelled and "=" not in part:
            return place
        place += len(part) + 1
    return -1


def _nothing_found(store: Store, location: str) -> str:
    if _MAGIC.search(location):
        return f"no file matches {location}"
    if isinstance(store, LocalStore) and os.path.isdir(location):
        return (
            f"no data file in {location} or below it (hidden files and those "
            "that begin with an underscore are not counted)"
        )
    return f"{location} does not exist"
