"""Shards of Arrow IPC: what their headers say, and their record batches by number."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from headrace.errors import OptionError, ReadError, SchemaError
from headrace.model import DataFileInfo, Int64Array, computed_once
from headrace.sources.arrow.region import Region
from headrace.sources.files.arrow_ipc import (
    BatchIndex,
    RecordBatches,
    check_batch,
    has_dictionary,
    read_index,
    reading,
)
from headrace.sources.files.file_version import FileVersion, checked_after
from headrace.sources.files.plain_types import plain_schema
from headrace.storage import Store

__all__ = [
    "MappedShard",
    "NotMappedError",
    "Shard",
    "ShardIndex",
    "StoredShard",
    "TableShard",
    "check_schema",
    "index_of",
    "may_be_mapped",
]

_MOST_VIEWS = 20_000
"""columns of batches of a shard of which pyarrow's objects are kept"""
_JOINED_BYTES = 256 << 20
"""size up to which a table of many chunks is joined into one, so that one take reads all rows"""


@dataclass(frozen=True, slots=True, eq=False)
class ShardIndex:
    """What the headers of a shard say.

    Attributes:
        stored: The columns as they are stored.
        schema: The columns as they are read.
        starts: First row of each record batch, and the number of all rows.
        is_stream: True for the stream format.
    """

    stored: pa.Schema
    schema: pa.Schema
    starts: Int64Array
    is_stream: bool

    @property
    def num_rows(self) -> int:
        """Number of rows of all record batches."""
        return int(self.starts[-1])

    def rows(self, number: int) -> int:
        """Return the number of rows of a record batch."""
        return int(self.starts[number + 1] - self.starts[number])


def index_of(store: Store, file: DataFileInfo, schema: pa.Schema | None = None) -> ShardIndex:
    """Read the headers of a shard, and compare them with what is known of it.

    Raises:
        SchemaError: It has other columns than ``schema``.
        ReadError: It is damaged, or has another number of rows than ``file`` says.
    """
    with reading(file.path, file.file_size), store.open(file) as source:
        found: BatchIndex = read_index(source)
        _ = found.schema.names  # raises if one is not UTF-8
    if found.is_stream and not store.local:
        raise OptionError(
            f"{file.path} is an Arrow IPC stream, of which only the next record batch can be "
            "found; StructuredDataset reads it in order, for rows by index download it or "
            "write it as an IPC file"
        )
    starts = np.concatenate([[0], np.cumsum(found.rows, dtype=np.int64)])
    index = ShardIndex(found.schema, plain_schema(found.schema), starts, found.is_stream)
    if schema is not None:
        check_schema(index.schema, schema, file.path)
    if file.record_count is not None and index.num_rows != file.record_count:
        raise ReadError(
            f"{file.path} has {index.num_rows} rows, and not {file.record_count} as "
            "shard_row_counts says; leave it out to have rows counted"
        )
    return index


def check_schema(found: pa.Schema, schema: pa.Schema, path: str) -> None:
    """Raise SchemaError if a shard has other columns than the first shard."""
    if found.names == schema.names and found.types == schema.types:
        return
    differing = next(
        (
            f"{one.name}: {one.type} and not {other.name}: {other.type}"
            for one, other in zip(found, schema, strict=False)
            if one.name != other.name or one.type != other.type
        ),
        f"{len(found)} columns and not {len(schema)}",
    )
    raise SchemaError(
        f"{path} has another schema than the first shard, or than schema=: {differing}; "
        "shards of one backend have the same columns in the same order"
    )


class Shard(Protocol):
    """Record batches by number, in one process."""

    @property
    def starts(self) -> Int64Array:
        """First row of each record batch, and the number of all rows."""
        ...

    def check(self) -> None:
        """Check that the file is the one that was opened.

        Raises:
            FileChangedError: It is not.
        """
        ...

    def batches(self, numbers: Sequence[int], names: Sequence[str]) -> list[pa.RecordBatch]:
        """Return some batches with at least these columns."""
        ...

    def columns(self, number: int) -> Mapping[str, pa.Array] | None:
        """Return all columns of a batch, by name; None if the batch has to be read for it."""
        ...


def may_be_mapped(index: ShardIndex) -> bool:
    """Return True if rows of a local file can be copied out of a map of it."""
    in_order = index.is_stream and any(map(has_dictionary, index.stored.types))
    return index.stored.equals(index.schema) and not in_order


@dataclass(frozen=True, slots=True, eq=False)
class TableShard:
    """Rows in memory."""

    held: list[pa.RecordBatch]
    starts: Int64Array

    @classmethod
    def of(cls, table: pa.Table) -> TableShard:
        """Return the rows of a table, in batches that are cut wherever a column is."""
        if table.num_columns and table.column(0).num_chunks > 1 and table.nbytes <= _JOINED_BYTES:
            table = table.combine_chunks()
        held = table.to_batches()
        return cls(held, np.cumsum([0, *(batch.num_rows for batch in held)], dtype=np.int64))

    def check(self) -> None:
        """Do nothing: memory is not rewritten."""

    def batches(self, numbers: Sequence[int], names: Sequence[str]) -> list[pa.RecordBatch]:
        return [self.held[number] for number in numbers]

    def columns(self, number: int) -> Mapping[str, pa.Array]:
        batch = self.held[number]
        return dict(zip(batch.schema.names, batch.columns, strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class StoredShard:
    """A file whose batches are read into memory: remote, compressed, or of types to be decoded.

    A batch of a stream is found by reading all batches before it.
    """

    store: Store
    file: DataFileInfo
    index: ShardIndex

    @property
    def starts(self) -> Int64Array:
        return self.index.starts

    def check(self) -> None:
        """Do nothing: every read opens the file, and the store compares it then."""

    def batches(self, numbers: Sequence[int], names: Sequence[str]) -> list[pa.RecordBatch]:
        place = f"{self.file.path}, record batches {min(numbers)} to {max(numbers)}"
        columns = sorted(self.index.stored.get_field_index(name) for name in names)
        with (
            reading(place, self.file.file_size),
            self.store.open(self.file) as source,
            checked_after(self.store, self.file),
        ):
            if self.index.is_stream:
                return list(self._in_order(source, numbers, columns))
            batches = RecordBatches(source).select(columns)
            batches.announce(numbers)
            return [batches.get(number, self.index.rows(number)) for number in numbers]

    def columns(self, number: int) -> None:
        return None

    def _in_order(
        self, source: pa.NativeFile, numbers: Sequence[int], columns: list[int]
    ) -> Iterator[pa.RecordBatch]:
        source.seek(0)
        reader = ipc.open_stream(source, options=ipc.IpcReadOptions(included_fields=columns))
        schema = plain_schema(reader.schema)
        for number in range(max(numbers) + 1):
            batch = reader.read_next_batch()
            if number in numbers:
                yield check_batch(batch, number, self.index.rows(number), schema)


class NotMappedError(Exception):
    """A batch of a mapped file is not in the map as it is in memory."""


class MappedShard:
    """A local file that is mapped into memory; its batches are views of the map.

    What is handed out is copied out of the map, between two checks that the file is the one that
    was opened. A file that another process makes shorter during such a copy, which takes less than
    a millisecond, ends this process, as with every map; at any other time it is an error.
    """

    def __init__(
        self, store: Store, file: DataFileInfo, index: ShardIndex, region: Region, number: int
    ) -> None:
        self.path, self.index = file.path, index
        # The store's own handle has no file number with pyarrow 18 and older.
        with reading(file.path, file.file_size), store.open(file), open(file.path, "rb") as source:
            self._version = FileVersion.of(file.path)
            self._memory = region.map(number, source.fileno())
        self._lock = threading.Lock()
        self._views: dict[int, pa.RecordBatch] = {}
        self._columns: dict[int, dict[str, pa.Array]] = {}
        self._valid: set[int] = set()

    @property
    def starts(self) -> Int64Array:
        return self.index.starts

    def check(self) -> None:
        self._version.check()

    def batch(self, number: int) -> pa.RecordBatch:
        """Return a view of a batch whose buffers are long enough.

        Raises:
            NotMappedError: It is compressed, or of the other byte order.
        """
        found = self._views.get(number)
        if found is not None:
            return found
        with self._lock, reading(f"{self.path}, record batch {number}", self._memory.size):
            batch = self._get(number)
            batch.validate()
            if batch.num_rows != self.index.rows(number):
                raise ValueError(
                    f"it has {batch.num_rows} rows and not {self.index.rows(number)} as its "
                    "header says"
                )
            if not self.holds(batch):
                raise NotMappedError
            if len(self._views) * len(self.index.schema) > _MOST_VIEWS:
                self._views.clear()
                self._columns.clear()
            self._views[number] = batch
        return batch

    def batches(self, numbers: Sequence[int], names: Sequence[str]) -> list[pa.RecordBatch]:
        """Return views of some batches, after a look at all of their data."""
        found = [self._views.get(number) or self.batch(number) for number in numbers]
        for number, batch in zip(numbers, found, strict=True):
            if number not in self._valid:
                with reading(f"{self.path}, record batch {number}", self._memory.size):
                    batch.validate(full=True)
                self._valid.add(number)
        return found

    def columns(self, number: int) -> Mapping[str, pa.Array]:
        found = self._columns.get(number)
        if found is None:
            (batch,) = self.batches([number], ())
            found = dict(zip(batch.schema.names, batch.columns, strict=True))
            self._columns[number] = found
        return found

    def holds(self, batch: pa.RecordBatch) -> bool:
        """Return True if all of a batch is in the map."""
        first, last = self._memory.address, self._memory.address + self._memory.size
        return all(
            buffer is None
            or not buffer.size
            or first <= buffer.address <= buffer.address + buffer.size <= last
            for column in batch.columns
            for buffer in column.buffers()
        )

    @computed_once
    def _get(self) -> Callable[[int], pa.RecordBatch]:
        if not self.index.is_stream:
            return ipc.open_file(pa.BufferReader(self._memory)).get_batch  # type: ignore[no-any-return]
        messages = [
            message
            for message in ipc.MessageReader.open_stream(pa.BufferReader(self._memory))
            if message.type == "record batch"
        ]
        return lambda number: ipc.read_record_batch(messages[number], self.index.stored)
