"""Chunks of files to Arrow tables: exactly their rows, in the data set's columns, filtered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from headrace.errors import OptionError
from headrace.matrices import rows_at
from headrace.model import DataFileInfo, FileSplit, RowGroups, RowRange
from headrace.sources.files.blocks import rows_only
from headrace.sources.files.cache import BoundedCache
from headrace.sources.files.failures import naming
from headrace.sources.files.filters import columns_of, rows_where
from headrace.sources.files.json import JsonFormat
from headrace.sources.files.partitioning import PathColumns
from headrace.sources.files.protocol import Format
from headrace.sources.files.schemas import align
from headrace.storage import Store

__all__ = ["FormatRows", "RowSource", "Source", "TabularReader", "UserSourceRows"]


class Source(Protocol):
    """Data at rest that can be planned and read: what ``headrace.SourceDataset`` takes.

    A source holds options and metadata only, so that it pickles, and any thread may use it. Handles
    are opened by ``read`` in the process that reads.
    """

    @property
    def schema(self) -> pa.Schema:
        """All columns, with their types."""
        ...

    @property
    def files(self) -> Sequence[DataFileInfo]:
        """Files, shards or other parts, each with a path of its own and its number of rows.

        ``file_size`` (bytes) and ``row_groups`` help to choose good chunks; ``etag`` tells a part
        from what it was before, so that a state of other data is refused.
        """
        ...

    def read(self, chunk: FileSplit, schema: pa.Schema, block_bytes: int) -> Iterator[pa.Table]:
        """Yield exactly the rows of a chunk, in order, in these columns.

        Args:
            chunk: The part, and the range of its rows; without a range all of them.
            schema: The wanted columns. Values are cast to their types.
            block_bytes: About how many bytes a table should have.
        """
        ...


class RowSource(ABC):
    """Where the rows of chunks come from. Holds options and metadata only, so that it pickles.

    Attributes:
        name: What users call the kind of files.
        identity: Tells sources apart that read the same columns of the same file differently.
        delete_columns: Columns that ``live`` looks at.
        column_kinds: What columns hold that the source has decoded, by name.
        user_code: Functions of the user that must reach workers, by the names of their options.
    """

    __slots__ = ()

    name: str
    identity: str

    @property
    def delete_columns(self) -> Sequence[str]:
        return ()

    @property
    def column_kinds(self) -> Mapping[str, Any]:
        return {}

    @property
    def user_code(self) -> Mapping[str, Any]:
        return {}

    def groups(self, store: Store, file: DataFileInfo) -> RowGroups | None:
        """Return the row groups of a file, if they can be known where the plan does not."""
        return file.row_groups

    @abstractmethod
    def read(
        self, store: Store, chunk: FileSplit, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        """Yield exactly the rows that the chunk has in its file, in order, in these columns."""

    def live(self, store: Store, chunk: FileSplit, first_row: int, table: pa.Table) -> pa.Table:
        """Return those of such rows that are not deleted.

        Args:
            store: Reaches the files.
            chunk: The chunk that the rows are of.
            first_row: The place of the first of these rows in the file.
            table: The rows.
        """
        return table

    def for_counting(self) -> RowSource:
        """Return a source of the same rows that does not refuse columns that nobody reads."""
        return self


@dataclass(frozen=True, slots=True)
class UserSourceRows(RowSource):
    """Rows of a source of the user's own."""

    source: Source
    name: str
    identity: str = ""

    def read(
        self, store: Store, chunk: FileSplit, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        with naming(chunk):
            for table in self.source.read(chunk, schema, block_bytes):
                yield align(table, schema, {}, str(chunk))


@dataclass(frozen=True, slots=True)
class FormatRows(RowSource):
    """Rows of files of one format, matched to columns by name; some columns may be in paths."""

    format: Format
    path_columns: PathColumns = field(default_factory=PathColumns)

    @property
    def identity(self) -> str:  # type: ignore[override]
        return repr(getattr(self.format, "options", None))

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.format.name

    def read(
        self, store: Store, chunk: FileSplit, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        constants = self.path_columns.values(chunk.file.path)
        stored = schema
        if constants:
            stored = pa.schema([field for field in schema if field.name not in constants])
        added_bytes = sum(len(v) for v in constants.values() if isinstance(v, str | bytes))
        for table in self.format.read(store, chunk, stored, block_bytes):
            for part in _within(table, added_bytes, block_bytes):
                yield align(part, schema, constants, str(chunk))

    def for_counting(self) -> RowSource:
        if isinstance(self.format, JsonFormat):
            return replace(self, format=self.format.ignoring_unknown())
        return self


def _within(table: pa.Table, added_bytes: int, block_bytes: int) -> Iterator[pa.Table]:
    """The rows in tables that are no larger once so many bytes have been added to each row."""
    if added_bytes * table.num_rows <= block_bytes:
        yield table
        return
    rows = max(block_bytes // added_bytes, 1)
    for start in range(0, table.num_rows, rows):
        if table.num_columns:
            yield table.slice(start, rows)
        else:  # of which pyarrow cannot make a slice
            yield rows_only(min(rows, table.num_rows - start))


@dataclass(frozen=True, slots=True)
class TabularReader:
    """Reads any chunk of a data set. Holds options only, pickles, serves many threads."""

    store: Store
    rows: RowSource
    schema: pa.Schema
    """the columns that come out"""
    read_schema: pa.Schema
    """those and the ones that the filter, or deletes, need"""
    filter: ds.Expression | None = None
    cache_bytes: int = 0
    """decoded row groups kept for other chunks of them; 0 where chunks are whole groups"""

    def read(self, chunk: FileSplit, block_bytes: int) -> Iterator[pa.Table]:
        """The rows of the chunk that are live and that the filter keeps, in order; no empty tables.

        Rows are counted from the start of the file, and decoded groups kept, before deletes.
        """
        settled = self.filter is None or _settled(chunk)
        first_row = 0 if chunk.row_range is None else chunk.row_range.offset
        for table in self._stored(chunk, block_bytes):
            live = self.rows.live(self.store, chunk, first_row, table)
            first_row += table.num_rows
            kept = live if settled else self._filtered(live, chunk)
            if kept.num_rows:
                output = kept.select(self.schema.names)
                # The filter may need fields of a struct that do not come out.
                yield output if output.schema.equals(self.schema) else output.cast(self.schema)

    def counting(self, *, all_columns: bool = False) -> TabularReader:
        """Return a reader of the same rows without columns.

        It decodes only the columns that the filter and deletes need. A field of JSON that is not
        among them is no unknown one, which the reader of all fields refuses.

        Args:
            all_columns: Decode all columns, to fail wherever the reader of all columns fails.
        """
        if all_columns:
            return replace(self, schema=pa.schema([]))
        needed = list(self.rows.delete_columns)
        if self.filter is not None:
            needed += columns_of(self.filter, self.read_schema)
        columns = pa.schema([column for column in self.read_schema if column.name in needed])
        rows = self.rows.for_counting()
        return replace(self, rows=rows, schema=pa.schema([]), read_schema=columns)

    def _filtered(self, table: pa.Table, chunk: FileSplit) -> pa.Table:
        try:
            return rows_where(table, self.filter)
        except OptionError as error:
            raise OptionError(f"{chunk}: {error}") from error.__cause__

    def _stored(self, chunk: FileSplit, block_bytes: int) -> Iterator[pa.Table]:
        if self.cache_bytes == 0 or not len(self.read_schema):
            yield from self._decoded(chunk, block_bytes)
            return
        for part, group in _parts(self._with_groups(chunk)):
            if group is None:
                yield from self._decoded(part, block_bytes)
            else:
                yield self._from_group(part, group, block_bytes)

    def _with_groups(self, chunk: FileSplit) -> FileSplit:
        """The chunk with the row groups of its file, of which the plan may not know."""
        if chunk.row_range is None or chunk.file.row_groups is not None:
            return chunk
        groups = self.rows.groups(self.store, chunk.file)
        return replace(chunk, file=replace(chunk.file, row_groups=groups))

    def _decoded(self, chunk: FileSplit, block_bytes: int) -> Iterator[pa.Table]:
        return self.rows.read(self.store, chunk, self.read_schema, block_bytes)

    def _from_group(self, part: FileSplit, group: RowRange, block_bytes: int) -> pa.Table:
        """Some rows of a row group that is decoded as a whole and kept for its other chunks.

        They are copied: a user may write into a batch, and must not write into the cache.
        """
        assert part.row_range is not None
        whole = FileSplit(part.file, group)
        table = _groups.get_or_make(
            (
                self.store.identity,
                self.rows.identity,
                part.file.path,
                part.file.file_size,
                part.file.etag,
                group.offset,
                self.read_schema.serialize().to_pybytes(),
            ),
            lambda: pa.concat_tables(self._decoded(whole, block_bytes)),
            limit_bytes=self.cache_bytes,
        )
        start = part.row_range.offset - group.offset
        rows = part.row_range.length
        # Of all of a table in many pieces, pyarrow would copy all to take some.
        return rows_at(table.slice(start, rows), np.arange(rows))


def _settled(chunk: FileSplit) -> bool:
    """Whether it is known of all rows of a chunk that the filter keeps them."""
    groups, wanted = chunk.file.row_groups, chunk.row_range
    if groups is None:
        return False
    if wanted is None:
        return bool(groups.settled.all())
    ends = groups.start + groups.rows
    return bool(groups.settled[(ends > wanted.offset) & (groups.start < wanted.stop)].all())


def _parts(chunk: FileSplit) -> Iterator[tuple[FileSplit, RowRange | None]]:
    """A chunk's shares of row groups; with the group where the share is the smaller part of it."""
    groups = chunk.file.row_groups
    wanted = chunk.row_range
    if wanted is None or groups is None:
        yield chunk, None
        return
    ends = groups.start + groups.rows
    at = wanted.offset
    for index in np.flatnonzero((ends > wanted.offset) & (groups.start < wanted.stop)).tolist():
        group = RowRange(int(groups.start[index]), int(groups.rows[index]))
        start, stop = max(group.offset, wanted.offset), min(group.stop, wanted.stop)
        if 2 * (stop - start) < group.length:
            if at < start:
                yield FileSplit(chunk.file, RowRange(at, start - at)), None
            yield FileSplit(chunk.file, RowRange(start, stop - start)), group
            at = stop
    if at < wanted.stop:
        yield FileSplit(chunk.file, RowRange(at, wanted.stop - at)), None


_groups: BoundedCache[pa.Table] = BoundedCache(lambda table: int(table.nbytes))
