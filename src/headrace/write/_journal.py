"""The journal of a work directory, from which a copy that was killed continues.

A work directory has one journal, and is used by one process at a time. The first line describes the
work. Each further line is a task that is done, and is on the disk before the next step begins.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from headrace.errors import StateMismatchError
from headrace.storage import flush_directory
from headrace.write._places import locked, writing

_NAME, _LOCK = "headrace.jsonl", "headrace.lock"
_VERSION = 3


class Journal:
    """The journal of a work directory, locked by this process until it is closed.

    Args:
        directory: The work directory, which is made if it does not exist.
        work: Describes the work. Unfinished work of another description is refused.
        once: True if the work cannot be continued, since its source can be read only once.
    """

    def __init__(self, directory: Path, work: Mapping[str, Any], *, once: bool = False) -> None:
        self.directory = directory
        self._lock = locked(directory, _LOCK)
        try:
            with writing(directory / _NAME):
                self._open({"version": _VERSION, **work}, once)
        except BaseException:
            self._lock.release()
            raise

    def _open(self, work: dict[str, Any], once: bool) -> None:
        path = self.directory / _NAME
        self._entries = _whole_lines(path)
        self.resumed = self.has_results and not self._entries[0]["once"]
        if self.resumed:
            self._check(work)
        else:
            self._entries = []
            path.unlink(missing_ok=True)
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115
        if not self.resumed:
            self._note({**work, "once": once, "run": uuid4().hex})
            flush_directory(self.directory)
        self.run: str = self._entries[0]["run"]

    @staticmethod
    def exists(directory: Path) -> bool:
        """Return True if a work directory has a journal, of this or other work."""
        return (directory / _NAME).exists()

    @property
    def has_results(self) -> bool:
        """True if a task is done."""
        return any("part" in entry for entry in self._entries)

    def results(self, stage: str) -> dict[int, dict[str, Any]]:
        """Return the receipts of the tasks of a stage that are done, by their parts."""
        return {
            entry["part"]: entry["receipt"]
            for entry in self._entries
            if entry.get("stage") == stage
        }

    def note_result(self, stage: str, part: int, receipt: Mapping[str, Any]) -> None:
        """Note durably that a task is done."""
        self._note({"stage": stage, "part": part, "receipt": receipt})

    def decide(self, name: str, choose: Callable[[], Any]) -> Any:
        """Return a number that the first run chose; runs that continue it use the same number.

        If the limits of parts differed between runs, rows would be lost.
        """
        for entry in self._entries:
            if entry.get("decided") == name:
                return entry["value"]
        value = choose()
        self._note({"decided": name, "value": value})
        return value

    def _note(self, entry: Mapping[str, Any]) -> None:
        """Add a line and flush it to the disk."""
        with writing(self.directory / _NAME):
            line = json.dumps(entry).encode() + b"\n"
            if self._file.write(line) != len(line):
                raise OSError("only a part of a line was written")
            os.fsync(self._file.fileno())
        self._entries.append(dict(entry))

    def close(self) -> None:
        """Unlock the work directory for other processes."""
        self._file.close()
        self._lock.release()

    def remove(self) -> None:
        """Remove the journal, and the work directory if nothing else is in it."""
        for name in (_LOCK, _NAME):  # a kill in between leaves a journal, which is continued
            (self.directory / name).unlink(missing_ok=True)
        with suppress(OSError):
            self.directory.rmdir()

    def _check(self, work: Mapping[str, Any]) -> None:
        before = self._entries[0]
        now = json.loads(json.dumps(work))
        differing = [name for name in now if before.get(name) != now[name]]
        if differing:
            named = ", ".join(name.replace("_", " ") for name in differing)
            raise StateMismatchError(
                f"{self.directory} holds the unfinished work of a different run (these differ: "
                f"{named}); run it with the same source and options to finish it, or delete "
                "that directory to start again"
            )


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines, and cut off an incomplete one that a kill left behind."""
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
