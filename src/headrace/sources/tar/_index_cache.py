"""Indexes and listings in a local cache folder, within a limit.

Indexes that have no place beside their tars lie here: of remote and read-only tars, and imports of
JSON. Their names say which version of which tar they are of.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256

from headrace.errors import OptionError, StaleIndexError, WriteError
from headrace.model import DataFileInfo
from headrace.sources.tar.index import COLUMNAR_ENDING, IndexFile, TarIndex, write_index
from headrace.storage import DiskCache, Store

__all__ = ["IndexCache"]

logger = logging.getLogger(__name__)

_OURS = re.compile(r"[0-9a-f]{64}(\.idx)?\.arrow")


@dataclass(frozen=True, slots=True)
class IndexCache:
    """A folder of indexes and listings; when it is full, those not used for longest are removed.

    Attributes:
        folder: The cache folder that the user named, or that of the user's home.
        limit_bytes: Limit for indexes and listings; None for half of the free space.
    """

    folder: str
    limit_bytes: int | None = None

    @classmethod
    def within(cls, cache: DiskCache | None) -> IndexCache:
        """Return the one in a cache that the user named, or in the user's home."""
        if cache is not None:
            return cls(cache.folder, cache.limit_bytes)
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        return cls(os.path.join(home, "headrace"))

    def index_path(self, store: Store, file: DataFileInfo, *source: str) -> str | None:
        """Return the path for the index of this version of a tar; None if versions have no names.

        Args:
            store: The store of the tar.
            file: The tar.
            source: What the index is made of, if not of the tar itself.
        """
        if file.etag is None:
            return None
        key = (store.identity, file.path, str(file.file_size), file.etag, *source)
        return os.path.join(self.folder, "indexes", _digest(key) + COLUMNAR_ENDING)

    def listing_path(self, *key: str) -> str:
        """Return the path for a listing."""
        return os.path.join(self.folder, "listings", f"{_digest(key)}.arrow")

    def read_index(self, path: str) -> TarIndex | None:
        """Return an index of the cache, or None if there is none that can be read."""
        try:
            index = IndexFile.open(path).index(0)
        except FileNotFoundError:
            return None
        except StaleIndexError as error:
            logger.warning("an index in the cache is damaged, and made again: %s", error)
            return None
        with suppress(OSError):
            os.utime(path)
        return index

    def keep_index(self, path: str, name: str, index: TarIndex) -> None:
        """Put an index into the cache, if it fits."""
        self.keep(path, lambda path: write_index(path, [(name, index)]))

    def keep(self, path: str, write: Callable[[str], None]) -> None:
        """Write a file of the cache, if it fits; a disk that is full or read-only is a warning."""
        try:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            write(path)
            self._remove_oldest()
        except (OSError, OptionError, WriteError) as error:
            logger.warning("%s is not cached: %s", os.path.basename(os.path.dirname(path)), error)

    def _remove_oldest(self) -> None:
        found = sorted(self._files())
        total = sum(size for _, size, _ in found)
        limit = self.limit_bytes
        if limit is None:
            limit = shutil.disk_usage(self.folder).free // 2
        for _, size, path in found:
            if total <= limit:
                break
            with suppress(OSError):
                os.unlink(path)
            total -= size

    def _files(self) -> Iterator[tuple[int, int, str]]:
        """Yield the time of the last use, the size and the path of each file."""
        for kind in ("indexes", "listings"):
            with suppress(FileNotFoundError):
                for entry in os.scandir(os.path.join(self.folder, kind)):
                    with suppress(FileNotFoundError):
                        if _OURS.fullmatch(entry.name):
                            found = entry.stat()
                            yield found.st_mtime_ns, found.st_size, entry.path


def _digest(key: tuple[str, ...]) -> str:
    return sha256("\0".join(key).encode("utf-8", "surrogateescape")).hexdigest()
