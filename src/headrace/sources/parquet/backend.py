"""Rows of Parquet files by index."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Self

import numpy as np
import pyarrow as pa

from headrace.matrices import rows_at
from headrace.model import FileSplit, Int64Array, RowRange
from headrace.options import checked_keywords
from headrace.sources.backend import Backend
from headrace.sources.files.blocks import rows_only
from headrace.sources.files.decoded_groups import runs_of_rows
from headrace.sources.files.discovery import discover
from headrace.sources.files.source import FileSource
from headrace.sources.parquet.groups import RowTaker, groups_of, rows_by_group
from headrace.sources.taking import take_rows
from headrace.storage import Access, Options, RemoteStore, Store
from headrace.storage.parts import Parts

__all__ = ["ParquetBackend"]

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
    ``RowTaker``. So rows at random want files with small pages, and elsewhere with a page index
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
