"""Decoded row groups, kept for other chunks and takes of the same groups.

One cache in each process serves streams and takes. A row group is decoded as a whole if only a
smaller part of it is wanted, and kept as long as there is room.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator

import numpy as np
import pyarrow as pa

from headrace.matrices import rows_at
from headrace.model import DataFileInfo, FileSplit, RowRange
from headrace.sources.files.cache import BoundedCache

__all__ = ["decoded_groups", "group_key", "read_groups", "runs_of_rows"]

decoded_groups: BoundedCache[pa.Table] = BoundedCache(lambda table: int(table.nbytes))
"""decoded row groups of this process, by `group_key`"""


def group_key(
    identity: tuple[Hashable, ...], file: DataFileInfo, first_row: int, columns: bytes
) -> tuple[Hashable, ...]:
    """Return the key of a row group.

    Args:
        identity: The store, and options that change what is read from a file.
        file: The file.
        first_row: The first row of the group in the file.
        columns: The wanted columns: a serialized schema.
    """
    return (*identity, file.path, file.file_size, file.etag, first_row, columns)


def read_groups(
    chunk: FileSplit,
    decode: Callable[[FileSplit], Iterator[pa.Table]],
    schema: pa.Schema,
    *,
    identity: tuple[Hashable, ...],
    cache_bytes: int,
) -> Iterator[pa.Table]:
    """Yield the rows of a chunk, keeping the groups of which it is the smaller part.

    Args:
        chunk: The chunk, of a file with row groups.
        decode: Reads chunks.
        schema: The columns that ``decode`` reads.
        identity: The store, and options that change what is read from a file.
        cache_bytes: Bytes of decoded groups to keep.
    """
    if chunk.row_range is None or chunk.file.row_groups is None or not len(schema):
        yield from decode(chunk)
        return
    columns = schema.serialize().to_pybytes()
    for rows, group in runs_of_rows(chunk.file, chunk.row_range):
        if group is None:
            yield from decode(FileSplit(chunk.file, rows))
            continue
        whole = FileSplit(chunk.file, group)
        table = decoded_groups.get_or_make(
            group_key(identity, chunk.file, group.offset, columns),
            lambda whole=whole: pa.concat_tables(decode(whole)),  # type: ignore[misc]
            limit_bytes=cache_bytes,
        )
        # Copied: a user may write into a batch, and must not write into the cache. Sliced first:
        # of all of a table in many pieces, pyarrow would copy all to take some.
        part = table.slice(rows.offset - group.offset, rows.length)
        yield rows_at(part, np.arange(rows.length))


def runs_of_rows(
    file: DataFileInfo, wanted: RowRange
) -> Iterator[tuple[RowRange, RowRange | None]]:
    """Yield rows in runs, each with the row group of which it is the smaller part, if it is."""
    groups = file.row_groups
    assert groups is not None
    ends = groups.start + groups.rows
    at = wanted.offset
    for index in np.flatnonzero((ends > wanted.offset) & (groups.start < wanted.stop)).tolist():
        group = RowRange(int(groups.start[index]), int(groups.rows[index]))
        start, stop = max(group.offset, wanted.offset), min(group.stop, wanted.stop)
        if 2 * (stop - start) < group.length:
            if at < start:
                yield RowRange(at, start - at), None
            yield RowRange(start, stop - start), group
            at = stop
    if at < wanted.stop:
        yield RowRange(at, wanted.stop - at), None
