"""Files as a source: decoded in order, checked for changes, and kept by row group if wanted.

`FileSource` matches files of one format to columns by name, some of them perhaps in the paths.
Tables of catalogs build on `StoredFiles`, too.
"""

from __future__ import annotations

import hashlib
import os
from abc import abstractmethod
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ipc

from headrace.errors import FileChangedError, naming
from headrace.matrices import rows_at
from headrace.model import DataFileInfo, FileList, FileSplit, RowGroups, RowRange
from headrace.process import BoundedCache
from headrace.sources.files.protocol import Format, in_blocks
from headrace.sources.files.schemas import NO_PATH_COLUMNS, PathColumns, align
from headrace.sources.source import StoredSource
from headrace.storage import Store, changed, check_version, vanished

if TYPE_CHECKING:
    from headrace.sources.backend import Backend

_VERSIONS_BYTES = 1 << 20
_TAIL_BYTES = 64 << 10
_TAG_SAMPLES, _TAG_SAMPLE_BYTES = 16, 4 << 10


@dataclass(frozen=True)
class StoredFiles(StoredSource):
    """Base class of sources that decode the files of a store, and may keep decoded row groups.

    Attributes:
        store: Reaches the files.
        schema: All columns.
        files: The files that are read.
        cache_bytes: Bytes of decoded row groups to keep.
    """

    store: Store
    schema: pa.Schema
    files: FileList = field(repr=False)
    cache_bytes: int = field(default=0, kw_only=True)

    # Subclasses have this as a property or a field of a dataclass.
    if TYPE_CHECKING:

        @property
        def identity(self) -> str:
            """Tells apart sources that read the same file differently."""

    @abstractmethod
    def decoded(self, chunk: FileSplit, schema: pa.Schema, block_bytes: int) -> Iterator[pa.Table]:
        """Yield the stored rows of a chunk, in order, in exactly these columns."""

    def read(self, chunk: FileSplit, schema: pa.Schema, block_bytes: int) -> Iterator[pa.Table]:
        """Yield the stored rows of a chunk, keeping the groups of which it is the smaller part.

        Raises:
            FileChangedError: A local file was rewritten since it was listed, or since a kept group
                was decoded.
        """
        wanted, groups = chunk.row_range, None
        if self.cache_bytes and wanted is not None and len(schema):
            groups = self.stored_groups(chunk.file)
        if groups is None or wanted is None:
            yield from self.decoded(chunk, schema, block_bytes)
            return
        columns = schema.serialize().to_pybytes()
        for rows, group in _runs_of_rows(groups, wanted):
            if group is None:
                yield from self.decoded(FileSplit(chunk.file, rows), schema, block_bytes)
                continue
            whole = FileSplit(chunk.file, group)

            def decode(whole: FileSplit = whole) -> DecodedGroup:
                version = file_version(self.store, whole.file)
                tables = self.decoded(whole, schema, block_bytes)
                return DecodedGroup(pa.concat_tables(tables), version)

            key = self.group_key(chunk.file, group.offset, columns)
            found = decoded_groups.get_or_make(key, decode, limit_bytes=self.cache_bytes)
            found.check()
            # Copied, because the user may write into a batch, but not into the cache. Sliced first,
            # because pyarrow would copy all of a table in many pieces to take some.
            part = found.table.slice(rows.offset - group.offset, rows.length)
            yield rows_at(part, np.arange(rows.length))

    def stored_groups(self, file: DataFileInfo) -> RowGroups | None:
        """Return the row groups of a file as they are stored."""
        return file.row_groups

    def group_key(self, file: DataFileInfo, first_row: int, columns: bytes) -> tuple[Hashable, ...]:
        """Return the key of a row group in the cache of decoded groups.

        Args:
            file: The file.
            first_row: The first row of the group in the file.
            columns: The wanted columns: a serialized schema.
        """
        return self.store.identity, self.identity, *file.identity, first_row, columns

    def from_file(
        self, format_: Format, chunk: FileSplit, columns: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        """Yield what a format reads of a chunk, checking a local file before each table.

        Raises:
            FileChangedError: The file was rewritten.
        """
        tables = format_.read(self.store, chunk, columns, block_bytes)
        while True:
            try:
                table = next(tables, None)
            finally:
                if self.store.local:
                    check_version(chunk.file, self.store.status(chunk.file.path))
            if table is None:
                return
            yield table

    def through(self, store: Store) -> Self:
        return replace(self, store=store)

    def keeping(self, cache_bytes: int) -> Self:
        return replace(self, cache_bytes=cache_bytes)


@dataclass(frozen=True)
class FileSource(StoredFiles):
    """Rows of files of one format, matched to columns by name; some columns may be in paths.

    The files are those that the user named, without row groups that a filter excludes.

    Attributes:
        format: Reads a file.
        path_columns: The columns that are in paths.
        is_filtered: True if a filter was given, so that not all rows are here.
    """

    format: Format
    path_columns: PathColumns = NO_PATH_COLUMNS
    is_filtered: bool = False

    @property
    def name(self) -> str:
        return self.format.name

    @property
    def identity(self) -> str:
        """The options of the format."""
        return repr(getattr(self.format, "options", None))

    def decoded(self, chunk: FileSplit, schema: pa.Schema, block_bytes: int) -> Iterator[pa.Table]:
        if not len(self.path_columns.schema):
            for table in self.from_file(self.format, chunk, schema, block_bytes):
                yield align(table, schema, {}, chunk)
            return
        constants = self.path_columns.values(chunk.file.path)
        stored = pa.schema([field for field in schema if field.name not in constants])
        tables = self.from_file(self.format, chunk, stored, block_bytes)
        whole = (align(table, schema, constants, chunk) for table in tables)
        yield from in_blocks(whole, block_bytes)

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


def _runs_of_rows(
    groups: RowGroups, wanted: RowRange
) -> Iterator[tuple[RowRange, RowRange | None]]:
    """Yield rows in runs, each with the row group of which it is the smaller part, if it is."""
    at = wanted.offset
    for index in groups.overlapping(wanted).tolist():
        group = RowRange(int(groups.start[index]), int(groups.rows[index]))
        start, stop = max(group.offset, wanted.offset), min(group.stop, wanted.stop)
        if 2 * (stop - start) < group.length:
            if at < start:
                yield RowRange(at, start - at), None
            yield RowRange(start, stop - start), group
            at = stop
    if at < wanted.stop:
        yield RowRange(at, wanted.stop - at), None


# --- versions of local files, and row groups that were decoded from them


def content_tag(path: str) -> str:
    """Return a hash of the end of a file, which holds most footers, and of 16 samples."""
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.blake2b(str(size).encode(), digest_size=16)
        tail = max(size - _TAIL_BYTES, 0)
        for sample in range(_TAG_SAMPLES if tail else 0):
            digest.update(os.pread(file.fileno(), _TAG_SAMPLE_BYTES, tail * sample // _TAG_SAMPLES))
        digest.update(os.pread(file.fileno(), _TAIL_BYTES, tail))
    return digest.hexdigest()


class FileVersion:
    """The current version of a local file.

    It consists of inode, size and time of change, and of a tag of the content. Reading the first
    three takes microseconds. The content decides only if the inode or the time differ and the size
    does not, as after ``touch`` or a new copy of the same bytes.

    Raises:
        FileChangedError: The file does not exist any more.
    """

    def __init__(self, path: str) -> None:
        try:
            found = os.stat(path)
            self._path, self._size, self._tag = path, found.st_size, content_tag(path)
            self._encoded = os.fsencode(path)  # which stat would do each time
        except FileNotFoundError as error:
            raise FileChangedError(vanished(path)) from error
        self._inode, self._time = found.st_ino, found.st_mtime_ns

    def check(self) -> None:
        """Check that the file is still this version.

        Raises:
            FileChangedError: The file was rewritten or removed.
        """
        try:
            now = os.stat(self._encoded)
            if now.st_size == self._size:
                if now.st_mtime_ns == self._time and now.st_ino == self._inode:
                    return
                if content_tag(self._path) == self._tag:
                    self._inode, self._time = now.st_ino, now.st_mtime_ns
                    return
        except FileNotFoundError as error:
            raise FileChangedError(vanished(self._path)) from error
        raise FileChangedError(changed(self._path, self._size, now.st_size))


@dataclass(frozen=True, slots=True)
class DecodedGroup:
    """A row group, and the version of the local file from which it was decoded."""

    table: pa.Table
    version: FileVersion | None

    def check(self) -> None:
        """Raise a FileChangedError if the file was rewritten since then."""
        if self.version is not None:
            self.version.check()


decoded_groups: BoundedCache[DecodedGroup] = BoundedCache(lambda group: int(group.table.nbytes))
"""Decoded row groups of this process, by `StoredFiles.group_key`."""
_versions: BoundedCache[FileVersion] = BoundedCache(lambda _: 500)


def file_version(store: Store, file: DataFileInfo) -> FileVersion | None:
    """Return the version of a local file from which groups are decoded; None if it is remote."""
    if not store.local:
        return None
    return _versions.get_or_make(
        file.identity, lambda: FileVersion(file.path), limit_bytes=_VERSIONS_BYTES
    )
