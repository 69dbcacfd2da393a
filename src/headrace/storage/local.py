"""Files of this machine, read without anything in between."""

from __future__ import annotations

import errno
import glob
import heapq
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.errors import FileChangedError
from headrace.model import DataFileInfo
from headrace.storage.fetching import Patience
from headrace.storage.meter import Meter
from headrace.storage.store import FileStatus, changed, matching, vanished

__all__ = ["LocalStore"]

_NOTHING_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}


@dataclass(frozen=True, slots=True)
class LocalStore:
    """The file system of this machine."""

    fork_safe: bool = True
    """False: what is read beside the files must not be used after a fork"""
    local: bool = field(default=True, init=False)
    identity: str = field(default="", init=False)

    @property
    def given(self) -> Mapping[str, Any]:
        return {}

    def resolved(self, location: str) -> str:
        """The same: a path names one file."""
        return location

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

    def glob(self, pattern: str) -> Iterator[tuple[str, FileStatus]]:
        """As for a shell; a leading directory that exists is itself, whatever its name."""
        root = pattern
        while not os.path.isdir(root):
            root = os.path.dirname(root)
        parts = (glob.escape(root) + pattern[len(root) :]).split("/")
        deep = parts.index("**") if "**" in parts else len(parts)
        for found in glob.iglob("/".join(parts[:deep]) or "/", include_hidden=True):
            if deep < len(parts):  # by our own walk: that of ``glob`` runs in circles of links
                yield from matching(self.list(found), found, parts[deep:])
            elif (status := self.status(found)) is not None:
                yield found, status
            else:
                yield from ((found, status) for status in self.list(found))

    def status(self, path: str) -> FileStatus | None:
        try:
            found = os.stat(path)
        except OSError as error:
            if error.errno not in _NOTHING_THERE:
                raise
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        return FileStatus(path, found.st_size, f"{found.st_mtime_ns:x}")

    def during(self, meter: Meter, patience: Patience) -> LocalStore:
        """The same: there are no requests to count, and nothing to wait for."""
        return self

    def open(self, file: DataFileInfo) -> pa.NativeFile:
        now = self.status(file.path)
        if now is None:
            raise FileChangedError(vanished(file.path))
        if file.file_size is not None and now.size != file.file_size:
            raise FileChangedError(changed(file.path, file.file_size, now.size))
        if file.etag is not None and now.etag != file.etag:
            raise FileChangedError(changed(file.path))
        return pa.OSFile(os.fsencode(file.path), "rb")  # names need not be UTF-8
