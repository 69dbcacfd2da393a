"""Copy rows of local Arrow files out of maps of the files.

A file can be read this way if its record batches have the same form in it as in memory: nothing is
compressed, and its columns have the types of the data set. numpy gathers columns of bytes, text,
numbers and lists of numbers, all rows of a column at once; other columns are left to Arrow.
"""

from __future__ import annotations

import mmap
import os
import resource
import sys
import threading
from bisect import bisect_right
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from headrace.errors import ReadError
from headrace.model import DataFileInfo, FileList, Int64Array
from headrace.sources.arrow._format import (
    BatchIndex,
    has_dictionary,
    planned_index,
    read_batch_index,
    reading,
)
from headrace.sources.arrow._gather import (
    Cells,
    DamagedRowError,
    FileBytes,
    MappedRows,
    gather_for,
    no_cells,
)
from headrace.sources.backend import ColumnValues, ValueMaker
from headrace.sources.files._source import FileVersion
from headrace.sources.taking import copied, take_from
from headrace.storage import Store

_MOST_VIEWS = 20_000
"""Number of columns of batches of a file whose pyarrow objects are kept."""
_NO_DESCRIPTOR: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
"""Options of a map that does not hold a descriptor of its file open."""


class NotMappedError(Exception):
    """Rows cannot be copied out of a map; their record batches have to be decoded."""


def check_row_count(file: DataFileInfo, rows: int | None) -> None:
    """Check that a file has the number of rows that the user gave.

    Raises:
        ReadError: The file has another number of rows.
    """
    if file.record_count != rows:
        raise ReadError(
            f"{file.path} has {rows} rows, and not {file.record_count} as shard_row_counts says; "
            "leave it out to have rows counted"
        )


class MappedFiles:
    """The files that a process has mapped, and the record batches in them.

    Files are opened when rows of them are first wanted. Their record batches that have rows are
    then numbered, and arrays hold the metadata of batches by these numbers. Rows are found by a
    search among the first rows of batches, and of files that were not opened.

    Args:
        store: The store, which checks that files are those that were found.
        files: The files.
        first_rows: First row of each file, and the number of all rows.
        schema: The columns of all files.
    """

    def __init__(
        self, store: Store, files: FileList, first_rows: Int64Array, schema: pa.Schema
    ) -> None:
        self.pid = os.getpid()
        self.lock = threading.RLock()
        self._store, self._files, self._first_rows = store, files, first_rows.tolist()
        self._schema, self._names, self._types = schema, schema.names, schema.types
        self._mapped: dict[int, _MappedFile] = {}
        self._has_descriptors = len(files) <= _most_descriptors()
        self._refused: set[int] = set()
        """Files that cannot be read out of a map."""
        with_rows = np.flatnonzero(np.diff(first_rows))
        self._entries: tuple[Int64Array, Int64Array] = (first_rows[with_rows], -1 - with_rows)
        """First rows, and the batch that begins there; -1 - n for file n, which was not opened."""
        self._batch_starts = np.empty(0, np.int64)
        """First row of each batch, counted over all files."""
        self._batch_files = np.empty(0, np.int64)
        self._batch_places = np.empty(0, np.int64)
        """Index of each batch in its file."""
        self._known = np.empty(0, bool)
        """True for each batch whose places are known."""
        self._gathers = [gather_for(_storage_type(field.type)) for field in schema]
        counts = [0 if gather is None else gather.count for gather in self._gathers]
        self._first_place: list[int] = np.cumsum([0, *counts]).tolist()
        """Index of the first place of each column, and the number of all places."""
        self._places = np.empty((self._first_place[-1], 0), np.int64)
        """Places of the columns of each batch."""
        self._left = {n for n, gather in enumerate(self._gathers) if gather is None}
        """Columns that are left to Arrow."""
        self._nulls: set[int] = set()
        """Columns that have nulls in some batch."""

    def columns(
        self, rows: Int64Array, columns: Sequence[int], *, as_cells: Container[int] = ()
    ) -> list[ColumnValues]:
        """Return some columns of rows, all of which exist.

        Args:
            rows: The rows, at least one.
            columns: The numbers of the columns.
            as_cells: The columns that may come as cells, by their places among ``columns``.

        Raises:
            NotMappedError: A file of these rows cannot be read out of a map.
            OverflowError: The rows have too many bytes for one array.
            ReadError: A row is damaged.
            FileChangedError: A file was rewritten.
        """
        order = rows.argsort()
        in_order = self._batches(rows.take(order))
        counts = np.bincount(self._batch_files[in_order])
        files = counts.nonzero()[0]
        maps = [self._mapped[number] for number in files.tolist()]
        for one in maps:
            one.check()  # reading the map of a file that was cut could end the process
        self._learn(in_order)
        mapped = MappedRows([one.data for one in maps], counts[files].tolist(), order)
        batches = np.empty_like(order)
        batches[order] = in_order
        within = rows - self._batch_starts[batches]
        places = self._places.take(batches, axis=1)
        found: list[ColumnValues] = []
        try:
            for place, column in enumerate(columns):
                gather = self._gathers[column]
                if gather is None or column in self._left:
                    found.append(self._taken(column, batches, within))
                    continue
                taken = gather.rows(
                    mapped,
                    places[self._first_place[column] : self._first_place[column + 1]],
                    within,
                    nulls=column in self._nulls,
                    as_cells=place in as_cells,
                )
                found.append(_of_type(self._types[column], taken))
        except DamagedRowError as error:
            raise self._damaged(int(rows[error.args[0]])) from error
        for one in maps:
            one.check()
        return found

    def row(self, row: int) -> tuple[Mapping[str, pa.Array], int]:
        """Return views of the columns of a row's batch, and the index of the row in them.

        Raises:
            NotMappedError: The row cannot be read out of a map.
            FileChangedError: Its file was rewritten.
        """
        mapped, batch, within = self._located(row)
        return mapped.columns(batch), within

    def made_row(self, makers: Sequence[ValueMaker], row: int) -> dict[str, Any]:
        """Return a row whose values are made from their bytes.

        Raises:
            NotMappedError: The row cannot be read out of a map.
            NoCellError: A value does not consist of plain bytes.
            FileChangedError: Its file was rewritten.
        """
        mapped, batch, within = self._located(row)
        cells = mapped.cells.get(batch)
        if cells is None:
            cells = mapped.cells[batch] = self._cells_of(mapped, batch)
        return {name: make(cells[column](within)) for name, column, make in makers}

    # --- where rows are

    def _batches(self, rows: Int64Array) -> Int64Array:
        """Return the batches that hold some rows, after opening their files."""
        starts, numbers = self._entries
        found: Int64Array = numbers[starts.searchsorted(rows, "right") - 1]
        if np.minimum.reduce(found) >= 0:
            return found
        with self.lock:
            missing = np.unique(-1 - found[found < 0]).tolist()
            self._open([n for n in missing if n not in self._mapped and n not in self._refused])
            if not self._refused.isdisjoint(missing):
                raise NotMappedError
        return self._batches(rows)

    def _located(self, row: int) -> tuple[_MappedFile, int, int]:
        """Return the file that holds a row, the record batch in it, and the row of the batch.

        Raises:
            NotMappedError: The file cannot be read out of a map.
            FileChangedError: The file was rewritten.
        """
        number = bisect_right(self._first_rows, row) - 1
        file = self._mapped.get(number)
        if file is None:
            self._batches(np.array([row]))  # opens the file
            file = self._mapped[number]
        file.check()
        within = row - self._first_rows[number]
        batch = bisect_right(file.starts, within) - 1
        return file, batch, within - file.starts[batch]

    def _open(self, files: Sequence[int]) -> None:
        """Open files, and insert their batches into the entries in place of the files."""
        before = len(self._batch_starts)
        for number in files:
            try:
                file = _MappedFile(
                    self._store,
                    self._files[number],
                    self._schema,
                    has_descriptor=self._has_descriptors,
                )
            except NotMappedError:
                self._refused.add(number)
                continue
            self._mapped[number] = file
            places = np.flatnonzero(file.index.rows)
            starts = file.index.starts[places] + self._first_rows[number]
            self._batch_files = np.append(self._batch_files, np.full_like(places, number))
            self._batch_places = np.append(self._batch_places, places)
            self._batch_starts = np.append(self._batch_starts, starts)
        starts, numbers = self._entries
        others = ~np.isin(numbers, -1 - np.asarray(list(self._mapped), np.int64))
        made = np.arange(before, len(self._batch_starts))
        starts = np.append(starts[others], self._batch_starts[made])
        order = np.argsort(starts)
        self._entries = starts[order], np.append(numbers[others], made)[order]

    def _learn(self, batches: Int64Array) -> None:
        """Find the places of batches whose places are not known yet."""
        if len(self._known) == len(self._batch_starts) and np.logical_and.reduce(
            self._known[batches]
        ):
            return
        with self.lock:
            more = len(self._batch_starts) - len(self._known)
            if more:
                self._places = np.pad(self._places, ((0, 0), (0, more)))
                self._known = np.pad(self._known, (0, more))
            for number in np.unique(batches[~self._known[batches]]).tolist():
                mapped = self._mapped[int(self._batch_files[number])]
                batch = mapped.batch(int(self._batch_places[number]))
                self._places[:, number] = self._places_of(batch, mapped.data.address)
                self._known[number] = True

    def _cells_of(self, mapped: _MappedFile, number: int) -> list[Cells]:
        """Return the functions that find the bytes of rows of a batch, one for each column."""
        batch = mapped.batch(number)
        found: list[Cells] = []
        for name, gather in zip(self._names, self._gathers, strict=True):
            cells: Cells = no_cells
            if gather is not None:
                places = gather.places(_stored(batch.column(name)), mapped.data.address)
                if places is not None:
                    cells = gather.cells(mapped.data.view, places)
            found.append(cells)
        return found

    def _places_of(self, batch: pa.RecordBatch, base: int) -> list[int]:
        """Return the places of a batch; columns that cannot be gathered are left to Arrow."""
        found: list[int] = []
        for number, gather in enumerate(self._gathers):
            if gather is not None:
                of_column = gather.places(_stored(batch.column(self._names[number])), base)
                if of_column is None:
                    self._left.add(number)
                elif of_column[0] >= 0:
                    self._nulls.add(number)
                found += of_column or [0] * gather.count
        return found

    def _taken(
        self, column: int, batches: Int64Array, within: Int64Array
    ) -> pa.Array | pa.ChunkedArray:
        """Return rows of a column that is left to Arrow."""
        name = self._names[column]
        arrays: dict[int, pa.Array] = {}
        for number in np.unique(batches).tolist():
            mapped = self._mapped[int(self._batch_files[number])]
            arrays[number] = mapped.columns(int(self._batch_places[number]))[name]
        # Copied: ``take`` may leave dictionaries, and rows that are slices, in a map.
        return copied(pa.table({"": take_from(arrays, batches, within)})).column(0)

    def _damaged(self, row: int) -> ReadError:
        file = bisect_right(self._first_rows, row) - 1
        return ReadError(
            f"{self._files.paths[file]}, row {row - self._first_rows[file]}: its offsets or its "
            "text are damaged; write the file again"
        )


class _MappedFile:
    """A file in a map; its record batches are views of the map.

    Rows are copied out of the map between two checks that the file is the one that was opened. If
    another process makes the file shorter during such a copy, which takes less than a millisecond,
    this process ends, as with every map; at any other time it is an error.

    Attributes:
        index: Its record batches.
        starts: First row of each batch.
        cells: For some batches, the functions that find the bytes of rows, one for each column.
        data: The bytes of the file.

    Raises:
        NotMappedError: The file has other columns, or its batches can only be read in order, or are
            compressed.
    """

    def __init__(
        self, store: Store, file: DataFileInfo, schema: pa.Schema, *, has_descriptor: bool
    ) -> None:
        self._file = file
        with reading(file.path, file.file_size), store.open(file) as opened:
            self.index = index = planned_index(opened, file) or read_batch_index(opened)
            self.check = FileVersion(file.path).check
            whole = _mapped(file.path, has_descriptor=has_descriptor)
            self._get = _batch_getter(whole, index)
        check_row_count(file, index.num_rows)
        stored = {field.name: field.type for field in index.schema}
        if any(stored.get(field.name) != field.type for field in schema) or (
            index.is_stream and any(map(has_dictionary, index.schema.types))
        ):
            raise NotMappedError
        self.starts: list[int] = index.starts.tolist()
        self.cells: dict[int, list[Cells]] = {}
        self.data = FileBytes(whole)
        self._lock = threading.Lock()
        self._views: dict[int, pa.RecordBatch] = {}
        self._columns: dict[int, dict[str, pa.Array]] = {}
        for first in np.flatnonzero(index.rows)[:1].tolist():
            self.batch(first)

    def batch(self, number: int) -> pa.RecordBatch:
        """Return a view of a batch whose buffers are long enough.

        Raises:
            NotMappedError: The batch is compressed, or of the other byte order.
        """
        found = self._views.get(number)
        if found is not None:
            return found
        rows = int(self.index.rows[number])
        with self._lock, self._reading(number):
            batch = self._get(number)
            batch.validate()
            if batch.num_rows != rows:
                raise ValueError(f"it has {batch.num_rows} rows, and {rows} by its header")
            if not self._holds(batch):
                raise NotMappedError
            if len(self._views) * batch.num_columns > _MOST_VIEWS:
                self._views.clear()
                self._columns.clear()
                self.cells.clear()
            self._views[number] = batch
        return batch

    def columns(self, number: int) -> Mapping[str, pa.Array]:
        """Return views of the columns of a batch by name, after validating all of their data."""
        found = self._columns.get(number)
        if found is None:
            batch = self.batch(number)
            with self._reading(number):
                batch.validate(full=True)
            found = dict(zip(batch.schema.names, batch.columns, strict=True))
            self._columns[number] = found
        return found

    def _holds(self, batch: pa.RecordBatch) -> bool:
        """Return True if all buffers of a batch are in the map."""
        first = self.data.address
        last = first + self.data.size
        return all(
            buffer is None
            or not buffer.size
            or first <= buffer.address <= buffer.address + buffer.size <= last
            for column in batch.columns
            for buffer in column.buffers()
        )

    def _reading(self, number: int) -> AbstractContextManager[None]:
        return reading(f"{self._file.path}, record batch {number}", self._file.file_size)


def _batch_getter(memory: pa.Buffer, index: BatchIndex) -> Callable[[int], pa.RecordBatch]:
    """Return the function that gives views of the record batches in a map, by number."""
    if not index.is_stream:
        return ipc.open_file(pa.BufferReader(memory)).get_batch  # type: ignore[no-any-return]
    messages = [
        message
        for message in ipc.MessageReader.open_stream(pa.BufferReader(memory))
        if message.type == "record batch"
    ]
    return lambda number: ipc.read_record_batch(messages[number], index.schema)


def _mapped(path: str, *, has_descriptor: bool) -> pa.Buffer:
    """Return a map of a file.

    A map of Python holds a descriptor, before version 3.13, and does not read ahead the bytes
    around picked rows. A map of pyarrow holds none, and the system reads ahead.
    """
    if not has_descriptor:
        with pa.memory_map(path) as opened:
            return opened.read_buffer()
    with open(path, "rb") as source:
        memory = mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ, **_NO_DESCRIPTOR)
    if hasattr(mmap, "MADV_RANDOM"):
        memory.madvise(mmap.MADV_RANDOM)
    return pa.py_buffer(memory)


def _most_descriptors() -> int:
    """Return the number of files up to which maps of a backend may hold descriptors."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if _NO_DESCRIPTOR or limit == resource.RLIM_INFINITY else limit // 4


def _storage_type(type_: pa.DataType) -> pa.DataType:
    return type_.storage_type if isinstance(type_, pa.BaseExtensionType) else type_


def _stored(array: pa.Array) -> pa.Array:
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _of_type(type_: pa.DataType, taken: ColumnValues) -> ColumnValues:
    """Return a column in its own type, if that is an extension of the gathered type."""
    if isinstance(type_, pa.BaseExtensionType) and isinstance(taken, pa.Array):
        return pa.ExtensionArray.from_storage(type_, taken)
    return taken
