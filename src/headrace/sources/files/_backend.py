"""Rows of files by index: the row groups that hold them are decoded, and the last ones kept.

`FileBackend` works for every format whose files have row groups. A format that can read less than a
row group has a `GroupReader` of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import pyarrow as pa

from headrace.errors import ReadError
from headrace.matrices import rows_at
from headrace.model import (
    DataFileInfo,
    FileList,
    FileSplit,
    Int64Array,
    RowGroups,
    RowRange,
    computed_once,
)
from headrace.sources.backend import Backend
from headrace.sources.files._source import DecodedGroup, FileSource, decoded_groups, file_version
from headrace.sources.files.protocol import rows_only
from headrace.sources.taking import pick
from headrace.storage import Parts, RemoteStore, Store, side_by_side

CACHE_BYTES = 256 << 20
"""Number of bytes of decoded row groups that a process keeps."""
_BATCH_BYTES = 16 << 20
_TAKING_THREADS = 16

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, eq=False)
class GroupRows:
    """Some rows of one row group.

    Attributes:
        file: The file.
        group: Index of the group in the file.
        within: The rows of the group in its file.
        rows: The rows, counted from the beginning of the group, ascending.
        size_bytes: Uncompressed bytes of the group, all columns.
    """

    file: DataFileInfo
    group: int
    within: RowRange
    rows: Int64Array
    size_bytes: int


@dataclass(frozen=True)
class GroupReader:
    """Takes rows out of row groups, in the columns of one schema."""

    source: FileSource
    schema: pa.Schema

    def take(self, wanted: Sequence[GroupRows]) -> list[pa.Table]:
        """Return a table for each; kept groups go first, or others would push them out."""
        found = [self._kept(one) for one in wanted]
        missing = [(place, wanted[place]) for place, table in enumerate(found) if table is None]
        for tables in self._in_turn(self.read_parts, self._opened_together(missing)):
            for place, table in tables.items():
                found[place] = table
        left = [(place, one) for place, one in missing if found[place] is None]
        for place, table in self._in_turn(lambda one: (one[0], self._from_group(one[1])), left):
            found[place] = table
        return [table for table in found if table is not None]

    def read_parts(self, wanted: Sequence[tuple[int, GroupRows]]) -> Mapping[int, pa.Table]:
        """Return rows of groups of one file that need not be decoded whole, by their indices.

        Args:
            wanted: The rows of each group, with its index in the result.
        """
        return {}

    def _kept(self, one: GroupRows) -> pa.Table | None:
        """Return rows of a group if it is kept and its file has not changed."""
        found = decoded_groups.get(self.key(one))
        if found is None:
            return None
        found.check()
        return _picked(found.table, one.rows)

    def _opened_together(
        self, wanted: Sequence[tuple[int, GroupRows]]
    ) -> list[list[tuple[int, GroupRows]]]:
        """Group by file; remote groups stand alone, so that parts are fetched side by side."""
        if not self.source.store.local:
            return [[one] for one in wanted]
        return [list(some) for _, some in groupby(wanted, lambda one: one[1].file.path)]

    def _in_turn(self, work: Callable[[T], R], on: Sequence[T]) -> Iterator[R]:
        """Work in parallel on remote files; on local ones pyarrow keeps the cores busy."""
        if self.source.store.local or len(on) < 2:
            return map(work, on)
        return side_by_side(work, on, threads=_TAKING_THREADS)

    def _from_group(self, one: GroupRows) -> pa.Table:
        """Return rows of a group that is decoded piece by piece, and kept if it is small enough."""
        taken: list[pa.Table] = []
        kept: list[pa.Table] = []
        version = file_version(self.source.store, one.file)
        at = size = 0
        for table in self.decoded(one):
            first, last = np.searchsorted(one.rows, [at, at + table.num_rows])
            if first < last:
                taken.append(_picked(table, one.rows[first:last] - at))
            at += table.num_rows
            size += table.nbytes
            kept = [*kept, table] if size <= CACHE_BYTES else []
            if not kept and at > one.rows[-1]:
                break
        if kept:
            whole = pa.concat_tables(kept).combine_chunks()
            group = DecodedGroup(whole, version)
            decoded_groups.add(self.key(one), group, limit_bytes=CACHE_BYTES)
        return pa.concat_tables(taken)

    def decoded(self, one: GroupRows) -> Iterator[pa.Table]:
        """Yield all rows of a group.

        Raises:
            ReadError: There are fewer rows than the metadata of the file says.
        """
        chunk, rows = FileSplit(one.file, one.within), 0
        for table in self.source.read(chunk, self.schema, CACHE_BYTES // 4):
            rows += table.num_rows
            yield table
        if rows != one.within.length:
            raise ReadError(f"{chunk}: pyarrow finds only {rows} of these rows; write it again")

    def key(self, one: GroupRows) -> tuple[Hashable, ...]:
        """Return the key of a group in the cache of decoded groups."""
        return self.source.group_key(one.file, one.within.offset, self._columns)

    @computed_once
    def _columns(self) -> bytes:
        """Serialized schema, which is the cheapest key to look up."""
        described: bytes = self.schema.serialize().to_pybytes()
        return described


class FileBackend(Backend):
    """Files, in order, as one table whose rows are taken by index; shards are the files.

    Each file is read as it was when it was found; a file that was written again since then is a
    FileChangedError.
    """

    group_reader: ClassVar[type[GroupReader]] = GroupReader
    """The class that takes rows out of row groups."""

    def __init__(self, source: FileSource, schema: pa.Schema) -> None:
        self._use(source, schema)

    @classmethod
    def of(cls, source: FileSource, schema: pa.Schema) -> Self:
        """Return the rows of files that were already found, in the columns of ``schema``."""
        backend = cls.__new__(cls)
        backend._use(source, schema)
        return backend

    def _use(self, source: FileSource, schema: pa.Schema) -> None:
        self._source, self._schema = source, schema
        self.fork_safe = source.store.fork_safe
        self._readers: dict[tuple[str, ...], GroupReader] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out footers, which are fetched again on demand."""
        source, store = self._source, self._source.store
        if isinstance(store, RemoteStore):
            source = source.through(replace(store, parts=Parts()))
        return {**self.__dict__, "_source": source, "_readers": {}}

    @property
    def name(self) -> str:
        return self._source.name

    @property
    def store(self) -> Store:
        return self._source.store

    def through(self, store: Store) -> Self:
        other = copy(self)
        other._source, other._readers = self._source.through(store), {}
        return other

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def _files(self) -> FileList:
        return self._source.files

    @property
    def shard_rows(self) -> Int64Array:
        return self._files.counts

    @property
    def shard_names(self) -> Sequence[str]:
        return self._files.paths

    @property
    def shard_bytes(self) -> Sequence[int | None]:
        return [size if size >= 0 else None for size in self._files.sizes.tolist()]

    @property
    def shard_etags(self) -> Sequence[str | None]:
        return self._files.etags

    def _file(self, shard: int) -> DataFileInfo:
        """Return a file with its row groups."""
        return self._files[shard]

    def _blocks(self, shard: int) -> list[tuple[int, int]]:
        file = self._file(shard)
        if not file.splittable:
            return super()._blocks(shard)
        groups = groups_of(file)
        first = int(self.shard_starts[shard])
        pairs = zip(groups.start.tolist(), groups.rows.tolist(), strict=True)
        return [(first + start, rows) for start, rows in pairs if rows]

    def _take(self, rows: Int64Array, schema: pa.Schema) -> pa.Table:
        if not len(schema):
            return rows_only(len(rows))
        try:
            return self._taken(rows, schema)
        except pa.ArrowInvalid:
            # Chunks, for rows that are too large for one array, such as 2 GiB of strings.
            if len(rows) == 1:
                raise
            half = len(rows) // 2
            return pa.concat_tables(
                [self._take(rows[:half], schema), self._take(rows[half:], schema)]
            )

    def _taken(self, rows: Int64Array, schema: pa.Schema) -> pa.Table:
        """Return rows from groups that are read once each, in the order of their numbers."""
        distinct, order = np.unique(rows, return_inverse=True)
        wanted = [
            one
            for shard, _, within in self.located(distinct)
            for one in _by_group(self._file(shard), within)
        ]
        taken = pa.concat_tables(self._reader(schema).take(wanted)).combine_chunks()
        table = pa.Table.from_arrays(taken.columns, schema=schema)
        if len(distinct) == len(rows) and (order[:-1] < order[1:]).all():
            return table
        return rows_at(table, order)

    def _batches(self, shard: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        return self._streamed(shard, schema, _BATCH_BYTES)

    def stream(
        self, start: int, length: int, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        """Yield rows that follow each other; groups that are read in parts are kept.

        A file that can only be read from its beginning is read by index.
        """
        stop, begins = start + length, self.shard_starts
        source = self._source.keeping(CACHE_BYTES)
        for shard in np.flatnonzero((begins[1:] > start) & (begins[:-1] < stop)).tolist():
            first = max(start - int(begins[shard]), 0)
            last = min(stop, int(begins[shard + 1])) - int(begins[shard])
            file = self._file(shard)
            if not file.splittable:
                at = int(begins[shard]) + first
                yield from super().stream(at, last - first, schema, block_bytes)
                continue
            chunk = FileSplit(file, RowRange(first, last - first))
            for table in source.read(chunk, schema, block_bytes):
                yield pa.Table.from_arrays(table.columns, schema=schema) if len(schema) else table

    def _reader(self, schema: pa.Schema) -> GroupReader:
        """Return the reader of some columns, without a lock that a forked child could inherit."""
        key = tuple(schema.names)
        reader = self._readers.get(key)
        if reader is None:
            reader = self._readers[key] = self.group_reader(self._source, schema)
        return reader


def groups_of(file: DataFileInfo) -> RowGroups:
    """Return the row groups of a file whose metadata lists them."""
    assert file.row_groups is not None
    return file.row_groups


def _by_group(file: DataFileInfo, rows: Int64Array) -> Iterator[GroupRows]:
    """Yield ascending rows of a file by the groups that they are in."""
    groups = groups_of(file)
    held, begins = np.unique(
        np.searchsorted(groups.start, rows, side="right") - 1, return_index=True
    )
    for group, mine in zip(held.tolist(), np.split(rows, begins[1:]), strict=True):
        start = int(groups.start[group])
        within = RowRange(start, int(groups.rows[group]))
        yield GroupRows(file, group, within, mine - start, int(groups.size_bytes[group]))


def _picked(table: pa.Table, rows: Int64Array) -> pa.Table:
    """Return a copy of rows: the user may write into it, but not into the kept rows."""
    columns = [pick(column, rows) for column in table.columns]
    return pa.Table.from_arrays(columns, schema=table.schema)
