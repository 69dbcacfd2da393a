"""End hung processes and all processes that they started, and make them print their stacks.

All of them have ``PYTHONFAULTHANDLER`` set, which forked and spawned processes inherit: when such a
process is aborted, Python prints the stack of every thread.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

PRINTING_S = 10.0


class _Process(NamedTuple):
    pid: int
    state: str
    parent: int
    session: int


def end_with_stacks(leaders: Iterable[tuple[int, int]]) -> None:
    """End sessions, each given by its leader and the descriptor of the leader's standard error.

    All processes are stopped before the first one is ended: otherwise some would already react to
    the end of another one, and their stacks would show that. They are ended one after the other, so
    that they do not print into each other's lines.
    """
    hung = [(process, stderr) for pid, stderr in leaders for process in _family(pid)]
    with contextlib.ExitStack() as killed:
        for process, _ in hung:
            killed.callback(_send, process.pid, signal.SIGKILL)
            _send(process.pid, signal.SIGSTOP)
        for process, stderr in hung:
            os.write(stderr, f"\nprocess {process.pid}, started by {process.parent}:\n".encode())
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
    """Return the live processes of a session, and those they started in sessions of their own."""
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
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            # The text before the last bracket is the name, which may contain anything.
            with open(f"/proc/{pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
            yield _Process(int(pid), fields[0], int(fields[1]), int(fields[3]))


def _is_alive(pid: int) -> bool:
    return any(process.pid == pid and process.state != "Z" for process in _processes())


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
