"""Running a leg: its ranks as processes of their own, watched until the last has ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

from headrace.testing.auditing.rank import RankTask, run_rank
from headrace.testing.auditing.schedule import Leg, Size

__all__ = ["Batch", "LegRun", "Resume", "Runner", "Trouble"]

Trouble = Literal["", "hung", "failed"]
_START_S = 60.0
"""for a process to start and import what it needs, beside the time-out of the leg"""
_GRACE_S = 2.0
_LAST_LINES = 40


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows that a rank was handed at once."""

    epoch: int
    leg: int
    rank: int
    step: int
    rows: tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Resume:
    """The start of a leg."""

    epoch: int = 0
    states: tuple[Path, ...] = ()
    """one of each rank that saved; none: from the beginning"""
    size: Size | None = None
    """of the leg that saved"""
    starts_anew: bool = False
    """the states were taken after the last batch of an epoch"""


@dataclass(frozen=True, slots=True)
class LegRun:
    """The result of a leg."""

    batches: tuple[Batch, ...] = ()
    """those that count: up to the save, or all where there was none to make"""
    saved: Resume | None = None
    """where all ranks stood together when they saved; None if they never did"""
    ours: bool = False
    """the loader is one of this library's"""
    trouble: Trouble = ""
    detail: str = ""
    """stacks of all threads, or the traceback"""


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs legs."""

    factory: Callable[[int, int, int], Any]
    row_id: Callable[[Any], Iterable[Hashable]]
    epochs: int
    timeout_s: float
    context: BaseContext
    merge: Callable[[list[Any]], Any] | None
    """makes one state of the states of all ranks; None: sizes never change"""

    def run(self, leg: Leg, number: int, folder: Path, start: Resume) -> LegRun:
        """Run the ranks of a leg side by side. No process of it is left afterwards."""
        folder.mkdir()
        port = _free_port()
        tasks = [
            RankTask(
                factory=self.factory,
                row_id=self.row_id,
                leg=leg,
                rank=rank,
                folder=folder,
                epochs=range(start.epoch, self.epochs),
                states=start.states,
                merge=self.merge if leg.merged or leg.size != start.size else None,
                starts_anew=start.starts_anew,
                timeout_s=self.timeout_s,
                port=port,
            )
            for rank in range(leg.size.ranks)
        ]
        trouble, detail = self._run_processes(tasks)
        if trouble:
            return LegRun(trouble=trouble, detail=detail)
        return _read_leg(tasks, number)

    def _run_processes(self, tasks: Sequence[RankTask]) -> tuple[Trouble, str]:
        processes: list[BaseProcess] = []
        try:
            for task in tasks:
                process = self.context.Process(target=run_rank, args=(task,))  # type: ignore[attr-defined]
                process.start()
                processes.append(process)
            culprit = _watch(processes, tasks[0].leg, self.timeout_s)
            if culprit is None:
                return "", ""
            return _explain(tasks[culprit], processes[culprit].exitcode)
        finally:
            _end_all(processes)


def _watch(processes: Sequence[BaseProcess], leg: Leg, timeout_s: float) -> int | None:
    """Wait for the leg to end as planned; else the rank that hangs or failed."""
    running = dict(enumerate(processes))
    deadline, crashed = time.monotonic() + timeout_s + _START_S, False
    while running:
        patience = max(0.0, deadline - time.monotonic())
        if not wait([process.sentinel for process in running.values()], patience):
            return None if crashed else min(running)
        ended = [rank for rank, process in running.items() if process.exitcode is not None]
        codes = {rank: running.pop(rank).exitcode for rank in ended}
        if any(rank in leg.victims and codes[rank] == -signal.SIGKILL for rank in ended):
            # What the others suffer from the death of a peer is part of the crash.
            crashed, deadline = True, min(deadline, time.monotonic() + _GRACE_S)
        if crashed and not set(leg.victims) & set(running):
            return None
        failed = [rank for rank in ended if codes[rank] != 0]
        if failed and not crashed:
            return failed[0]
    return None


def _explain(task: RankTask, exitcode: int | None) -> tuple[Trouble, str]:
    stacks, output = _text(task.path("hung")), _text(task.path("output"))
    if exitcode is None or stacks:
        waited = f"rank {task.rank} had not ended its leg after {task.timeout_s:g} s"
        return "hung", f"{waited}\n{stacks or output}".rstrip()
    died = f"rank {task.rank} ended with exit code {exitcode}"
    return "failed", f"{died}\n{output}".rstrip()


def _text(path: Path) -> str:
    """The last lines of a file, which the rank may not have lived to write."""
    if not path.exists():
        return ""
    return "\n".join(path.read_text(errors="replace").splitlines()[-_LAST_LINES:])


def _end_all(processes: Sequence[BaseProcess]) -> None:
    """Ask, then kill; worker processes that a killed rank left behind go with it."""
    for process in processes:
        if process.is_alive():
            process.terminate()
    deadline = time.monotonic() + _GRACE_S
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()
        process.close()


def _read_leg(tasks: Sequence[RankTask], number: int) -> LegRun:
    events = [_read_events(task.path("delivered")) for task in tasks]
    ours = all(bool(event[1]) for log in events for event in log if event[0] == "made")
    if tasks[0].leg.steps is None:
        return LegRun(_batches(events, number), ours=ours)
    saved = _common_save(tasks, events)
    if saved is None:
        return LegRun(ours=ours)
    return LegRun(_batches(map(_before_the_save, events), number), saved, ours=ours)


def _read_events(path: Path) -> list[list[Any]]:
    if not path.exists():
        return []
    lines = path.read_text().split("\n")
    return [json.loads(line) for line in lines[:-1]]  # a last line without its end is half a line


def _batches(logs: Iterable[Iterable[list[Any]]], leg: int) -> tuple[Batch, ...]:
    return tuple(
        Batch(epoch, leg, rank, step, tuple(map(_hashable, rows)))
        for rank, log in enumerate(logs)
        for step, (_, epoch, rows) in enumerate(event for event in log if event[0] == "rows")
    )


def _hashable(row: Any) -> Hashable:
    """Tuples come back from JSON as lists."""
    return tuple(map(_hashable, row)) if isinstance(row, list) else row


def _before_the_save(log: Iterable[list[Any]]) -> Iterator[list[Any]]:
    for event in log:
        if event[0] == "saved":
            return
        yield event


def _common_save(tasks: Sequence[RankTask], logs: Sequence[Sequence[list[Any]]]) -> Resume | None:
    """None unless all ranks saved, in the same epoch, and all or none of them at its end."""
    places = {_place_of_save(log) for log in logs}
    place = places.pop()
    if places or place is None:
        return None
    epoch, at_end = place
    states = tuple(task.path("state") for task in tasks)
    return Resume(epoch + at_end, states, tasks[0].leg.size, starts_anew=at_end)


def _place_of_save(log: Sequence[list[Any]]) -> tuple[int, bool] | None:
    for event, following in pairwise(log):
        if event[0] == "saved":
            return event[1], following[0] == "ended"
    return None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
