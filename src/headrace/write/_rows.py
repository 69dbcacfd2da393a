"""Rows in the order that they have: ``copy_rows``, and the parts of all copies of rows.

All parts have the same number of rows. Where metadata count the rows, any process reads any part.
Rows that only reading counts are read in turn by one process, or counted first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from itertools import count
from typing import Any, Unpack

import numpy as np
import pyarrow as pa

from headrace.errors import OptionError
from headrace.options import RowCopyOptions, documented, parse_bytes, resolve
from headrace.storage import Options
from headrace.write._copier import (
    CopyReport,
    Plan,
    Runner,
    TargetOptions,
    TargetWriter,
    Task,
    copy,
)
from headrace.write._journal import Journal
from headrace.write._places import PathLike
from headrace.write._row_sources import (
    COUNTING,
    MEASURED_ROWS,
    Measure,
    RowReader,
    Rows,
    StoredRows,
    Tables,
    TablesAtHand,
    as_rows,
)

_STARTS, _PART_ROWS = "starts", "rows of a part"
"""Names of lines of the journal: the beginnings of parts, and the rows of each part."""


# Files and tables that are written.


@dataclass(frozen=True, slots=True)
class RowsReport(CopyReport):
    """A copy of rows that was written.

    Attributes:
        target: Its location.
        parts: What is known of each file or fragment.
        resumed: True if earlier, unfinished work was continued.
        format: The kind of target.
    """

    format: str


@documented(RowCopyOptions)
def copy_rows(
    source: Any,
    target: PathLike,
    *,
    format: str | None = None,
    columns: Sequence[str] | None = None,
    storage_options: Options | None = None,
    **options: Unpack[RowCopyOptions],
) -> RowsReport:
    """Write the rows of ``source`` to ``target`` in the order that they have.

    A run that was killed is continued by the next one with the same source and options. A copy of
    tables that are at hand cannot be continued.

    Args:
        source: A path, paths or URL of files, a dataset or backend of this library, which is
            copied as it is, a table, tables or record batches one after the other, or rows (dicts).
        target: A directory, a URL, or a table.
        format: The format of the files of the source; None to tell it from their names.
        columns: The columns to copy; None for all.
        storage_options: Credentials for the source.
        **options: Keywords of all copies of rows.

    Returns:
        The number of rows and the files.

    Raises:
        OptionError: The target exists, or an option does not fit.
        NothingFoundError: There is no data file in the source.
        WriteError: The target cannot be written.

    Examples:
        ```python
        from headrace.write import copy_rows

        assert copy_rows("data/", "copied/", target_format="arrow").rows == 10_000
        ```
    """
    given = resolve(RowCopyOptions, options)
    rows = as_rows(source, format=format, columns=columns, storage_options=storage_options)
    sizes = PartSizes.of(given)
    plan = partial(row_parts, rows, sizes, group_rows=sizes.group_rows)
    place = TargetOptions.of(target, given, given["compression"])
    return write_rows(rows, plan, place, Runner.of(given), given, {"work": "copy"})


def write_rows(
    rows: Rows,
    plan: Plan,
    place: TargetOptions,
    runner: Runner,
    given: RowCopyOptions,
    work: Mapping[str, Any],
) -> RowsReport:
    """Write rows, in the order of their plan, to a target of any kind."""
    kind = target_kind(given["target_format"], place.location)
    sizes = PartSizes.of(given)
    return copy(
        rows.origin,
        plan,
        make_target(kind, place),
        place,
        runner,
        partial(RowsReport, format=kind),
        work={**work, "format": kind, **asdict(sizes), "compression": place.compression},
        facts={**work, "row_group_rows": sizes.group_rows, "format": kind},
    )


Maker = Callable[[TargetOptions], TargetWriter]

_TARGETS: dict[str, str | Maker] = {
    "parquet": "headrace.write._folders:parquet_files",
    "arrow": "headrace.write._folders:arrow_files",
    "lance": "headrace.write._lance:LanceTable",
    "paimon": "headrace.write._paimon:PaimonTarget",
}
_ENDINGS = {".lance": "lance", ".arrow": "arrow", ".parquet": "parquet"}


def register_target(name: str, maker: str | Maker) -> None:
    """Make a kind of target known; ``maker`` may be ``"module:function"``, imported when used."""
    _TARGETS[name] = maker


def target_kind(kind: str | None, location: str) -> str:
    """Return a kind of target; None means what the location ends in, or else Parquet."""
    if kind is None:
        return next((k for ending, k in _ENDINGS.items() if location.endswith(ending)), "parquet")
    if kind not in _TARGETS:
        raise OptionError(f"target_format must be one of {', '.join(_TARGETS)}, not {kind!r}")
    return kind


def make_target(kind: str, options: TargetOptions) -> TargetWriter:
    """Return the target of a kind."""
    maker = _TARGETS[kind]
    if isinstance(maker, str):
        module, _, name = maker.partition(":")
        found: Maker = getattr(import_module(module), name)
        return found(options)
    return maker(options)


# Rows in parts.


@dataclass(frozen=True, slots=True)
class PartSizes:
    """The limits of a part of rows.

    Attributes:
        rows: The number of rows of a part at most; None for no limit.
        size_bytes: About how many bytes a part has; None for no limit.
        group_rows: A part that follows from bytes has a multiple of these.
    """

    rows: int | None = None
    size_bytes: int | None = None
    group_rows: int = 1

    @classmethod
    def of(cls, given: RowCopyOptions) -> PartSizes:
        """Return the limits that a user gives."""
        rows, size, group_rows = given["file_rows"], given["file_bytes"], given["row_group_rows"]
        if rows is None:
            return cls(None, parse_bytes("file_bytes", size or "512MiB"), group_rows)
        if size is not None:
            raise OptionError("file_rows and file_bytes both say how large a file is; give one")
        return cls(rows, None, group_rows)

    def rows_of_a_part(self, rows: int, size_bytes: int) -> int | None:
        """Return the rows of a part, if so many rows have so many bytes; None for all rows."""
        if self.size_bytes is None or not rows:
            return self.rows
        groups = self.size_bytes * rows // max(size_bytes, 1) // self.group_rows
        fitting = max(groups, 1) * self.group_rows  # whole row groups, one at least
        return fitting if self.rows is None else min(fitting, self.rows)


def even_tasks(rows: int, part_rows: int | None, size_bytes: int) -> list[Task]:
    """Return parts of the same number of rows; of no rows at all one, for a copy has columns."""
    step = part_rows or max(rows, 1)
    tasks = []
    for part, first in enumerate(range(0, max(rows, 1), step)):
        taken = min(step, rows - first)
        tasks.append(Task(part, first, taken, size_bytes * taken // max(rows, 1)))
    return tasks


class RowsInTurn:
    """Rows that are read from the first to the last, so that nothing has to count them before.

    The journal notes where each part begins: a chunk, and a row of it. A copy that continues begins
    to read there.

    Attributes:
        size_bytes: About how many bytes all rows have.
        part_rows: The number of rows of a part; None for all. It is noted in the journal if it
            follows from the first rows.

    Args:
        rows: The rows.
        sizes: The sizes of parts.
        journal: Notes that number, and where parts begin.
        measure: Judges the first rows.
    """

    def __init__(self, rows: Rows, sizes: PartSizes, journal: Journal, measure: Measure) -> None:
        self.size_bytes = rows.size_bytes
        self._rows = rows
        self._journal = journal
        self._bytes_before = np.concatenate([[0], np.cumsum(rows.sizes)]).tolist()
        self._stop = len(rows.sizes)
        self._starts = {0: (0, 0)}
        for part, start in journal.results(_STARTS).items():
            self._starts[part] = (start["chunk"], start["row"])
        self._reader = self._opened(max(self._starts.values()))

        def judged() -> int | None:
            first = self._reader.peek().slice(0, MEASURED_ROWS)
            return sizes.rows_of_a_part(first.num_rows, measure(first) if first.num_rows else 0)

        bounded = sizes.size_bytes is not None
        self.part_rows = journal.decide(_PART_ROWS, judged) if bounded else sizes.rows

    @property
    def bytes_read(self) -> int:
        """About how many bytes have been read, judged by the chunk and the rows read of it."""
        chunk = self._reader.place[0]
        following = self._bytes_before[min(chunk + 1, self._stop)]
        return int(min(self._bytes_before[chunk] + self._reader.chunk_bytes, following))

    def __iter__(self) -> Iterator[Task]:
        for part in count():
            if part and self._starts[part] == (self._stop, 0):
                return
            yield Task(part, part * (self.part_rows or 0))

    def read(self, task: Task) -> Tables:
        """Yield tables of a part."""
        if self._reader.place != self._starts[task.part]:
            self._reader.close()
            self._reader = self._opened(self._starts[task.part])
        yield from self._reader.take(self.part_rows)
        self._reader.peek()  # goes on to the chunk of the next row, or to the end
        if task.part + 1 not in self._starts:
            chunk, row = self._starts[task.part + 1] = self._reader.place
            self._journal.note_result(_STARTS, task.part + 1, {"chunk": chunk, "row": row})

    def close(self) -> None:
        """Stop reading ahead."""
        self._reader.close()

    def _opened(self, place: tuple[int, int]) -> RowReader:
        return RowReader(self._rows, place, self._stop)


@dataclass(frozen=True, slots=True)
class RowParts:
    """Rows in parts.

    Attributes:
        rows: The rows, counted or in turn.
        tasks: The parts.
        group_rows: The number of rows of a table; None for tables as they come.
    """

    rows: StoredRows | RowsInTurn
    tasks: Sequence[Task] | RowsInTurn
    group_rows: int | None = None

    def read(self, task: Task) -> Tables:
        """Yield the tables of a part."""
        reading = self.rows.read(task)
        return reading if self.group_rows is None else _regrouped(reading, self.group_rows)


def row_parts(
    rows: Rows,
    sizes: PartSizes,
    journal: Journal,
    runner: Runner,
    *,
    group_rows: int | None = None,
    measure: Measure = lambda table: int(table.nbytes),
) -> RowParts:
    """Return rows in parts, in their order.

    Rows that no metadata count are counted while they are copied. If several processes share the
    work they are counted first.

    Args:
        rows: The rows.
        sizes: The sizes of parts. The rows of a part that follow from bytes are judged by the first
            rows.
        journal: Keeps what the first run found and chose.
        runner: Counts rows.
        group_rows: The number of rows of a table; None for tables as they come.
        measure: Returns the bytes that some rows become.
    """
    if isinstance(rows, TablesAtHand) or rows.counts is None:
        in_turn = RowsInTurn(rows, sizes, journal, measure)
        shared = runner.process_count(rows.size_bytes) > 1 or journal.results(COUNTING)
        if isinstance(rows, TablesAtHand) or not shared:
            return RowParts(in_turn, in_turn, group_rows)
        in_turn.close()
        rows, part_rows = rows.counted(journal, runner), in_turn.part_rows
    elif sizes.size_bytes is None:
        part_rows = sizes.rows
    else:
        size, total = partial(rows.measured, measure), rows.num_rows
        part_rows = journal.decide(_PART_ROWS, lambda: sizes.rows_of_a_part(total, size()))
    return RowParts(rows, even_tasks(rows.num_rows, part_rows, rows.size_bytes), group_rows)


def _regrouped(reading: Tables, group_rows: int) -> Tables:
    """Yield tables of a number of rows, the last one of a part excepted."""
    held: list[pa.Table] = []
    held_rows = 0
    with closing(reading):
        for table in reading:
            held.append(table)
            held_rows += table.num_rows
            while held_rows >= group_rows:
                whole = pa.concat_tables(held)
                yield whole.slice(0, group_rows)
                held = [whole.slice(group_rows)]
                held_rows -= group_rows
    if held_rows:
        yield pa.concat_tables(held)
