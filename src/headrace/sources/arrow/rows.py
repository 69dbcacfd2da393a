"""Rows of Arrow IPC shards by number: the batches of each shard, and rows taken from them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from headrace.errors import OptionError, ReadError, SchemaError
from headrace.model import DataFileInfo, Int64Array, computed_once
from headrace.sources.arrow.format import (
    BatchIndex,
    FileVersion,
    RecordBatches,
    check_batch,
    checked_after,
    has_dictionary,
    read_index,
    reading,
)
from headrace.sources.arrow.gather import DamagedRowError, Region, Taken, gather_for
from headrace.sources.files.blocks import rows_only
from headrace.sources.files.cache import BoundedCache
from headrace.sources.files.plain_types import plain_schema
from headrace.sources.taking import in_order, take_from
from headrace.storage import Store

__all__ = [
    "MappedShard",
    "NotMappedError",
    "OpenShards",
    "RowTaker",
    "Shard",
    "StoredShard",
    "TableShard",
    "Taken",
    "check_schema",
    "index_of",
    "may_be_mapped",
]

_MOST_VIEWS = 20_000
"""columns of batches of a shard of which pyarrow's objects are kept"""
_JOINED_BYTES = 256 << 20
"""size up to which a table of many chunks is joined into one, so that one take reads all rows"""


def index_of(store: Store, file: DataFileInfo, schema: pa.Schema | None = None) -> BatchIndex:
    """Read the headers of a shard, and compare them with what is known of it.

    Raises:
        SchemaError: It has other columns than ``schema``.
        ReadError: It is damaged, or has another number of rows than ``file`` says.
    """
    with reading(file.path, file.file_size), store.open(file) as source:
        index = read_index(source)
        _ = index.schema.names  # raises if one is not UTF-8
    if index.is_stream and not store.local:
        raise OptionError(
            f"{file.path} is an Arrow IPC stream, of which only the next record batch can be "
            "found; StructuredDataset reads it in order, for rows by index download it or "
            "write it as an IPC file"
        )
    if schema is not None:
        check_schema(index.plain, schema, file.path)
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


def may_be_mapped(index: BatchIndex) -> bool:
    """Return True if rows of a local file can be copied out of a map of it."""
    in_order = index.is_stream and any(map(has_dictionary, index.schema.types))
    return index.schema.equals(index.plain) and not in_order


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
    index: BatchIndex

    @property
    def starts(self) -> Int64Array:
        return self.index.starts

    def check(self) -> None:
        """Do nothing: every read opens the file, and the store compares it then."""

    def batches(self, numbers: Sequence[int], names: Sequence[str]) -> list[pa.RecordBatch]:
        place = f"{self.file.path}, record batches {min(numbers)} to {max(numbers)}"
        columns = sorted(self.index.schema.get_field_index(name) for name in names)
        with (
            reading(place, self.file.file_size),
            self.store.open(self.file) as source,
            checked_after(self.store, self.file),
        ):
            if self.index.is_stream:
                return list(self._in_order(source, numbers, columns))
            batches = RecordBatches(source).select(columns)
            batches.announce(numbers)
            return [batches.get(number, int(self.index.rows[number])) for number in numbers]

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
                yield check_batch(batch, number, int(self.index.rows[number]), schema)


class NotMappedError(Exception):
    """A batch of a mapped file is not in the map as it is in memory."""


class MappedShard:
    """A local file that is mapped into memory; its batches are views of the map.

    What is handed out is copied out of the map, between two checks that the file is the one that
    was opened. A file that another process makes shorter during such a copy, which takes less than
    a millisecond, ends this process, as with every map; at any other time it is an error.
    """

    def __init__(
        self, store: Store, file: DataFileInfo, index: BatchIndex, region: Region, number: int
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
            if batch.num_rows != int(self.index.rows[number]):
                raise ValueError(
                    f"it has {batch.num_rows} rows and not {int(self.index.rows[number])} as its "
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
        return lambda number: ipc.read_record_batch(messages[number], self.index.schema)


_DECODED_BYTES = 256 << 20
"""of record batches that had to be fetched or decompressed, kept for the next rows of them"""
_MOST_DECODED = 32
"""such batches that are held at once, whatever they take"""

_decoded: BoundedCache[pa.RecordBatch] = BoundedCache(lambda made: made.get_total_buffer_size())


class OpenShards:
    """The shards that a process has open, and the record batches in them.

    Record batches that have rows are numbered as their shards are opened: what is known of a batch
    stays at its number. Rows are found by a search among the first rows of batches, and of shards
    that are not open.

    Args:
        opener: Opens a shard, given its number and whether it may be mapped.
        first_rows: First row of each shard, and the number of all rows.
        names: What each shard is called in messages.
        identities: What tells shards apart from all others that this process may read.
        region: Where shards are mapped.
    """

    def __init__(
        self,
        opener: Callable[[int, bool], Shard],
        first_rows: Int64Array,
        names: Sequence[str],
        identities: Sequence[Hashable],
        region: Region | None,
    ) -> None:
        self._opener = opener
        self.first_rows, self.names, self.identities = first_rows, names, identities
        self.region = region
        self.pid = os.getpid()
        self.lock = threading.RLock()
        self._open: dict[int, Shard] = {}
        self._takers: dict[tuple[str, ...], RowTaker] = {}
        with_rows = np.flatnonzero(np.diff(first_rows))
        self._entries: tuple[Int64Array, Int64Array] = (first_rows[with_rows], -1 - with_rows)
        """first rows, and the batch that begins there; -1 - n for shard n, which is not open"""
        self.batch_starts = np.empty(0, np.int64)
        """the first row of each batch, of all rows"""
        self.batch_shards = np.empty(0, np.int64)
        """the shard of each batch"""
        self.batch_places = np.empty(0, np.int64)
        """the number of each batch in its shard"""
        self.mapped = np.empty(0, bool)
        """whether each batch is mapped"""

    def find(self, rows: Int64Array) -> Int64Array:
        """Return the shards in which some rows are."""
        found: Int64Array = np.searchsorted(self.first_rows, rows, side="right") - 1
        return found

    def shard(self, number: int) -> Shard:
        """Return a shard, opened if it is not."""
        found = self._open.get(number)
        if found is None:
            with self.lock:
                self._open_all([number])
            found = self._open[number]
        return found

    def batches(self, rows: Int64Array) -> Int64Array:
        """Return the batches in which some rows are, after opening their shards."""
        starts, numbers = self._entries
        found: Int64Array = numbers[starts.searchsorted(rows, "right") - 1]
        if int(found.min()) >= 0:
            return found
        with self.lock:
            missing = np.unique(-1 - found[found < 0]).tolist()
            self._open_all([number for number in missing if number not in self._open])
        return self.batches(rows)

    def batch(self, row: int) -> int:
        """Return the batch in which a row is, after opening its shard."""
        starts, numbers = self._entries
        found = int(numbers[starts.searchsorted(row, "right") - 1])
        return found if found >= 0 else int(self.batches(np.array([row]))[0])

    def _open_all(self, shards: Sequence[int]) -> None:
        """Open shards, and put their batches into the places of the shards among the entries."""
        before = len(self.batch_starts)
        for number in shards:
            shard = self._open[number] = self._opener(number, True)
            places = np.flatnonzero(np.diff(shard.starts))
            starts = shard.starts[places] + self.first_rows[number]
            self.batch_shards = np.append(self.batch_shards, np.full_like(places, number))
            self.batch_places = np.append(self.batch_places, places)
            self.mapped = np.append(
                self.mapped, np.repeat(isinstance(shard, MappedShard), len(places))
            )
            self.batch_starts = np.append(self.batch_starts, starts)
        starts, numbers = self._entries
        others = ~np.isin(numbers, -1 - np.asarray(shards, np.int64))
        made = np.arange(before, len(self.batch_starts))
        starts = np.append(starts[others], self.batch_starts[made])
        order = np.argsort(starts)
        self._entries = starts[order], np.append(numbers[others], made)[order]

    def not_mapped(self, number: int) -> None:
        """Read a shard in batches from now on: some of it is not in its map as in memory."""
        with self.lock:
            self._open[number] = self._opener(number, False)
            self.mapped[self.batch_shards == number] = False

    def taker(self, schema: pa.Schema) -> RowTaker:
        """Return what takes rows in these columns."""
        key = tuple(schema.names)
        return self._takers.get(key) or self._takers.setdefault(key, RowTaker(schema, self))

    def known_taker(self, names: tuple[str, ...]) -> RowTaker | None:
        """Return what takes rows in these columns, if some were taken before."""
        return self._takers.get(names)


class RowTaker:
    """Takes rows in some columns: gathered out of maps where they can be, else left to Arrow."""

    def __init__(self, schema: pa.Schema, shards: OpenShards) -> None:
        self._schema, self._shards = schema, shards
        self._names = tuple(schema.names)
        self._gathers = [gather_for(field.type) for field in schema]
        counts = [0 if gather is None else gather.count for gather in self._gathers]
        self._first = np.cumsum([0, *counts]).tolist()
        """the first place of each column, and the number of all"""
        self._left = {n for n, gather in enumerate(self._gathers) if gather is None}
        """columns that are left to Arrow"""
        self._nulls: set[int] = set()
        """columns in which some batch has nulls"""
        self._known = np.empty(0, bool)
        """whether the places of a batch are known"""
        self._places = np.empty((self._first[-1], 0), np.int64)
        """a column for each batch"""

    def take(self, rows: Int64Array) -> pa.Table:
        """Return these rows, at least one, all of them there."""
        if not self._names:
            return rows_only(len(rows))
        return pa.Table.from_arrays(self.columns(rows), schema=self._schema)

    def columns(self, rows: Int64Array, *, as_cells: Container[int] = ()) -> list[Taken]:
        """Return the same in columns; some of them as cells, where they can be had so."""
        shards = self._shards
        batches = shards.batches(rows)
        used = [shards.shard(n) for n in _distinct(shards.batch_shards[batches])]
        for shard in used:
            shard.check()
        try:
            if not shards.mapped[batches].all():
                return self._from_batches(rows, batches)
            self._learn(batches)
            found = self._gathered(rows, batches, as_cells)
        except DamagedRowError as error:
            raise self._damaged(int(rows[error.args[0]])) from error
        except OverflowError:
            half = len(rows) // 2
            return _columns(pa.concat_tables([self.take(rows[:half]), self.take(rows[half:])]))
        except NotMappedError as error:
            shards.not_mapped(error.args[0])
            return self.columns(rows, as_cells=as_cells)
        for shard in used:
            shard.check()
        return found

    def cells(self, row: int) -> list[memoryview] | None:
        """Return views of the bytes of one row, a column each, after a check of its file.

        None if not all columns of it consist of bytes alone.
        """
        shards = self._shards
        batch = shards.batch(row)
        if not shards.mapped[batch] or self._left:
            return None
        if batch >= len(self._known) or not self._known[batch]:
            try:
                self._learn(np.array([batch]))
            except NotMappedError as error:
                shards.not_mapped(error.args[0])
                return None
        shards.shard(int(shards.batch_shards[batch])).check()
        assert shards.region is not None
        view, within = shards.region.view, row - int(shards.batch_starts[batch])
        places = self._places[:, batch].tolist()
        found: list[memoryview] = []
        for gather, first in zip(self._gathers, self._first, strict=False):
            assert gather is not None
            cell = gather.cell(view, places[first : first + gather.count], within)
            if cell is None:
                return None
            found.append(cell)
        return found

    # --- where rows are

    def _learn(self, batches: Int64Array) -> None:
        """Find the places of batches that were not looked at before."""
        if len(self._known) == len(self._shards.batch_starts) and self._known[batches].all():
            return
        shards = self._shards
        with shards.lock:
            more = len(shards.batch_starts) - len(self._known)
            if more:
                self._places = np.pad(self._places, ((0, 0), (0, more)))
                self._known = np.pad(self._known, (0, more))
            assert shards.region is not None
            for number in np.unique(batches[~self._known[batches]]).tolist():
                shard_number = int(shards.batch_shards[number])
                shard = shards.shard(shard_number)
                assert isinstance(shard, MappedShard)
                try:
                    batch = shard.batch(int(shards.batch_places[number]))
                except NotMappedError:
                    raise NotMappedError(shard_number) from None
                self._places[:, number] = self._places_of(batch, shards.region.address)
                self._known[number] = True

    def _places_of(self, batch: pa.RecordBatch, base: int) -> list[int]:
        """Leave a column of which one batch cannot be gathered to Arrow from then on."""
        found: list[int] = []
        for number, gather in enumerate(self._gathers):
            if gather is not None:
                of_column = gather.places(batch.column(self._names[number]), base)
                if of_column is None:
                    self._left.add(number)
                elif of_column[0] >= 0:
                    self._nulls.add(number)
                found += of_column or [0] * gather.count
        return found

    # --- the rows

    def _gathered(
        self, rows: Int64Array, batches: Int64Array, as_cells: Container[int]
    ) -> list[Taken]:
        region = self._shards.region
        assert region is not None
        within = rows - self._shards.batch_starts[batches]
        places = self._places.take(batches, axis=1)
        left = set(self._left)  # another thread may add to it
        found: dict[int, Taken] = {
            column: gather.rows(
                region,
                places[self._first[column] : self._first[column + 1]],
                within,
                nulls=column in self._nulls,
                as_cells=column in as_cells,
            )
            for column, gather in enumerate(self._gathers)
            if gather is not None and column not in left
        }
        if left:
            held = self._held(np.unique(batches).tolist())
            for column in left:
                found[column] = _owned(self._taken(held, column, batches, within))
        return [found[column] for column in range(len(self._names))]

    def _from_batches(self, rows: Int64Array, batches: Int64Array) -> list[Taken]:
        """Take rows batch by batch, where not all of them are in maps."""
        numbers = np.unique(batches)
        mapped = self._shards.mapped[numbers]
        if np.count_nonzero(~mapped) > _MOST_DECODED:
            return self._in_parts(rows, batches, _MOST_DECODED)
        held = self._held(numbers.tolist())
        within = rows - self._shards.batch_starts[batches]
        found = [self._taken(held, c, batches, within) for c in range(len(self._names))]
        return [_owned(each) for each in found] if mapped.any() else found

    def _taken(
        self,
        held: dict[int, pa.RecordBatch],
        column: int,
        batches: Int64Array,
        within: Int64Array,
    ) -> pa.Array | pa.ChunkedArray:
        name = self._names[column]
        arrays = {number: batch.column(name) for number, batch in held.items()}
        return take_from(arrays, batches, within)

    def _held(self, numbers: Sequence[int]) -> dict[int, pa.RecordBatch]:
        """Return some batches: views of maps and tables, others from the cache or made anew."""
        shards = self._shards
        made: dict[int, pa.RecordBatch] = {}
        missing: dict[int, list[int]] = {}
        for number in numbers:
            found = _decoded.get(self._key(number))
            if found is None:
                missing.setdefault(int(shards.batch_shards[number]), []).append(number)
            else:
                made[number] = found
        for shard, lacking in missing.items():
            places = shards.batch_places[lacking].tolist()
            try:
                batches = shards.shard(shard).batches(places, self._names)
            except NotMappedError:
                raise NotMappedError(shard) from None
            for number, batch in zip(lacking, batches, strict=True):
                made[number] = batch
                if shards.identities and not shards.mapped[number]:
                    _decoded.add(self._key(number), batch, limit_bytes=_DECODED_BYTES)
        return made

    def _key(self, number: int) -> tuple[Any, ...]:
        shards = self._shards
        shard = int(shards.batch_shards[number])
        identity = shards.identities[shard] if shards.identities else id(self)
        return identity, int(shards.batch_places[number]), self._names

    def _damaged(self, row: int) -> ReadError:
        [shard] = self._shards.find(np.array([row])).tolist()
        return ReadError(
            f"{self._shards.names[shard]}, row {row - self._shards.first_rows[shard]}: its "
            "offsets or its text are damaged; write the file again"
        )

    def _in_parts(self, rows: Int64Array, keys: Int64Array, most: int) -> list[Taken]:
        """Take rows that have too many different keys to be taken at once."""
        order = np.argsort(keys, kind="stable")
        _, begins = np.unique(keys[order], return_index=True)
        parts = np.split(order, begins[most::most])
        taken = pa.concat_tables([self.take(rows[part]) for part in parts])
        return _columns(in_order(taken, order))


def _distinct(numbers: Int64Array) -> list[int]:
    """Return different numbers, none of which is large, in order."""
    found: list[int] = np.flatnonzero(np.bincount(numbers)).tolist()
    return found


def _owned(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return a copy of what ``take`` may leave in a map: dictionaries, and rows that are slices."""
    table = pa.table({"": column})
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return ipc.open_stream(sink.getvalue()).read_all().column(0)


def _columns(table: pa.Table) -> list[Taken]:
    columns: list[Taken] = table.columns
    return columns
