"""Where processes hang, and those that they have started: all are ended, and print their stacks.

They have ``PYTHONFAULTHANDLER`` set: what Python prints of a process that aborts is the stack of
every thread. Forked processes print theirs too, and so do those that are started anew.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

PRINTING_S = 10.0


class _Process(NamedTuple):
    pid: int
    state: str
    parent: int
    session: int


def end_with_stacks(leaders: Iterable[tuple[int, int]]) -> None:
    """End leaders of sessions, each with the descriptor that is its standard error, and children.

    All are stopped before the first one is ended, or some would be seen doing something about it,
    and they print one after the other: together they would write into each other's lines.
    """
    hung = [(process, told) for pid, told in leaders for process in _family(pid)]
    with contextlib.ExitStack() as killed:
        for process, _ in hung:
            killed.callback(_send, process.pid, signal.SIGKILL)
            _send(process.pid, signal.SIGSTOP)
        for process, told in hung:
            os.write(told, f"\nprocess {process.pid}, started by {process.parent}:\n".encode())
            _abort(process.pid)


def session_members(leader: int) -> set[int]:
    """Return the processes of a session that have not ended."""
    return {one.pid for one in _processes() if one.session == leader and one.state != "Z"}


def _abort(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
    _send(pid, signal.SIGABRT)
    _send(pid, signal.SIGCONT)
    deadline = time.monotonic() + PRINTING_S
    while _is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)


def _family(leader: int) -> list[_Process]:
    """Who is alive in a session, and who was started from there into sessions of their own."""
    others = [process for process in _processes() if process.state != "Z"]
    family: list[_Process] = []
    while True:
        known = {process.pid for process in family}
        found = [one for one in others if one.session == leader or one.parent in known]
        if not found:
            return family
        family += found
        others = [one for one in others if one not in found]


def _processes() -> Iterator[_Process]:
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            # What comes before is the name, and it may hold anything.
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            yield _Process(int(folder.name), fields[0], int(fields[1]), int(fields[3]))


def _is_alive(pid: int) -> bool:
    return any(process.pid == pid and process.state != "Z" for process in _processes())


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
