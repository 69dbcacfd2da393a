"""What a store is: something that lists, looks at and opens files."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from headrace.model import DataFileInfo
from headrace.storage.fetching import Patience
from headrace.storage.meter import Meter

__all__ = ["UNKNOWN_SIZE", "FileStatus", "Store", "changed", "matches", "matching", "vanished"]

UNKNOWN_SIZE = -1


@dataclass(frozen=True, slots=True)
class FileStatus:
    """A file as a listing shows it."""

    path: str
    size: int
    """in bytes; UNKNOWN_SIZE where a listing shows names only, and each file has to be looked at"""
    etag: str | None
    """changes whenever the content does; None where the store has no such thing"""


class Store(Protocol):
    """Where files are. Stores pickle, and open native handles only in the process that reads."""

    @property
    def fork_safe(self) -> bool:
        """Whether a forked child may go on using a store that its parent has used."""
        ...

    @property
    def local(self) -> bool:
        """Whether reading costs no waiting."""
        ...

    @property
    def identity(self) -> str:
        """What tells stores apart in which the same path may mean different files."""
        ...

    @property
    def given(self) -> Mapping[str, Any]:
        """What the user gave and a worker process has to be sent, by the name of its option."""
        ...

    def resolved(self, location: str) -> str:
        """What is meant by a location now, as the paths of what is found there begin."""
        ...

    def list(self, directory: str) -> Iterator[FileStatus]:
        """All files below a directory, in no particular order; nothing if it does not exist."""
        ...

    def glob(self, pattern: str) -> Iterator[tuple[str, FileStatus]]:
        """Files that match, and those below directories that do, each after what matched."""
        ...

    def status(self, path: str) -> FileStatus | None:
        """The file at exactly this path, or None when there is none (a directory, say)."""
        ...

    def during(self, meter: Meter, patience: Patience) -> Store:
        """The same store for somebody else, who counts requests and may give up waiting."""
        ...

    def open(self, file: DataFileInfo) -> pa.NativeFile:
        """The file for reading at random offsets; FileChangedError if it is another by now."""
        ...


def matching(
    files: Iterable[FileStatus], root: str, patterns: Sequence[str]
) -> Iterator[tuple[str, FileStatus]]:
    """Of the files below a root those that match, or are in directories that do; see ``glob``."""
    for status in files:
        below = status.path[len(root) :].strip("/").split("/")
        stops = (len(below), *range(1, len(below)))
        found = next((stop for stop in stops if matches(below[:stop], patterns)), None)
        if found is not None:
            matched = "/".join([root.rstrip("/"), *below[:found]])
            yield (status.path if found == len(below) else matched), status


def matches(parts: Sequence[str], patterns: Sequence[str]) -> bool:
    """Whether the parts of a path match those of a glob, in which ``**`` is any number of parts."""
    if not patterns:
        return not parts
    if patterns[0] == "**" and matches(parts, patterns[1:]):
        return True
    if not parts:
        return False
    if patterns[0] == "**":
        return matches(parts[1:], patterns)
    return fnmatch.fnmatchcase(parts[0], patterns[0]) and matches(parts[1:], patterns[1:])


def vanished(path: str) -> str:
    """What to say of a file that is no longer there."""
    return f"{path} vanished after it was discovered"


def changed(path: str, size: int | None = None, now: int | None = None) -> str:
    """What to say of a file that is another by now."""
    how = "was written again" if size == now else "changed"
    sizes = "" if size == now else f": {size} bytes then, {now} now"
    return f"{path} {how} after it was discovered{sizes}; make a new dataset to read it as it is"
