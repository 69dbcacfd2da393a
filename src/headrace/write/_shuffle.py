"""Copies of rows: ``shuffle_into`` in random order, ``copy_rows`` in the order that they have."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from headrace.errors import OptionError
from headrace.options import checked_keywords, parse_bytes
from headrace.storage import Access, Options, protocol_of
from headrace.write._copier import Journal, PartSource, Progress, Runner, Stage, Task, copy, ignore
from headrace.write._rows import (
    RowParts,
    Rows,
    StoredRows,
    TablesAtHand,
    as_rows,
    plan_parts,
    refuse_overlap,
)
from headrace.write._sorting import SortedRows, ranges_of_keys, row_keys, write_run
from headrace.write._targets import PathLike, Receipt, TargetOptions, make_target, target_kind

__all__ = ["ROW_GROUP_ROWS", "RowsReport", "copy_rows", "shuffle_into"]

logger = logging.getLogger(__name__)

ROW_GROUP_ROWS = 5_000
"""Rows of a row group: few enough to read chunks of 1,000 rows, and enough for fast decoding."""
_FILE_BYTES = "512MiB"
_LEAST_MEMORY = 1 << 20
_MOST_AT_ONCE = 1 << 30
"""Bytes that are sorted at once: more is not faster, and a string column holds 2 GiB at most."""


@dataclass(frozen=True, slots=True)
class RowsReport:
    """A copy of rows that was written.

    Attributes:
        target: Its location.
        format: The kind of target.
        rows: The number of rows.
        parts: What is known of each file or fragment.
        resumed: True if earlier, unfinished work was continued.
    """

    target: str
    format: str
    rows: int
    parts: tuple[Receipt, ...]
    resumed: bool


@checked_keywords
def shuffle_into(
    source: Any,
    target: PathLike,
    *,
    format: str | None = None,
    target_format: str | None = None,
    seed: int = 0,
    memory_bytes: int | str = "1GiB",
    row_group_rows: int = ROW_GROUP_ROWS,
    file_rows: int | None = None,
    file_bytes: int | str | None = None,
    compression: str | None = None,
    columns: Sequence[str] | None = None,
    filters: ds.Expression | Sequence[Any] | None = None,
    schema: pa.Schema | None = None,
    partitioning: str | ds.Partitioning | None = None,
    format_options: Mapping[str, Any] | None = None,
    as_files: bool = False,
    storage_options: Options | None = None,
    target_options: Options | None = None,
    work_dir: PathLike | None = None,
    overwrite: bool = False,
    workers: int | None = None,
    on: str | None = None,
    progress: Progress | None = None,
) -> RowsReport:
    """Write the rows of ``source`` to ``target``, each exactly once, in random order.

    The order is a function of the seed and of the order of the source: every permutation is as
    likely as any other. No more than about ``memory_bytes`` of data is in memory at a time; the
    rest waits in ``work_dir``. The target appears when it is complete. A run that was killed is
    continued by the next one with the same source and options, other limits of memory allowed.

    Args:
        source: A path, paths or URL of files, or a dataset of this library, which is copied as it
            is.
        target: A directory, a URL, or a table.
        format: The format of the files of the source; None to tell it from their names.
        target_format: ``"parquet"``, ``"arrow"``, ``"lance"`` or ``"paimon"``; None to tell it from
            the ending of the target.
        seed: Chooses the order.
        memory_bytes: The data that are in memory at a time, in all processes of a machine.
        row_group_rows: The number of rows of a row group.
        file_rows: The number of rows of a file.
        file_bytes: About how many bytes of data in memory make a file, where ``file_rows`` is not
            given.
        compression: The compression of the files.
        columns: The columns to copy; None for all.
        filters: Which rows to copy.
        schema: The types of the columns of the source.
        partitioning: How columns stand in the paths of the source.
        format_options: Options of the reader of the source.
        as_files: Read the files of a table format with the rows that were deleted.
        storage_options: Credentials for the source.
        target_options: Credentials for the target.
        work_dir: For what is on its way; None for a hidden directory beside the target.
        overwrite: Replace what is in the target.
        workers: The number of processes; 0 for this one, None to choose by the size of the source.
        on: ``"ray"`` to run the work on a Ray cluster, whose nodes reach source, target and
            ``work_dir``; None for processes of this machine.
        progress: Called with a stage and the ``Share`` of it that is done.
    """
    memory = parse_bytes("memory_bytes", memory_bytes)
    if memory < _LEAST_MEMORY:
        raise OptionError(f"memory must be 1MiB at least, not {memory} bytes")
    row_keys(seed, 0, 0)  # a seed that is none is refused before anything is read
    rows = as_rows(
        source,
        format=format,
        columns=columns,
        filters=filters,
        schema=schema,
        partitioning=partitioning,
        format_options=format_options,
        as_files=as_files or None,
        access=_access(storage_options),
    )
    if isinstance(rows, TablesAtHand):
        raise OptionError(
            "source must be a path, a list of paths, or a dataset of this library, not a "
            f"{type(source).__name__}"
        )
    sizes = _PartSizes.of(row_group_rows, file_rows, file_bytes)
    runner = Runner(workers, progress or ignore, on)
    processes = max(runner.process_count(rows.size_bytes), 1)
    if on is None:
        runner = replace(runner, workers=processes)
    sort = _Sort(rows, seed, memory // processes, sizes, runner)
    options = TargetOptions.of(
        target, work_dir, target_options, overwrite=overwrite, compression=compression
    )
    if on is not None and work_dir is None and protocol_of(options.location):
        raise OptionError(
            f'with on="{on}" and a target in a store, give work_dir=: a folder that all nodes '
            "reach, for the sorted rows"
        )
    return _write(
        rows,
        sort.sorted_rows,
        options,
        target_format,
        sizes,
        runner,
        facts={"seed": seed},
    )


@checked_keywords
def copy_rows(
    source: Any,
    target: PathLike,
    *,
    format: str | None = None,
    target_format: str | None = None,
    row_group_rows: int = ROW_GROUP_ROWS,
    file_rows: int | None = None,
    file_bytes: int | str | None = None,
    compression: str | None = None,
    columns: Sequence[str] | None = None,
    storage_options: Options | None = None,
    target_options: Options | None = None,
    work_dir: PathLike | None = None,
    overwrite: bool = False,
    workers: int | None = None,
    on: str | None = None,
    progress: Progress | None = None,
) -> RowsReport:
    """Write the rows of ``source`` to ``target`` in the order that they have.

    The keywords are those of ``shuffle_into``. The source may also be a table, or tables or record
    batches one after the other; such a copy cannot be continued if it is killed.
    """
    rows = as_rows(source, format=format, columns=columns, access=_access(storage_options))
    sizes = _PartSizes.of(row_group_rows, file_rows, file_bytes)
    runner = Runner(workers, progress or ignore, on)

    def plan(journal: Journal) -> RowParts:
        counted = rows.counted(journal, runner)
        part_bytes = None if sizes.part_rows else sizes.part_bytes
        tasks = plan_parts(
            counted,
            journal,
            part_rows=sizes.part_rows,
            part_bytes=part_bytes,
            group_rows=sizes.group_rows,
        )
        return RowParts(rows=counted, tasks=tasks, group_rows=sizes.group_rows)

    options = TargetOptions.of(
        target, work_dir, target_options, overwrite=overwrite, compression=compression
    )
    return _write(
        rows,
        plan,
        options,
        target_format,
        sizes,
        runner,
    )


def _access(storage_options: Options | None) -> Access | None:
    return None if storage_options is None else Access(storage_options=storage_options)


@dataclass(frozen=True, slots=True)
class _PartSizes:
    """The sizes of the parts of a copy.

    Attributes:
        group_rows: The rows of a row group.
        part_rows: The rows of a part; None if its bytes decide.
        part_bytes: The bytes of a part in memory.
    """

    group_rows: int
    part_rows: int | None
    part_bytes: int

    @classmethod
    def of(cls, group_rows: int, file_rows: int | None, file_bytes: int | str | None) -> _PartSizes:
        if file_rows is not None and file_bytes is not None:
            raise OptionError("file_rows and file_bytes both say how large a file is; give one")
        for name, value in (("row_group_rows", group_rows), ("file_rows", file_rows)):
            whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
            if value is not None and not whole:
                raise OptionError(f"{name} must be a positive number of rows, not {value!r}")
        return cls(group_rows, file_rows, parse_bytes("file_bytes", file_bytes or _FILE_BYTES))

    def rows_of_a_part(self, rows: int, size_bytes: int) -> int:
        """Return the rows of a part; one that follows from bytes has whole row groups."""
        if self.part_rows is not None:
            return self.part_rows
        fitting = self.part_bytes * max(rows, 1) // max(size_bytes, 1)
        return max(fitting // self.group_rows, 1) * self.group_rows


def _write(
    rows: Rows,
    plan: Callable[[Journal], PartSource],
    target: TargetOptions,
    target_format: str | None,
    sizes: _PartSizes,
    runner: Runner,
    *,
    facts: Mapping[str, Any] | None = None,
) -> RowsReport:
    facts = facts or {}
    location = target.location
    refuse_overlap(rows.paths, rows.locations, location)
    kind = target_kind(target_format, location)
    work = {
        "work": "shuffle" if facts else "copy",
        **rows.facts,
        "target": location,
        "target_format": kind,
        **facts,
        "group_rows": sizes.group_rows,
        "part_rows": sizes.part_rows,
        "part_bytes": sizes.part_bytes,
        "compression": target.compression,
    }
    copied = copy(
        plan,
        make_target(kind, target),
        runner,
        work=work,
        work_dir=target.work_dir,
        schema=rows.schema,
        facts={"row_group_rows": sizes.group_rows, "format": kind, **facts},
        once=rows.once,
    )
    logger.info("%s: %d rows in %d parts", location, copied.rows, len(copied.receipts))
    return RowsReport(location, kind, copied.rows, tuple(copied.receipts), copied.resumed)


# The first pass of a shuffle.


@dataclass(frozen=True, slots=True)
class _Sort:
    """Sorts rows into runs on the disk, within the memory of one process.

    In memory are a run that is read, its columns a second time while they are sorted, and what is
    read ahead; later a range of keys, and its columns a second time while they are joined.
    """

    rows: StoredRows
    seed: int
    memory_bytes: int
    sizes: _PartSizes
    runner: Runner

    def sorted_rows(self, journal: Journal) -> SortedRows:
        """Write the runs that are missing, and return the source of the second pass."""
        folder = journal.directory / "runs"
        memory = self.memory_bytes
        run_bytes = min(memory // 4, _MOST_AT_ONCE)
        rows = replace(
            self.rows,
            ahead_bytes=memory // 8,
            block_bytes=max(1 << 16, min(16 << 20, memory // 32)),
        ).counted(journal, self.runner)
        before = rows.rows_before.tolist()
        chunks = rows.runs_of_chunks(journal.decide("bytes of a run", lambda: run_bytes))
        tasks = [
            Task(
                part, before[start], before[stop] - before[start], int(rows.sizes[start:stop].sum())
            )
            for part, (start, stop) in enumerate(chunks)
        ]
        sorted_bytes = min(memory // 6, _MOST_AT_ONCE)
        ranges = journal.decide(
            "ranges of keys",
            lambda: ranges_of_keys(rows.size_in_memory(), run_bytes, sorted_bytes),
        )
        writer = _RunWriter(folder, self.seed, run_bytes, ranges)
        receipts = self.runner.run(
            Stage("sorting", RowParts(rows=rows, tasks=tasks), writer),
            journal,
            lambda receipt: all((folder / name).exists() for name in receipt["runs"]),
        )
        total_rows = sum(receipt["rows"] for receipt in receipts)
        total_bytes = sum(receipt["size_bytes"] for receipt in receipts)
        return SortedRows(
            [folder / name for receipt in receipts for name in receipt["runs"]],
            self.rows.schema,
            self.sizes.rows_of_a_part(total_rows, total_bytes),
            self.sizes.group_rows,
            sorted_bytes,
            total_rows,
            total_bytes,
        )


@dataclass(frozen=True, slots=True)
class _RunWriter:
    """Sorts the tables of a part into runs of as many rows as fit into memory."""

    folder: Path
    seed: int
    run_bytes: int
    ranges: int

    def __call__(self, task: Task, tables: Iterator[pa.Table]) -> Receipt:
        receipt: Receipt = {"runs": [], "rows": 0, "size_bytes": 0}
        self.folder.mkdir(exist_ok=True)
        held: list[pa.Table] = []
        held_bytes = 0
        for table in tables:
            held.append(table)
            held_bytes += table.nbytes
            if held_bytes >= self.run_bytes:
                self._write(task, receipt, held, held_bytes)
                held_bytes = 0
        if held:
            self._write(task, receipt, held, held_bytes)
        return receipt

    def _write(self, task: Task, receipt: Receipt, held: list[pa.Table], held_bytes: int) -> None:
        """Write a run; ``held`` is emptied."""
        rows = sum(table.num_rows for table in held)
        name = f"{task.part:06d}-{len(receipt['runs']):03d}.arrow"
        first_row = task.first + receipt["rows"]
        path = self.folder / name
        write_run(path, held, seed=self.seed, first_row=first_row, ranges=self.ranges)
        receipt["runs"].append(name)
        receipt["rows"] += rows
        receipt["size_bytes"] += held_bytes
