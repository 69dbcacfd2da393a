"""Copy data in numbered parts: the one way in which this library writes data sets.

A copy is a list of tasks. A task names a part of the target and says where its data begin in the
source. Tasks are independent of each other and pickle: any process can run one. A task that is done
is committed by one line of the journal, so that a copy that was killed continues with the tasks
that have no line. When all are done the target shows all parts in one step.

Where it is known in advance which data belong to a part, all tasks are known at once, and processes
run several at a time. Where parts end follows from the data, each task begins where the one before
ended.
"""

from __future__ import annotations

import os
import queue
import shutil
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from headrace.errors import OptionError, WriteError
from headrace.model import Int64Array, computed_once
from headrace.write.journal import Journal
from headrace.write.pool import WorkerPool
from headrace.write.targets import Receipt, TargetWriter

__all__ = [
    "Copied",
    "Items",
    "PartSource",
    "Place",
    "Progress",
    "Share",
    "SizedParts",
    "Stage",
    "Task",
    "copy",
    "ignore",
    "run_stage",
    "worker_count",
]

Place = tuple[int, int]
"""a position in a source; what the two numbers count is the source's own business"""
Progress = Callable[[str, float], None]
"""called with the name of a stage and the share of it that is done, a ``Share``"""
Reading = Generator[tuple[Place, Any], None, Place | None]
"""items with the place behind each; returns where the next part begins, None at the end"""

_BYTES_A_WORKER = 256 << 20
"""of the source: a process takes a second to start, in which much of this is copied already"""
_UNFINISHED = 0.999


@dataclass(frozen=True, slots=True)
class Task:
    """The work of one part.

    Attributes:
        part: The number of the part.
        start: Where its data begin.
        number: The number of rows before it.
        rows: The number of its rows; None if the part ends when it is full.
    """

    part: int
    start: Place = (0, 0)
    number: int = 0
    rows: int | None = None


class PartSource(Protocol):
    """Data that are read part by part. It holds options and metadata only, so that it pickles."""

    @property
    def tasks(self) -> Sequence[Task] | None:
        """The tasks of all parts; None if each part begins where the one before ended."""
        ...

    @property
    def size_bytes(self) -> int:
        """About how many bytes are read in all."""
        ...

    def bytes_before(self, place: Place) -> float:
        """Return about how many bytes lie before a place."""
        ...

    def read(self, task: Task) -> Reading:
        """Yield the items of a part, or of all that follows where the part ends when it is full."""
        ...


class SizedParts:
    """A source whose places are a unit (a chunk, a file, a tar) and rows or samples of it."""

    @property
    def unit_bytes(self) -> Sequence[int]:
        """About how many bytes each unit has."""
        raise NotImplementedError

    def rows_of(self, unit: int) -> int | None:
        """Return the number of rows of a unit; None if it is unknown."""
        return None

    @computed_once
    def _before(self) -> Int64Array:
        before: Int64Array = np.concatenate([[0], np.cumsum(self.unit_bytes)]).astype(np.int64)
        return before

    @property
    def size_bytes(self) -> int:
        """About how many bytes are read in all."""
        return int(self._before[-1])

    def bytes_before(self, place: Place) -> float:
        """Return about how many bytes lie before a place."""
        unit = min(place[0], len(self._before) - 1)
        before = float(self._before[unit])
        rows = self.rows_of(unit) if place[1] else None
        if rows is None:
            return before
        return before + float(self._before[unit + 1] - self._before[unit]) * place[1] / max(rows, 1)


class Share(float):
    """The share of a stage that is done, from 0 to 1, with the speed of the work.

    Attributes:
        bytes_per_s: Bytes of the source that are read in a second; None as long as it is unknown.
        remaining_s: Seconds until the stage ends at that speed; None as long as it is unknown.
    """

    bytes_per_s: float | None = None
    remaining_s: float | None = None


class Items(Iterator[Any]):
    """The items of a part, which remember how far they were taken."""

    def __init__(self, reading: Reading, start: Place, report: Callable[[Place], None]) -> None:
        self.following: Place | None = start
        self._reading = reading
        self.place = self._before = start
        self._report = report

    def __next__(self) -> Any:
        try:
            place, item = next(self._reading)
        except StopIteration as end:
            self.following = end.value
            self.place = self.place if end.value is None else end.value
            raise
        self._before, self.place = self.place, place
        self.following = place
        self._report(self._before)
        return item

    def put_back(self) -> None:
        """Leave the last item to the next part."""
        self.place = self.following = self._before

    def close(self) -> None:
        """End the reading of what was not taken."""
        self._reading.close()


@dataclass(frozen=True, slots=True)
class Stage:
    """A list of tasks that do the same: read items, and write them to a part."""

    name: str
    source: PartSource
    write: Callable[[Task, Items], Receipt]

    def run(self, task: Task, report: Callable[[Place], None]) -> dict[str, Any]:
        """Do a task, in whatever process; return what the journal is to hold of it."""
        with closing(Items(self.source.read(task), task.start, report)) as items:
            receipt = self.write(task, items)
        rows = receipt["rows"]
        if task.rows not in (None, rows):
            raise WriteError(
                f"part {task.part} got {rows} rows and not {task.rows}: the source or files of the "
                "work directory have changed; delete the work directory and start anew"
            )
        return {
            "receipt": receipt,
            "rows": rows,
            "following": items.following,
            "bytes": self.bytes_between(task.start, items.place),
        }

    def bytes_between(self, start: Place, stop: Place) -> float:
        """Return about how many bytes of the source lie between two places."""
        return max(self.source.bytes_before(stop) - self.source.bytes_before(start), 0.0)


def run_stage(
    stage: Stage,
    journal: Journal,
    *,
    workers: int | None,
    progress: Progress,
    holds: Callable[[Receipt], bool] = lambda receipt: True,
) -> list[Receipt]:
    """Run the tasks that the journal does not have, and return the receipts of all, in order.

    Args:
        stage: The tasks.
        journal: Says which of them are done.
        workers: The number of processes; 0 for this one, None to choose by the size of the source.
        progress: Called in this thread.
        holds: Returns False if what was written by a task that is done is gone. It is done again.
    """
    done = {entry[stage.name]: entry for entry in journal.all(stage.name)}
    done = {part: entry for part, entry in done.items() if holds(entry["receipt"])}
    meter = _Meter(stage, done, progress)
    meter.report()
    count = worker_count(stage.source.size_bytes, workers)
    while ready := _ready(stage.source.tasks, done):
        run = _run_here if count < 2 or len(ready) < 2 else partial(_run_by_processes, count)
        for task, result in run(stage, ready, meter):
            journal.note({stage.name: task.part, **result})
            done[task.part] = result
            meter.finish(task, result["bytes"])
    return [done[part]["receipt"] for part in sorted(done)]


def _ready(planned: Sequence[Task] | None, done: Mapping[int, Any]) -> list[Task]:
    """Return the tasks that can be done now."""
    if planned is not None:
        return [task for task in planned if task.part not in done]
    task = Task(0)
    while (result := done.get(task.part)) is not None:
        if result["following"] is None:
            return []
        task = Task(task.part + 1, tuple(result["following"]), task.number + result["rows"])
    return [task]


Results = Iterator[tuple[Task, dict[str, Any]]]


def _run_here(stage: Stage, tasks: Sequence[Task], meter: _Meter) -> Results:
    for task in tasks:
        yield task, stage.run(task, partial(meter.advance, task))


def _run_by_processes(count: int, stage: Stage, tasks: Sequence[Task], meter: _Meter) -> Results:
    with WorkerPool(min(count, len(tasks)), stage.run) as pool:
        events: queue.SimpleQueue[tuple[Task, str, Any]] = queue.SimpleQueue()
        for task in tasks:
            pool.submit(task, events.put)
        left = len(tasks)
        while left:
            task, kind, value = events.get()
            if kind == "error":
                raise value
            if kind == "result":
                left -= 1
                yield task, value
            else:
                meter.advance(task, value)


def worker_count(size_bytes: int, workers: int | None) -> int:
    """Return a number of processes; None is chosen by the size of the source."""
    if workers is None:
        return min(os.cpu_count() or 1, size_bytes // _BYTES_A_WORKER)
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 0:
        raise OptionError(f"workers must be a number of processes, or 0 for none, not {workers!r}")
    return workers


class _Meter:
    """Counts the bytes that were read, and tells the user."""

    def __init__(self, stage: Stage, done: Mapping[int, Any], progress: Progress) -> None:
        self._stage = stage
        self._progress = progress
        self._began = time.monotonic()
        self._total = max(stage.source.size_bytes, 1)
        self._running: dict[int, float] = {}
        self._finished = self._before = sum(float(entry["bytes"]) for entry in done.values())

    def advance(self, task: Task, place: Place) -> None:
        """Note how far a task has come."""
        self._running[task.part] = self._stage.bytes_between(task.start, place)
        self.report()

    def finish(self, task: Task, size: float) -> None:
        """Note that a task is done."""
        self._running.pop(task.part, None)
        self._finished += size
        self.report()

    def report(self) -> None:
        """Call the user's function."""
        read = self._finished + sum(self._running.values())
        share = Share(min(read / self._total, _UNFINISHED))
        elapsed, new = time.monotonic() - self._began, read - self._before
        if new > 0 and elapsed > 0:
            share.bytes_per_s = new / elapsed
            share.remaining_s = max(self._total - read, 0.0) / share.bytes_per_s
        self._progress(self._stage.name, share)


@dataclass(frozen=True, slots=True)
class Copied:
    """A copy that is complete.

    Attributes:
        receipts: What the target returned for each part, in order.
        resumed: True if earlier, unfinished work was continued.
    """

    receipts: list[Receipt]
    resumed: bool

    @property
    def rows(self) -> int:
        """The number of rows of all parts."""
        return sum(int(receipt["rows"]) for receipt in self.receipts)


def copy(
    source: PartSource | Callable[[Journal], PartSource],
    target: TargetWriter,
    *,
    work: Mapping[str, Any],
    work_dir: Path,
    schema: pa.Schema | None = None,
    facts: Mapping[str, Any] | None = None,
    once: bool = False,
    settings: Mapping[str, Any] | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    stage: str = "writing",
) -> Copied:
    """Write all parts of a source to a target, and show them when the last one is written.

    Args:
        source: The data, or a function that prepares them with the journal of the copy.
        target: Encodes parts and holds them.
        work: Describes the copy. Unfinished work of another description is refused.
        work_dir: A folder for the journal and for what is on its way; removed at the end.
        schema: The columns of the source, for targets that need them.
        facts: What the target notes of the copy beside its number of rows.
        once: True if the source can be read but once, so that nothing can be continued.
        settings: What the journal keeps of the first run for those that continue it.
        workers: The number of processes; 0 for this one, None to choose by the size of the source.
        progress: Called with a stage and the ``Share`` of it that is done.
        stage: The name of the work for ``progress``.

    Raises:
        OptionError: The target holds data that must not be lost.
        StateMismatchError: The work directory holds unfinished work of other data or options.
        WriteError: The target cannot be written.
    """
    progress = progress or ignore
    fresh = not Journal.exists(work_dir)
    if fresh:
        target.refuse(schema)
    with closing(Journal(work_dir, work, once=once, settings=settings or {})) as journal:
        try:
            if not fresh and not journal.resumed:
                target.refuse(schema)
            prepared = source(journal) if callable(source) else source
            parts = None if prepared.tasks is None else len(prepared.tasks)
            copied = Copied(
                run_stage(
                    Stage(stage, prepared, partial(_write_part, target, parts, schema)),
                    journal,
                    workers=0 if once else workers,
                    progress=progress,
                    holds=lambda receipt: target.holds(receipt, journal.run),
                ),
                journal.resumed,
            )
            noted = {"run": journal.run, "rows": copied.rows, **(facts or {})}
            target.commit(schema, copied.receipts, noted)
        except BaseException:
            if once or not journal.has_results:
                _remove(journal, target)
            raise
        progress(stage, Share(1.0))
        _remove(journal, target)
    return copied


def _write_part(
    target: TargetWriter, parts: int | None, schema: pa.Schema, task: Task, items: Items
) -> Receipt:
    return target.write(task.part, parts, schema, items)


def _remove(journal: Journal, target: TargetWriter) -> None:
    """Remove what the work left; the journal last, so that a kill is harmless."""
    staging = getattr(target, "staging", None)
    for folder in (journal.directory / "runs", journal.directory / "parts", staging):
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
    journal.remove()


def ignore(stage: str, share: float) -> None:
    """Do nothing: no progress was asked for."""
