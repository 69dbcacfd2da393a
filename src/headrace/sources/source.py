"""Sources of rows: their protocol, their base class, and the reader of the wanted rows of one.

A source has a schema and files, and reads the rows of any chunk of a file, in order. Everything
else is written once, around this protocol: projection and filter in `TabularReader`, the data for
planning in `Discovered`. A `Backend` also takes rows by their index.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import pyarrow as pa
import pyarrow.dataset as ds

from headrace.convert.kinds import Kinds
from headrace.errors import OptionError, ReadError, may_be_skipped, naming
from headrace.model import DataFileInfo, FileList, FileSplit, RowGroups
from headrace.sources.files.filters import columns_of, rows_where, settle_filter, to_expression
from headrace.sources.files.schemas import align
from headrace.storage import Listing, LocalStore, Store

if TYPE_CHECKING:
    from headrace.sources.backend import Backend

T = TypeVar("T")


class Source(Protocol):
    """Data that can be planned and read: the argument of ``headrace.SourceDataset``.

    A source holds options and metadata only, so that it pickles, and any thread may use it. Handles
    are opened by ``read`` in the process that reads.

    Examples:
        >>> from headrace import RowRange, SourceDataset
        >>> class Numbers:
        ...     schema = pa.schema({"x": pa.int64()})
        ...     files = [DataFileInfo("numbers", record_count=6)]
        ...
        ...     def read(self, chunk, schema, block_bytes):
        ...         rows = chunk.row_range or RowRange(0, 6)
        ...         yield pa.table({"x": range(rows.offset, rows.stop)})
        >>> loader, _ = SourceDataset.create_dataloader(Numbers(), batch_size=3)
        >>> [batch["x"].tolist() for batch in loader]
        [[0, 1, 2], [3, 4, 5]]
    """

    @property
    def schema(self) -> pa.Schema:
        """All columns, with their types."""
        ...

    @property
    def files(self) -> Sequence[DataFileInfo]:
        """Files, shards or other parts, each with a path of its own and its number of rows.

        ``file_size`` (bytes) and ``row_groups`` help to choose good chunks. ``etag`` changes
        whenever the part does, so that a state of other data is refused.
        """
        ...

    def read(self, chunk: FileSplit, schema: pa.Schema, block_bytes: int) -> Iterator[pa.Table]:
        """Yield exactly the live rows of a chunk, in order, in these columns.

        Args:
            chunk: The part, and the range of its rows; without a range all of them.
            schema: The wanted columns. Values are cast to their types.
            block_bytes: Approximate size of a table in bytes.
        """
        ...


class StoredSource(ABC):
    """The base class of the library's sources: a `Source` with a store."""

    # Subclasses have these as attributes, properties or fields of a dataclass.
    if TYPE_CHECKING:

        @property
        def schema(self) -> pa.Schema:
            """All columns, with their types."""

        @property
        def files(self) -> Sequence[DataFileInfo]:
            """The files, in order."""

        @property
        def store(self) -> Store:
            """The store from which the files are read."""

        @property
        def name(self) -> str:
            """Kind of the data, as users call it."""

    @property
    def given(self) -> Mapping[str, Any]:
        """Functions of the user that reading calls, by the names of their options."""
        return {}

    @property
    def kinds(self) -> Kinds:
        """Kinds of the columns that the source has decoded, where their types do not tell."""
        return {}

    @property
    def locations(self) -> Sequence[str]:
        """Locations given by the user, into which nothing may be written."""
        return ()

    @property
    def metadata(self) -> Mapping[bytes, bytes]:
        """Metadata of the schema that a copy of the rows should keep."""
        return {}

    @property
    def cache_bytes(self) -> int:
        """Bytes of decoded row groups that ``read`` keeps for other chunks of these groups."""
        return 0

    @abstractmethod
    def read(self, chunk: FileSplit, schema: pa.Schema, block_bytes: int) -> Iterator[pa.Table]:
        """Yield exactly the live rows of a chunk, in order, in exactly these columns."""

    def row_groups(self, file: DataFileInfo) -> RowGroups | None:
        """Return the row groups of a file; a source may know them even if the plan does not."""
        return file.row_groups

    def through(self, store: Store) -> Self:
        """Return the same source over a store that counts requests and may give up waiting."""
        return self

    def keeping(self, cache_bytes: int) -> Self:
        """Return the same source with another ``cache_bytes``."""
        return self

    def by_index(self, schema: pa.Schema) -> Backend:
        """Return the same rows by index, with at least the columns of ``schema``.

        Raises:
            OptionError: The rows cannot be taken by index.
        """
        raise OptionError(
            f"{self.name} has no rows by index here: they can be had of Parquet, Arrow and ORC "
            "files (without filters), Lance tables, ArrayRecord files, tars and "
            "video frames; headrace shuffle-into writes a copy of anything else"
        )


@dataclass(frozen=True)
class GivenSource(StoredSource):
    """The user's own source, whose tables are cast to the wanted types."""

    source: Source
    store: Store = field(default_factory=LocalStore)

    @property
    def schema(self) -> pa.Schema:
        return self.source.schema

    @property
    def files(self) -> Sequence[DataFileInfo]:
        return self.source.files

    @property
    def name(self) -> str:
        return type(self.source).__name__

    def read(self, chunk: FileSplit, schema: pa.Schema, block_bytes: int) -> Iterator[pa.Table]:
        with naming(chunk):
            for table in self.source.read(chunk, schema, block_bytes):
                yield align(table, schema, {}, chunk)


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
        for table in self.source.read(chunk, self.read_schema, block_bytes):
            kept = table if self.filter is None else self._filtered(table, chunk)
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
        keep = None if filters is None else to_expression(filters)
        read = output
        if keep is not None:
            whole = source.schema
            keep = settle_filter(keep, whole)
            fields = {field.name: field for field in output}
            # The filter may need fields of a struct that do not come out.
            fields |= {name: whole.field(name) for name in columns_of(keep, whole)}
            read = pa.schema(list(fields.values()))
        reader = TabularReader(source, output, read, keep)
        listed = source.files if files is None else files
        found = listed if isinstance(listed, FileList) else FileList(listed)
        return cls(reader, found, filter=keep, version=version)

    @property
    def counted(self) -> bool:
        """True if the number of rows that will come out is known."""
        known = bool((self.files.counts >= 0).all())
        return known and self.reader.filter is None and not self.has_deletes


@dataclass(slots=True)
class BrokenRecords:
    """Counts the records that are left out, and keeps the error of the first one."""

    first: ReadError | None = None
    count: int = 0

    def all_but(self, numbers: Sequence[int], read: Callable[[int], T]) -> list[tuple[int, T]]:
        """Return the value of each number that can be read, with its index."""
        found: list[tuple[int, T]] = []
        for place, number in enumerate(numbers):
            try:
                found.append((place, read(number)))
            except ReadError as error:
                if not may_be_skipped(error):
                    raise
                self.first = self.first or error
                self.count += 1
        return found

    def tell(self) -> None:
        """Raise a ReadError if any record was left out."""
        if self.first is not None:
            more = f" (and so are {self.count - 1} more records)" if self.count > 1 else ""
            raise ReadError(f"{self.first}; it is left out{more}") from self.first
