"""Copies of rows: ``shuffle_into`` in random order, ``copy_rows`` in the order that they have."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Unpack

import pyarrow as pa
import pyarrow.dataset as ds

from headrace.errors import OptionError
from headrace.options import CopyOptions, check_count, documented, parse_bytes, resolve
from headrace.storage import Options, protocol_of
from headrace.write._copier import Journal, PartSource, Runner, copy
from headrace.write._rows import PartSizes, Rows, TablesAtHand, as_rows, row_parts
from headrace.write._sorting import shuffle_keys, sorted_rows
from headrace.write._targets import (
    PathLike,
    Receipt,
    TargetOptions,
    make_target,
    target_kind,
)

logger = logging.getLogger(__name__)

ROW_GROUP_ROWS = 5_000
"""Rows of a row group: few enough to read chunks of 1,000 rows, and enough for fast decoding."""
_FILE_BYTES = "512MiB"
_LEAST_MEMORY = 1 << 20


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


@documented(CopyOptions)
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
    **options: Unpack[CopyOptions],
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
        **options: Keywords of all copies.

    Returns:
        The number of rows and the files.

    Raises:
        OptionError: The target exists, or an option does not fit.
        NothingFoundError: There is no data file in the source.
        WriteError: The target cannot be written.

    Examples:
        ```python
        from headrace import shuffle_into

        assert shuffle_into("data/", "shuffled/", seed=1, file_rows=5_000).rows == 10_000
        ```
    """
    given = resolve(CopyOptions, options)
    memory = parse_bytes("memory_bytes", memory_bytes)
    if memory < _LEAST_MEMORY:
        raise OptionError(f"memory must be 1MiB at least, not {memory} bytes")
    shuffle_keys(seed, 0, 0)  # a seed that is none is refused before anything is read
    rows = as_rows(
        source,
        format=format,
        columns=columns,
        filters=filters,
        schema=schema,
        partitioning=partitioning,
        format_options=format_options,
        as_files=as_files or None,
        storage_options=storage_options,
    )
    if isinstance(rows, TablesAtHand):
        raise OptionError(
            "source must be a path, a list of paths, or a dataset of this library, not a "
            f"{type(source).__name__}"
        )
    sizes = _sizes(row_group_rows, file_rows, file_bytes)
    place = TargetOptions.of(target, given, compression)
    runner = Runner.of(given)
    processes = max(runner.process_count(rows.size_bytes), 1)
    if runner.on is None:
        runner = replace(runner, workers=processes)
    elif given["work_dir"] is None and protocol_of(place.location):
        raise OptionError(
            f'with on="{runner.on}" and a target in a store, give work_dir=: a folder that all '
            "nodes reach, for the sorted rows"
        )
    plan = partial(sorted_rows, rows, seed, memory // processes, sizes)
    return _write(rows, plan, target_format, sizes, place, runner, {"seed": seed})


@documented(CopyOptions)
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
    **options: Unpack[CopyOptions],
) -> RowsReport:
    """Write the rows of ``source`` to ``target`` in the order that they have.

    The keywords are those of ``shuffle_into``. The source may also be a table, or tables or record
    batches one after the other; such a copy cannot be continued if it is killed.
    """
    rows = as_rows(source, format=format, columns=columns, storage_options=storage_options)
    sizes = _sizes(row_group_rows, file_rows, file_bytes)
    given = resolve(CopyOptions, options)
    place = TargetOptions.of(target, given, compression)
    plan = partial(row_parts, rows, sizes, group_rows=sizes.group_rows)
    return _write(rows, plan, target_format, sizes, place, Runner.of(given), {})


def _sizes(group_rows: int, file_rows: int | None, file_bytes: int | str | None) -> PartSizes:
    if file_rows is not None and file_bytes is not None:
        raise OptionError("file_rows and file_bytes both say how large a file is; give one")
    check_count("row_group_rows", group_rows)
    if file_rows is not None:
        check_count("file_rows", file_rows)
        return PartSizes(file_rows, None, group_rows)
    return PartSizes(None, parse_bytes("file_bytes", file_bytes or _FILE_BYTES), group_rows)


def _write(
    rows: Rows,
    plan: Callable[[Journal, Runner], PartSource],
    target_format: str | None,
    sizes: PartSizes,
    options: TargetOptions,
    runner: Runner,
    order: Mapping[str, int],
) -> RowsReport:
    kind = target_kind(target_format, options.location)
    work = {"format": kind, **order, **asdict(sizes), "compression": options.compression}
    copied = copy(
        rows,
        plan,
        make_target(kind, options),
        options,
        runner,
        work={"work": "shuffle" if order else "copy", **work},
        facts={"row_group_rows": sizes.group_rows, "format": kind, **order},
    )
    parts = tuple(copied.receipts)
    logger.info("%s: %d rows in %d parts", options.location, copied.rows, len(parts))
    return RowsReport(options.location, kind, copied.rows, parts, copied.resumed)
