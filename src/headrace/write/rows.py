"""Rows as the source of a copy: of files, datasets and backends, or tables that are at hand."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa

from headrace.access import Backend
from headrace.convert.decoded import Kind
from headrace.errors import OptionError, SchemaError
from headrace.model import FileList, Int64Array, computed_once
from headrace.plan import BYTES, ROWS, Chunks, cut_chunks
from headrace.sources.files.discovery import discover
from headrace.sources.reader import TabularReader
from headrace.storage import protocol_of, side_threads
from headrace.write.copier import Place, Reading, SizedParts, Task

__all__ = [
    "RowParts",
    "Rows",
    "StoredRows",
    "TablesAtHand",
    "as_rows",
    "refuse_overlap",
    "regrouped",
]

_CHUNK_BYTES = 16 << 20
"""of a chunk: it never depends on options, since a journal counts chunks"""
_BLOCK_BYTES, _AHEAD_BYTES = 16 << 20, 64 << 20
_NOT_TRUE_OF_A_COPY = (b"iceberg.", b"org.apache.spark", b"parquet.")
_WAITING_THREADS, _DECODING_THREADS = 8, 2


Tables = Generator[tuple[int, pa.Table], None, None]


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
    """

    reader: TabularReader
    files: FileList
    chunks: Chunks
    schema: pa.Schema
    counts: Int64Array | None
    locations: Sequence[str] = ()

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
        return self.chunks.size_bytes

    @property
    def paths(self) -> Sequence[str]:
        """The files that are read."""
        return self.files.paths

    def read(
        self,
        first: int,
        stop: int | None = None,
        *,
        block_bytes: int = _BLOCK_BYTES,
        ahead_bytes: int = _AHEAD_BYTES,
    ) -> Tables:
        """Yield tables with the numbers of their chunks, which threads read ahead.

        A chunk that may be large is not read ahead, but block by block when its turn comes.
        """
        local = self.reader.store.local
        threads = _DECODING_THREADS if local else _WAITING_THREADS
        sizes = self.sizes[:stop].tolist()
        under_way: deque[tuple[int, Future[list[pa.Table]] | None]] = deque()
        following, waiting_bytes = first, 0
        with side_threads(threads, see_off=local) as submit:
            while following < len(sizes) or under_way:
                while following < len(sizes) and (
                    not under_way
                    or (
                        len(under_way) <= threads
                        and waiting_bytes + sizes[following] <= ahead_bytes
                    )
                ):
                    begun = None
                    if self._is_bounded(following) and sizes[following] <= ahead_bytes:
                        begun = submit(partial(self._read_chunk, following, block_bytes))
                    under_way.append((following, begun))
                    waiting_bytes += sizes[following]
                    following += 1
                chunk, begun = under_way.popleft()
                waiting_bytes -= sizes[chunk]
                read = self._tables(chunk, block_bytes)  # which begins when it is asked
                tables = read if begun is None else iter(begun.result())
                del begun
                for table in tables:
                    yield chunk, table

    def _is_bounded(self, chunk: int) -> bool:
        """Return True if a chunk certainly is not much larger than its size says."""
        known = self.chunks.kind[chunk] in (ROWS, BYTES)
        return bool(known and self.sizes[chunk] <= 2 * _CHUNK_BYTES)

    def _tables(self, chunk: int, block_bytes: int) -> Iterator[pa.Table]:
        return self.reader.read(self.chunks.split(chunk, self.files), block_bytes)

    def _read_chunk(self, chunk: int, block_bytes: int) -> list[pa.Table]:
        return list(self._tables(chunk, block_bytes))


@dataclass(slots=True)
class TablesAtHand:
    """Tables that come one after the other, and can be gone through once. Each is a chunk."""

    schema: pa.Schema
    tables: Iterator[pa.Table]
    facts: Mapping[str, str] = field(default_factory=lambda: {"source_files": uuid4().hex})
    _last: tuple[int, pa.Table] | None = None

    once = True
    counts = None
    sizes = np.ones(1, np.int64)
    paths: Sequence[str] = ()
    locations: Sequence[str] = ()

    def read(
        self, first: int, stop: int | None = None, *, block_bytes: int = 0, ahead_bytes: int = 0
    ) -> Tables:
        """Yield tables. The one that was yielded last is kept, for a part may end within it."""
        if self._last is not None and self._last[0] == first:
            yield self._last
        for chunk, table in enumerate(self.tables, 0 if self._last is None else self._last[0] + 1):
            self._last = chunk, table
            yield chunk, table


Rows = StoredRows | TablesAtHand


def as_rows(source: Any, *, columns: Sequence[str] | None = None, **options: Any) -> Rows:
    """Return the rows of a path or paths, a dataset, a backend, or tables.

    Args:
        source: Where rows come from.
        columns: The columns to copy; None for all. A dataset has chosen its columns.
        **options: Options of paths, as ``discover`` takes them.
    """
    if _are_paths(source):
        found = discover(source, columns=columns, **options)
        named = () if found.listing is None else found.listing.locations
        counted = int(found.files.counts.sum()) if found.counted else None
        return StoredRows.of(found.reader, found.files, counted, named)
    given = sorted(name for name, value in options.items() if value is not None)
    if given:
        name = given[0].replace("access", "storage_options")
        raise OptionError(f"{name} is an option of paths, and not of a {type(source).__name__}")
    if isinstance(source, Backend):
        found = source.found(columns=columns)
        return StoredRows.of(found.reader, found.files, source.num_rows, source.locations)
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
    return TablesAtHand(schema, (_fitted(table, schema) for table in tables))


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


@dataclass(frozen=True)
class RowParts(SizedParts):
    """Rows in parts of a number of rows or bytes. A place is a chunk, and rows of it.

    Attributes:
        rows: The rows.
        part_rows: The number of rows of a part; None for no limit.
        part_bytes: About how many bytes a part has in memory; None for no limit.
        group_rows: The number of rows of a table; None for tables as they come.
    """

    rows: Rows
    part_rows: int | None = None
    part_bytes: int | None = None
    group_rows: int | None = None

    @computed_once
    def tasks(self) -> Sequence[Task] | None:
        counts = self.rows.counts
        if counts is None or self.part_rows is None:
            return None
        return plan_by_rows(counts, self.part_rows)

    @property
    def unit_bytes(self) -> Sequence[int]:
        sizes: list[int] = self.rows.sizes.tolist()
        return sizes

    def rows_of(self, unit: int) -> int | None:
        counts = self.rows.counts
        return None if counts is None else int(counts[unit])

    def read(self, task: Task) -> Reading:
        reading = self._read(task)
        return reading if self.group_rows is None else regrouped(reading, self.group_rows)

    def _stop(self, task: Task) -> int | None:
        """Return the chunk before which a planned part ends, so that no more are read ahead."""
        if task.rows is None or self.rows.counts is None:
            return None
        ends = np.cumsum(self.rows.counts)
        return int(np.searchsorted(ends, task.number + task.rows)) + 1

    def _read(self, task: Task) -> Reading:
        left = self.part_rows if task.rows is None else task.rows
        left_bytes = self.part_bytes
        reading = tables_from(self.rows, task.start, self._stop(task))
        try:
            for place, table in reading:
                while table.num_rows:
                    if left == 0 or (left_bytes is not None and left_bytes <= 0):
                        return place
                    taken = table if left is None else table.slice(0, left)
                    table = table.slice(taken.num_rows)
                    place = (place[0], place[1] + taken.num_rows)
                    left = None if left is None else left - taken.num_rows
                    left_bytes = None if left_bytes is None else left_bytes - taken.nbytes
                    yield place, taken
        finally:
            reading.close()
        return None


def plan_by_rows(counts: Int64Array, part_rows: int) -> list[Task]:
    """Return tasks of so many rows each, at least one; a place is a chunk, and rows of it."""
    before = np.concatenate([[0], np.cumsum(counts)])
    total = int(before[-1])
    tasks = []
    for part, first in enumerate(range(0, max(total, 1), part_rows)):
        chunk = int(np.searchsorted(before, first, side="right")) - 1
        start = (chunk, first - int(before[chunk]))
        tasks.append(Task(part, start, first, min(part_rows, total - first)))
    return tasks


def tables_from(
    rows: Rows, start: Place, stop: int | None = None
) -> Generator[tuple[Place, pa.Table], None, None]:
    """Yield tables from a place on, each with the place before it."""
    chunk, skip = start
    done = 0
    reading = rows.read(chunk, stop)
    try:
        for number, table in reading:
            if number != chunk:
                chunk, skip, done = number, 0, 0
            dropped = min(max(skip - done, 0), table.num_rows)
            if dropped < table.num_rows:
                yield (chunk, done + dropped), table.slice(dropped)
            done += table.num_rows
    finally:
        reading.close()


def regrouped(reading: Reading, group_rows: int) -> Reading:
    """Yield tables of a number of rows, the last one of a part excepted."""
    held: list[pa.Table] = []
    count = 0
    place: Place = (0, 0)
    while True:
        try:
            place, table = next(reading)
        except StopIteration as end:
            if count:
                yield place, pa.concat_tables(held)
            following: Place | None = end.value
            return following
        held.append(table)
        count += table.num_rows
        while count >= group_rows:
            whole = pa.concat_tables(held)
            yield place, whole.slice(0, group_rows)
            held = [whole.slice(group_rows)]
            count -= group_rows


def digest_of(lines: Iterable[object]) -> str:
    """Return a text that differs if any of the lines does."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(f"{line}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]


def refuse_overlap(paths: Sequence[str], locations: Sequence[str], target: str) -> None:
    """Raise an OptionError if the target holds files of the source, or is in its directory."""
    goal = _comparable(target)
    for path in (*paths, *locations):
        if _is_inside(_comparable(path), goal):
            raise OptionError(
                f"the source file {path} is inside the target {target}; choose another target"
            )
    for location in locations:
        place = _comparable(location)
        if (protocol_of(location) or os.path.isdir(place)) and _is_inside(goal, place):
            raise OptionError(
                f"the target {target} is inside the source {location}, which would then hold every "
                "row twice; choose another target"
            )


def _comparable(location: str) -> str:
    return location.rstrip("/") if protocol_of(location) else os.path.realpath(location)


def _is_inside(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")
