"""What of a long work is done: lines of JSON, each on the disk before the next step begins."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.errors import StateMismatchError, WriteError
from headrace.storage.file_locks import close_locked
from headrace.write.durable import flush_directory
from headrace.write.failures import writing

__all__ = ["Journal"]

_NAME = "journal.jsonl"
_LOCK = "lock"


class Journal:
    """The journal of a work directory, held by one process at a time.

    The first line says what the work is: going on with other data or options is refused. A line
    that a kill cut short counts as not written.
    """

    def __init__(self, directory: Path, work: Mapping[str, Any]) -> None:
        self.directory = directory
        with writing(directory):
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(directory / _LOCK)
        try:
            with writing(directory / _NAME):
                self.entries = _whole_lines(directory / _NAME)
            self.resumed = bool(self.entries)
            if self.resumed:
                self._check(work)
            self._file = open(directory / _NAME, "ab", buffering=0)  # noqa: SIM115
            if not self.resumed:
                self.note(work)
                flush_directory(directory)
        except BaseException:
            close_locked(self._lock)
            raise

    @staticmethod
    def exists(directory: Path) -> bool:
        """Whether there is work to go on with."""
        return (directory / _NAME).exists()

    def note(self, entry: Mapping[str, Any]) -> None:
        """Add a line; it lasts when this returns."""
        with writing(self.directory / _NAME):
            line = json.dumps(entry, ensure_ascii=False).encode() + b"\n"
            if self._file.write(line) != len(line):
                raise OSError("only a part of a line was written")
            os.fsync(self._file.fileno())
        self.entries.append(dict(entry))

    def all(self, kind: str) -> list[dict[str, Any]]:
        """The lines that have a certain field."""
        return [entry for entry in self.entries if kind in entry]

    def close(self) -> None:
        """Let others have the work directory."""
        self._file.close()
        close_locked(self._lock)

    def forget(self) -> None:
        """Remove the journal: there is nothing to go on with any more."""
        for name in (_LOCK, _NAME):
            (self.directory / name).unlink(missing_ok=True)

    def _check(self, work: Mapping[str, Any]) -> None:
        before = self.entries[0]
        differing = [name for name in work if before.get(name) != work[name]]
        if differing:
            named = ", ".join(name.replace("_", " ") for name in differing)
            raise StateMismatchError(
                f"{self.directory} holds unfinished work that is another (not the same: "
                f"{named}); run it with the same source and options to finish it, or delete that "
                "directory to start anew"
            )


def _locked(path: Path) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        if not isinstance(error, BlockingIOError):
            raise
        raise WriteError(f"another process is working in {path.parent}; wait for it") from None
    return handle


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """The lines that were written to their end; what follows them is cut off."""
    if not path.exists():
        return []
    entries: list[dict[str, Any]] = []
    good = 0
    with open(path, "rb+") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            try:
                entries.append(json.loads(line))
            except ValueError:
                break
            good += len(line)
        file.truncate(good)
    return entries
