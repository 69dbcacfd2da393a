"""Parquet: row groups from the footer, pruned by their statistics, decoded one or a few at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from penstock.errors import OptionError, ReadError
from penstock.formats.cache import BoundedCache
from penstock.formats.protocol import FileFacts
from penstock.model import DataFileInfo, FileSplit, Int64Array, RowGroups, RowRange
from penstock.storage import Store, open_pinned

__all__ = ["ParquetFormat"]

_OPTIONS = (
    "coerce_int96_timestamp_unit",
    "page_checksum_verification",
    "thrift_container_size_limit",
    "thrift_string_size_limit",
)
_FOOTER_CACHE_BYTES = 64 << 20
_FOOTER_IN_MEMORY = 11
"""bytes that a parsed footer takes for each byte of it in the file, as measured"""
_WORTH_THREADS_BYTES = 1 << 20
"""below this, waking threads to decode columns side by side costs more than it saves"""


@dataclass(frozen=True, slots=True)
class ParquetFormat:
    """Apache Parquet."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """arguments of pyarrow's ParquetFile that change how a file is read"""

    name = "parquet"
    extensions = (".parquet", ".pq", ".parq")

    def __post_init__(self) -> None:
        unknown = sorted(set(self.options) - set(_OPTIONS))
        if unknown:
            raise OptionError(
                f"format_options for parquet has {', '.join(map(repr, unknown))}; "
                f"known are {', '.join(_OPTIONS)}"
            )

    def inspect(
        self, store: Store, file: DataFileInfo, keep: ds.Expression | None = None
    ) -> FileFacts:
        try:
            with self._open(store, file) as opened:
                footer = opened.metadata
                schema = opened.schema_arrow.remove_metadata()
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(file.path, error) from error
        _footers.add(_key(file), footer, limit_bytes=_FOOTER_CACHE_BYTES)
        groups = _row_groups(footer)
        if keep is not None and len(groups):
            groups = groups.keep(_surviving(footer, schema, keep))
        return FileFacts(schema, record_count=footer.num_rows, row_groups=groups)

    def read(
        self, store: Store, chunk: FileSplit, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        try:
            with self._open(store, chunk.file) as opened:
                yield from self._blocks(opened, chunk, schema, block_bytes)
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(str(chunk), error) from error

    def _open(self, store: Store, file: DataFileInfo) -> pq.ParquetFile:
        footer = _footers.get(_key(file))
        return pq.ParquetFile(open_pinned(store, file), metadata=footer, **self.options)

    def _blocks(
        self, opened: pq.ParquetFile, chunk: FileSplit, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        columns = _leaf_columns(opened.schema_arrow, schema)
        groups = _row_groups(opened.metadata)
        wanted = chunk.row_range or RowRange(0, opened.metadata.num_rows)
        for first, last in _batches_of_groups(groups, wanted, block_bytes):
            rows = RowRange(int(groups.start[first]), int(groups.rows[first:last].sum()))
            start = max(wanted.offset, rows.offset) - rows.offset
            length = min(wanted.stop, rows.stop) - rows.offset - start
            if length <= 0:
                continue
            size = int(groups.size_bytes[first:last].sum())
            if size > 4 * block_bytes or length < rows.length:
                batch_rows = max(int(rows.length * block_bytes / max(size, 1)), 1024)
                yield from _stream(opened, first, columns, start, length, batch_rows)
            else:
                yield opened.reader.read_row_groups(
                    list(range(first, last)),
                    column_indices=columns,
                    use_threads=size > _WORTH_THREADS_BYTES,
                )


def _row_groups(footer: pq.FileMetaData) -> RowGroups:
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    return RowGroups.of((g.num_rows for g in groups), (g.total_byte_size for g in groups))


def _batches_of_groups(
    groups: RowGroups, wanted: RowRange, block_bytes: int
) -> Iterator[tuple[int, int]]:
    """Runs of row groups to decode together: those wanted whole, up to the size of a block."""
    stop: Int64Array = groups.start + groups.rows
    overlapping = np.flatnonzero((stop > wanted.offset) & (groups.start < wanted.stop)).tolist()
    whole = (groups.start >= wanted.offset) & (stop <= wanted.stop)
    first: int | None = None
    size = 0
    for group in overlapping:
        grown = size + int(groups.size_bytes[group])
        if first is not None and (not whole[group] or grown > block_bytes):
            yield first, group
            first = None
        if not whole[group]:
            yield group, group + 1
        elif first is None:
            first, size = group, int(groups.size_bytes[group])
        else:
            size = grown
    if first is not None:
        yield first, overlapping[-1] + 1


def _stream(
    opened: pq.ParquetFile,
    group: int,
    columns: list[int],
    start: int,
    length: int,
    batch_rows: int,
) -> Iterator[pa.Table]:
    """Some rows of one group, decoded piece by piece: a group may be larger than memory."""
    at = 0
    for batch in opened.reader.iter_batches(
        batch_rows, row_groups=[group], column_indices=columns, use_threads=True
    ):
        low, high = max(start - at, 0), min(start + length - at, batch.num_rows)
        at += batch.num_rows
        if low < high:
            yield pa.Table.from_batches([batch.slice(low, high - low)])
        if at >= start + length:
            return


def _leaf_columns(stored: pa.Schema, wanted: pa.Schema) -> list[int]:
    """Indices of the leaves of the wanted columns; by place, for a name may contain dots."""
    indices: list[int] = []
    leaf = 0
    names = set(wanted.names)
    for column in stored:
        count = _leaves(column.type)
        if column.name in names:
            indices.extend(range(leaf, leaf + count))
        leaf += count
    return indices


def _leaves(type_: pa.DataType) -> int:
    if isinstance(type_, pa.BaseExtensionType):
        return _leaves(type_.storage_type)
    if pa.types.is_dictionary(type_):
        return 1
    children = [type_.field(i).type for i in range(type_.num_fields)]
    return sum(map(_leaves, children)) if children else 1


def _surviving(footer: pq.FileMetaData, schema: pa.Schema, keep: ds.Expression) -> list[int]:
    """Row groups that may hold a row for ``keep``; all of them if it cannot be told.

    The filter may name columns that this file lacks or has in another type: then there is
    nothing to conclude from its statistics, and rows are filtered after reading.
    """
    sink = pa.BufferOutputStream()
    footer.write_metadata_file(sink)
    fragment = ds.ParquetFileFormat().make_fragment(
        pa.BufferReader(sink.getvalue()), pafs.LocalFileSystem()
    )
    try:
        return [group.id for group in fragment.subset(keep, schema=schema).row_groups]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return list(range(footer.num_row_groups))


def _unreadable(where: str, error: BaseException) -> BaseException:
    """A ReadError, unless it already is one."""
    if isinstance(error, ReadError):
        return error
    return ReadError(
        f"{where}: not readable as Parquet: {error} (on_error='skip' leaves such files out)"
    )


def _key(file: DataFileInfo) -> tuple[Any, ...]:
    return file.path, file.file_size, file.etag


_footers: BoundedCache[pq.FileMetaData] = BoundedCache(
    lambda footer: _FOOTER_IN_MEMORY * int(footer.serialized_size)
)
