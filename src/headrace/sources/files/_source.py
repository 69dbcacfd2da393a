"""Files of one format as a source: columns by name, some of them perhaps in the paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ipc

from headrace.model import FileList, FileSplit
from headrace.sources.files._cache import read_groups
from headrace.sources.files._partitioning import PathColumns
from headrace.sources.files._versions import unchanged
from headrace.sources.files.blocks import in_blocks
from headrace.sources.files.failures import naming
from headrace.sources.files.protocol import Format
from headrace.sources.files.schemas import align
from headrace.sources.source import StoredSource
from headrace.storage import Store

if TYPE_CHECKING:
    from headrace.sources.backend import Backend


@dataclass(frozen=True)
class FileSource(StoredSource):
    """Rows of files of one format, matched to columns by name; some columns may be in paths.

    Attributes:
        store: Reaches the files.
        format: Reads a file.
        schema: All columns of the data set.
        files: The files, without row groups that a filter excludes.
        path_columns: The columns that are in paths.
        is_filtered: True if a filter was given, so that not all rows are here.
        cache_bytes: Bytes of decoded row groups to keep.
    """

    store: Store
    format: Format
    schema: pa.Schema
    files: FileList = field(repr=False)
    path_columns: PathColumns = field(default_factory=PathColumns)
    is_filtered: bool = False
    cache_bytes: int = 0

    @property
    def name(self) -> str:
        return self.format.name

    def read(self, chunk: FileSplit, schema: pa.Schema, block_bytes: int) -> Iterator[pa.Table]:
        if not self.cache_bytes:
            return self._decoded(chunk, schema, block_bytes)
        return read_groups(
            chunk,
            lambda part: self._decoded(part, schema, block_bytes),
            schema,
            store=self.store,
            identity=self.identity,
            cache_bytes=self.cache_bytes,
        )

    def _decoded(self, chunk: FileSplit, schema: pa.Schema, block_bytes: int) -> Iterator[pa.Table]:
        constants = self.path_columns.values(chunk.file.path)
        stored = schema
        if constants:
            stored = pa.schema([field for field in schema if field.name not in constants])
        tables = self.format.read(self.store, chunk, stored, block_bytes)
        tables = unchanged(tables, self.store, chunk.file)
        aligned = (align(table, schema, constants, chunk) for table in tables)
        yield from in_blocks(aligned, block_bytes) if constants else aligned

    @property
    def identity(self) -> tuple[str, str]:
        """The store and the options of the format, which decide how a file is read."""
        return self.store.identity, repr(getattr(self.format, "options", None))

    def through(self, store: Store) -> Self:
        return replace(self, store=store)

    def keeping(self, cache_bytes: int) -> Self:
        return replace(self, cache_bytes=cache_bytes)

    def by_index(self, schema: pa.Schema) -> Backend:
        # These modules read files by this one.
        from headrace.sources.arrow.backend import ArrowBackend
        from headrace.sources.files._backend import FileBackend
        from headrace.sources.parquet.backend import ParquetBackend

        kinds: dict[str, type[FileBackend]] = {
            "parquet": ParquetBackend,
            "arrow": ArrowBackend,
            "orc": FileBackend,
        }
        if self.name in kinds and not self.is_filtered:
            return kinds[self.name].of(self, schema)
        return super().by_index(schema)

    @property
    def metadata(self) -> Mapping[bytes, bytes]:
        """Metadata of the first file about its columns as a whole, such as that of pandas."""
        if not len(self.files):
            return {}
        file = self.files[0]
        with naming(file.path), self.store.open(file) as opened:
            magic = opened.read_at(6, 0)
            opened.seek(0)
            if magic[:4] == b"PAR1":
                found = pq.read_schema(opened).metadata
            elif magic == b"ARROW1":
                found = ipc.open_file(opened).schema.metadata
            else:
                found = None
        return found or {}
