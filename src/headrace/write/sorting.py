"""Rows in the order of random keys, sorted on the disk in bounded memory.

The key of row n of a source is word n of a counter-based generator. Rows are sorted by key in two
passes: runs of as many rows as fit into memory are sorted and written to the disk; then ranges of
keys that fit into memory are collected from all runs. The order is a function of the seed and of
the order of the source alone, and any part of it can be read without what is before it.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
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
from headrace.write.copier import Task
from headrace.write.journal import writing

__all__ = [
    "LAST_KEY",
    "KeyRange",
    "SortedRows",
    "fitting_ranges",
    "parts_of_a_run",
    "row_keys",
    "write_run",
]

Keys = npt.NDArray[np.uint64]

_KEY_BITS = 64
LAST_KEY = (1 << _KEY_BITS) - 1
_COPY_ORDER = 3
"""the purpose of these words, beside those of ``plan.order``: no two purposes share a stream"""
_WORDS_OF_A_BLOCK = 4
_CELLS = 4096
"""equal parts of the space of keys whose rows are counted in every run"""
_SMALLEST_PART_BYTES = 64 << 10
_OPEN_RUNS = 256
_ROWS, _BYTES = b"headrace.rows", b"headrace.bytes"


def row_keys(seed: int, first_row: int, count: int) -> Keys:
    """Return the keys of some rows of a source, whatever follows them.

    They are raw words of a counter-based generator (Philox) whose counter is the row's number. Rows
    sorted by key, ties by number, are the shuffled copy: the order depends on the seed and on the
    order of the source, and neither on memory limits nor on how the work was divided.

    >>> whole = row_keys(7, 0, 10)
    >>> bool((row_keys(7, 6, 4) == whole[6:]).all())
    True
    """
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise OptionError(f"seed must be an int, not {seed!r}")
    block, skipped = divmod(first_row, _WORDS_OF_A_BLOCK)
    key = np.array([seed & LAST_KEY, _COPY_ORDER], np.uint64)
    counter = np.array([block, 0, 0, 0], np.uint64)
    words: Keys = np.random.Philox(key=key, counter=counter).random_raw(skipped + count)
    return words[skipped:]


# Runs.


@dataclass(frozen=True, slots=True)
class _Run:
    """A file of sorted rows, with a record batch for each of some equal parts of the space of keys.

    Attributes:
        path: The file.
        cells: The number of rows in each of ``_CELLS`` equal parts of the space of keys.
        size_bytes: The bytes of each record batch in memory.
    """

    path: Path
    cells: Int64Array
    size_bytes: Int64Array

    def read(self, reader: ipc.RecordBatchFileReader, keys: KeyRange) -> Iterator[pa.Table]:
        """Yield the rows with keys of a range; a reader is for one thread at a time."""
        parts = len(self.size_bytes)
        rows = self.cells.reshape(parts, -1).sum(1)
        for part in range(keys.first * parts >> _KEY_BITS, (keys.last * parts >> _KEY_BITS) + 1):
            if rows[part]:
                with naming(self.path):
                    table = pa.Table.from_batches([reader.get_batch(part)])
                    yield _between(table, keys)


def _open_run(path: Path) -> tuple[_Run, ipc.RecordBatchFileReader]:
    with naming(path):
        reader = ipc.open_file(pa.OSFile(str(path), "rb"))
        noted = reader.schema.metadata
        cells, sizes = (np.array(json.loads(noted[name]), np.int64) for name in (_ROWS, _BYTES))
        return _Run(path, cells, sizes), reader


def write_run(path: Path, tables: list[pa.Table], *, seed: int, first_row: int, parts: int) -> None:
    """Sort rows by their keys and write them; ``tables`` is emptied, to free memory on the way."""
    schema = tables[0].schema
    count = sum(table.num_rows for table in tables)
    keys = row_keys(seed, first_row, count)
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    with writing(path):
        columns = [values_at(column, order) for column in _joined_columns(tables)]
    columns.append(pa.array(keys))
    fields = [*schema, pa.field(_key_name(schema), pa.uint64(), nullable=False)]
    batch = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
    del columns
    bounds = _bounds(keys, parts)
    pieces = [batch.slice(start, stop - start) for start, stop in pairwise(bounds)]
    shared = batch.slice(0, 0).nbytes  # dictionaries
    notes = {
        _ROWS: json.dumps(np.diff(_bounds(keys, _CELLS)).tolist()),
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


def parts_of_a_run(run_bytes: int, expected_bytes: int, range_bytes: int) -> int:
    """Return in how many record batches to write a run, a power of 2.

    As many as let a batch of each of all runs fit into memory, with room for an estimate that is
    too low; but batches must not become so small that reading them is all overhead.
    """
    wanted = -(-2 * expected_bytes // range_bytes)
    most = min(_CELLS, max(1, run_bytes // _SMALLEST_PART_BYTES))
    parts = 1
    while parts < wanted and 2 * parts <= most:
        parts *= 2
    return parts


def _bounds(keys: Keys, parts: int) -> list[int]:
    """Return where each of equal parts of the space of keys begins, and where the last one ends."""
    starts = [(part << _KEY_BITS) // parts for part in range(1, parts)]
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


def _between(table: pa.Table, keys: KeyRange) -> pa.Table:
    """Return the rows of a sorted table with such keys; a copy if they are few of them."""
    present = table.column(table.num_columns - 1).chunk(0).to_numpy()
    start = int(np.searchsorted(present, np.uint64(keys.first)))
    stop = int(np.searchsorted(present, np.uint64(keys.last), side="right"))
    if 2 * (stop - start) >= table.num_rows:
        return table.slice(start, stop - start)
    return rows_at(table, np.arange(start, stop))


# Ranges of keys.


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The keys from ``first`` to ``last``, both of them included."""

    first: int
    last: int


def fitting_ranges(
    sizes: Sequence[Int64Array], range_bytes: int, first_key: int = 0
) -> Iterator[KeyRange]:
    """Yield the space of keys from ``first_key`` on, halved until each piece holds few enough
    bytes.

    Args:
        sizes: The bytes in equal parts of the space of keys, for each run. Within a part they count
            as spread evenly: keys are random, so they are, but for rows of very different size.
        range_bytes: The bytes that a range may hold.
        first_key: Where to begin.
    """
    places, bytes_before = _distribution(sizes)

    def between(first: int, last: int) -> float:
        ends = np.interp([first / 2**_KEY_BITS, (last + 1) / 2**_KEY_BITS], places, bytes_before)
        return float(ends[1] - ends[0])

    pending = [KeyRange(first_key, LAST_KEY)]
    while pending:
        keys = pending.pop()
        if keys.first == keys.last or between(keys.first, keys.last) <= range_bytes:
            yield keys
            continue
        middle = (keys.first + keys.last) // 2
        pending += [KeyRange(middle + 1, keys.last), KeyRange(keys.first, middle)]


def _distribution(
    sizes: Sequence[Int64Array],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return places in the space of keys, from 0 to 1, and the bytes of all runs before each."""
    finest = max((len(parts) for parts in sizes), default=1)
    in_cells = np.zeros(finest)
    for parts in sizes:  # whose lengths are powers of 2
        in_cells += np.repeat(parts / (finest // len(parts)), finest // len(parts))
    return np.arange(finest + 1) / finest, np.concatenate([[0.0], np.cumsum(in_cells)])


# The rows in their final order.


@dataclass(frozen=True)
class SortedRows:
    """All rows of the runs in the order of their keys, in parts.

    Attributes:
        paths: The runs, in the order of the source.
        schema: The columns.
        part_rows: The number of rows of a part.
        group_rows: The number of rows of a table.
        range_bytes: How many bytes are sorted at a time.
        num_rows: The number of all rows.
        size_bytes: The bytes of all rows.
    """

    paths: Sequence[Path]
    schema: pa.Schema
    part_rows: int
    group_rows: int
    range_bytes: int
    num_rows: int
    size_bytes: int
    _standing: dict[str, _Order] = field(default_factory=dict, compare=False, repr=False)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_standing": {}}

    @computed_once
    def tasks(self) -> list[Task]:
        """One task for each part; of no rows at all one, so that a copy has its columns."""
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
            order = _Order(self.paths, self.schema, self.range_bytes, task.first)
        left = task.rows or 0
        while left:
            table = order.take(min(left, self.group_rows))
            if not table.num_rows:
                break
            left -= table.num_rows
            yield table
        self._standing["order"] = order


@dataclass(slots=True)
class _Sorted:
    """Rows of a range of keys, and their order."""

    table: pa.Table
    order: Int64Array
    taken: int = 0


class _Order:
    """The rows of runs from one on, range by range."""

    def __init__(
        self, paths: Sequence[Path], schema: pa.Schema, range_bytes: int, row: int
    ) -> None:
        self.row = row
        self._schema = schema
        self._runs = _Runs(paths)
        cells = sum((run.cells for run in self._runs.all), np.zeros(_CELLS, np.int64))
        before = np.concatenate([[0], np.cumsum(cells)])
        cell = min(int(np.searchsorted(before, row, side="right")) - 1, _CELLS - 1)
        first_key = (cell << _KEY_BITS) // _CELLS
        self._skip = row - int(before[cell])
        sizes = [run.size_bytes for run in self._runs.all]
        self._ranges = fitting_ranges(sizes, range_bytes, first_key)
        self._empty = _dictionaries(self._runs)
        self._current: _Sorted | None = None

    def take(self, count: int) -> pa.Table:
        """Return the next rows, in one piece a column; fewer than asked for at the end only."""
        pieces: list[pa.Table] = []
        while count and (current := self._loaded()) is not None:
            rows = current.order[current.taken : current.taken + count]
            pieces.append(rows_at(current.table, rows))
            current.taken += len(rows)
            count -= len(rows)
            self.row += len(rows)
        if not pieces:
            return self._schema.empty_table()
        joined = pieces[0] if len(pieces) == 1 else pa.concat_tables(pieces).combine_chunks()
        return pa.Table.from_arrays(joined.columns, schema=self._schema)

    def _loaded(self) -> _Sorted | None:
        """Return the range that the next row is in."""
        while self._current is None or self._current.taken == len(self._current.order):
            self._current = None  # freed before there is another
            keys = next(self._ranges, None)
            if keys is None:
                return None
            self._current = self._load(keys)
            skipped = min(self._skip, len(self._current.order))
            self._current.taken = skipped
            self._skip -= skipped
        return self._current

    def _load(self, keys: KeyRange) -> _Sorted:
        # First comes a table without rows, but with all values of dictionaries, which ranges share
        # so.
        tables = [self._empty] if self._empty is not None else []
        for run, reader in self._runs:
            tables += run.read(reader, keys)
        if not tables:
            return _Sorted(self._schema.empty_table(), np.empty(0, np.int64))
        columns = list(_joined_columns(tables))
        order = np.argsort(columns.pop().to_numpy(), kind="stable")
        return _Sorted(pa.Table.from_arrays(columns, names=self._schema.names), order)


class _Runs:
    """The runs, of which not too many are open at a time. For one thread at a time."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._open: dict[int, ipc.RecordBatchFileReader] = {}
        self.all: list[_Run] = []
        for number, path in enumerate(paths):
            run, reader = _open_run(path)
            self.all.append(run)
            if number < _OPEN_RUNS:  # going round and round, the first are as good as any
                self._open[number] = reader

    def __iter__(self) -> Iterator[tuple[_Run, ipc.RecordBatchFileReader]]:
        for number, run in enumerate(self.all):
            yield run, self._open[number] if number in self._open else _open_run(run.path)[1]


def _dictionaries(runs: _Runs) -> pa.Table | None:
    """Return a table without rows, with the dictionaries of all runs; None if there are none."""
    empty: list[pa.Table] = []
    for run, reader in runs:
        if not any(map(_has_dictionary, reader.schema.types)):
            return None
        rows = run.cells.reshape(len(run.size_bytes), -1).sum(1)
        part = int(np.argmax(rows > 0))
        empty.append(pa.Table.from_batches([reader.get_batch(part)]).slice(0, 0))
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
