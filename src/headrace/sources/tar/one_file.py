"""One columnar index of many tars: what it had before, and how it is written."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from headrace.errors import OptionError, ReadError, StaleIndexError
from headrace.sources.tar.arrow_index import ArrowIndexes, write_arrow_indexes
from headrace.sources.tar.embedded import with_words_of
from headrace.sources.tar.index import TarIndex
from headrace.sources.tar.index_jobs import Indexed, Place
from headrace.sources.tar.own_files import made_folder, read_index, refuse_what_is_none
from headrace.sources.tar.replacing import turn_in_folder
from headrace.storage.file_locks import close_locked

__all__ = ["OneFile"]


@dataclass(frozen=True, slots=True)
class OneFile:
    """The file, and which tars it had when it was looked at."""

    path: str
    numbers: Mapping[str, int]

    @classmethod
    def at(cls, path: str) -> OneFile:
        """What is there: a file that is no index is refused, one that is damaged made anew."""
        if not path.endswith(".arrow"):
            raise OptionError(f"one_file is a columnar index, called *.arrow, and not {path!r}")
        refuse_what_is_none(path)
        return cls(path, _numbers(_opened(path)))

    def earlier(self, name: str) -> tuple[Place, ...]:
        """Where the index of a tar is in it."""
        return ((self.path, self.numbers[name]),) if name in self.numbers else ()

    @contextmanager
    def parts(self, kept: str | None) -> Iterator[str]:
        """A folder for the indices of tars until all are done, then removed unless it is given.

        Runs at the same time share it; the last one removes it.
        """
        if kept is not None:
            yield kept
            return
        folder = f"{self.path}.parts"
        opened = _shared(folder)
        try:
            yield folder
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            except OSError:  # not every network file system locks folders
                pass
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            close_locked(opened)

    def write(self, names: Sequence[str], chosen: set[str], done: Sequence[Indexed]) -> None:
        """Put what was done into it, and what it has of the other tars of the source."""
        # Of tars that were in the file before, what was seen is held on to: it may change.
        indexes = {tar.name: read_index(*tar.place) for tar in done if tar.place[0] != self.path}
        there = {tar.name for tar in done if tar.place[0] == self.path}
        with turn_in_folder(made_folder(self.path)):
            now = _opened(self.path)
            numbers = _numbers(now)
            tars: list[tuple[str, TarIndex]] = []
            for name in names:
                old = None if now is None or name not in numbers else _index(now, numbers[name])
                new = indexes.get(name)
                if new is not None and old is not None:
                    tars.append((name, with_words_of(old, new, of_this_content=False)))
                elif new is not None:
                    tars.append((name, new))
                elif old is not None and (name in there or name not in chosen):
                    tars.append((name, old))
                elif name in there:
                    raise ReadError(f"{self.path} was changed meanwhile; run it again")
            write_arrow_indexes(self.path, tars)


def _opened(path: str) -> ArrowIndexes | None:
    """None: there is nothing, or nothing that can be read."""
    try:
        return ArrowIndexes.open(path, path)
    except (FileNotFoundError, StaleIndexError):
        return None


def _index(opened: ArrowIndexes, number: int) -> TarIndex | None:
    """None: it is damaged."""
    try:
        return opened.index(number)
    except StaleIndexError:
        return None


def _numbers(opened: ArrowIndexes | None) -> dict[str, int]:
    return {} if opened is None else {name: number for number, name in enumerate(opened.tars)}


def _shared(folder: str) -> int:
    """A folder that is not removed by others as long as what is returned is open."""
    while True:
        made_folder(os.path.join(folder, "part"))
        with suppress(FileNotFoundError):  # it was removed behind our back
            opened = os.open(folder, os.O_RDONLY)
            with suppress(OSError):
                fcntl.flock(opened, fcntl.LOCK_SH)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(opened), os.stat(folder)):
                    return opened
            close_locked(opened)
