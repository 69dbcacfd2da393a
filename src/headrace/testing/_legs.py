"""The legs of a schedule: drawn from a seed, and run by ranks in separate processes.

``draw_schedule`` decides everything that happens to a loader, before it runs. ``run_leg`` is the
side of the parent, which watches the ranks until the last has ended. ``_run_rank`` runs in a child:
it iterates over the loader, notes every row in a file, saves, and is killed where the schedule says
so.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import multiprocessing
import os
import pickle
import signal
import socket
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, takewhile
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from typing import IO, Any, Literal, NamedTuple

from headrace.loader import StatefulLoader

Trouble = Literal["", "hung", "failed"]
_START_S = 60.0
"""Seconds for a process to start and import what it needs, beside the time-out of the leg."""
_GRACE_S = 2.0
_LOOK_EVERY_S = 0.005
_LAST_LINES = 40
_MOST_LEGS = 5
_MOST_STEPS_BEYOND = 4
_KEEPS_ITS_SIZE = 0.3
_RESIZES = 0.7
_MERGES_WITHOUT_NEED = 0.25


class Size(NamedTuple):
    """A number of ranks, and of workers of each."""

    ranks: int
    workers: int

    def __str__(self) -> str:
        return f"{self.ranks}x{self.workers}"


@dataclass(frozen=True, slots=True)
class Leg:
    """One run of a job: from a start or a resume to the end or a kill.

    Attributes:
        size: The ranks and workers.
        steps: Number of batches that a rank takes before the states are saved; None: to the end of
            the last epoch.
        beyond: Number of batches that a rank takes after the save; at least one if there is one.
        victims: Ranks that are then killed, and the others ended with them; none: the loop is left.
        merged: True if ranks load the merged state of all ranks of the leg before; False if each
            loads its own state.
    """

    size: Size
    steps: int | None = None
    beyond: int = 0
    victims: tuple[int, ...] = ()
    merged: bool = False

    def __str__(self) -> str:
        if self.steps is None:
            return f"{self.size} to the end"
        ending = "killed" if len(self.victims) == self.size.ranks else "leaves"
        if 0 < len(self.victims) < self.size.ranks:
            ending = f"rank {', '.join(map(str, self.victims))} killed"
        return f"{self.size} saves at {self.steps}, {ending} at +{self.beyond}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """The legs of one run; the last of them goes to the end."""

    name: str
    legs: tuple[Leg, ...]

    @property
    def resized(self) -> bool:
        """True if the size changes on the way."""
        return len({leg.size for leg in self.legs}) > 1

    def __str__(self) -> str:
        """Return it in words.

        >>> print(Schedule("1", (Leg(Size(2, 0), 5, 1, (0, 1)), Leg(Size(1, 2), merged=True))))
        2x0 saves at 5, killed at +1 → 1x2 to the end
        """
        return " → ".join(map(str, self.legs))


def draw_schedule(
    seed: int, number: int, *, steps: Mapping[Size, int], can_merge: bool
) -> Schedule:
    """Return schedule ``number`` of a seed.

    Args:
        seed: The seed.
        number: The number of the schedule.
        steps: Number of steps of an uninterrupted run of each size.
        can_merge: True if states can be merged; the size changes only then.
    """
    random = Random(f"{seed}/{number}")
    count = random.randint(2, _MOST_LEGS)
    sizes = _draw_sizes(random, list(steps), count, can_merge)
    # Where legs begin, as shares of the run; a leg does the steps up to the beginning of the next.
    places = [0.0, *sorted(random.random() for _ in range(count - 1))]
    legs = []
    for place, size in enumerate(sizes):
        resizes = place > 0 and size != sizes[place - 1]
        merges_anyway = can_merge and random.random() < _MERGES_WITHOUT_NEED
        merged = place > 0 and (resizes or merges_anyway)
        if place == count - 1:
            legs.append(Leg(size, merged=merged))
            continue
        share = places[place + 1] - places[place]
        legs.append(
            Leg(
                size,
                steps=max(1, round(share * steps[size])),
                beyond=random.randint(1, _MOST_STEPS_BEYOND),
                victims=_draw_victims(random, size.ranks),
                merged=merged,
            )
        )
    return Schedule(str(number), tuple(legs))


def _draw_sizes(random: Random, sizes: Sequence[Size], count: int, can_merge: bool) -> list[Size]:
    drawn = [random.choice(sizes)]
    stays = not can_merge or random.random() < _KEEPS_ITS_SIZE
    while len(drawn) < count:
        others = [size for size in sizes if size != drawn[-1]]
        resizes = bool(others) and not stays and random.random() < _RESIZES
        drawn.append(random.choice(others) if resizes else drawn[-1])
    return drawn


def _draw_victims(random: Random, ranks: int) -> tuple[int, ...]:
    fate = random.choice(["all", "all", "one", "none"])
    if fate == "one":
        return (random.randrange(ranks),)
    return tuple(range(ranks)) if fate == "all" else ()


# --- running


@dataclass(frozen=True, slots=True)
class Loaders:
    """The loaders that are audited, as they are sent to other processes.

    Attributes:
        factory: Makes the loader of (rank, world_size, num_workers).
        row_id: Returns an id for each row of a batch.
        epochs: Number of epochs.
        timeout_s: Seconds that a leg may take.
        merge: Makes one state of the states of all ranks; None if sizes never change.
    """

    factory: Callable[[int, int, int], Any]
    row_id: Callable[[Any], Iterable[Hashable]]
    epochs: int
    timeout_s: float
    merge: Callable[[list[Any]], Any] | None


@dataclass(frozen=True, slots=True)
class Resume:
    """The start of a leg.

    Attributes:
        epoch: The epoch that is read first.
        states: The states that each rank saved; none: from the beginning.
        size: The size of the leg that saved.
        starts_anew: True if the states were taken after the last batch of an epoch.
    """

    epoch: int = 0
    states: tuple[Path, ...] = ()
    size: Size | None = None
    starts_anew: bool = False


@dataclass(frozen=True, slots=True)
class AuditedBatch:
    """Rows that a rank was handed at once."""

    epoch: int
    leg: int
    rank: int
    step: int
    rows: tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class LegRun:
    """The result of a leg.

    Attributes:
        batches: The batches that count: up to the save, or all where there was none to make.
        saved: Where all ranks stood together when they saved; None if they never did.
        ours: True if the loader is one of this library's.
        trouble: "hung" or "failed" if it did not end as planned.
        detail: Stacks of all threads, or the traceback.
    """

    batches: tuple[AuditedBatch, ...] = ()
    saved: Resume | None = None
    ours: bool = False
    trouble: Trouble = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class _Rank:
    """The part of a rank in a leg; it is sent to a fresh process."""

    loaders: Loaders
    leg: Leg
    rank: int
    folder: Path
    start: Resume
    port: int

    def path(self, kind: str, rank: int | None = None) -> Path:
        """Return the file of some kind of this rank, or of another."""
        return self.folder / f"{kind}-{self.rank if rank is None else rank}"


# --- in the parent


def run_leg(
    loaders: Loaders, leg: Leg, number: int, folder: Path, start: Resume, context: BaseContext
) -> LegRun:
    """Run the ranks of a leg side by side. No process of it is left afterwards."""
    folder.mkdir()
    port = _free_port()
    ranks = [_Rank(loaders, leg, rank, folder, start, port) for rank in range(leg.size.ranks)]
    processes: list[BaseProcess] = []
    try:
        for one in ranks:
            processes.append(context.Process(target=_run_rank, args=(one,)))  # type: ignore[attr-defined]
            processes[-1].start()
        culprit = _watch(processes, leg, loaders.timeout_s)
        if culprit is not None:
            return _explain(ranks[culprit], processes[culprit].exitcode)
    finally:
        _end_all(processes)
    logs = [_read_events(one.path("delivered")) for one in ranks]
    ours = all(event[1] for log in logs for event in log if event[0] == "made")
    if leg.steps is None:
        return LegRun(_batches(logs, number), ours=ours)
    saves = {_place_of_save(log) for log in logs}
    place = saves.pop()
    if saves or place is None:  # ranks saved in different epochs, or not all did
        return LegRun(ours=ours)
    epoch, at_end = place
    states = tuple(one.path("state") for one in ranks)
    kept = [list(takewhile(lambda event: event[0] != "saved", log)) for log in logs]
    saved = Resume(epoch + at_end, states, leg.size, starts_anew=at_end)
    return LegRun(_batches(kept, number), saved, ours)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _watch(processes: Sequence[BaseProcess], leg: Leg, timeout_s: float) -> int | None:
    """Wait for the leg to end as planned; return the rank that hangs or failed, if one does."""
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


def _explain(one: _Rank, exitcode: int | None) -> LegRun:
    stacks, output = _last_lines(one.path("hung")), _last_lines(one.path("output"))
    if exitcode is None or stacks:
        waited = f"rank {one.rank} did not end its leg within {one.loaders.timeout_s:g} s"
        return LegRun(trouble="hung", detail=f"{waited}\n{stacks or output}".rstrip())
    died = f"rank {one.rank} ended with exit code {exitcode}"
    return LegRun(trouble="failed", detail=f"{died}\n{output}".rstrip())


def _last_lines(path: Path) -> str:
    """Return the end of a file; the file may be absent if the rank was killed early."""
    text = path.read_text(errors="replace") if path.exists() else ""
    return "\n".join(text.splitlines()[-_LAST_LINES:])


def _end_all(processes: Sequence[BaseProcess]) -> None:
    """Terminate, then kill; also end the worker processes that a killed rank left behind."""
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


def _read_events(path: Path) -> list[list[Any]]:
    lines = path.read_text().split("\n") if path.exists() else [""]
    return [json.loads(line) for line in lines[:-1]]  # a last line without its end is half a line


def _batches(logs: Iterable[list[list[Any]]], leg: int) -> tuple[AuditedBatch, ...]:
    found = []
    for rank, log in enumerate(logs):
        for step, (_, epoch, rows) in enumerate(event for event in log if event[0] == "rows"):
            found.append(AuditedBatch(epoch, leg, rank, step, tuple(map(_hashable, rows))))
    return tuple(found)


def _hashable(row: Any) -> Hashable:
    """Return a row id as it was before JSON made lists of tuples."""
    return tuple(map(_hashable, row)) if isinstance(row, list) else row


def _place_of_save(log: list[list[Any]]) -> tuple[int, bool] | None:
    """Return the epoch in which a rank saved, and if it was at its end; None if it did not."""
    for event, following in pairwise(log):
        if event[0] == "saved":
            return event[1], following[0] == "ended"
    return None


# --- in a child


def _run_rank(task: _Rank) -> None:
    """Run one rank. Its output and its traceback are in its files."""
    os.setpgrp()  # so that worker processes which outlive a killed rank can be ended with it
    multiprocessing.set_start_method(None, force=True)
    rank, ranks = str(task.rank), str(task.leg.size.ranks)
    os.environ.update(
        RANK=rank,
        LOCAL_RANK=rank,
        WORLD_SIZE=ranks,
        LOCAL_WORLD_SIZE=ranks,
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(task.port),
    )
    output = os.open(task.path("output"), os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    hung = os.open(task.path("hung"), os.O_WRONLY | os.O_CREAT)
    faulthandler.dump_traceback_later(task.loaders.timeout_s, exit=True, file=hung)
    _train(task)


def _train(task: _Rank) -> None:
    leg, taken = task.leg, 0
    loader = task.loaders.factory(task.rank, leg.size.ranks, leg.size.workers)
    if task.start.states:
        loader.load_state_dict(_state_to_load(task))
    with task.path("delivered").open("w") as log:
        _note(log, "made", isinstance(loader, StatefulLoader))
        for epoch, rows in _passes(loader, task):
            _note(log, "ended" if rows is None else "rows", epoch, rows)
            if leg.steps is None:
                continue
            if taken == leg.steps:
                task.path("went-on").touch()
            taken += rows is not None
            if rows is not None and taken == leg.steps:
                task.path("state").write_bytes(pickle.dumps(loader.state_dict()))
                _note(log, "saved", epoch)
                _meet(task, "saved")  # a checkpoint is whole when all have written theirs
            if taken >= leg.steps + leg.beyond:
                _end(task)  # in the middle of the loop, with all that the loader has under way
                return
    _end(task)


def _state_to_load(task: _Rank) -> Any:
    states, merge = task.start.states, task.loaders.merge
    if merge is not None and (task.leg.merged or task.leg.size != task.start.size):
        return merge([pickle.loads(path.read_bytes()) for path in states])
    return pickle.loads(states[task.rank].read_bytes())


def _passes(loader: Any, task: _Rank) -> Iterator[tuple[int, list[Hashable] | None]]:
    """Yield the rows of each batch; None where an epoch is over."""
    row_id, first = task.loaders.row_id, task.start.epoch
    for epoch in range(first, task.loaders.epochs):
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch)
        batches = iter(loader)
        batch = next(batches, None)
        if batch is None and task.start.starts_anew and epoch == first:
            # The state was taken at the end of an epoch: a pass without rows does not count.
            batches = iter(loader)
            batch = next(batches, None)
        if batch is not None:
            for one in chain([batch], batches):
                yield epoch, list(row_id(one))
        yield epoch, None


def _note(log: IO[str], *event: object) -> None:
    """Write and flush one line before the next batch is requested from the loader."""
    log.write(json.dumps(event, default=repr) + "\n")
    log.flush()


def _meet(task: _Rank, where: str) -> None:
    """Wait for all ranks, or for the end of those that will not get this far."""
    task.path(where).touch()
    others = range(task.leg.size.ranks)
    places = [(task.path(where, rank), task.path("ended", rank)) for rank in others]
    while not all(there.exists() or ended.exists() for there, ended in places):
        time.sleep(_LOOK_EVERY_S)


def _end(task: _Rank) -> None:
    """End the leg, which is over when all ranks know if more rows followed their save."""
    task.path("ended").touch()
    if task.rank in task.leg.victims:
        _meet(task, "went-on")
        os.kill(os.getpid(), signal.SIGKILL)
    if task.leg.victims:
        signal.pause()  # until it is ended with the others
