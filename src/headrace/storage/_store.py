"""Stores list, look at and open files. The local one is here.

Every local file that another process may read while the library writes it goes through
``atomic_write``; every lock between processes is a ``file_lock``.
"""

from __future__ import annotations

import errno
import fnmatch
import glob
import heapq
import os
import stat
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar
from urllib.parse import unquote

import pyarrow as pa
from filelock import BaseFileLock, FileLock

from headrace.errors import FileChangedError, OptionError
from headrace.model import DataFileInfo
from headrace.process import PerProcess
from headrace.storage._threads import Patience

_NOTHING_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}


def protocol_of(location: str | os.PathLike[str]) -> str:
    """Return the part of a URL before ``://``; nothing for paths of this machine."""
    protocol, separator, _ = os.fspath(location).partition("://")
    return protocol if separator and protocol not in ("file", "local") else ""


def named_locations(path: object, *, as_they_are: bool) -> list[str]:
    """Return absolute paths and URLs for a user's path argument.

    Args:
        path: A path, a URL, or several.
        as_they_are: True to change nothing, because only a given filesystem knows its paths.

    Raises:
        OptionError: It is none of these, or empty.
    """
    several = [path] if isinstance(path, str | os.PathLike) else path
    given: list[Any] = list(several) if isinstance(several, Iterable) else [several]
    for one in given:
        if not isinstance(one, str | os.PathLike) or isinstance(os.fspath(one), bytes):
            raise OptionError(f"path must be a str, a Path or a list of them, not {one!r}")
    locations: list[str] = list(map(os.fspath, given))
    if not locations or "" in locations:
        raise OptionError("path is empty; give a file, a directory or a glob")
    return locations if as_they_are else list(map(_located, locations))


def _located(location: str) -> str:
    """Return a path of this machine as an absolute path; URLs of stores stay as they are."""
    protocol, separator, rest = location.partition("://")
    if separator and protocol not in ("file", "local"):
        return location
    local = rest.removeprefix("localhost") if separator else os.path.expanduser(location)
    # Some people escape the path of a URL, and others do not.
    return os.path.abspath(unquote(local) if separator and not os.path.exists(local) else local)


class Meter:
    """Counters of requests and bytes, to which threads add. A copy in another process is empty."""

    def __init__(self) -> None:
        # A garbage collection may ask for the lock again.
        self._lock = PerProcess(threading.RLock)
        self._counts: PerProcess[Counter[str]] = PerProcess(Counter)

    def add(self, **counts: int) -> None:
        """Add to some counters."""
        with self._lock.get():
            self._counts.get().update(counts)

    def drain(self) -> dict[str, int]:
        """Return the counts since the last call."""
        with self._lock.get():
            counts = dict(self._counts.get())
            self._counts.get().clear()
        return counts

    def __reduce__(self) -> tuple[Any, ...]:
        return Meter, ()


@dataclass(frozen=True, slots=True)
class LocalStore:
    """The file system of this machine, with the same methods as a ``RemoteStore``.

    Stores pickle, and open native handles only in the process that reads.

    Attributes:
        fork_safe: True if a forked child may use a store that its parent has used.
        local: True if reads do not wait for a network.
        identity: A text that tells apart stores in which the same path may be another file.
        given: The user's options that are sent to a worker process, by name.
    """

    fork_safe: bool = True
    local: ClassVar[bool] = True
    identity: ClassVar[str] = ""
    given: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    def resolved(self, location: str) -> str:
        """Return a location in the form in which the paths of its files begin.

        A branch of a repository, which may move, becomes a commit.
        """
        return location

    def list(self, directory: str) -> Iterator[DataFileInfo]:
        """Yield all files below a directory, in any order; none if it does not exist.

        Links are followed; a directory with several paths is listed under one of them.
        """
        seen: set[tuple[int, int]] = set()
        pending = [(False, directory)]  # links last: of two paths the real one is taken
        while pending:
            _, path = heapq.heappop(pending)
            try:
                identity = os.stat(path)
                entries = os.scandir(path)
            except OSError as error:
                if error.errno not in _NOTHING_THERE:
                    raise
                continue
            with entries:
                if (identity.st_dev, identity.st_ino) in seen:
                    continue
                seen.add((identity.st_dev, identity.st_ino))
                for entry in entries:
                    link = entry.is_symlink()
                    if os.path.isdir(entry.path) if link else entry.is_dir():
                        heapq.heappush(pending, (link, entry.path))
                    elif (status := self.status(entry.path)) is not None:
                        yield status

    def glob(self, pattern: str) -> Iterator[tuple[str, DataFileInfo]]:
        """Yield matching files, and files below matching directories, each after the matched path.

        A pattern matches as in a shell; a leading directory that exists is taken literally.
        """
        root = pattern
        while not os.path.isdir(root):
            root = os.path.dirname(root)
        parts = (glob.escape(root) + pattern[len(root) :]).split("/")
        deep = parts.index("**") if "**" in parts else len(parts)
        for found in glob.iglob("/".join(parts[:deep]) or "/", include_hidden=True):
            if deep < len(parts):  # walked here, because ``glob`` runs in circles of links
                yield from matching(self.list(found), found, parts[deep:])
            elif (status := self.status(found)) is not None:
                yield found, status
            else:
                yield from ((found, status) for status in self.list(found))

    def status(self, path: str) -> DataFileInfo | None:
        """Return the file at exactly this path; None if there is none, or if it is a directory."""
        try:
            found = os.stat(path)
        except OSError as error:
            if error.errno not in _NOTHING_THERE:
                raise
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        return DataFileInfo(path, found.st_size, etag=f"{found.st_mtime_ns:x}")

    def during(self, meter: Meter, patience: Patience) -> LocalStore:
        """Return the store for another reader, which counts requests and may give up waiting."""
        return self

    def open(self, file: DataFileInfo) -> pa.NativeFile:
        """Open a file for reading at random offsets.

        Raises:
            FileChangedError: The file was changed or removed.
        """
        check_version(file, self.status(file.path))
        return pa.OSFile(os.fsencode(file.path), "rb")  # names need not be UTF-8


def matching(
    files: Iterable[DataFileInfo], root: str, patterns: Sequence[str]
) -> Iterator[tuple[str, DataFileInfo]]:
    """Yield the files below a root that match, or are in matching directories; see ``glob``."""
    for status in files:
        below = status.path[len(root) :].strip("/").split("/")
        stops = (len(below), *range(1, len(below)))
        found = next((stop for stop in stops if matches(below[:stop], patterns)), None)
        if found is not None:
            matched = "/".join([root.rstrip("/"), *below[:found]])
            yield (status.path if found == len(below) else matched), status


def matches(parts: Sequence[str], patterns: Sequence[str]) -> bool:
    """Return True if a path matches a glob, both in parts; ``**`` is any number of parts."""
    if not patterns:
        return not parts
    if patterns[0] == "**" and matches(parts, patterns[1:]):
        return True
    if not parts:
        return False
    if patterns[0] == "**":
        return matches(parts[1:], patterns)
    return fnmatch.fnmatchcase(parts[0], patterns[0]) and matches(parts[1:], patterns[1:])


def check_version(file: DataFileInfo, now: DataFileInfo | None) -> None:
    """Raise a FileChangedError unless a file is still the one that was discovered."""
    if now is None:
        raise FileChangedError(vanished(file.path))
    if file.file_size is not None and now.file_size != file.file_size:
        raise FileChangedError(changed(file.path, file.file_size, now.file_size))
    if file.etag is not None and now.etag != file.etag:
        raise FileChangedError(changed(file.path))


def vanished(path: str) -> str:
    """Return the message for a file that is no longer there."""
    return f"{path} vanished after it was discovered"


def changed(path: str, size: int | None = None, now: int | None = None) -> str:
    """Return the message for a file that has changed."""
    how = "was written again" if size == now else "changed"
    sizes = "" if size == now else f": {size} bytes then, {now} now"
    return f"{path} {how} after it was discovered{sizes}; make a new dataset to read it as it is"


# --- files that appear in one step and whole, and locks between processes

_PARTIAL = ".partial"
_POLL_S = 0.01


def file_lock(path: str | os.PathLike[str], *, wait: bool = True) -> BaseFileLock:
    """Return a lock that one process of a machine holds at a time, as a context manager.

    The lock ends with the process that holds it, even if that is killed. A child that is forked
    meanwhile does not hold it.

    Args:
        path: The file that is locked. It is made if it does not exist, and stays.
        wait: True to wait for the lock. If False, entering raises a TimeoutError while it is held.
    """
    return FileLock(path, mode=0o600, poll_interval=_POLL_S, thread_local=False, blocking=wait)


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a path to write to; after the block the file written there replaces ``path``.

    The file is flushed to the disk first, and keeps the mode of the file that it replaces. If the
    block raises, the old file stays. A process that is killed leaves a file that ends in
    ``.partial``, which the next writer of ``path`` overwrites. Writers of one path wait for each
    other.

    Args:
        path: The file to write. For a symbolic link, its target is replaced.

    Raises:
        OSError: Its folder does not exist, or is not writable.

    Examples:
        >>> from pathlib import Path
        >>> folder = getfixture("tmp_path")
        >>> with atomic_write(folder / "index.bin") as partial:
        ...     _ = partial.write_bytes(b"content")
        >>> [file.name for file in folder.iterdir()]
        ['index.bin']
    """
    target, partial, lock = _names(path)
    os.stat(target.parent)  # or the lock would make a folder that does not exist
    with file_lock(lock):
        try:
            partial.unlink(missing_ok=True)
            yield partial
            with open(partial, "rb+") as file:
                os.fsync(file.fileno())
            with suppress(FileNotFoundError):
                partial.chmod(target.stat().st_mode & 0o7777)
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)
            # Processes that wait for this file notice that it is gone, and make a new one.
            lock.unlink(missing_ok=True)
    flush_directory(target.parent)


def remove_partial(path: str | os.PathLike[str]) -> None:
    """Remove the file that a killed ``atomic_write(path)`` left, unless a writer is alive."""
    _, partial, lock = _names(path)
    if os.path.exists(partial) or os.path.exists(lock):
        with suppress(OSError), file_lock(lock, wait=False):
            partial.unlink(missing_ok=True)
            lock.unlink(missing_ok=True)


def flush_directory(path: str | os.PathLike[str]) -> None:
    """Make the names in a directory survive a crash of the machine."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _names(path: str | os.PathLike[str]) -> tuple[Path, Path, Path]:
    """Return a file, the file that is written in its place, and the lock of both."""
    target = Path(os.path.realpath(path))
    partial = target.with_name(target.name + _PARTIAL)
    return target, partial, target.with_name(f".{target.name}.lock")
