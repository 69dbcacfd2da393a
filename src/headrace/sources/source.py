"""The protocol of a source, and the base class of the sources of the library.

A source has a schema and files, and reads the rows of any chunk of a file, in order. A source with
random access also takes rows by their index. Filters, projection, planning, conversion and
statistics are written once, around these two protocols.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

import pyarrow as pa

from headrace.convert.decoded import Kinds
from headrace.errors import OptionError
from headrace.model import DataFileInfo, FileSplit, RowGroups
from headrace.sources.files.failures import naming
from headrace.sources.files.schemas import align
from headrace.storage import LocalStore, Store

if TYPE_CHECKING:
    from headrace.sources.backend import Backend, Indices

__all__ = ["GivenSource", "RandomAccess", "Source", "StoredSource"]


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


class RandomAccess(Source, Protocol):
    """A source whose rows can be taken by index."""

    def take(self, indices: Indices, *, columns: Sequence[str] | None = None) -> pa.Table:
        """Return rows in the order of their indices; an index may be repeated."""
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
