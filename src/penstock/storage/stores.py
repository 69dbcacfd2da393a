"""A store lists, looks at and opens files. Two kinds: the local disk, and fsspec for the rest."""

from __future__ import annotations

import errno
import fnmatch
import glob
import heapq
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

import fsspec
import pyarrow as pa

from penstock.errors import FileChangedError, MissingExtraError, OptionError, PenstockError
from penstock.model import DataFileInfo

__all__ = ["FileStatus", "FsspecStore", "LocalStore", "Store", "open_pinned", "store_for"]

_EXTRA_OF_PROTOCOL = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    "gcs": "gcs",
    "az": "azure",
    "abfs": "azure",
    "abfss": "azure",
    "adl": "azure",
}
_INHERITED_BY_FORK = {"memory"}
_NOTHING_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}


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

    def list(self, directory: str) -> Iterator[FileStatus]:
        """All files below a directory, in no particular order; nothing if it does not exist."""
        ...

    def glob(self, pattern: str) -> Iterator[str]:
        """Paths of files and directories that match, in no particular order."""
        ...

    def status(self, path: str) -> FileStatus | None:
        """The file at exactly this path, or None when there is none (a directory, say)."""
        ...

    def open(self, path: str) -> pa.NativeFile:
        """The file for reading at random offsets."""
        ...


@dataclass(frozen=True, slots=True)
class LocalStore:
    """Files of this machine, read without fsspec in between."""

    fork_safe: bool = field(default=True, init=False)

    def list(self, directory: str) -> Iterator[FileStatus]:
        """Follows links; a directory that several paths lead to is listed by one of them."""
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

    def glob(self, pattern: str) -> Iterator[str]:
        """As for a shell; a leading directory that exists is itself, whatever its name."""
        root = pattern
        while not os.path.isdir(root):
            root = os.path.dirname(root)
        parts = (glob.escape(root) + pattern[len(root) :]).split("/")
        deep = parts.index("**") if "**" in parts else len(parts)
        for found in glob.iglob("/".join(parts[:deep]) or "/", include_hidden=True):
            if deep == len(parts):
                yield found
            else:
                yield from self._glob_below(found, parts[deep:])

    def _glob_below(self, directory: str, patterns: Sequence[str]) -> Iterator[str]:
        """Matches below a directory by our own walk: that of ``glob`` runs in circles of links."""
        whole: set[str] = set()
        for status in self.list(directory):
            below = status.path[len(directory) :].strip("/").split("/")
            if _matches(below, patterns):
                yield status.path
                continue
            stops = range(1, len(below))
            found = next((stop for stop in stops if _matches(below[:stop], patterns)), None)
            if found is not None:
                whole.add("/".join([directory.rstrip("/"), *below[:found]]))
        yield from whole

    def status(self, path: str) -> FileStatus | None:
        try:
            found = os.stat(path)
        except OSError as error:
            if error.errno not in _NOTHING_THERE:
                raise
            return None
        return _local_status(path, found) if stat.S_ISREG(found.st_mode) else None

    def open(self, path: str) -> pa.NativeFile:
        return pa.OSFile(path, "rb")


def _matches(parts: Sequence[str], patterns: Sequence[str]) -> bool:
    """Whether the parts of a path match those of a glob, in which ``**`` is any number of parts."""
    if not patterns:
        return not parts
    if patterns[0] == "**" and _matches(parts, patterns[1:]):
        return True
    if not parts:
        return False
    if patterns[0] == "**":
        return _matches(parts[1:], patterns)
    return fnmatch.fnmatchcase(parts[0], patterns[0]) and _matches(parts[1:], patterns[1:])


def _local_status(path: str, found: os.stat_result) -> FileStatus:
    return FileStatus(path, found.st_size, f"{found.st_mtime_ns:x}")


@dataclass(frozen=True, slots=True)
class FsspecStore:
    """Any location that fsspec knows; the filesystem is made in the process that uses it."""

    protocol: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)

    @property
    def fork_safe(self) -> bool:
        return self.protocol in _INHERITED_BY_FORK

    def list(self, directory: str) -> Iterator[FileStatus]:
        try:
            found = self._filesystem.find(directory, detail=True)
        except FileNotFoundError:
            return
        for path, info in found.items():
            yield self._status(path, info)

    def glob(self, pattern: str) -> Iterator[str]:
        yield from (self._with_protocol(path) for path in self._filesystem.glob(pattern))

    def status(self, path: str) -> FileStatus | None:
        try:
            info = self._filesystem.info(path)
        except FileNotFoundError:
            return None
        return self._status(path, info) if info["type"] == "file" else None

    def open(self, path: str) -> pa.NativeFile:
        return pa.PythonFile(self._filesystem.open(path, "rb", cache_type="none"), mode="r")

    @property
    def _filesystem(self) -> Any:
        return fsspec.filesystem(self.protocol, **self.options)

    def _status(self, path: str, info: Mapping[str, Any]) -> FileStatus:
        marks = (info.get(key) for key in ("ETag", "etag", "md5Hash", "mtime", "LastModified"))
        mark = next((m for m in (*marks, info.get("created")) if m is not None), None)
        if isinstance(mark, datetime):  # some list with a number what they look at with a date
            mark = mark.timestamp()
        etag = None if mark is None else str(mark).strip('"')
        return FileStatus(self._with_protocol(path), int(info["size"]), etag)

    def _with_protocol(self, path: str) -> str:
        return path if "://" in path else f"{self.protocol}://{path.lstrip('/')}"


def store_for(url: str, storage_options: Mapping[str, Any] | None = None) -> Store:
    """The store that holds ``url``: the local disk for plain paths and ``file://``."""
    protocol, separator, _ = url.partition("://")
    if not separator or protocol in ("file", "local"):
        return LocalStore()
    try:
        fsspec.get_filesystem_class(protocol)
    except (ImportError, ValueError) as error:
        raise _no_filesystem(protocol, error) from error
    return FsspecStore(protocol, dict(storage_options or {}))


def _no_filesystem(protocol: str, error: ImportError | ValueError) -> PenstockError:
    """What to tell; some protocols become known to fsspec only once their package is there."""
    extra = _EXTRA_OF_PROTOCOL.get(protocol)
    if extra is not None:
        return MissingExtraError.for_extra(extra, f"the filesystem for {protocol}://")
    if isinstance(error, ImportError):
        return MissingExtraError(f"reading {protocol}:// needs another package: {error}")
    return OptionError(f"no filesystem is known for {protocol}://: {error}")


def open_pinned(store: Store, file: DataFileInfo) -> pa.NativeFile:
    """Open ``file``, or raise FileChangedError if it is not the one that was discovered."""
    now = store.status(file.path)
    if now is None:
        raise FileChangedError(f"{file.path} vanished after it was discovered")
    if file.file_size is not None and now.size != file.file_size:
        raise FileChangedError(
            f"{file.path} changed after it was discovered: {file.file_size} bytes then, "
            f"{now.size} now; make a new dataset to read it as it is"
        )
    if file.etag is not None and now.etag != file.etag:
        raise FileChangedError(
            f"{file.path} was written again after it was discovered; "
            "make a new dataset to read it as it is"
        )
    return store.open(file.path)
