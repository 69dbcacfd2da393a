"""Rows of Parquet files by index: row groups decoded whole, or the pages that hold the rows."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from headrace.errors import ReadError
from headrace.matrices import rows_at
from headrace.model import DataFileInfo, FileSplit, Int64Array, RowGroups, RowRange, computed_once
from headrace.options import checked_keywords
from headrace.sources.backend import Backend
from headrace.sources.files.blocks import rows_only
from headrace.sources.files.cache import BoundedCache, decoded_groups, group_key, runs_of_rows
from headrace.sources.files.discovery import discover
from headrace.sources.files.failures import naming
from headrace.sources.files.schemas import align
from headrace.sources.files.source import FileSource
from headrace.sources.parquet.format import ParquetFormat
from headrace.sources.parquet.pages import PageMismatch, PageReader, Selection, pick
from headrace.sources.taking import take_rows
from headrace.storage import Access, Options, Parts, RemoteStore, Store, side_by_side

__all__ = ["GroupRows", "ParquetBackend", "RowTaker", "groups_of", "rows_by_group"]

logger = logging.getLogger(__name__)

_CACHE_BYTES = 256 << 20
_SMALL_GROUP_BYTES = 1 << 20
"""decoded whole without a look at its pages"""
_COLUMN_COST_BYTES = 512 << 10
_PAGE_COST_BYTES = 16 << 10
"""that are decoded in the time that a column, and each page of it, takes beside its bytes: about
250 and 10 microseconds"""
_WAITING_THREADS = 16

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, eq=False)
class GroupRows:
    """Some rows of one row group."""

    file: DataFileInfo
    group: int
    within: RowRange
    """where the group is in its file"""
    rows: Int64Array
    """counted from the beginning of the group, ascending"""
    size_bytes: int
    """of the group, uncompressed, all columns"""


@dataclass(frozen=True)
class RowTaker:
    """Takes rows from row groups, in the columns of one schema.

    A row group is decoded as a whole and kept, the last ones up to 256 MiB. If it is large, only
    the pages that hold wanted rows are read: unless that would cost as much as the group, or the
    same group was asked so often that its pages have cost as much by now. What counts are the last
    groups that would have fit into 256 MiB, for others would not be kept anyway. So rows in any
    order of more data than can be kept cost their pages, and rows that come from the same groups
    again and again cost each group at most twice.

    Pages are found by the page index. In files of this machine without one they are found by a walk
    over their headers, except those of lists in data pages of version 1.
    """

    source: FileSource
    schema: pa.Schema

    def take(self, wanted: Sequence[GroupRows]) -> list[pa.Table]:
        """A table for each; groups that are kept go first, or others would push them out."""
        found = [self._kept(one) for one in wanted]
        places = [place for place, table in enumerate(found) if table is None]
        for place, table in self._missing([(p, wanted[p]) for p in places]):
            found[place] = table
        return [table for table in found if table is not None]

    def _kept(self, one: GroupRows) -> pa.Table | None:
        table = decoded_groups.get(self._key(one))
        return None if table is None else _picked(table, one.rows)

    def _missing(self, wanted: Sequence[tuple[int, GroupRows]]) -> Iterator[tuple[int, pa.Table]]:
        done: set[int] = set()
        for tables in self._in_turn(self._from_pages, self._opened_together(wanted)):
            done.update(place for place, _ in tables)
            yield from tables
        left = [(place, one) for place, one in wanted if place not in done]
        yield from self._in_turn(lambda some: (some[0], self._from_group(some[1])), left)

    def _opened_together(
        self, wanted: Sequence[tuple[int, GroupRows]]
    ) -> list[list[tuple[int, GroupRows]]]:
        """Group by file; remote groups stand alone, so that pages are fetched side by side."""
        if not self.source.store.local:
            return [[one] for one in wanted]
        return [list(some) for _, some in groupby(wanted, lambda one: one[1].file.path)]

    def _in_turn(self, work: Callable[[T], R], on: Sequence[T]) -> Iterator[R]:
        """Side by side where it costs waiting; here pyarrow keeps the cores busy."""
        if self.source.store.local or len(on) < 2:
            yield from map(work, on)
            return
        yield from side_by_side(work, on, threads=_WAITING_THREADS)

    # --- whole groups

    def _from_group(self, one: GroupRows) -> pa.Table:
        if one.size_bytes > _CACHE_BYTES:
            return self._from_large_group(one)
        table = decoded_groups.get_or_make(
            self._key(one),
            lambda: pa.concat_tables(self._decoded(one)).combine_chunks(),
            limit_bytes=_CACHE_BYTES,
        )
        return _picked(table, one.rows)

    def _from_large_group(self, one: GroupRows) -> pa.Table:
        """Decoded piece by piece, and kept if the wanted columns are small."""
        taken: list[pa.Table] = []
        kept: list[pa.Table] = []
        at = size = 0
        for table in self._decoded(one):
            first, last = np.searchsorted(one.rows, [at, at + table.num_rows])
            taken.append(_picked(table, one.rows[first:last] - at))
            at += table.num_rows
            size += table.nbytes
            kept = [*kept, table] if size <= _CACHE_BYTES else []
            if not kept and at > one.rows[-1]:
                break
        if kept:
            whole = pa.concat_tables(kept).combine_chunks()
            decoded_groups.add(self._key(one), whole, limit_bytes=_CACHE_BYTES)
        return pa.concat_tables(taken)

    def _decoded(self, one: GroupRows) -> Iterator[pa.Table]:
        chunk, rows = FileSplit(one.file, one.within), 0
        for table in self.source.read(chunk, self.schema, _CACHE_BYTES // 4):
            rows += table.num_rows
            yield table
        if rows != one.within.length:
            raise ReadError(f"{chunk}: pyarrow finds only {rows} of these rows; write it again")

    # --- pages

    def _from_pages(self, some: Sequence[tuple[int, GroupRows]]) -> list[tuple[int, pa.Table]]:
        """Rows of one file, where reading pages is less."""
        large = {one.group: (place, one) for place, one in some if _is_large(one)}
        file = some[0][1].file
        key = self._file_key(file)
        if not large or _unusable.get(key) or any(map(_has_views, self.schema.types)):
            return []
        constants = self.source.path_columns.values(file.path)
        stored = [name for name in self.schema.names if name not in constants]
        try:
            with naming(file.path), self.source.store.open(file) as source:
                reader = PageReader(source, key, self._options, walks=self.source.store.local)
                found = reader.select({g: one.rows for g, (_, one) in large.items()}, stored)
                chosen = [s for s in found if _is_less(s, self._key(large[s.group][1]))]
                tables = list(reader.read(chosen))
        except PageMismatch as error:
            logger.warning("%s: its row groups are read whole: %s", file.path, error)
            _unusable.add(key, True, limit_bytes=1 << 20)
            return []
        return [
            (large[s.group][0], align(table, self.schema, constants, file.path))
            for s, table in zip(chosen, tables, strict=True)
        ]

    @property
    def _options(self) -> dict[str, object]:
        format_ = self.source.format
        return dict(format_.options) if isinstance(format_, ParquetFormat) else {}

    def _key(self, one: GroupRows) -> tuple[Hashable, ...]:
        return group_key(self.source.identity, one.file, one.within.offset, self._columns)

    @computed_once
    def _columns(self) -> bytes:
        """The schema, as what it costs least to look up by."""
        described: bytes = self.schema.serialize().to_pybytes()
        return described

    def _file_key(self, file: DataFileInfo) -> tuple[Hashable, ...]:
        return self.source.store.identity, file.path, file.file_size, file.etag


def rows_by_group(file: DataFileInfo, rows: Int64Array) -> Iterator[GroupRows]:
    """Ascending rows of a file, by the groups that they are in."""
    groups = groups_of(file)
    held, begins = np.unique(
        np.searchsorted(groups.start, rows, side="right") - 1, return_index=True
    )
    for group, mine in zip(held.tolist(), np.split(rows, begins[1:]), strict=True):
        start = int(groups.start[group])
        within = RowRange(start, int(groups.rows[group]))
        yield GroupRows(file, group, within, mine - start, int(groups.size_bytes[group]))


def groups_of(file: DataFileInfo) -> RowGroups:
    assert file.row_groups is not None  # every footer lists them
    return file.row_groups


def _is_large(one: GroupRows) -> bool:
    return one.size_bytes > _SMALL_GROUP_BYTES and 2 * len(one.rows) < one.within.length


def _is_less(pages: Selection, key: tuple[Hashable, ...]) -> bool:
    """Return True if pages are read rather than the group; see ``RowTaker``."""
    before, _ = _spent.get(key) or (0.0, 0)
    beside = _COLUMN_COST_BYTES * len(pages.parts) + _PAGE_COST_BYTES * pages.pages
    spent = before + (pages.page_bytes + beside) / pages.chunk_bytes
    _spent.add(key, (spent, pages.decoded_bytes), limit_bytes=_CACHE_BYTES)
    return spent < 1


def _picked(table: pa.Table, rows: Int64Array) -> pa.Table:
    """Copied: a user may write into what is taken, and must not write into what is kept."""
    try:
        columns = [pick(column, rows) for column in table.columns]
    except pa.ArrowNotImplementedError:
        return take_rows(table, rows)
    return pa.Table.from_arrays(columns, schema=table.schema)


def _has_views(type_: pa.DataType) -> bool:
    """Return True if there are strings behind views, of which pyarrow can take none."""
    if pt.is_string_view(type_) or pt.is_binary_view(type_):
        return True
    return any(_has_views(type_.field(number).type) for number in range(type_.num_fields))


_spent: BoundedCache[tuple[float, int]] = BoundedCache(lambda spent: spent[1])
"""on pages of row groups, as a part of what the group would cost, with the size of the group"""
_unusable: BoundedCache[bool] = BoundedCache(lambda unusable: 300)
"""files whose pages are not as their index describes them"""


PathLike = str | os.PathLike[str]

_BATCH_BYTES = 16 << 20
_SLICE_BYTES = 1 << 40
"""more than any: what is wanted as one table is decoded as one"""


@checked_keywords
class ParquetBackend(Backend):
    """Parquet files, in order of their paths, as one table; shards are the files.

    ``paths`` are files, directories and globs, here or in any store. Building it lists them and
    reads their footers once; files with other columns or types are brought to one schema. Each file
    is read as it was then: FileChangedError if it is another by now.

    Row groups are decoded as a whole and the last ones kept, up to 256 MiB a process. Of a large
    one only the pages that hold the wanted rows are read, as long as that is less: see
    ``RowTaker``. So rows at random want files with small pages, and remote ones with a page index
    (pyarrow: ``data_page_size=…, write_batch_size=…, write_page_index=True``).

    Folders of table formats are refused, for their files hold rows that were deleted;
    ``as_files=True`` reads them nevertheless.
    """

    def __init__(
        self,
        paths: PathLike | Sequence[PathLike],
        *,
        storage_options: Options | None = None,
        as_files: bool = False,
    ) -> None:
        access = Access(storage_options=storage_options or {})
        found = discover(paths, "parquet", access=access, as_files=as_files)
        source = found.reader.source
        assert isinstance(source, FileSource)
        self._use(source, source.schema)

    @classmethod
    def of(cls, source: FileSource, schema: pa.Schema) -> ParquetBackend:
        """Return the rows of Parquet files that were already found, in some columns."""
        backend = cls.__new__(cls)
        backend._use(source, schema)
        return backend

    def _use(self, source: FileSource, schema: pa.Schema) -> None:
        self._source = source
        self._schema = schema
        self._files = source.files
        self.fork_safe = source.store.fork_safe
        self._takers: dict[tuple[str, ...], RowTaker] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out footers, which are fetched again where they are needed."""
        source, store = self._source, self._source.store
        if isinstance(store, RemoteStore):
            source = source.through(replace(store, parts=Parts()))
        return {**self.__dict__, "_source": source, "_takers": {}}

    # --- what there is

    @property
    def name(self) -> str:
        return "parquet"

    @property
    def store(self) -> Store:
        return self._source.store

    def through(self, store: Store) -> Self:
        other = copy(self)
        other._use(self._source.through(store), self._schema)
        return other

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def shard_rows(self) -> Int64Array:
        return self._files.counts

    @property
    def shard_names(self) -> Sequence[str]:
        return self._files.paths

    @property
    def shard_bytes(self) -> Sequence[int | None]:
        sizes: list[int | None] = self._files.sizes.tolist()
        return sizes

    @property
    def shard_etags(self) -> Sequence[str | None]:
        return self._files.etags

    def _blocks(self, shard: int) -> list[tuple[int, int]]:
        groups = groups_of(self._files[shard])
        first = int(self.shard_starts[shard])
        pairs = zip(groups.start.tolist(), groups.rows.tolist(), strict=True)
        return [(first + start, rows) for start, rows in pairs if rows]

    # --- rows

    def _take(self, rows: Int64Array, schema: pa.Schema) -> pa.Table:
        if not len(schema):
            return rows_only(len(rows))
        try:
            return self._taken(rows, schema)
        except pa.ArrowInvalid:
            # Chunks for what is too much for one array, such as 2 GiB of strings.
            if len(rows) == 1:
                raise
            half = len(rows) // 2
            return pa.concat_tables(
                [self._take(rows[:half], schema), self._take(rows[half:], schema)]
            )

    def _taken(self, rows: Int64Array, schema: pa.Schema) -> pa.Table:
        distinct, order = np.unique(rows, return_inverse=True)
        wanted = [
            one
            for shard, _, within in self.located(distinct)
            for one in rows_by_group(self._files[shard], within)
        ]
        table = pa.concat_tables(self._taker(schema).take(wanted)).combine_chunks()
        if len(distinct) == len(rows) and (order[:-1] < order[1:]).all():
            return table
        try:
            return rows_at(table, order)
        except pa.ArrowNotImplementedError:  # strings behind views
            return take_rows(table, order)

    def _slice(self, start: int, length: int, schema: pa.Schema) -> pa.Table:
        if not len(schema):
            return rows_only(length)
        return pa.concat_tables(self.stream(start, length, schema, _SLICE_BYTES))

    def _batches(self, shard: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        return self._streamed(shard, schema, _BATCH_BYTES)

    def stream(
        self, start: int, length: int, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        """Row groups of which a small part is wanted are read as by ``take``."""
        if not len(schema):
            yield rows_only(length)
            return
        taker, stop = self._taker(schema), start + length
        begins = self.shard_starts
        for shard in np.flatnonzero((begins[1:] > start) & (begins[:-1] < stop)).tolist():
            first = max(start - int(begins[shard]), 0)
            last = min(stop, int(begins[shard + 1])) - int(begins[shard])
            file = self._files[shard]
            for rows, group in runs_of_rows(file, RowRange(first, last - first)):
                if group is not None:
                    wanted = list(rows_by_group(file, np.arange(rows.offset, rows.stop)))
                    yield from taker.take(wanted)
                else:
                    yield from self._source.read(FileSplit(file, rows), schema, block_bytes)

    def _taker(self, schema: pa.Schema) -> RowTaker:
        """By columns; without a lock, which a child could be forked under."""
        key = tuple(schema.names)
        taker = self._takers.get(key)
        if taker is None:
            taker = self._takers[key] = RowTaker(self._source, schema)
        return taker
