"""What a store is: something that lists, looks at and opens files."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from penstock.model import DataFileInfo
from penstock.storage.meter import Meter

__all__ = ["FileStatus", "Store", "changed", "matches", "matching", "vanished"]


@dataclass(frozen=True, slots=True)
class FileStatus:
    """A file as a listing shows it."""

    path: str
    size: int
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

    def list(self, directory: str) -> Iterator[FileStatus]:
        """All files below a directory, in no particular order; nothing if it does not exist."""
        ...

    def glob(self, pattern: str) -> Iterator[str]:
        """Paths of files and directories that match, in no particular order."""
        ...

    def status(self, path: str) -> FileStatus | None:
        """The file at exactly this path, or None when there is none (a directory, say)."""
        ...

    def metered(self, meter: Meter) -> Store:
        """The same store, whose requests are counted by somebody else."""
        ...

    def open(self, file: DataFileInfo) -> pa.NativeFile:
        """The file for reading at random offsets; FileChangedError if it is another by now."""
        ...


def matching(paths: Iterable[str], root: str, patterns: Sequence[str]) -> Iterator[str]:
    """Of the files below a root, those that match, and the directories that do."""
    whole: set[str] = set()
    for path in paths:
        below = path[len(root) :].strip("/").split("/")
        if matches(below, patterns):
            yield path
            continue
        stops = range(1, len(below))
        found = next((stop for stop in stops if matches(below[:stop], patterns)), None)
        if found is not None:
            whole.add("/".join([root.rstrip("/"), *below[:found]]))
    yield from whole


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
