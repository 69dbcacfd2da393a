"""Projection and filter, written once for all sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from headrace.errors import OptionError
from headrace.model import DataFileInfo, FileList, FileSplit
from headrace.sources.files.filters import columns_of, rows_where, settle_filter, to_expression
from headrace.sources.source import StoredSource
from headrace.storage import Listing, Store

__all__ = ["Discovered", "TabularReader"]


@dataclass(frozen=True, slots=True)
class TabularReader:
    """Reads any chunk of a source. It holds only options, can be pickled, and serves many threads.

    Attributes:
        source: Gives the live rows of chunks.
        schema: The columns that come out.
        read_schema: The columns that come out, and those that the filter needs.
        filter: The rows that are kept; None for all.
    """

    source: StoredSource
    schema: pa.Schema
    read_schema: pa.Schema
    filter: ds.Expression | None = None

    @property
    def store(self) -> Store:
        """The store from which the source reads."""
        return self.source.store

    def through(self, store: Store) -> TabularReader:
        """Return a reader over a store that counts requests and may give up waiting."""
        return replace(self, source=self.source.through(store))

    def keeping(self, cache_bytes: int) -> TabularReader:
        """Return a reader whose source keeps ``cache_bytes`` bytes of decoded row groups."""
        return replace(self, source=self.source.keeping(cache_bytes))

    def read(self, chunk: FileSplit, block_bytes: int) -> Iterator[pa.Table]:
        """Yield the rows of a chunk that the filter keeps, in order; no empty tables."""
        settled = self.filter is None or _settled(chunk)
        for table in self.source.read(chunk, self.read_schema, block_bytes):
            kept = table if settled else self._filtered(table, chunk)
            if kept.num_rows:
                output = kept.select(self.schema.names)
                # The filter may need fields of a struct that do not come out.
                yield output if output.schema.equals(self.schema) else output.cast(self.schema)

    def counting(self, *, all_columns: bool = False) -> TabularReader:
        """Return a reader of the same rows without columns.

        It decodes only the columns that the filter needs.

        Args:
            all_columns: True to decode all columns, to fail wherever the reader of all columns
                fails.
        """
        nothing = pa.schema([])
        if all_columns:
            return replace(self, schema=nothing)
        needed = [] if self.filter is None else columns_of(self.filter, self.read_schema)
        columns = pa.schema([column for column in self.read_schema if column.name in needed])
        return replace(self, schema=nothing, read_schema=columns)

    def _filtered(self, table: pa.Table, chunk: FileSplit) -> pa.Table:
        try:
            return rows_where(table, self.filter)
        except OptionError as error:
            raise OptionError(f"{chunk}: {error}") from error.__cause__


def _settled(chunk: FileSplit) -> bool:
    """Return True if it is known that the filter keeps all rows of a chunk."""
    groups, wanted = chunk.file.row_groups, chunk.row_range
    if groups is None:
        return False
    if wanted is None:
        return bool(groups.settled.all())
    ends = groups.start + groups.rows
    return bool(groups.settled[(ends > wanted.offset) & (groups.start < wanted.stop)].all())


@dataclass(frozen=True, slots=True)
class Discovered:
    """The data of a dataset: all that planning and reading need.

    Attributes:
        reader: Reads the wanted rows and columns.
        files: Files that may hold rows, in their order.
        roots: Directories that hold the files; only the part of a path below them counts.
        filter: The filter of the user, unless paths alone decided it. The reader applies the part
            that paths did not decide.
        broken: Reasons why files were left out under ``on_error="skip"``, one line each.
        counts: Numbers of requests to the store.
        listing: The listed files, which can be saved as a manifest.
        version: For a table, the ids of its snapshot and schema.
        has_deletes: True if rows are deleted, so that the number of rows is not known without
            reading.
    """

    reader: TabularReader
    files: FileList
    roots: Sequence[str] = ()
    filter: ds.Expression | None = None
    broken: Sequence[str] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    listing: Listing | None = None
    version: tuple[int, int] | None = None
    has_deletes: bool = False

    @classmethod
    def of(
        cls,
        source: StoredSource,
        output: pa.Schema,
        *,
        files: Sequence[DataFileInfo] | None = None,
        filters: ds.Expression | Sequence[Any] | None = None,
        version: tuple[int, int] | None = None,
    ) -> Discovered:
        """Return the data of a source whose filters are applied to rows alone.

        Args:
            source: The source.
            output: The columns that come out.
            files: Its files, if they differ from those of the source.
            filters: The rows that are kept.
            version: For a table, the ids of its snapshot and schema.
        """
        whole = source.schema
        keep = to_expression(filters)
        if keep is not None:
            keep = settle_filter(keep, whole)
        needed = [] if keep is None else columns_of(keep, whole)
        read = {f.name: f for f in output} | {name: whole.field(name) for name in needed}
        reader = TabularReader(source, output, pa.schema(list(read.values())), keep)
        listed = source.files if files is None else files
        return cls(reader, FileList(listed), filter=keep, version=version)

    @property
    def counted(self) -> bool:
        """True if the number of rows that will come out is known."""
        known = bool((self.files.counts >= 0).all())
        return known and self.reader.filter is None and not self.has_deletes
