"""Rows as the source of a copy: of files, datasets and backends, or given as Python objects.

Rows of files, datasets and backends (``StoredRows``) are read chunk by chunk. Tables in memory, and
Python objects that become tables, can be iterated only once (``TablesAtHand``).
"""

from __future__ import annotations

import hashlib
import math
import os
import pickle
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa

from headrace.convert.kinds import Kind
from headrace.errors import OptionError, SchemaError
from headrace.model import FileList, Int64Array
from headrace.plan import BYTES, ROWS, Chunks, cut_chunks
from headrace.sources.array_record.codecs import LabelPayload, RawRecords
from headrace.sources.backend import Backend
from headrace.sources.files.discovery import discover
from headrace.sources.source import TabularReader
from headrace.sources.values import Misfit, plain_value, table_of, type_of
from headrace.storage import Access, Options, side_by_side
from headrace.write._copier import (
    Origin,
    Receipt,
    Runner,
    Stage,
    Task,
    cut_tasks,
    digest_of_files,
    larger_than,
)
from headrace.write._journal import Journal

_CHUNK_BYTES = 16 << 20
"""Bytes of a chunk. It does not depend on options, since a journal counts chunks."""
_BLOCK_BYTES, _AHEAD_BYTES = 16 << 20, 64 << 20
_COUNTED_BYTES = 256 << 20
"""Bytes of the chunks that one task counts."""
MEASURED_ROWS = 1_000
"""Number of first rows by which the size of all rows is estimated."""
_NOT_TRUE_OF_A_COPY = (b"iceberg.", b"org.apache.spark", b"parquet.")
_REMOTE_COPYING_THREADS, _COPYING_THREADS = 8, 2
_ROWS_AT_ONCE = 1024
"""Rows that become one table; the first table decides the columns and their types."""

Tables = Generator[pa.Table, None, None]
Measure = Callable[[pa.Table], int]
"""Function that returns about how many bytes some rows become."""


@dataclass(frozen=True)
class StoredRows:
    """The rows of files, in the order of their paths, in numbered chunks.

    Attributes:
        reader: Reads chunks.
        files: The files.
        chunks: The chunks.
        schema: The columns, with the metadata of the copy.
        counts: The number of rows of each chunk; None if only reading them tells.
        locations: The locations given by the user.
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
    def origin(self) -> Origin:
        """The files, columns and filter."""
        keep = self.reader.filter
        facts = {
            "source_files": digest_of_files(self.files),
            "columns": hashlib.sha256(self.schema.serialize().to_pybytes()).hexdigest()[:16],
            "filters": "" if keep is None else hashlib.sha256(pickle.dumps(keep)).hexdigest()[:16],
        }
        return Origin(facts, self.files.paths, self.locations, self.schema)

    @property
    def sizes(self) -> Int64Array:
        """About how many bytes each chunk has."""
        return np.maximum(self.chunks.size_bytes, 1)

    @property
    def size_bytes(self) -> int:
        """About how many bytes all chunks have."""
        return int(self.sizes.sum())

    @property
    def num_rows(self) -> int:
        """The number of all rows."""
        return int(self.rows_before[-1])

    @property
    def rows_before(self) -> Int64Array:
        """The number of rows before each chunk, and of all."""
        assert self.counts is not None
        return np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int64)

    def counted(self, journal: Journal, runner: Runner) -> StoredRows:
        """Return the same rows with their counts; rows that metadata does not count are read."""
        if self.counts is not None:
            return self
        tasks = cut_tasks(self.sizes.tolist(), larger_than(_COUNTED_BYTES))
        counting = _Counting(replace(self, reader=self.reader.counting()), tasks)
        receipts = runner.run(Stage("counting", counting, _write_counts), journal)
        counts = [count for receipt in receipts for count in receipt["counts"]]
        return replace(self, counts=np.array(counts, np.int64))

    def measured(self, measure: Measure = lambda table: int(table.nbytes)) -> int:
        """Return about how many bytes all rows become, judged by the first ones."""
        assert self.counts is not None
        for chunk in np.flatnonzero(self.counts)[:1].tolist():
            table = next(self._tables(chunk)).slice(0, MEASURED_ROWS)
            size = self.sizes[chunk] * table.num_rows / self.counts[chunk]
            return int(self.size_bytes * measure(table) / size)
        return 0

    def read(self, task: Task) -> Tables:
        """Yield the tables of some rows, by the number of the first one."""
        before = self.rows_before
        chunk = int(np.searchsorted(before, task.first, side="right")) - 1
        stop = int(np.searchsorted(before, task.stop))
        row = int(before[chunk])
        with closing(self.read_chunks(chunk, stop)) as reading:
            for _, table in reading:
                first, last = max(task.first - row, 0), min(task.stop - row, table.num_rows)
                if first < last:
                    yield table.slice(first, last - first)
                row += table.num_rows

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
        if threads < 1 or not bounded:
            for chunk in chunks:
                for table in self._tables(chunk):
                    yield chunk, table
            return
        tables_of = side_by_side(
            self._read_chunk, chunks, threads=threads, ahead=threads, join=local
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
        counts = [0] * (task.rows or 0)
        chunk = task.first
        for number, table in self.rows.read_chunks(task.first, task.stop):
            yield from counts[chunk - task.first : number - task.first]
            chunk = number
            counts[chunk - task.first] += table.num_rows
        yield from counts[chunk - task.first :]


def _write_counts(task: Task, counts: Iterator[int]) -> Receipt:
    return {"counts": list(counts)}


class TablesAtHand:
    """Tables that come one after the other, and can be iterated only once.

    Attributes:
        schema: The columns.
        kind: The type of what came one after the other: tables, or rows as dicts, bytes or tuples.
    """

    size_bytes = 0

    def __init__(
        self, schema: pa.Schema, tables: Iterator[pa.Table], kind: type = pa.Table
    ) -> None:
        self.schema = schema
        self.kind = kind
        self._tables = tables
        self._table = schema.empty_table()

    @property
    def origin(self) -> Origin:
        """A source that no later run can have."""
        return Origin({"source_files": uuid4().hex}, schema=self.schema, once=True)

    def peek(self) -> pa.Table:
        """Return a table that begins with the next row; it is empty behind the last one."""
        while not self._table.num_rows:
            table = next(self._tables, None)
            if table is None:
                break
            self._table = table
        return self._table

    def take(self, rows: int | None) -> Tables:
        """Yield tables of the next rows; None for all."""
        left = math.inf if rows is None else rows
        while left and self.peek().num_rows:
            table = self._table.slice(0, min(left, self._table.num_rows))
            left -= table.num_rows
            self._table = self._table.slice(table.num_rows)
            yield table


Rows = StoredRows | TablesAtHand


# What users give.


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
        **options: Other ``RowSourceOptions``, which apply to paths only.
    """
    if are_paths(source):
        access = None if storage_options is None else Access(storage_options=storage_options)
        found = discover(source, columns=columns, access=access, **options)
        named = () if found.listing is None else found.listing.locations
        counted = int(found.files.counts.sum()) if found.counted else None
        return StoredRows.of(found.reader, found.files, counted, named)
    options["storage_options"] = storage_options
    chosen = {name for name, value in options.items() if value is not None and value is not False}
    for name in sorted(chosen):
        raise OptionError(
            f"{name} applies to paths only, and the source is a {type(source).__name__}"
        )
    if isinstance(source, Backend):
        backend = source.found(columns=columns)
        return StoredRows.of(backend.reader, backend.files, source.num_rows, source.locations)
    if isinstance(getattr(source, "reader", None), TabularReader):
        if columns is not None:
            raise OptionError(
                "columns applies to paths only; a dataset is copied with the columns that it has"
            )
        return _dataset_rows(source)
    return _tables_at_hand(source, columns)


def are_paths(source: Any) -> bool:
    """Return True if the source is a path or a list of paths."""
    if isinstance(source, list | tuple):
        return bool(source) and all(isinstance(one, str | os.PathLike) for one in source)
    return isinstance(source, str | os.PathLike)


def _dataset_rows(dataset: Any) -> StoredRows:
    source = dataset.reader.source
    for name in dataset.reader.schema.names:
        if source.kinds.get(name) is Kind.PICKLE:
            raise OptionError(
                f"column {name!r} holds Python objects that a function in decode= returned, and a "
                "file has no type for them; leave the function out, or the column out of "
                "columns="
            )
    return StoredRows.of(dataset.reader, dataset.files, dataset.num_rows, source.locations)


def _tables_at_hand(source: Any, columns: Sequence[str] | None) -> TablesAtHand:
    items: Iterator[Any] = iter(())
    if isinstance(source, pa.Table | pa.RecordBatch):
        items = iter([source])
    elif isinstance(source, pa.RecordBatchReader):
        items = chain([source.schema.empty_table()], source)
    elif isinstance(source, Iterable) and not isinstance(source, Mapping | bytes):
        items = iter(source)
    first = next(items, None)
    tables = chain([first], items)
    kind = next((kind for kind in _KINDS_OF_ROWS if isinstance(first, kind)), pa.Table)
    if kind in _KINDS_OF_ROWS:
        items = _KINDS_OF_ROWS[kind](tables)
        first = next(items)
        tables = chain([first], items)
    if not isinstance(first, pa.Table | pa.RecordBatch):
        raise OptionError(
            "source must be a path, a list of paths, a dataset or backend of this library, tables "
            "or record batches (at least one), or rows (dicts, bytes, or tuples of a label and "
            f"bytes), not a {type(source).__name__}"
        )
    schema = first.schema
    if columns is not None:
        unknown = [name for name in columns if name not in schema.names]
        if unknown:
            raise OptionError(f"there is no column {unknown[0]!r}: {', '.join(schema.names)}")
        schema = pa.schema([schema.field(name) for name in columns], metadata=schema.metadata)
    fitted = (_fitted(table, schema) for table in tables)
    return TablesAtHand(schema, (table for table in fitted if table.num_rows), kind)


def _fitted(table: pa.Table | pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """Return a table in the columns of the first one."""
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    for wanted in schema:
        if wanted.name not in table.column_names:
            raise SchemaError(f"a table lacks the column {wanted.name!r} of the first table")
        type_ = table.schema.field(wanted.name).type
        if type_ != wanted.type:
            raise SchemaError(
                f"column {wanted.name!r} is {type_} and not {wanted.type} as in the first table"
            )
    return table.select(schema.names)


def _labelled(row: Any) -> dict[str, Any]:
    if not isinstance(row, tuple) or len(row) != 2:
        raise SchemaError(f"a row must be a label and bytes, but is {row!r:.80}")
    return {"label": row[0], "payload": row[1]}


def _tables(rows: Iterable[Any], schema: pa.Schema | None) -> Iterator[pa.Table]:
    """Yield tables of rows; the columns are given, or those of the first rows."""
    number = 0
    while block := list(islice(rows, _ROWS_AT_ONCE)):
        for place, row in enumerate(block):
            if not isinstance(row, Mapping):
                raise SchemaError(f"row {number + place} is {row!r:.80}, not a dict")
        plain = [{key: plain_value(value) for key, value in row.items()} for row in block]
        schema = _schema_of(plain) if schema is None else schema
        try:
            yield table_of(plain, schema, schema, {}, inferred=True)
        except Misfit as misfit:
            raise SchemaError(
                f"row {number + misfit.place} does not fit the columns of the first rows: "
                f"{misfit}; change the row, or write tables, which have explicit types"
            ) from misfit
        number += len(block)


def _schema_of(rows: Sequence[Mapping[str, Any]]) -> pa.Schema:
    """Return the columns of a first row, in types that hold some rows."""
    fields = []
    for name in rows[0]:
        try:
            fields.append(pa.field(name, type_of([row.get(name) for row in rows])))
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise SchemaError(f"{name!r} cannot be a column: {error}") from error
    return pa.schema(fields)


_KINDS_OF_ROWS: dict[type, Callable[[Iterator[Any]], Iterator[pa.Table]]] = {
    Mapping: lambda rows: _tables(rows, None),
    bytes: lambda rows: _tables(({"record": one} for one in rows), RawRecords.schema),
    tuple: lambda rows: _tables(map(_labelled, rows), LabelPayload.schema),
}
"""The types of rows that become tables, and how."""
