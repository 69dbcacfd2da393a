"""``shuffle_into``: rows in the order of random keys, sorted on the disk in bounded memory.

The key of row n of a source is word n of a counter-based generator. Rows are sorted by key in two
passes: runs of as many rows as fit into memory are sorted and written to the disk, each in equal
ranges of keys; then as many ranges as fit into memory are collected from all runs. The order is a
function of the seed and of the order of the source alone, and any part of it can be read without
what is before it.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import ipc

from headrace.errors import OptionError, naming
from headrace.matrices import rows_at, values_at
from headrace.model import Int64Array
from headrace.options import (
    RowCopyOptions,
    RowSourceOptions,
    documented,
    parse_bytes,
    resolve,
    split_options,
)
from headrace.storage import atomic_write, protocol_of
from headrace.write._copier import (
    CopyReport,
    Receipt,
    Runner,
    Stage,
    TargetOptions,
    Task,
    cut_tasks,
    larger_than,
)
from headrace.write._journal import Journal
from headrace.write._places import PathLike, writing
from headrace.write._row_sources import StoredRows, TablesAtHand, as_rows
from headrace.write._rows import (
    PartSizes,
    RowParts,
    even_tasks,
    write_rows,
)

SortKeys = npt.NDArray[np.uint64]

_LEAST_MEMORY = 1 << 20
_KEY_BITS = 64
_LAST_KEY = (1 << _KEY_BITS) - 1
_COPY_ORDER = 3
"""The purpose of these random words; every purpose has its own stream."""
_WORDS_OF_A_BLOCK = 4
"""Number of words that Philox makes of one value of its counter."""
_RANGES_IN_MEMORY = 2
_SMALLEST_RANGE_BYTES = 4 << 10
"""Smallest size of a range in bytes: smaller record batches are mostly headers."""
_MOST_RANGES = 4096
_OPEN_RUNS = 256
"""Largest number of runs that are open at a time, because a process may open few files."""
_MOST_AT_ONCE = 1 << 30
"""Most bytes that are sorted at once: more is not faster, and a string column holds 2 GiB."""
_ROWS, _BYTES = b"headrace.rows", b"headrace.bytes"


@documented(RowCopyOptions)
def shuffle_into(
    source: Any,
    target: PathLike,
    *,
    seed: int = 0,
    memory_bytes: int | str = "1GiB",
    **options: Unpack[RowCopyOptions],
) -> CopyReport:
    """Write the rows of ``source`` to ``target``, each exactly once, in random order.

    The order is a function of the seed and of the order of the source: every permutation is as
    likely as any other. No more than about ``memory_bytes`` of data is in memory at a time; the
    rest waits in ``work_dir``. The target appears when it is complete. A run that was killed is
    continued by the next one with the same source and options; ``memory_bytes`` may differ.

    Args:
        source: A path, paths or URL of files, or a dataset of this library, which is copied as it
            is.
        target: A directory, a URL, or a table.
        seed: Chooses the order.
        memory_bytes: Limit for the data in memory at a time, for all processes of a machine
            together.
        **options: Keywords of sources of rows, and of all copies of rows.

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
    given = resolve(RowCopyOptions, options)
    memory = parse_bytes("memory_bytes", memory_bytes)
    if memory < _LEAST_MEMORY:
        raise OptionError(f"memory must be at least 1MiB, not {memory} bytes")
    shuffle_keys(seed, 0, 0)  # refuse a wrong seed before anything is read
    rows = as_rows(source, **split_options(given, RowSourceOptions)[0])
    if isinstance(rows, TablesAtHand):
        raise OptionError(
            "source must be a path, a list of paths, or a dataset of this library, not a "
            f"{type(source).__name__}"
        )
    place = TargetOptions.of(target, given, given["compression"])
    runner = Runner.of(given)
    processes = max(runner.process_count(rows.size_bytes), 1)
    if runner.on is None:
        runner = replace(runner, workers=processes)
    elif given["work_dir"] is None and protocol_of(place.location):
        raise OptionError(
            f'with on="{runner.on}" and a target in a store, give work_dir=: a folder that all '
            "nodes reach, for the sorted rows"
        )
    plan = partial(sorted_rows, rows, seed, memory // processes, PartSizes.of(given))
    return write_rows(rows, plan, place, runner, given, {"work": "shuffle", "seed": seed})


def shuffle_keys(seed: int, first_row: int, count: int) -> SortKeys:
    """Return the keys of some rows of a source.

    They are raw words of a counter-based generator (Philox) whose counter is the row's number. Rows
    sorted by key, ties by number, are the shuffled copy: the order depends on the seed and on the
    order of the source, and neither on memory limits nor on how the work was divided.

    >>> whole = shuffle_keys(7, 0, 10)
    >>> bool((shuffle_keys(7, 6, 4) == whole[6:]).all())
    True
    """
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise OptionError(f"seed must be an int, not {seed!r}")
    block, skipped = divmod(first_row, _WORDS_OF_A_BLOCK)
    key = np.array([seed & _LAST_KEY, _COPY_ORDER], np.uint64)
    counter = np.array([block, 0, 0, 0], np.uint64)
    words: SortKeys = np.random.Philox(key=key, counter=counter).random_raw(skipped + count)
    return words[skipped:]


# The first pass.


def sorted_rows(
    rows: StoredRows,
    seed: int,
    memory_bytes: int,
    sizes: PartSizes,
    journal: Journal,
    runner: Runner,
) -> SortedRows:
    """Write the missing runs of sorted rows, and return all rows in their final order.

    In the memory of a process are a run that is read, its columns a second time while they are
    sorted, and what is read ahead; later a range of keys, and its columns a second time while they
    are joined.

    Args:
        rows: The rows.
        seed: Chooses the order.
        memory_bytes: The data that a process has in memory.
        sizes: The sizes of parts.
        journal: Notes runs, and what the first run of the copy chose.
        runner: Sorts.
    """
    folder = journal.directory / "headrace-runs"
    # A run is in memory twice while it is sorted, beside what is read ahead and blocks that are
    # decoded: less than the whole, because Arrow needs memory on the way.
    run_bytes = min(memory_bytes // 4, _MOST_AT_ONCE)
    sorted_bytes = min(memory_bytes // 6, _MOST_AT_ONCE)
    rows = replace(
        rows,
        ahead_bytes=memory_bytes // 8,
        block_bytes=max(1 << 16, min(16 << 20, memory_bytes // 32)),
    ).counted(journal, runner)
    before = rows.rows_before.tolist()
    limit = journal.decide("bytes of a run", lambda: run_bytes)
    # Tasks of whole chunks become tasks of rows, by the rows before each chunk.
    tasks = [
        replace(task, first=before[task.first], rows=before[task.stop] - before[task.first])
        for task in cut_tasks(rows.sizes.tolist(), larger_than(limit))
    ]
    ranges = journal.decide(
        "ranges of keys", lambda: ranges_of_keys(rows.measured(), run_bytes, sorted_bytes)
    )
    receipts = runner.run(
        Stage("sorting", RowParts(rows, tasks), _RunWriter(folder, seed, run_bytes, ranges)),
        journal,
        lambda receipt: all((folder / name).exists() for name in receipt["runs"]),
    )
    count = sum(receipt["rows"] for receipt in receipts)
    size = sum(receipt["size_bytes"] for receipt in receipts)
    return SortedRows(
        [folder / name for receipt in receipts for name in receipt["runs"]],
        rows.schema,
        even_tasks(count, sizes.rows_of_a_part(count, size), size),
        sizes.group_rows,
        sorted_bytes,
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


# Runs: files of sorted rows, with a record batch for each of some equal ranges of keys.


def write_run(
    path: Path, tables: list[pa.Table], *, seed: int, first_row: int, ranges: int
) -> None:
    """Sort rows by their keys and write them; ``tables`` is emptied, to free memory on the way.

    Args:
        path: The file to write.
        tables: The rows.
        seed: Chooses the keys.
        first_row: The number of the first row in the source.
        ranges: The number of equal ranges of keys that are written apart.
    """
    schema = tables[0].schema
    count = sum(table.num_rows for table in tables)
    keys = shuffle_keys(seed, first_row, count)
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    with writing(path):
        columns = [values_at(column, order) for column in _joined_columns(tables)]
    columns.append(pa.array(keys))
    fields = [*schema, pa.field(_key_name(schema), pa.uint64(), nullable=False)]
    batch = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
    del columns
    bounds = _bounds(keys, ranges)
    pieces = [batch.slice(start, stop - start) for start, stop in pairwise(bounds)]
    shared = batch.slice(0, 0).nbytes  # dictionaries
    notes = {
        _ROWS: json.dumps(np.diff(bounds).tolist()),
        _BYTES: json.dumps([piece.nbytes - shared for piece in pieces]),
    }
    options = ipc.IpcWriteOptions(compression="lz4")
    with (
        writing(path),
        atomic_write(path) as partial,
        pa.OSFile(str(partial), "wb") as sink,
        ipc.new_file(sink, batch.schema.with_metadata(notes), options=options) as writer,
    ):
        for piece in pieces:
            writer.write_batch(piece)


def ranges_of_keys(size_bytes: int, run_bytes: int, memory_bytes: int) -> int:
    """Return the number of equal ranges of keys that runs are divided into.

    Several of them fit into memory, so that it does no harm if the bytes of all rows are estimated
    too low; but they must not become so small that reading them is all overhead.
    """
    wanted = _RANGES_IN_MEMORY * size_bytes // max(memory_bytes, 1) + 1
    return max(1, min(wanted, run_bytes // _SMALLEST_RANGE_BYTES, _MOST_RANGES))


def _bounds(keys: SortKeys, ranges: int) -> list[int]:
    """Return where each of equal ranges of keys begins, and where the last one ends."""
    # Python's integers: the product of a number and 2**64 does not fit into 64 bits.
    starts = [(number << _KEY_BITS) // ranges for number in range(1, ranges)]
    found: list[int] = np.searchsorted(keys, np.array(starts, np.uint64)).tolist()
    return [0, *found, len(keys)]


def _key_name(schema: pa.Schema) -> str:
    """Return a name for the column of keys that no other column has."""
    name = "key"
    while name in schema.names:
        name += "_"
    return name


def _joined_columns(tables: list[pa.Table]) -> Iterator[pa.Array]:
    """Yield each column of tables laid end to end, in one piece; ``tables`` is emptied.

    The pieces of a column are freed when the next one is asked for, so that not all of them are in
    memory twice.
    """
    places = range(tables[0].num_columns)
    columns = [[table.column(place) for table in tables] for place in places]
    tables.clear()
    for place in places:
        chunks = [chunk for piece in columns[place] for chunk in piece.chunks]
        joined = pa.chunked_array(chunks, columns[place][0].type).combine_chunks()
        columns[place] = []
        del chunks
        yield joined.chunk(0) if isinstance(joined, pa.ChunkedArray) else joined
        del joined


# The rows in their final order.


@dataclass(frozen=True)
class SortedRows:
    """All rows of the runs in the order of their keys, in parts.

    Attributes:
        paths: The runs, in the order of the source.
        schema: The columns.
        tasks: The parts.
        group_rows: The number of rows of a table.
        memory_bytes: How many bytes are sorted at a time.
    """

    paths: Sequence[Path]
    schema: pa.Schema
    tasks: Sequence[Task]
    group_rows: int
    memory_bytes: int
    _standing: dict[str, _MergedRuns] = field(default_factory=dict, compare=False, repr=False)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_standing": {}}

    def read(self, task: Task) -> Generator[pa.Table, None, None]:
        """Yield tables of ``group_rows`` rows; parts that follow each other share sorted rows."""
        order = self._standing.pop("order", None)
        if order is None or order.row != task.first:
            order = _MergedRuns(self.paths, self.schema, self.memory_bytes, task.first)
        while order.row < task.stop:
            table = order.take(min(task.stop - order.row, self.group_rows))
            if not table.num_rows:
                break
            yield table
        self._standing["order"] = order


class _MergedRuns:
    """The rows of all runs in the order of their keys, from row ``row`` on.

    As many ranges of keys as fit into memory are sorted at a time.
    """

    def __init__(
        self, paths: Sequence[Path], schema: pa.Schema, memory_bytes: int, row: int
    ) -> None:
        self.row = row
        self._schema = schema
        self._memory_bytes = memory_bytes
        self._paths = paths
        self._open: dict[Path, ipc.RecordBatchFileReader] = {}
        self._counts: list[Int64Array] = []
        self._sizes = rows = np.zeros(1, np.int64)
        for path in paths:
            reader = _opened(path)
            noted = reader.schema.metadata
            self._counts.append(np.array(json.loads(noted[_ROWS]), np.int64))
            self._sizes = self._sizes + np.array(json.loads(noted[_BYTES]), np.int64)
            rows = rows + self._counts[-1]
            # All runs are read in turn, again and again: the latest would be closed before they are
            # needed, and the first are as good as any.
            if len(self._open) < _OPEN_RUNS:
                self._open[path] = reader
        before = np.concatenate([[0], np.cumsum(rows)])
        self._range = min(int(np.searchsorted(before, row, side="right")) - 1, len(rows) - 1)
        self._skip = row - int(before[self._range])
        self._table = schema.empty_table()
        self._order = np.empty(0, np.int64)

    def take(self, count: int) -> pa.Table:
        """Return the next rows, each column in one piece; only at the end there may be fewer."""
        pieces: list[pa.Table] = []
        while count and self._load():
            rows, self._order = self._order[:count], self._order[count:]
            pieces.append(rows_at(self._table, rows))
            count -= len(rows)
            self.row += len(rows)
        if not pieces:
            return self._schema.empty_table()
        joined = pieces[0] if len(pieces) == 1 else pa.concat_tables(pieces).combine_chunks()
        return pa.Table.from_arrays(joined.columns, schema=self._schema)

    def _load(self) -> bool:
        """Sort the next ranges if no rows are left; return False if there are none."""
        while not len(self._order):
            self._table = self._schema.empty_table()  # frees the rows before there are others
            first = self._range
            if first == len(self._sizes):
                return False
            ends = np.cumsum(self._sizes[first:])
            fitting = int(np.searchsorted(ends, self._memory_bytes, side="right"))
            self._range = first + max(fitting, 1)
            self._sort(first, self._range)
        return True

    def _sort(self, first: int, stop: int) -> None:
        tables: list[pa.Table] = []
        for path, counts in zip(self._paths, self._counts, strict=True):
            filled = first + np.flatnonzero(counts[first:stop])
            if len(filled):
                reader = self._open.get(path) or _opened(path)
                with naming(path):
                    batches = [reader.get_batch(number) for number in filled.tolist()]
                tables.append(pa.Table.from_batches(batches))
        if tables:
            columns = list(_joined_columns(tables))
            order = np.argsort(columns.pop().to_numpy(), kind="stable")
            self._table = pa.Table.from_arrays(columns, names=self._schema.names)
            self._order, self._skip = order[self._skip :], 0


def _opened(path: Path) -> ipc.RecordBatchFileReader:
    with naming(path):
        return ipc.open_file(pa.OSFile(str(path), "rb"))
