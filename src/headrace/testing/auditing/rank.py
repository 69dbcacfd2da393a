"""A rank in its own process: iterates, notes every row, saves, and dies where it must."""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from headrace.errors import OptionError
from headrace.loader import StatefulLoader
from headrace.testing.auditing.schedule import Leg

__all__ = ["RankTask", "column_ids", "run_rank"]

_ID_COLUMNS = ("row", "id")
_LOOK_EVERY_S = 0.005


@dataclass(frozen=True, slots=True)
class RankTask:
    """One rank's part in a leg; travels to a fresh process."""

    factory: Callable[[int, int, int], Any]
    row_id: Callable[[Any], Iterable[Hashable]]
    leg: Leg
    rank: int
    folder: Path
    """of this leg: where the ranks leave what they delivered, and their states"""
    epochs: range
    """epochs that are left, the one that was interrupted included"""
    states: tuple[Path, ...]
    """what the ranks before saved; none at the start"""
    merge: Callable[[list[Any]], Any] | None
    """makes one state of all of them; None: each rank loads its own"""
    starts_anew: bool
    """the state was taken at the end of an epoch: a first pass without rows is not an epoch"""
    timeout_s: float
    port: int
    """free for the ranks to meet at"""

    def path(self, kind: str, rank: int | None = None) -> Path:
        """The file of some kind of this rank, or of another."""
        return self.folder / f"{kind}-{self.rank if rank is None else rank}"


def run_rank(task: RankTask) -> None:
    """Run in a child process. What it prints and dies of is found in the rank's files."""
    os.setpgrp()  # so that worker processes which outlive a killed rank can be ended with it
    _act_like_a_launched_process(task)
    output = os.open(task.path("output"), os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    hung = os.open(task.path("hung"), os.O_WRONLY | os.O_CREAT)
    faulthandler.dump_traceback_later(task.timeout_s, exit=True, file=hung)
    _train(task)


def _act_like_a_launched_process(task: RankTask) -> None:
    """The variables of torchrun, and worker processes as the platform starts them."""
    multiprocessing.set_start_method(None, force=True)
    ranks = str(task.leg.size.ranks)
    os.environ.update(
        RANK=str(task.rank),
        LOCAL_RANK=str(task.rank),
        WORLD_SIZE=ranks,
        LOCAL_WORLD_SIZE=ranks,
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(task.port),
    )


def _train(task: RankTask) -> None:
    leg, taken = task.leg, 0
    loader = task.factory(task.rank, leg.size.ranks, leg.size.workers)
    if task.states:
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
                _write_state(task.path("state"), loader.state_dict())
                _note(log, "saved", epoch)
                _meet(task, "saved")  # a checkpoint is whole when all have written theirs
            if taken >= leg.steps + leg.beyond:
                _end(task)  # in the middle of the loop, with all that the loader has under way
                return
    _end(task)


def _state_to_load(task: RankTask) -> Any:
    if task.merge is None:
        return _read_state(task.states[task.rank])
    return task.merge([_read_state(path) for path in task.states])


def _passes(loader: Any, task: RankTask) -> Iterator[tuple[int, list[Hashable] | None]]:
    """The rows of each batch; None where an epoch is over."""
    for epoch in task.epochs:
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch)
        empty = True
        for batch in loader:
            empty = False
            yield epoch, list(task.row_id(batch))
        if empty and task.starts_anew and epoch == task.epochs.start:
            for batch in loader:
                yield epoch, list(task.row_id(batch))
        yield epoch, None


def column_ids(batch: Any) -> Iterable[Hashable]:
    """The ids of a batch that is a mapping of columns: its column "row", or "id"."""
    if isinstance(batch, Mapping):
        for name in _ID_COLUMNS:
            if name in batch:
                column = batch[name]
                ids: Iterable[Hashable] = column.tolist() if hasattr(column, "tolist") else column
                return ids
    raise OptionError(
        f'a batch of type {type(batch).__name__} has no column "row" or "id"; '
        "give row_id=, a function that takes a batch and returns an id for each of its rows"
    )


def _note(log: IO[str], *event: object) -> None:
    """One line, on its way to the disk before anything else is asked of the loader."""
    log.write(json.dumps(event, default=repr) + "\n")
    log.flush()


def _write_state(path: Path, state: Any) -> None:
    path.write_bytes(_as_json(state) or pickle.dumps(state))


def _as_json(state: Any) -> bytes | None:
    """None where JSON would make something else of the state."""
    try:
        text = json.dumps(state)
    except (TypeError, ValueError):
        return None
    return text.encode() if json.loads(text) == state else None


def _read_state(path: Path) -> Any:
    written = path.read_bytes()
    return pickle.loads(written) if written.startswith(b"\x80") else json.loads(written)


def _meet(task: RankTask, where: str) -> None:
    """Wait for all ranks, those that will not get this far included."""
    task.path(where).touch()
    others = [
        (task.path(where, rank), task.path("ended", rank)) for rank in range(task.leg.size.ranks)
    ]
    while not all(there.exists() or ended.exists() for there, ended in others):
        time.sleep(_LOOK_EVERY_S)


def _end(task: RankTask) -> None:
    """A leg is over when all ranks know whether more rows followed their save."""
    task.path("ended").touch()
    if task.rank in task.leg.victims:
        _meet(task, "went-on")
        os.kill(os.getpid(), signal.SIGKILL)
    if task.leg.victims:
        signal.pause()  # until it is ended with the others
