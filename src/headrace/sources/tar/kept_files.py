"""What was learned of tars elsewhere, kept on a disk of this machine, within a limit."""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256

from headrace.errors import OptionError, WriteError
from headrace.storage import DiskCache

__all__ = ["KeptFiles"]

logger = logging.getLogger(__name__)

_KINDS = ("indexes", "listings")
_OURS = re.compile(r"[0-9a-f]{64}(\.idx)?\.arrow")
_WRITES_BETWEEN_LOOKS = 64
_totals: dict[str, tuple[int, int]] = {}
"""of folders: the bytes in them at the last look and written since, and how many files those are"""


@dataclass(frozen=True, slots=True)
class KeptFiles:
    """A folder of indices and listings, of which the ones not used for longest go when it is full.

    They have a limit of their own, which is that of the cache that they lie in.
    """

    folder: str
    limit_bytes: int | None
    """None: half of what is free"""

    @classmethod
    def within(cls, cache: DiskCache | None) -> KeptFiles:
        """In a cache that the user named, or where caches of users are."""
        if cache is not None:
            return cls(cache.folder, cache.limit_bytes)
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        return cls(os.path.join(home, "headrace"), None)

    def index_at(self, *key: str) -> str:
        return os.path.join(self.folder, "indexes", f"{_digest(key)}.idx.arrow")

    def listing_at(self, *key: str) -> str:
        return os.path.join(self.folder, "listings", f"{_digest(key)}.arrow")

    def listings(self) -> list[str]:
        """The paths of all listings, those used last first."""
        found = sorted(self._all("listings"), reverse=True)
        return [path for _, _, path in found]

    def keep(self, path: str, write: Callable[[str], None]) -> None:
        """Write a file, if it fits; a disk that is full or read-only is no reason to fail."""
        try:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            write(path)
            size = os.stat(path).st_size
            if size > self._limit:
                os.unlink(path)
                return
        except (OSError, OptionError, WriteError) as error:
            logger.warning("%s is not cached: %s", os.path.basename(os.path.dirname(path)), error)
            return
        self._count(size)

    def used(self, path: str) -> None:
        """Note that a file is of use."""
        with suppress(OSError):
            os.utime(path)

    @property
    def _limit(self) -> int:
        if self.limit_bytes is not None:
            return self.limit_bytes
        return shutil.disk_usage(self.folder).free // 2

    def _count(self, size: int) -> None:
        """Clean up if there is too much. Others write too: it is looked at now and then."""
        total, writes = _totals.get(self.folder, (0, _WRITES_BETWEEN_LOOKS))
        total, writes = total + size, writes + 1
        if total > self._limit or writes > _WRITES_BETWEEN_LOOKS:
            total, writes = self._clean(), 0
        _totals[self.folder] = total, writes

    def _clean(self) -> int:
        """Remove what was not used for longest; what is left, in bytes."""
        found = sorted(self._all())
        total, limit = sum(size for _, size, _ in found), self._limit
        for _, size, path in found:
            if total <= limit:
                break
            with suppress(OSError):
                os.unlink(path)
            total -= size
        return total

    def _all(self, *kinds: str) -> Iterator[tuple[int, int, str]]:
        """When each file was last used, its size and its path."""
        for kind in kinds or _KINDS:
            folder = os.path.join(self.folder, kind)
            with suppress(FileNotFoundError):
                for name in filter(_OURS.fullmatch, os.listdir(folder)):
                    path = os.path.join(folder, name)
                    with suppress(FileNotFoundError):
                        found = os.stat(path)
                        yield found.st_mtime_ns, found.st_size, path


def _digest(key: tuple[str, ...]) -> str:
    return sha256("\0".join(key).encode()).hexdigest()
