"""What is in a directory, page by page: a page that fails is asked for again, and not all."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from headrace.storage.engines import Engine
from headrace.storage.store import FileStatus

__all__ = ["Entry", "Pages"]

Entry = FileStatus | str
"""a file, or the path of a directory"""

_PAGE = 1000


class Pages:
    """The entries of a directory so far, in the order in which they came."""

    def __init__(self, directory: str, *, recursive: bool) -> None:
        self._directory = directory
        self._recursive = recursive
        self._found: dict[Entry, None] = {}
        self._rest: Iterator[Entry] | None = None
        self.complete = False

    @property
    def entries(self) -> list[Entry]:
        return list(self._found)

    def __len__(self) -> int:
        return len(self._found)

    @property
    def nested(self) -> bool:
        """Whether there are directories in it, as far as can be seen."""
        start = len(self._directory.rstrip("/")) + 1
        return any("/" in _path(entry)[start:] for entry in self._found)

    def more(self, engine: Engine) -> None:
        """Ask for the next page; after an error, for what comes behind the last entry."""
        rest, self._rest = self._rest, None
        if rest is None:
            last = _path(next(reversed(self._found), "")) if self._recursive else ""
            rest = engine.entries(self._directory, self._recursive, last)
        page = list(islice(rest, _PAGE))
        self._found.update(dict.fromkeys(page))
        self._rest = rest
        self.complete = len(page) < _PAGE


def _path(entry: Entry) -> str:
    return entry if isinstance(entry, str) else entry.path
