"""Rows in the order that they have: ``copy_rows``, and the parts of all copies of rows.

All parts have the same number of rows, and any process reads any part. Rows that no metadata count
are counted first. Tables in memory and iterators are read one after the other by this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Unpack

import pyarrow as pa

from headrace.errors import OptionError
from headrace.options import (
    RowCopyOptions,
    RowSourceOptions,
    documented,
    parse_bytes,
    resolve,
    split_options,
)
from headrace.write._copier import (
    CopyReport,
    Plan,
    Runner,
    TargetOptions,
    TargetWriter,
    Task,
    copy,
)
from headrace.write._folders import arrow_files, parquet_files
from headrace.write._journal import Journal
from headrace.write._lance import LanceTable
from headrace.write._places import PathLike
from headrace.write._row_sources import (
    MEASURED_ROWS,
    Measure,
    Rows,
    StoredRows,
    Tables,
    TablesAtHand,
    as_rows,
)


@documented(RowCopyOptions)
def copy_rows(
    source: Any,
    target: PathLike,
    **options: Unpack[RowCopyOptions],
) -> CopyReport:
    """Write the rows of ``source`` to ``target`` in the order that they have.

    A run that was killed is continued by the next one with the same source and options. A copy of
    tables in memory or of an iterator cannot be continued.

    Args:
        source: A path, paths or URL of files, a dataset or backend of this library, which is
            copied as it is, a table, tables or record batches one after the other, or rows (dicts).
        target: A directory, a URL, or a table.
        **options: Keywords of sources of rows, and of all copies of rows.

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
    rows = as_rows(source, **split_options(given, RowSourceOptions)[0])
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
) -> CopyReport:
    """Write rows, in the order of their plan, to a target."""
    kind = target_kind(given["target_format"], place.location)
    sizes = PartSizes.of(given)
    return copy(
        rows.origin,
        plan,
        _TARGETS[kind](place),
        place,
        runner,
        work={
            **work,
            "format": kind,
            "file_rows": sizes.rows,
            "file_bytes": sizes.size_bytes,
            "row_group_rows": sizes.group_rows,
            "compression": place.compression,
        },
    )


_TARGETS: dict[str, Callable[[TargetOptions], TargetWriter]] = {
    "parquet": parquet_files,
    "arrow": arrow_files,
    "lance": LanceTable,
}
_ENDINGS = {".lance": "lance", ".arrow": "arrow", ".parquet": "parquet"}


def register_target(name: str, maker: Callable[[TargetOptions], TargetWriter]) -> None:
    """Register a kind of target; ``maker`` returns a target with these options."""
    _TARGETS[name] = maker


def target_kind(kind: str | None, location: str) -> str:
    """Return a kind of target; None chooses it by the ending of the location, or else Parquet."""
    if kind is None:
        return next((k for ending, k in _ENDINGS.items() if location.endswith(ending)), "parquet")
    if kind not in _TARGETS:
        raise OptionError(f"target_format must be one of {', '.join(_TARGETS)}, not {kind!r}")
    if kind in ("parquet", "arrow") and location.endswith(".lance"):
        raise OptionError(
            f"{location} would be opened as a Lance table, because of its name; choose another "
            f'name for a folder of files, or target_format="lance"'
        )
    return kind


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
            raise OptionError("file_rows and file_bytes both set the size of a file; give only one")
        return cls(rows, None, group_rows)

    def rows_of_a_part(self, rows: int, size_bytes: int) -> int | None:
        """Return the number of rows of a part, given the size of some rows; None for all rows."""
        if self.size_bytes is None or not rows:
            return self.rows
        groups = self.size_bytes * rows // max(size_bytes, 1) // self.group_rows
        fitting = max(groups, 1) * self.group_rows  # whole row groups, one at least
        return fitting if self.rows is None else min(fitting, self.rows)


def even_tasks(rows: int, part_rows: int | None, size_bytes: int) -> list[Task]:
    """Return parts of the same number of rows, and at least one, because a copy has columns."""
    step = part_rows or max(rows, 1)
    tasks = []
    for part, first in enumerate(range(0, max(rows, 1), step)):
        taken = min(step, rows - first)
        tasks.append(Task(part, first, taken, size_bytes * taken // max(rows, 1)))
    return tasks


@dataclass(frozen=True, slots=True)
class RowParts:
    """Rows in parts.

    Attributes:
        rows: The rows.
        tasks: The parts.
        group_rows: The number of rows of a table; None for tables as they come.
    """

    rows: StoredRows
    tasks: Sequence[Task]
    group_rows: int | None = None

    def read(self, task: Task) -> Tables:
        """Yield the tables of a part."""
        return _regrouped(self.rows.read(task), self.group_rows)


@dataclass(frozen=True, slots=True)
class PartsAtHand:
    """Tables in memory or from an iterator in parts, which are read one after the other.

    Attributes:
        rows: The tables.
        part_rows: The number of rows of a part; None for all.
        group_rows: The number of rows of a table; None for tables as they come.
    """

    rows: TablesAtHand
    part_rows: int | None
    group_rows: int | None = None

    @property
    def tasks(self) -> Iterator[Task]:
        """The parts, as long as there are rows; at least one."""
        for part in count():
            if part and not self.rows.peek().num_rows:
                return
            yield Task(part, part * (self.part_rows or 0))

    def read(self, task: Task) -> Tables:
        """Yield the tables of the next part."""
        return _regrouped(self.rows.take(self.part_rows), self.group_rows)


def row_parts(
    rows: Rows,
    sizes: PartSizes,
    journal: Journal,
    runner: Runner,
    *,
    group_rows: int | None = None,
    measure: Measure = lambda table: int(table.nbytes),
) -> RowParts | PartsAtHand:
    """Return rows in parts, in their order. Rows that no metadata count are counted first.

    Args:
        rows: The rows.
        sizes: The sizes of parts. The rows of a part that follow from bytes are judged by the first
            rows.
        journal: Keeps what the first run found and chose.
        runner: Counts rows.
        group_rows: The number of rows of a table; None for tables as they come.
        measure: Returns the bytes that some rows become.
    """
    if isinstance(rows, TablesAtHand):
        first = rows.peek().slice(0, MEASURED_ROWS)
        part_rows = sizes.rows_of_a_part(first.num_rows, measure(first))
        return PartsAtHand(rows, part_rows, group_rows)
    counted = rows.counted(journal, runner)
    total = counted.num_rows
    part_rows = sizes.rows
    if sizes.size_bytes is not None:
        part_rows = journal.decide(
            "rows of a part", lambda: sizes.rows_of_a_part(total, counted.measured(measure))
        )
    return RowParts(counted, even_tasks(total, part_rows, counted.size_bytes), group_rows)


def _regrouped(reading: Tables, group_rows: int | None) -> Tables:
    """Yield tables of a number of rows, the last one of a part excepted."""
    if group_rows is None:
        yield from reading
        return
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
