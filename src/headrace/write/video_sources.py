"""Which videos are meant, what they are called, and what tells them from others."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from headrace.errors import NothingFoundError, OptionError
from headrace.model import DataFileInfo
from headrace.storage import Access, Store, find_files

__all__ = ["Metadata", "PathLike", "VideoSource", "find_videos", "fingerprint"]

PathLike = str | os.PathLike[str]
Metadata = Mapping[str, Mapping[str, Any]] | Callable[[str], Mapping[str, Any]]
"""what users know of videos, by their key or path; JSON"""

_EXTENSIONS = (
    ".avi",
    ".flv",
    ".gif",
    ".m4v",
    ".mkv",
    ".mov",
    ".mp4",
    ".mpeg",
    ".mpg",
    ".ts",
    ".webm",
    ".wmv",
)
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class VideoSource:
    """A file with a video."""

    video_id: int
    key: str
    """unlike that of any other; the path below the directory that all have in common"""
    path: str
    size_bytes: int
    etag: str | None
    store: Store

    def opened(self) -> AbstractContextManager[Any]:
        """Something to decode from: a path where that will do."""
        return nullcontext(self.path) if self.store.local else self._file()

    def checksum(self) -> str:
        """Of the whole file."""
        digest = hashlib.sha256()
        with self._file() as file:
            while data := file.read(_READ_BYTES):
                digest.update(data)
        return f"sha256:{digest.hexdigest()}"

    def noted(self, metadata: Metadata | None) -> dict[str, Any]:
        """What the user knows of it."""
        if callable(metadata):
            found: object = metadata(self.path)
        else:
            given = metadata or {}
            found = given.get(self.key) or given.get(self.path) or {}
        if not isinstance(found, Mapping):
            raise OptionError(f"metadata of {self.path} must be a mapping, not {found!r}")
        noted = dict(found)
        try:
            json.dumps(noted)
        except (TypeError, ValueError) as error:
            raise OptionError(f"metadata of {self.path} must be JSON: {error}") from error
        return noted

    def _file(self) -> AbstractContextManager[Any]:
        size = self.size_bytes if self.size_bytes >= 0 else None
        file: AbstractContextManager[Any] = self.store.open(
            DataFileInfo(self.path, file_size=size, etag=self.etag)
        )
        return file


def find_videos(sources: PathLike | Sequence[PathLike], access: Access) -> list[VideoSource]:
    """Files that are named, and those of directories whose names end like those of videos."""
    listing = find_files(sources, access)
    files = [
        file
        for file in listing.files
        if file.path in listing.named or file.path.lower().endswith(_EXTENSIONS)
    ]
    if not files:
        raise NothingFoundError(
            f"there is no video in {', '.join(listing.locations)}: of a directory those files are "
            f"taken that end in {', '.join(_EXTENSIONS)}; name others in full"
        )
    keys = _keys([file.path for file in files])
    return [
        VideoSource(number, key, file.path, file.size, file.etag, listing.store)
        for number, (key, file) in enumerate(zip(keys, files, strict=True))
    ]


def fingerprint(videos: Sequence[VideoSource]) -> str:
    """What is another if any of the files is."""
    told = "\n".join(f"{one.path}\t{one.size_bytes}\t{one.etag}" for one in videos)
    return hashlib.sha256(told.encode()).hexdigest()


def _keys(paths: Sequence[str]) -> list[str]:
    directories = [path.split("/")[:-1] for path in paths]
    low, high = min(directories), max(directories)
    same = [one == other for one, other in zip(low, high, strict=False)]
    shared = same.index(False) if False in same else len(same)
    below = ["/".join(path.split("/")[shared:]) for path in paths]
    short = [os.path.splitext(name)[0] for name in below]
    times = Counter(short)
    keys = [name if times[name] == 1 else full for name, full in zip(short, below, strict=True)]
    return keys if len(set(keys)) == len(keys) else below
