"""Copy data in numbered parts: the one way in which this library writes data sets.

A copy is a list of tasks. A task is a run of rows (or samples, or videos) of the source that
becomes one part of the target. All tasks are known before the first one begins; they are
independent of each other and pickle, so that any process of any machine can run one. A task that
is done is committed by one line of the journal, so that a copy that was killed continues with the
tasks that have no line. When all are done the target shows all parts in one step.

A work directory has one journal, and is used by one process at a time. The first line describes the
work. Each further line is a task that is done, and is on the disk before the next step begins.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import pyarrow as pa

from headrace.errors import OptionError, StateMismatchError, WriteError
from headrace.options import CopyOptions
from headrace.process import usable_cores
from headrace.storage import (
    check_on,
    cores_of_a_node,
    file_lock,
    flush_directory,
    protocol_of,
    run_by_processes,
    run_on_ray,
)
from headrace.write._targets import Receipt, TargetOptions, TargetWriter, writing

Progress = Callable[[str, float], None]
"""A function that is called with the name of a stage and the ``Share`` of it that is done."""

_BYTES_A_WORKER = 256 << 20
"""Bytes of the source for which a process is started: starting one takes about a second."""
_UNFINISHED = 0.999

_NAME, _LOCK = "journal.jsonl", "lock"
_VERSION = 3


@dataclass(frozen=True, slots=True)
class Task:
    """The work of one part.

    Attributes:
        part: The number of the part.
        first: The number of the first row, sample or video that it reads.
        rows: The number of rows, samples or videos that it reads; None if only reading them tells.
        size_bytes: About how many bytes of the source it reads.
    """

    part: int
    first: int = 0
    rows: int | None = None
    size_bytes: int = 0

    def __str__(self) -> str:
        return f"part {self.part}"


def cut_tasks(sizes: Iterable[int], is_full: Callable[[int, int, int], bool]) -> list[Task]:
    """Return tasks of consecutive items, each of at least one.

    Args:
        sizes: The size of each item in bytes.
        is_full: Returns True if an item belongs into another task. It is called with the bytes and
            the number of the items before it, and its own bytes.
    """
    tasks: list[Task] = []
    first, held, count = 0, 0, 0
    for size in sizes:
        if count and is_full(held, count, size):
            tasks.append(Task(len(tasks), first, count, held))
            first, held, count = first + count, 0, 0
        held += size
        count += 1
    if count:
        tasks.append(Task(len(tasks), first, count, held))
    return tasks


def larger_than(limit_bytes: int) -> Callable[[int, int, int], bool]:
    """Return an ``is_full`` of tasks that have so many bytes at most."""
    return lambda held, count, more: held + more > limit_bytes


class TasksInTurn(Protocol):
    """Tasks that this process does one after the other; only reading tells the next one."""

    @property
    def size_bytes(self) -> int:
        """About how many bytes of the source all of them read; 0 if that is unknown."""
        ...

    @property
    def bytes_read(self) -> int:
        """About how many bytes have been read."""
        ...

    def __iter__(self) -> Iterator[Task]: ...


class PartSource(Protocol):
    """Data that are read part by part.

    If its tasks are a sequence it holds options and metadata only, so that it pickles.
    """

    @property
    def tasks(self) -> Sequence[Task] | TasksInTurn:
        """The tasks of all parts."""
        ...

    def read(self, task: Task) -> Generator[Any, None, None]:
        """Yield the tables of a part, or its samples or videos."""
        ...


class Share(float):
    """The share of a stage that is done, from 0 to 1, with the speed of the work.

    Attributes:
        bytes_per_s: Bytes of the source that are read in a second; None as long as it is unknown.
        remaining_s: Seconds until the stage ends at that speed; None as long as it is unknown.
    """

    bytes_per_s: float | None = None
    remaining_s: float | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """A list of tasks that do the same: read items, and write them to a part."""

    name: str
    source: PartSource
    write: Callable[[Task, Iterator[Any]], Receipt]

    def run(self, task: Task, report: Callable[[int], None]) -> Receipt:
        """Do a task, in whatever process; ``report`` is called with the rows that were read."""
        read = 0

        def items() -> Iterator[Any]:
            nonlocal read
            for item in reading:
                report(read)
                read += getattr(item, "num_rows", 1)
                yield item

        with closing(self.source.read(task)) as reading:
            receipt = self.write(task, items())
        if task.rows not in (None, read):
            raise WriteError(
                f"part {task.part} got {read} rows and not {task.rows}: the source or files of the "
                "work directory have changed; delete the work directory and start anew"
            )
        return receipt


def ignore(stage: str, share: float) -> None:
    """Do nothing: no progress was asked for."""


Results = Iterator[tuple[Task, Receipt]]


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs tasks in processes, and tells the user how far they are.

    Attributes:
        workers: The number of processes; 0 for this one, None to choose by the size of the source,
            or on Ray as many as the cluster has cores.
        progress: Called in the thread of the caller.
        on: ``"ray"`` to run tasks on a Ray cluster; None for processes of this machine.
    """

    workers: int | None = None
    progress: Progress = ignore
    on: str | None = None

    @classmethod
    def of(cls, options: CopyOptions) -> Runner:
        """Return what runs a copy with these options."""
        return cls(options["workers"], options["progress"] or ignore, options["on"])

    def __post_init__(self) -> None:
        check_on(self.on)
        if self.on == "ray" and self.workers == 0:
            raise OptionError('workers=0 is this process, and on="ray" is others; give one of them')

    def process_count(self, size_bytes: int) -> int:
        """Return the number of processes of a machine that share its memory."""
        if self.on == "ray":
            return min(cores_of_a_node(), self.workers or cores_of_a_node())
        if self.workers is None:
            return min(usable_cores(), size_bytes // _BYTES_A_WORKER)
        return self.workers

    def run(
        self,
        stage: Stage,
        journal: Journal,
        holds: Callable[[Receipt], bool] = lambda receipt: True,
    ) -> list[Receipt]:
        """Run the tasks that the journal does not have, and return the receipts of all, in order.

        Args:
            stage: The tasks.
            journal: Says which of them are done.
            holds: Returns False if the output of a task that is done is gone. It is done again.
        """
        done = {
            part: receipt for part, receipt in journal.results(stage.name).items() if holds(receipt)
        }
        tasks = stage.source.tasks
        meter = _ProgressMeter(stage.name, tasks, done, self.progress)
        meter.report()
        for task, receipt in self._results(stage, tasks, done, meter):
            journal.note_result(stage.name, task.part, receipt)
            done[task.part] = receipt
            meter.finish(task)
        return [done[part] for part in sorted(done)]

    def _results(
        self,
        stage: Stage,
        tasks: Sequence[Task] | TasksInTurn,
        done: Mapping[int, Receipt],
        meter: _ProgressMeter,
    ) -> Results:
        """Yield tasks and their receipts, in the order in which they are done."""
        if isinstance(tasks, Sequence):
            left = [task for task in tasks if task.part not in done]
            if self.on == "ray":
                yield from run_on_ray(stage.run, left, self.workers)
                return
            count = self.process_count(sum(task.size_bytes for task in left))
            if count > 1 and len(left) > 1:
                yield from run_by_processes(stage.run, left, count, meter.advance)
                return
        for task in tasks:
            if task.part not in done:
                yield task, stage.run(task, partial(meter.advance, task))


class _ProgressMeter:
    """Counts the bytes that were read, and tells the user."""

    def __init__(
        self,
        stage: str,
        tasks: Sequence[Task] | TasksInTurn,
        done: Mapping[int, Any],
        progress: Progress,
    ) -> None:
        self._stage = stage
        self._progress = progress
        self._began = time.monotonic()
        self._in_turn = None if isinstance(tasks, Sequence) else tasks
        planned = tasks if isinstance(tasks, Sequence) else ()
        total = sum(task.size_bytes for task in planned)
        self._total = max(total if self._in_turn is None else self._in_turn.size_bytes, 1)
        self._running: dict[int, float] = {}
        self._finished = sum(task.size_bytes for task in planned if task.part in done)
        self._before = self._read()

    def advance(self, task: Task, rows: int) -> None:
        """Note how many rows a task has read."""
        self._running[task.part] = task.size_bytes * rows / max(task.rows or 0, rows, 1)
        self.report()

    def finish(self, task: Task) -> None:
        """Note that a task is done."""
        self._running.pop(task.part, None)
        self._finished += task.size_bytes
        self.report()

    def report(self) -> None:
        """Call the user's function."""
        read = self._read()
        share = Share(min(read / self._total, _UNFINISHED))
        elapsed, new = time.monotonic() - self._began, read - self._before
        if new > 0 and elapsed > 0:
            share.bytes_per_s = new / elapsed
            share.remaining_s = max(self._total - read, 0.0) / share.bytes_per_s
        self._progress(self._stage, share)

    def _read(self) -> float:
        if self._in_turn is not None:
            return self._in_turn.bytes_read
        return self._finished + sum(self._running.values())


# The journal.


class Journal:
    """The journal of a work directory, which this process has for itself until it is closed.

    Args:
        directory: The work directory, which is made if it does not exist.
        work: Describes the work. Unfinished work of another description is refused.
        once: True if the work cannot be continued, since its source can be read only once.
    """

    def __init__(self, directory: Path, work: Mapping[str, Any], *, once: bool = False) -> None:
        self.directory = directory
        with writing(directory):
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = file_lock(directory / _LOCK, wait=False)
            try:
                self._lock.__enter__()
            except TimeoutError:
                raise WriteError(
                    f"another process is working in {directory}; wait for it"
                ) from None
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
        """Return True if a work directory has a journal, of whatever work."""
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
        """Note that a task is done, which lasts when this returns."""
        self._note({"stage": stage, "part": part, "receipt": receipt})

    def decide(self, name: str, choose: Callable[[], Any]) -> Any:
        """Return a number that the first run chose; runs that continue it use the same.

        What decides where parts begin must not differ from run to run, or rows would be lost.
        """
        for entry in self._entries:
            if entry.get("decided") == name:
                return entry["value"]
        value = choose()
        self._note({"decided": name, "value": value})
        return value

    def _note(self, entry: Mapping[str, Any]) -> None:
        """Add a line, which lasts when this returns."""
        with writing(self.directory / _NAME):
            line = json.dumps(entry).encode() + b"\n"
            if self._file.write(line) != len(line):
                raise OSError("only a part of a line was written")
            os.fsync(self._file.fileno())
        self._entries.append(dict(entry))

    def close(self) -> None:
        """Let other processes have the work directory."""
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
                f"{self.directory} holds unfinished work that is another (not the same: {named}); "
                "run it with the same source and options to finish it, or delete that directory to "
                "start anew"
            )


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines that were written to their end, and cut off what a kill left behind them."""
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


# Copies.


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


class CopySource(Protocol):
    """Data that is copied."""

    @property
    def facts(self) -> Mapping[str, str]:
        """Digests that must be the same when a copy is continued."""
        ...

    @property
    def paths(self) -> Sequence[str]:
        """The files that are read."""
        ...

    @property
    def locations(self) -> Sequence[str]:
        """The locations that the user named."""
        ...

    @property
    def schema(self) -> pa.Schema | None:
        """The columns, for targets that need them."""
        ...

    @property
    def once(self) -> bool:
        """True if the data can be read only once, so that nothing can be continued."""
        ...


def copy(
    source: CopySource,
    plan: Callable[[Journal, Runner], PartSource],
    target: TargetWriter,
    options: TargetOptions,
    runner: Runner,
    *,
    work: Mapping[str, Any],
    facts: Mapping[str, Any] | None = None,
    stage: str = "writing",
) -> Copied:
    """Write all parts of a source to a target, and show them when the last one is written.

    Args:
        source: The data.
        plan: Returns the data with their tasks; it may do work of its own that the journal notes.
        target: Encodes parts and holds them.
        options: The location of the target, and the folder for the journal and for what is on its
            way, which is removed at the end.
        runner: Runs the tasks.
        work: Describes the copy. Unfinished work of another description is refused.
        facts: What the target notes of the copy beside its number of rows.
        stage: The name of the work for ``progress``.

    Raises:
        OptionError: The target holds data that must not be lost, or is inside the source.
        StateMismatchError: The work directory holds unfinished work of other data or options.
        WriteError: The target cannot be written.
    """
    refuse_overlap(source, options.location)
    if source.once and runner.on is not None:
        raise OptionError(
            "tables that are at hand can be read by this process only; write them to files first, "
            f'or leave out on="{runner.on}"'
        )
    fresh = not Journal.exists(options.work_dir)
    if fresh:
        target.refuse(source.schema)
    work = {**work, **source.facts, "target": options.location}
    with closing(Journal(options.work_dir, work, once=source.once)) as journal:
        try:
            if not fresh and not journal.resumed:
                target.refuse(source.schema)
            parts = plan(journal, runner)
            count = len(parts.tasks) if isinstance(parts.tasks, Sequence) else None
            receipts = runner.run(
                Stage(stage, parts, partial(_write_part, target, count, source.schema)),
                journal,
                lambda receipt: target.holds(receipt, journal.run),
            )
            copied = Copied(receipts, journal.resumed)
            noted = {"run": journal.run, "rows": copied.rows, **(facts or {})}
            target.commit(source.schema, copied.receipts, noted)
        except BaseException:
            if source.once or not journal.has_results:
                _remove(journal, target)
            raise
        runner.progress(stage, Share(1.0))
        _remove(journal, target)
    return copied


def _write_part(
    target: TargetWriter, parts: int | None, schema: pa.Schema, task: Task, items: Iterator[Any]
) -> Receipt:
    return target.write(task.part, parts, schema, items)


def _remove(journal: Journal, target: TargetWriter) -> None:
    """Remove what the work left; the journal last, so that a kill is harmless."""
    staging = getattr(target, "staging", None)
    for folder in (journal.directory / "runs", journal.directory / "parts", staging):
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
    journal.remove()


def digest_of(lines: Iterable[object]) -> str:
    """Return a text that differs if any of the lines does."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(f"{line}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]


def refuse_overlap(source: CopySource, target: str) -> None:
    """Raise an OptionError if the target holds files of the source, or is in its directory."""
    goal = _comparable(target)
    for path in (*source.paths, *source.locations):
        if _is_inside(_comparable(path), goal):
            raise OptionError(
                f"the source file {path} is inside the target {target}; choose another target"
            )
    for location in source.locations:
        place = _comparable(location)
        if (protocol_of(location) or os.path.isdir(place)) and _is_inside(goal, place):
            raise OptionError(
                f"the target {target} is inside the source {location}, which would then hold every "
                "row twice; choose another target"
            )


def _comparable(location: str) -> str:
    return location.rstrip("/") if protocol_of(location) else os.path.realpath(location)


def _is_inside(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")
