"""Rows in the order of random keys, sorted on the disk in bounded memory.

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
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import ipc

from headrace.errors import OptionError
from headrace.matrices import rows_at, values_at
from headrace.model import Int64Array, computed_once
from headrace.sources.files.failures import naming
from headrace.storage import atomic_write
from headrace.write._copier import Journal, Runner, Stage, Task, cut_tasks, larger_than
from headrace.write._rows import PartSizes, RowParts, StoredRows
from headrace.write._targets import Receipt, writing

SortKeys = npt.NDArray[np.uint64]

_KEY_BITS = 64
_LAST_KEY = (1 << _KEY_BITS) - 1
_COPY_ORDER = 3
"""The purpose of these words; ``plan.permutations`` has others. No two share a stream."""
_WORDS_OF_A_BLOCK = 4
"""Words that Philox makes of one value of its counter."""
_RANGES_IN_MEMORY = 2
_SMALLEST_RANGE_BYTES = 4 << 10
"""A range of a run is a record batch: smaller ones are mostly headers."""
_MOST_RANGES = 4096
_OPEN_RUNS = 256
"""Runs that are open at a time, because a process may open few files."""
_MOST_AT_ONCE = 1 << 30
"""Bytes that are sorted at once: more is not faster, and a string column holds 2 GiB at most."""
_ROWS, _BYTES = b"headrace.rows", b"headrace.bytes"


def shuffle_keys(seed: int, first_row: int, count: int) -> SortKeys:
    """Return the keys of some rows of a source, whatever follows them.

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


# Runs.


@dataclass(frozen=True, slots=True)
class _SortedRun:
    """A file of sorted rows, with a record batch for each of some equal ranges of keys.

    Attributes:
        path: The file.
        rows: The number of rows of each range.
        size_bytes: The bytes of each range in memory.
    """

    path: Path
    rows: Int64Array
    size_bytes: Int64Array


def _open_run(path: Path) -> tuple[_SortedRun, ipc.RecordBatchFileReader]:
    with naming(path):
        reader = ipc.open_file(pa.OSFile(str(path), "rb"))
        noted = reader.schema.metadata
        rows, sizes = (np.array(json.loads(noted[name]), np.int64) for name in (_ROWS, _BYTES))
        return _SortedRun(path, rows, sizes), reader


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


# The first pass.


def sorted_rows(
    rows: StoredRows,
    seed: int,
    memory_bytes: int,
    sizes: PartSizes,
    journal: Journal,
    runner: Runner,
) -> SortedRows:
    """Write runs of sorted rows, those that are missing, and return all rows in their final order.

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
    folder = journal.directory / "runs"
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
    chunks = cut_tasks(rows.sizes.tolist(), larger_than(limit))
    # These tasks are runs of chunks: make them runs of rows, by the rows before each chunk.
    tasks = [
        replace(
            task,
            first=before[task.first],
            rows=before[task.first + (task.rows or 0)] - before[task.first],
        )
        for task in chunks
    ]
    ranges = journal.decide(
        "ranges of keys", lambda: ranges_of_keys(rows.size_in_memory(), run_bytes, sorted_bytes)
    )
    receipts = runner.run(
        Stage(
            "sorting",
            RowParts(rows=rows, tasks=tasks),
            _RunWriter(folder, seed, run_bytes, ranges),
        ),
        journal,
        lambda receipt: all((folder / name).exists() for name in receipt["runs"]),
    )
    total_rows = sum(receipt["rows"] for receipt in receipts)
    total_bytes = sum(receipt["size_bytes"] for receipt in receipts)
    return SortedRows(
        [folder / name for receipt in receipts for name in receipt["runs"]],
        rows.schema,
        sizes.rows_of_a_part(total_rows, total_bytes),
        sizes.group_rows,
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


# The rows in their final order.


@dataclass(frozen=True)
class SortedRows:
    """All rows of the runs in the order of their keys, in parts.

    Attributes:
        paths: The runs, in the order of the source.
        schema: The columns.
        part_rows: The number of rows of a part.
        group_rows: The number of rows of a table.
        memory_bytes: How many bytes are sorted at a time.
        num_rows: The number of all rows.
        size_bytes: The bytes of all rows.
    """

    paths: Sequence[Path]
    schema: pa.Schema
    part_rows: int
    group_rows: int
    memory_bytes: int
    num_rows: int
    size_bytes: int
    _standing: dict[str, _MergedRuns] = field(default_factory=dict, compare=False, repr=False)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_standing": {}}

    @computed_once
    def tasks(self) -> list[Task]:
        """The tasks, one for each part; of no rows at all one, so that a copy has its columns."""
        row_bytes = self.size_bytes / max(self.num_rows, 1)
        tasks = []
        for part, first in enumerate(range(0, max(self.num_rows, 1), self.part_rows)):
            rows = min(self.part_rows, self.num_rows - first)
            tasks.append(Task(part, first, rows, int(rows * row_bytes)))
        return tasks

    def read(self, task: Task) -> Generator[pa.Table, None, None]:
        """Yield tables of ``group_rows`` rows; parts that follow each other share sorted rows."""
        order = self._standing.pop("order", None)
        if order is None or order.row != task.first:
            order = _MergedRuns(self.paths, self.schema, self.memory_bytes, task.first)
        left = task.rows or 0
        while left:
            table = order.take(min(left, self.group_rows))
            if not table.num_rows:
                break
            left -= table.num_rows
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
        self._runs = _Runs(paths)
        self._sizes = sum((run.size_bytes for run in self._runs.all), np.zeros(1, np.int64))
        rows = sum((run.rows for run in self._runs.all), np.zeros(1, np.int64))
        before = np.concatenate([[0], np.cumsum(rows)])
        self._range = min(int(np.searchsorted(before, row, side="right")) - 1, len(rows) - 1)
        self._skip = row - int(before[self._range])
        self._empty = _dictionaries(self._runs)
        self._table = schema.empty_table()
        self._order = np.empty(0, np.int64)

    def take(self, count: int) -> pa.Table:
        """Return the next rows, in one piece a column; fewer than asked for at the end only."""
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
        # First comes a table without rows, but with all values of dictionaries, which ranges share.
        tables = [self._empty] if self._empty is not None else []
        for run, reader in self._runs:
            for number in range(first, stop):
                if run.rows[number]:
                    with naming(run.path):
                        tables.append(pa.Table.from_batches([reader.get_batch(number)]))
        if tables:
            columns = list(_joined_columns(tables))
            order = np.argsort(columns.pop().to_numpy(), kind="stable")
            self._table = pa.Table.from_arrays(columns, names=self._schema.names)
            self._order, self._skip = order[self._skip :], 0


class _Runs:
    """The runs, of which not too many are open at a time. For one thread at a time."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._open: dict[int, ipc.RecordBatchFileReader] = {}
        self.all: list[_SortedRun] = []
        for number, path in enumerate(paths):
            run, reader = _open_run(path)
            self.all.append(run)
            # All runs are read in turn, again and again: the latest would be closed before they are
            # needed, and the first are as good as any.
            if number < _OPEN_RUNS:
                self._open[number] = reader

    def __iter__(self) -> Iterator[tuple[_SortedRun, ipc.RecordBatchFileReader]]:
        for number, run in enumerate(self.all):
            yield run, self._open[number] if number in self._open else _open_run(run.path)[1]


def _dictionaries(runs: _Runs) -> pa.Table | None:
    """Return a table without rows, with the dictionaries of all runs; None if there are none."""
    empty: list[pa.Table] = []
    for run, reader in runs:
        if not any(map(_has_dictionary, reader.schema.types)):
            return None
        number = int(np.argmax(run.rows > 0))
        empty.append(pa.Table.from_batches([reader.get_batch(number)]).slice(0, 0))
    if not empty:
        return None
    names = empty[0].schema.names
    return pa.Table.from_arrays(list(_joined_columns(empty)), names=names)


def _has_dictionary(type_: pa.DataType) -> bool:
    """
    >>> _has_dictionary(pa.struct({"a": pa.list_(pa.dictionary(pa.int8(), pa.string()))}))
    True
    """
    if isinstance(type_, pa.BaseExtensionType):
        return _has_dictionary(type_.storage_type)
    inside = [type_.field(place).type for place in range(type_.num_fields)]
    return pa.types.is_dictionary(type_) or any(map(_has_dictionary, inside))
