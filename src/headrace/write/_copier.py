"""Copy data in numbered parts: all data sets of this library are written in this way.

A copy is a list of tasks. A task is a run of rows (or samples, or videos) of the source that
becomes one part of the target. All tasks are known before the first one begins; they are
independent of each other and pickle, so that any process of any machine can run one. A task that
is done is committed by one line of the journal, so that a copy that was killed continues with the
tasks that have no line. When all are done the target shows all parts in one step.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from headrace.errors import OptionError, WriteError
from headrace.model import DataFileInfo
from headrace.options import CopyOptions
from headrace.process import usable_cores
from headrace.storage import (
    Options,
    check_on,
    cores_of_a_node,
    protocol_of,
    run_by_processes,
    run_on_ray,
)
from headrace.write._journal import Journal
from headrace.write._places import PathLike, target_location, work_directory

logger = logging.getLogger(__name__)

Progress = Callable[[str, float], None]
"""A function that is called with the name of a stage and the ``Share`` of it that is done."""
Receipt = dict[str, Any]
"""The facts of a part that a target needs for its commit: JSON, with the number of ``rows``."""

_BYTES_A_WORKER = 256 << 20
"""Bytes of the source for which a process is started: starting one takes about a second."""
_UNFINISHED = 0.999
_WRITING = "writing"
"""The stage in which parts of the target are written."""


# Sources: what is copied.


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

    @property
    def stop(self) -> int:
        """The number behind the last row, sample or video."""
        return self.first + (self.rows or 0)

    def __str__(self) -> str:
        return f"part {self.part}"


def cut_tasks(sizes: Iterable[int], is_full: Callable[[int, int, int], bool]) -> list[Task]:
    """Return tasks of consecutive items, each of at least one.

    Args:
        sizes: The size of each item in bytes.
        is_full: Returns True if an item belongs in another task. It is called with the bytes and
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
    """Return an ``is_full`` that limits the bytes of the tasks of a part."""
    return lambda held, count, more: held + more > limit_bytes


class PartSource(Protocol):
    """Data that is read part by part.

    If its tasks are a sequence it holds options and metadata only, so that it pickles. If they are
    not, this process does them in turn, and only reading tells the next one.
    """

    @property
    def tasks(self) -> Sequence[Task] | Iterator[Task]:
        """The tasks of all parts."""
        ...

    def read(self, task: Task) -> Generator[Any, None, None]:
        """Yield the tables of a part, or its samples or videos."""
        ...


@dataclass(frozen=True, slots=True)
class Origin:
    """The facts of a source of data.

    Attributes:
        facts: Digests that must be the same when a copy is continued.
        paths: The files that are read.
        locations: The locations that the user named.
        schema: The columns, for targets that need them.
        once: True if the data can be read only once, so a copy cannot be continued.
    """

    facts: Mapping[str, str]
    paths: Sequence[str] = ()
    locations: Sequence[str] = ()
    schema: pa.Schema | None = None
    once: bool = False


Plan = Callable[[Journal, "Runner"], PartSource]
"""Function that returns data with their tasks. It may do work of its own that the journal notes."""


def digest_of(lines: Iterable[object]) -> str:
    """Return a text that differs if any of the lines does."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(f"{line}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]


def digest_of_files(files: Iterable[DataFileInfo]) -> str:
    """Return a text that differs if any of the files does, or what is read of it."""
    return digest_of(
        f"{file.path}\0{file.file_size}\0{file.etag}\0{file.record_count}\0"
        f"{getattr(file, 'snapshot_id', None)}"
        for file in files
    )


# Targets: where parts are written.


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """The options of a target.

    Attributes:
        location: An absolute path or a URL, without a slash at the end.
        work_dir: A directory on this machine for unfinished files.
        overwrite: True if existing data may be replaced.
        compression: The name of a compression; None for the target's own choice.
        storage_options: Credentials and the like.
    """

    location: str
    work_dir: Path
    overwrite: bool = False
    compression: str | None = None
    storage_options: Options = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, target: PathLike, options: CopyOptions, compression: str | None = None
    ) -> TargetOptions:
        """Return the options of a target, with its location made absolute."""
        location = target_location(target)
        return cls(
            location=location,
            work_dir=work_directory(options["work_dir"], location),
            overwrite=options["overwrite"],
            compression=compression,
            storage_options=options["target_options"] or {},
        )


class TargetWriter(Protocol):
    """Takes a copy in numbered parts, and makes all of them visible at once.

    Making one writes nothing. It pickles: parts are written by any process. Work that was
    interrupted is continued by another process, with another writer for the same place.
    """

    def refuse(self, schema: Any) -> None:
        """Raise an OptionError if the target holds data to keep, or takes no such columns.

        It is called before anything is read.
        """
        ...

    def write(self, part: int, parts: int | None, schema: Any, groups: Any) -> Receipt:
        """Write a part durably; an existing part with the same number is replaced.

        Args:
            part: The number of the part.
            parts: The number of all parts, where that is known.
            schema: The columns.
            groups: An iterator of tables. Each is a row group, or whatever is read as one.
        """
        ...

    def holds(self, receipt: Receipt, run: str) -> bool:
        """Return True if a part that this run wrote still exists, visible or not."""
        ...

    def commit(self, schema: Any, receipts: Sequence[Receipt], facts: Mapping[str, Any]) -> None:
        """Make all parts visible. If it was killed, it is called again and finishes the rest.

        ``facts`` describe the copy; its ``run`` is unique.
        """
        ...


# Tasks in processes.


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
        """Do a task, in any process; ``report`` is called with the rows that were read."""
        read = 0

        def items() -> Iterator[Any]:
            nonlocal read
            for item in reading:
                report(read)
                read += getattr(item, "num_rows", 1)
                yield item

        with closing(self.source.read(task)) as reading:
            receipt = write_items(partial(self.write, task), items())
        if task.rows not in (None, read):
            raise WriteError(
                f"part {task.part} has {read} rows, but {task.rows} were expected: the source or "
                "files of the work directory have changed; delete the work directory and "
                "start again"
            )
        return receipt


def write_items(write: Callable[[Iterator[Any]], Receipt], items: Iterable[Any]) -> Receipt:
    """Write items; an error of reading them is raised unchanged, even if the writer wraps it."""
    failed: list[BaseException] = []

    def reading() -> Iterator[Any]:
        try:
            yield from items
        except GeneratorExit:  # the writer needs no more
            raise
        except BaseException as error:
            failed.append(error)
            raise

    try:
        return write(reading())
    except BaseException:
        if failed:
            raise failed[0] from None
        raise


def ignore(stage: str, share: float) -> None:
    """Do nothing: the user did not ask for progress."""


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs tasks in processes, and reports their progress.

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
            raise OptionError(
                'workers=0 copies in this process, and on="ray" on a cluster; give only one of them'
            )

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
            holds: Returns False if the output of a finished task no longer exists. The task is run
                again.
        """
        noted = journal.results(stage.name).items()
        done = {part: receipt for part, receipt in noted if holds(receipt)}
        tasks = stage.source.tasks
        known = tasks if isinstance(tasks, Sequence) else ()
        meter = _Meter(partial(self.progress, stage.name), known, done)
        meter.report()
        for task, receipt in self._results(stage, tasks, done, meter):
            journal.note_result(stage.name, task.part, receipt)
            done[task.part] = receipt
            meter.finish(task)
        return [done[part] for part in sorted(done)]

    def _results(
        self,
        stage: Stage,
        tasks: Sequence[Task] | Iterator[Task],
        done: Mapping[int, Receipt],
        meter: _Meter,
    ) -> Iterator[tuple[Task, Receipt]]:
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


class _Meter:
    """Counts the bytes that were read, and reports the progress."""

    def __init__(
        self,
        progress: Callable[[Share], None],
        tasks: Sequence[Task],
        done: Mapping[int, Receipt],
    ) -> None:
        self._progress = progress
        self._began = time.monotonic()
        self._read: dict[int, float] = {
            task.part: task.size_bytes for task in tasks if task.part in done
        }
        self._total = max(sum(task.size_bytes for task in tasks), 1)
        self._before = sum(self._read.values())

    def advance(self, task: Task, rows: int) -> None:
        """Note how many rows a task has read."""
        self._read[task.part] = task.size_bytes * rows / max(task.rows or 0, rows, 1)
        self.report()

    def finish(self, task: Task) -> None:
        """Note that a task is done."""
        self._read[task.part] = task.size_bytes
        self.report()

    def report(self) -> None:
        """Call the user's function."""
        read = sum(self._read.values())
        share = Share(min(read / self._total, _UNFINISHED))
        elapsed, new = time.monotonic() - self._began, read - self._before
        if new > 0 and elapsed > 0:
            share.bytes_per_s = new / elapsed
            share.remaining_s = max(self._total - read, 0.0) / share.bytes_per_s
        self._progress(share)


# Copies.


@dataclass(frozen=True, slots=True)
class CopyReport:
    """A copy that is complete.

    Attributes:
        target: Its location.
        parts: The receipt of each file or fragment, in order.
        resumed: True if earlier, unfinished work was continued.
    """

    target: str
    parts: tuple[Receipt, ...]
    resumed: bool

    @property
    def rows(self) -> int:
        """The number of rows of all parts."""
        return sum(int(part["rows"]) for part in self.parts)


def copy(
    origin: Origin,
    plan: Plan,
    target: TargetWriter,
    place: TargetOptions,
    runner: Runner,
    *,
    work: Mapping[str, Any],
) -> CopyReport:
    """Write all parts of a source to a target, and show them when the last one is written.

    Args:
        origin: Where the data come from.
        plan: Returns the data with their tasks.
        target: Encodes parts and holds them.
        place: The location of the target, and the folder for the journal and for what is on its
            way, which is removed at the end.
        runner: Runs the tasks.
        work: Describes the copy. Unfinished work with another description is refused, and the
            target stores it.

    Raises:
        OptionError: The target holds data that must be kept, or is inside the source.
        StateMismatchError: The work directory holds unfinished work of other data or options.
        WriteError: The target cannot be written.
    """
    _refuse_overlap(origin, place.location)
    if origin.once and runner.on is not None:
        raise OptionError(
            "tables in memory and iterators can be read by this process only; write them to "
            f'files first, or leave out on="{runner.on}"'
        )
    whole = {**work, **origin.facts, "target": place.location}
    is_new = not Journal.exists(place.work_dir)
    if is_new:
        target.refuse(origin.schema)  # before a directory is made
    with closing(Journal(place.work_dir, whole, once=origin.once)) as journal:
        try:
            if not is_new and not journal.resumed:
                target.refuse(origin.schema)
            parts = plan(journal, runner)
            count = len(parts.tasks) if isinstance(parts.tasks, Sequence) else None
            receipts = runner.run(
                Stage(_WRITING, parts, partial(_write_part, target, count, origin.schema)),
                journal,
                lambda receipt: target.holds(receipt, journal.run),
            )
            copied = CopyReport(place.location, tuple(receipts), journal.resumed)
            facts = {**work, "run": journal.run, "rows": copied.rows}
            target.commit(origin.schema, receipts, facts)
        except BaseException:
            if origin.once or not journal.has_results:
                _remove(journal, target)
            raise
        runner.progress(_WRITING, Share(1.0))
        _remove(journal, target)
    logger.info("%s: %d rows in %d parts", place.location, copied.rows, len(receipts))
    return copied


def _write_part(
    target: TargetWriter, parts: int | None, schema: pa.Schema, task: Task, items: Iterator[Any]
) -> Receipt:
    return target.write(task.part, parts, schema, items)


def _remove(journal: Journal, target: TargetWriter) -> None:
    """Remove the files of the work directory; the journal last, so that a kill is harmless."""
    staging = getattr(target, "staging", None)
    for folder in (
        journal.directory / "headrace-runs",
        journal.directory / "headrace-parts",
        staging,
    ):
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
    journal.remove()


def _refuse_overlap(origin: Origin, target: str) -> None:
    """Raise an OptionError if the target holds files of the source, or is in its directory."""
    goal = _comparable(target)
    for path in (*origin.paths, *origin.locations):
        if _is_inside(_comparable(path), goal):
            raise OptionError(
                f"the source file {path} is inside the target {target}; choose another target"
            )
    for location in origin.locations:
        place = _comparable(location)
        if (protocol_of(location) or os.path.isdir(place)) and _is_inside(goal, place):
            raise OptionError(
                f"the target {target} is inside the source {location}, which would then contain "
                "every row twice; choose another target"
            )


def _comparable(location: str) -> str:
    return location.rstrip("/") if protocol_of(location) else os.path.realpath(location)


def _is_inside(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")
