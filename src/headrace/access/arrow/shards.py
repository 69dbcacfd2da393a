"""Shards of Arrow IPC: what their headers tell, and their record batches by number."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from pyarrow import ipc

from headrace.access.arrow.mapped import mapped
from headrace.errors import OptionError, ReadError, SchemaError
from headrace.formats.failures import naming
from headrace.formats.ipc_buffers import announce_batches
from headrace.formats.ipc_footer import (
    FILE_MAGIC,
    MALFORMED,
    file_batches,
    file_blocks,
    stream_batches,
)
from headrace.model import DataFileInfo, Int64Array, RowRange
from headrace.storage import Store

__all__ = [
    "MappedShard",
    "Shard",
    "ShardIndex",
    "StoredShard",
    "TableShard",
    "check_index",
    "cut",
    "read_index",
]

_SCHEMA_OFFSET_IN_FILE = 8


@dataclass(frozen=True, slots=True, eq=False)
class ShardIndex:
    """What the headers of a shard tell; plain, and the same in every process."""

    schema: pa.Schema
    starts: Int64Array
    """the row with which each record batch begins, and that behind the last"""
    compressed: bool
    is_stream: bool

    @property
    def num_rows(self) -> int:
        """Of all record batches."""
        return int(self.starts[-1])


def read_index(store: Store, file: DataFileInfo) -> ShardIndex:
    """Read the headers of a shard, and none of its data."""
    with naming(file.path, *MALFORMED), store.open(file) as source:
        is_stream = source.read_at(len(FILE_MAGIC), 0) != FILE_MAGIC
        if is_stream and not store.local:
            raise OptionError(
                f"{file.path} is an Arrow IPC stream, of which only the next record batch can be "
                "found; StructuredDataset reads it in order, for rows by index download it or "
                "write it as an IPC file"
            )
        batches = list(stream_batches(source)) if is_stream else file_batches(source)
        source.seek(0 if is_stream else _SCHEMA_OFFSET_IN_FILE)
        schema = ipc.read_schema(source)
    rows = [batch.rows for batch in batches]
    starts = np.concatenate([[0], np.cumsum(rows, dtype=np.int64)])
    return ShardIndex(schema, starts, any(batch.compressed for batch in batches), is_stream)


def check_index(index: ShardIndex, file: DataFileInfo, schema: pa.Schema) -> None:
    """Refuse a shard that is not what was said of it."""
    found = index.schema
    if found.names != schema.names or found.types != schema.types:
        differing = next(
            (
                f"{one.name}: {one.type} and not {other.name}: {other.type}"
                for one, other in zip(found, schema, strict=False)
                if one.name != other.name or one.type != other.type
            ),
            f"{len(found)} columns and not {len(schema)}",
        )
        raise SchemaError(
            f"{file.path} has another schema than the first shard, or than schema=: {differing}; "
            "shards of one backend have the same columns in the same order"
        )
    if file.record_count is not None and index.num_rows != file.record_count:
        raise ReadError(
            f"{file.path} has {index.num_rows} rows, and not {file.record_count} as "
            "shard_row_counts says; leave it out to have rows counted"
        )


class Shard(Protocol):
    """Record batches by number, in one process."""

    @property
    def starts(self) -> Int64Array:
        """The row with which each record batch begins, and that behind the last."""
        ...

    @property
    def stays(self) -> bool:
        """Whether batches are views of memory that is there for as long as the shard is."""
        ...

    def batches(self, numbers: Sequence[int], names: Sequence[str]) -> list[pa.RecordBatch]:
        """Some batches with at least these columns, whose buffers are as long as they should be."""
        ...


def cut(shard: Shard, rows: RowRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches of a shard that hold some rows, cut to these."""
    ends = np.array([rows.offset, rows.stop - 1])
    first, last = (np.searchsorted(shard.starts, ends, side="right") - 1).tolist()
    for number in range(first, last + 1):
        start, stop = shard.starts[number : number + 2].tolist()
        begin, end = max(rows.offset - start, 0), min(rows.stop, stop) - start
        if begin < end:
            batch = shard.batches([number], schema.names)[0].slice(begin, end - begin)
            columns = [batch.column(name) for name in schema.names]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


@dataclass(frozen=True, slots=True, eq=False)
class TableShard:
    """Rows in memory."""

    held: list[pa.RecordBatch]
    starts: Int64Array
    stays: bool = True

    @classmethod
    def of(cls, table: pa.Table) -> TableShard:
        """The rows of a table, in batches that are cut wherever a column is."""
        held = table.to_batches()
        return cls(held, np.cumsum([0, *(batch.num_rows for batch in held)], dtype=np.int64))

    def batches(self, numbers: Sequence[int], names: Sequence[str]) -> list[pa.RecordBatch]:
        return [self.held[number] for number in numbers]


@dataclass(frozen=True, slots=True, eq=False)
class StoredShard:
    """A file elsewhere: batches are fetched, those that are wanted together side by side."""

    store: Store
    file: DataFileInfo
    index: ShardIndex
    stays: bool = False

    @property
    def starts(self) -> Int64Array:
        return self.index.starts

    def batches(self, numbers: Sequence[int], names: Sequence[str]) -> list[pa.RecordBatch]:
        place = f"{self.file.path}, record batches {min(numbers)} to {max(numbers)}"
        with naming(place, *MALFORMED), self.store.open(self.file) as source:
            columns = _columns(self.index.schema, names)
            blocks = file_blocks(source)
            announce_batches(source, blocks, numbers, self.index.schema, columns)
            reader = ipc.open_file(source, options=_options(self.index.schema, columns))
            return [_checked(reader.get_batch(n), self.index, n) for n in numbers]


class MappedShard:
    """A file of this machine, mapped into memory; batches of it are views, unless compressed.

    A file that is cut short while it is mapped ends the process: so does every map.
    """

    def __init__(
        self, store: Store, file: DataFileInfo, index: ShardIndex, *, sequential: bool
    ) -> None:
        """``sequential``: see ``mapped``."""
        self._path, self._index = file.path, index
        # The store's own handle has no file number with pyarrow 18 and older.
        with naming(file.path, *MALFORMED), store.open(file), open(file.path, "rb") as source:
            self._memory = mapped(source.fileno(), sequential=sequential)
        self._readers: dict[tuple[str, ...], Callable[[int], pa.RecordBatch]] = {}
        self._lock = threading.Lock()
        self.stays = not index.compressed

    @property
    def starts(self) -> Int64Array:
        return self._index.starts

    def batches(self, numbers: Sequence[int], names: Sequence[str]) -> list[pa.RecordBatch]:
        found = []
        for number in numbers:
            with self._lock, naming(f"{self._path}, record batch {number}", *MALFORMED):
                read = self._reader(tuple(names))
                batch = _checked(read(number), self._index, number)
                self.stays = self.stays and self._holds(batch)
                found.append(batch)
        return found

    def _reader(self, names: tuple[str, ...]) -> Callable[[int], pa.RecordBatch]:
        found = self._readers.get(names)
        if found is None:
            found = self._readers[names] = self._opened(names)
        return found

    def _opened(self, names: tuple[str, ...]) -> Callable[[int], pa.RecordBatch]:
        schema = self._index.schema
        options = _options(schema, _columns(schema, names))
        if not self._index.compressed:
            options = ipc.IpcReadOptions()  # of some columns pyarrow makes copies
        if not self._index.is_stream:
            reader = ipc.open_file(pa.BufferReader(self._memory), options=options)
            return lambda number: reader.get_batch(number)
        if any(map(_has_dictionary, schema.types)):
            return self._in_order(options)
        messages = [
            message
            for message in ipc.MessageReader.open_stream(pa.BufferReader(self._memory))
            if message.type == "record batch"
        ]
        return lambda number: ipc.read_record_batch(messages[number], schema)

    def _in_order(self, options: ipc.IpcReadOptions) -> Callable[[int], pa.RecordBatch]:
        """The dictionaries of a batch in a stream are all that came before it."""

        def opened() -> ipc.RecordBatchStreamReader:
            return ipc.open_stream(pa.BufferReader(self._memory), options=options)

        if self._index.compressed:
            return lambda number: next(islice(opened(), number, None))
        batches = list(opened())
        return lambda number: batches[number]

    def _holds(self, batch: pa.RecordBatch) -> bool:
        """Whether all of it is in the map; bytes of the other order are swapped into a copy."""
        first, last = self._memory.address, self._memory.address + self._memory.size
        return all(
            buffer is None or not buffer.size or first <= buffer.address < last
            for column in batch.columns
            for buffer in column.buffers()
        )


def _columns(schema: pa.Schema, names: Sequence[str]) -> list[int]:
    return sorted(schema.get_field_index(name) for name in names)


def _options(schema: pa.Schema, columns: list[int]) -> ipc.IpcReadOptions:
    """All columns are read in one piece, if all are wanted."""
    return ipc.IpcReadOptions(included_fields=columns if len(columns) < len(schema) else None)


def _checked(batch: pa.RecordBatch, index: ShardIndex, number: int) -> pa.RecordBatch:
    batch.validate()
    rows = int(index.starts[number + 1] - index.starts[number])
    if batch.num_rows != rows:
        raise ValueError(f"it has {batch.num_rows} rows and not {rows} as its header says")
    return batch


def _has_dictionary(type_: pa.DataType) -> bool:
    if isinstance(type_, pa.BaseExtensionType):
        return _has_dictionary(type_.storage_type)
    inside = (type_.field(number).type for number in range(type_.num_fields))
    return pt.is_dictionary(type_) or any(map(_has_dictionary, inside))
