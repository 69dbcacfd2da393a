"""Rows as the source of a copy: of files, datasets and backends, or tables that are at hand."""

from __future__ import annotations

import hashlib
import math
import os
import pickle
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa

from headrace.access import Backend
from headrace.convert.decoded import Kind
from headrace.errors import OptionError, SchemaError
from headrace.model import FileList, Int64Array
from headrace.plan import BYTES, ROWS, Chunks, cut_chunks
from headrace.sources.files.discovery import discover
from headrace.sources.source import TabularReader
from headrace.storage import Access, Options, side_by_side
from headrace.write._copier import Journal, Runner, Stage, Task, cut_tasks, digest_of, larger_than
from headrace.write._targets import Receipt

_CHUNK_BYTES = 16 << 20
"""Bytes of a chunk. It does not depend on options, since a journal counts chunks."""
_BLOCK_BYTES, _AHEAD_BYTES = 16 << 20, 64 << 20
_COUNTED_BYTES = 256 << 20
"""Bytes of the chunks that one task counts."""
_MEASURED_ROWS = 1_000
"""Rows of the beginning by which the size of all rows is estimated."""
_ROUNDING = 1e-6
_COUNTING, _STARTS = "counting", "starts"
"""Names of lines of the journal: the rows of chunks, and the beginnings of parts."""
_NOT_TRUE_OF_A_COPY = (b"iceberg.", b"org.apache.spark", b"parquet.")
_REMOTE_COPYING_THREADS, _COPYING_THREADS = 8, 2

Tables = Generator[pa.Table, None, None]


@dataclass(frozen=True)
class StoredRows:
    """The rows of files, in the order of their paths, in numbered chunks.

    Attributes:
        reader: Reads chunks.
        files: The files.
        chunks: The chunks.
        schema: The columns, with the metadata that a copy is to have.
        counts: The number of rows of each chunk; None if only reading them tells.
        locations: What the user called the files.
        block_bytes: About how many bytes a table has that is read.
        ahead_bytes: About how many bytes are read ahead.
    """

    reader: TabularReader
    files: FileList
    chunks: Chunks
    schema: pa.Schema
    counts: Int64Array | None
    locations: Sequence[str] = ()
    block_bytes: int = _BLOCK_BYTES
    ahead_bytes: int = _AHEAD_BYTES

    once = False

    @classmethod
    def of(
        cls, reader: TabularReader, files: FileList, rows: int | None, locations: Sequence[str] = ()
    ) -> StoredRows:
        """Return the rows that a reader gives of these files.

        Args:
            reader: Reads them.
            files: The files.
            rows: The number of rows that will come out; None if only reading them tells.
            locations: What the user called the files.
        """
        chunks = cut_chunks(files, split_bytes=_CHUNK_BYTES)
        counted = chunks.counted and rows == int(chunks.length.sum())
        # Metadata of table formats are not true of a copy.
        kept = {
            key: value
            for key, value in reader.source.metadata.items()
            if not key.startswith(_NOT_TRUE_OF_A_COPY)
        }
        schema = reader.schema.with_metadata(kept)
        return cls(reader, files, chunks, schema, chunks.length if counted else None, locations)

    @property
    def facts(self) -> Mapping[str, str]:
        """Digests that must be the same when a copy is continued: data, columns, filter."""
        lines = (
            f"{file.path}\0{file.file_size}\0{file.etag}\0{file.record_count}\0"
            f"{getattr(file, 'snapshot_id', None)}"
            for file in self.files
        )
        keep = self.reader.filter
        return {
            "source_files": digest_of(lines),
            "columns": hashlib.sha256(self.schema.serialize().to_pybytes()).hexdigest()[:16],
            "filters": "" if keep is None else hashlib.sha256(pickle.dumps(keep)).hexdigest()[:16],
        }

    @property
    def sizes(self) -> Int64Array:
        """About how many bytes each chunk has."""
        return np.maximum(self.chunks.size_bytes, 1)

    @property
    def size_bytes(self) -> int:
        """About how many bytes all chunks have."""
        return int(self.sizes.sum())

    @property
    def paths(self) -> Sequence[str]:
        """The files that are read."""
        return self.files.paths

    @property
    def rows_before(self) -> Int64Array:
        """The number of rows before each chunk, and of all."""
        assert self.counts is not None
        return np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int64)

    def counted(self, journal: Journal, runner: Runner) -> StoredRows:
        """Return the same rows with their counts; reading tells those that no metadata hold."""
        if self.counts is not None:
            return self
        tasks = cut_tasks(self.sizes.tolist(), larger_than(_COUNTED_BYTES))
        counting = _Counting(replace(self, reader=self.reader.counting()), tasks)
        receipts = runner.run(Stage(_COUNTING, counting, _write_counts), journal)
        counts = [count for receipt in receipts for count in receipt["counts"]]
        return replace(self, counts=np.array(counts, np.int64))

    def first_rows(self) -> tuple[pa.Table, float]:
        """Return a table from the beginning, and about how many bytes of the source it is."""
        assert self.counts is not None
        for chunk in np.flatnonzero(self.counts)[:1].tolist():
            table = next(self._tables(chunk)).slice(0, _MEASURED_ROWS)
            return table, float(self.sizes[chunk] * table.num_rows / self.counts[chunk])
        return self.schema.empty_table(), 1.0

    def size_in_memory(self) -> int:
        """Return about how many bytes all rows have in memory, judged by the first ones."""
        table, size = self.first_rows()
        return int(self.size_bytes * table.nbytes / size)

    def plan(self, part_rows: int | None, part_bytes: float, group_rows: int) -> list[Task]:
        """Return parts of so many rows, or of about so many bytes of the source and whole groups.

        Of no rows at all there is one part, so that a copy has its columns.
        """
        rows_before = self.rows_before.astype(np.float64)  # as interp wants them, in each call
        bytes_before = np.concatenate([[0.0], np.cumsum(self.sizes, dtype=np.float64)])
        total = int(rows_before[-1])
        tasks: list[Task] = []
        first, begin = 0, 0.0
        while first < total or not tasks:
            stop = total if part_rows is None else min(first + part_rows, total)
            if math.isfinite(part_bytes):
                fitting = np.interp(begin + part_bytes, bytes_before, rows_before) - first
                groups = max(int(fitting + _ROUNDING) // group_rows, 1)
                stop = min(first + groups * group_rows, stop)
            end = float(np.interp(stop, rows_before, bytes_before))
            tasks.append(Task(len(tasks), first, stop - first, int(end - begin)))
            first, begin = stop, end
        return tasks

    def read(self, first: int, rows: int | None) -> Tables:
        """Yield the tables of some rows, by the number of the first one."""
        assert rows is not None
        before = self.rows_before
        chunk = int(np.searchsorted(before, first, side="right")) - 1
        stop = int(np.searchsorted(before, first + rows))
        skip = first - int(before[chunk])
        with closing(self.read_chunks(chunk, stop)) as reading:
            for _, table in reading:
                kept = table.slice(skip, rows)
                skip = max(skip - table.num_rows, 0)
                rows -= kept.num_rows
                if kept.num_rows:
                    yield kept

    def read_chunks(self, first: int, stop: int) -> Generator[tuple[int, pa.Table], None, None]:
        """Yield tables with the numbers of their chunks, which threads read ahead.

        Where chunks may be large they are not read ahead, but block by block.
        """
        chunks = range(first, stop)
        local = self.reader.store.local
        largest = int(self.sizes[first:stop].max(initial=1))
        bounded = bool(np.isin(self.chunks.kind[first:stop], (ROWS, BYTES)).all())
        threads = min(
            _COPYING_THREADS if local else _REMOTE_COPYING_THREADS, self.ahead_bytes // largest - 1
        )
        if threads < 1 or not bounded or largest > 2 * _CHUNK_BYTES:
            for chunk in chunks:
                for table in self._tables(chunk):
                    yield chunk, table
            return
        tables_of = side_by_side(
            self._read_chunk, chunks, threads=threads, ahead=threads, see_off=local
        )
        with closing(tables_of) as reading:
            for chunk, tables in zip(chunks, reading, strict=True):
                for table in tables:
                    yield chunk, table

    def _tables(self, chunk: int) -> Iterator[pa.Table]:
        return self.reader.read(self.chunks.split(chunk, self.files), self.block_bytes)

    def _read_chunk(self, chunk: int) -> list[pa.Table]:
        return list(self._tables(chunk))


@dataclass(frozen=True, slots=True)
class _Counting:
    """Chunks whose rows are counted. A task is a run of chunks."""

    rows: StoredRows
    tasks: Sequence[Task]

    def read(self, task: Task) -> Generator[int, None, None]:
        """Yield the number of rows of each chunk."""
        assert task.rows is not None
        counts = [0] * task.rows
        chunk = task.first
        for number, table in self.rows.read_chunks(task.first, task.first + task.rows):
            yield from counts[chunk - task.first : number - task.first]
            chunk = number
            counts[chunk - task.first] += table.num_rows
        yield from counts[chunk - task.first :]


def _write_counts(task: Task, counts: Iterator[int]) -> Receipt:
    return {"counts": list(counts)}


@dataclass(slots=True)
class TablesAtHand:
    """Tables that come one after the other, and can be gone through once."""

    schema: pa.Schema
    tables: Iterator[pa.Table]
    facts: Mapping[str, str] = field(default_factory=lambda: {"source_files": uuid4().hex})

    once = True
    size_bytes = 0
    paths: Sequence[str] = ()
    locations: Sequence[str] = ()

    @property
    def sizes(self) -> Int64Array:
        """The bytes of the one chunk that all tables are, which are unknown."""
        return np.zeros(1, np.int64)

    def read_chunks(self, first: int, stop: int) -> Generator[tuple[int, pa.Table], None, None]:
        """Yield the tables that are left."""
        yield from ((0, table) for table in self.tables)


Rows = StoredRows | TablesAtHand


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

    def rows_of_a_part(self, rows: int, size_bytes: int) -> int:
        """Return the rows of a part, if so many rows have so many bytes."""
        if self.size_bytes is None:
            return self.rows or max(rows, 1)
        fitting = self.size_bytes * max(rows, 1) // max(size_bytes, 1)
        # Rounded down to whole row groups, one at least.
        return max(fitting // self.group_rows, 1) * self.group_rows


class RowsInTurn:
    """Rows that are read from the first to the last, so that nothing has to count them before.

    All parts but the last one have the same number of rows. The journal notes where each part
    begins: a chunk, and a row of it. A copy that continues begins to read there.

    Args:
        rows: The rows.
        sizes: The sizes of parts. Rows of a part that follow from bytes are judged by the first
            rows, and noted in the journal.
        journal: Notes that number, and where parts begin.
        measure: Returns the bytes that some rows become.
    """

    def __init__(
        self,
        rows: Rows,
        sizes: PartSizes,
        journal: Journal,
        measure: Callable[[pa.Table], int],
    ) -> None:
        self.size_bytes = rows.size_bytes
        self._rows = rows
        self._journal = journal
        self._bytes_before = np.concatenate([[0], np.cumsum(rows.sizes)]).tolist()
        self._end = (len(self._bytes_before) - 1, 0)
        self._starts = {0: (0, 0)}
        for part, start in journal.results(_STARTS).items():
            self._starts[part] = (start["chunk"], start["row"])
        self._open(max(self._starts.values()))
        self.part_rows = sizes.rows
        if sizes.size_bytes is not None:
            fitting = journal.decide("rows of a part", lambda: self._fitting(sizes, measure))
            self.part_rows = min(filter(None, (fitting, sizes.rows)), default=None)

    def _fitting(self, sizes: PartSizes, measure: Callable[[pa.Table], int]) -> int | None:
        """Return the rows of a part, judged by the first ones; None if there are none."""
        if not self._fill():
            return None
        first = self._table.slice(0, _MEASURED_ROWS)
        return sizes.rows_of_a_part(first.num_rows, measure(first))

    @property
    def bytes_read(self) -> int:
        """About how many bytes have been read, judged by the chunk and the rows read of it."""
        chunk = self._place[0]
        following = self._bytes_before[min(chunk + 1, self._end[0])]
        return int(min(self._bytes_before[chunk] + self._chunk_bytes, following))

    def __iter__(self) -> Iterator[Task]:
        for part in count():
            if part and self._starts[part] == self._end:
                return
            yield Task(part, part * (self.part_rows or 0))

    def read(self, first: int, rows: int | None) -> Tables:
        """Yield tables of the part that begins with a row."""
        part = first // self.part_rows if self.part_rows else 0
        if (self._place[0], self._place[1] + self._skip) != self._starts[part]:
            self.close()
            self._open(self._starts[part])
        left = self.part_rows
        while left != 0 and self._fill():
            table = self._table if left is None else self._table.slice(0, left)
            left = None if left is None else left - table.num_rows
            self._pass_by(table.num_rows)
            yield table
        self._fill()  # goes on to the chunk of the next row, or to the end
        if part + 1 not in self._starts:
            chunk, row = self._starts[part + 1] = self._place
            self._journal.note_result(_STARTS, part + 1, {"chunk": chunk, "row": row})

    def close(self) -> None:
        """Stop reading ahead."""
        self._reading.close()

    def _open(self, place: tuple[int, int]) -> None:
        """Go to a row of a chunk: begin to read the chunk, and skip the rows before."""
        self._reading = self._rows.read_chunks(place[0], self._end[0])
        self._place, self._skip = (place[0], 0), place[1]
        self._table = self._rows.schema.empty_table()
        self._chunk_bytes = 0

    def _fill(self) -> bool:
        """Have a table with the next row; return False if there is none."""
        while not self._table.num_rows:
            found = next(self._reading, None)
            if found is None:
                self._place = self._end
                return False
            chunk, self._table = found
            if chunk != self._place[0]:
                self._place, self._chunk_bytes = (chunk, 0), 0
            skipped = min(self._skip, self._table.num_rows)
            self._skip -= skipped
            self._pass_by(skipped)
        return True

    def _pass_by(self, rows: int) -> None:
        """Leave the next rows of the table behind."""
        self._chunk_bytes += self._table.slice(0, rows).nbytes
        self._table = self._table.slice(rows)
        self._place = (self._place[0], self._place[1] + rows)


def as_rows(
    source: Any,
    *,
    columns: Sequence[str] | None = None,
    storage_options: Options | None = None,
    **options: Any,
) -> Rows:
    """Return the rows of a path or paths, a dataset, a backend, or tables.

    Args:
        source: Where rows come from.
        columns: The columns to copy; None for all. A dataset has chosen its columns.
        storage_options: Credentials for paths.
        **options: Other options of paths, as ``discover`` takes them.
    """
    if _are_paths(source):
        access = None if storage_options is None else Access(storage_options=storage_options)
        found = discover(source, columns=columns, access=access, **options)
        named = () if found.listing is None else found.listing.locations
        counted = int(found.files.counts.sum()) if found.counted else None
        return StoredRows.of(found.reader, found.files, counted, named)
    options["storage_options"] = storage_options
    for name in sorted(name for name, value in options.items() if value is not None):
        raise OptionError(f"{name} is an option of paths, and not of a {type(source).__name__}")
    if isinstance(source, Backend):
        backend = source.found(columns=columns)
        return StoredRows.of(backend.reader, backend.files, source.num_rows, source.locations)
    if hasattr(source, "pipeline"):
        if columns is not None:
            raise OptionError("a dataset is copied as it is; columns is an option of paths")
        return _dataset_rows(source)
    return _tables_at_hand(source, columns)


def _are_paths(source: Any) -> bool:
    if isinstance(source, list | tuple):
        return bool(source) and all(isinstance(one, str | os.PathLike) for one in source)
    return isinstance(source, str | os.PathLike)


def _dataset_rows(dataset: Any) -> StoredRows:
    source = dataset.reader.source
    for name in dataset.reader.schema.names:
        if source.kinds.get(name) is Kind.PICKLE:
            raise OptionError(
                f"column {name!r} holds what a function in decode= returns: Python objects, which "
                "a copy has no type for; leave the function out, or the column out of columns="
            )
    return StoredRows.of(dataset.reader, dataset.files, dataset.num_rows, source.locations)


def _tables_at_hand(source: Any, columns: Sequence[str] | None) -> TablesAtHand:
    if isinstance(source, pa.Table | pa.RecordBatch):
        tables: Iterator[Any] = iter([source])
        schema = source.schema
    elif isinstance(source, pa.RecordBatchReader):
        tables, schema = iter(source), source.schema
    else:
        tables = iter(source) if isinstance(source, Iterable) and not _is_row(source) else iter(())
        first = next(tables, None)
        if not isinstance(first, pa.Table | pa.RecordBatch):
            raise OptionError(
                "source must be a path, a list of paths, a dataset or backend of this library, or "
                f"tables or record batches (at least one), not a {type(source).__name__}"
            )
        tables, schema = chain([first], tables), first.schema
    if columns is not None:
        unknown = [name for name in columns if name not in schema.names]
        if unknown:
            raise OptionError(f"there is no column {unknown[0]!r}: {', '.join(schema.names)}")
        schema = pa.schema([schema.field(name) for name in columns], metadata=schema.metadata)
    fitted = (_fitted(table, schema) for table in tables)
    return TablesAtHand(schema, (table for table in fitted if table.num_rows))


def _is_row(source: Any) -> bool:
    return isinstance(source, Mapping | bytes)


def _fitted(table: pa.Table | pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """Return a table in the columns of the first one."""
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    for wanted in schema:
        if wanted.name not in table.column_names:
            raise SchemaError(f"a table has no column {wanted.name!r}, which the first one has")
        type_ = table.schema.field(wanted.name).type
        if type_ != wanted.type:
            raise SchemaError(
                f"column {wanted.name!r} is {type_} and not {wanted.type} as in the first table"
            )
    return table.select(schema.names)


@dataclass(frozen=True, kw_only=True)
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

    def read(self, task: Task) -> Generator[Any, None, None]:
        """Yield the tables of a part."""
        reading = self.rows.read(task.first, task.rows)
        return reading if self.group_rows is None else _regrouped(reading, self.group_rows)


def row_parts(
    rows: Rows,
    sizes: PartSizes,
    journal: Journal,
    runner: Runner,
    *,
    group_rows: int | None = None,
    measure: Callable[[pa.Table], int] = lambda table: int(table.nbytes),
) -> RowParts:
    """Return rows in parts, in their order.

    Rows that no metadata count are counted while they are copied. If several processes share the
    work they are counted first.

    Args:
        rows: The rows.
        sizes: The sizes of parts.
        journal: Keeps what the first run found and chose.
        runner: Counts rows.
        group_rows: The number of rows of a table; None for tables as they come.
        measure: Returns the bytes that some rows become. The bytes of a part are judged by it.
    """
    if not isinstance(rows, StoredRows) or rows.counts is None:
        in_turn = RowsInTurn(rows, sizes, journal, measure)
        shared = runner.process_count(rows.size_bytes) > 1 or journal.results(_COUNTING)
        if not isinstance(rows, StoredRows) or not shared:
            return RowParts(rows=in_turn, tasks=in_turn, group_rows=group_rows)
        in_turn.close()
        counted = rows.counted(journal, runner)
        tasks = counted.plan(in_turn.part_rows, math.inf, 1)
        return RowParts(rows=counted, tasks=tasks, group_rows=group_rows)

    def bytes_of_source() -> float:
        table, size = rows.first_rows()
        return size / max(measure(table), 1) if table.num_rows else math.inf

    limit = math.inf
    if sizes.size_bytes is not None:
        limit = sizes.size_bytes * journal.decide("bytes of the source for a byte", bytes_of_source)
    tasks = rows.plan(sizes.rows, limit, sizes.group_rows)
    return RowParts(rows=rows, tasks=tasks, group_rows=group_rows)


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
