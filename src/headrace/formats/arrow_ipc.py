"""Arrow IPC: files with a footer (Feather V2), and streams, which can only be read in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import ipc

from headrace.formats.blocks import cut_rows, in_blocks, rows_only
from headrace.formats.failures import naming
from headrace.formats.ipc_buffers import announce_batches
from headrace.formats.ipc_footer import (
    MALFORMED,
    body_expansion,
    file_batches,
    file_blocks,
    stream_batches,
)
from headrace.formats.ipc_layout import (
    Layout,
    batch_rows,
    has_footer,
    layout_of,
    other_rows,
    places_of,
    seen,
    stands_alone,
)
from headrace.formats.ipc_rows import Share
from headrace.formats.protocol import FileFacts
from headrace.model import (
    LARGEST_BLOCKS,
    DataFileInfo,
    FileSplit,
    Int64Array,
    RowGroups,
    RowRange,
)
from headrace.storage import Store, will_read

__all__ = ["ArrowFormat"]

_LOCAL_SAMPLE_BYTES, _SAMPLE_BYTES = 1 << 20, 1 << 16
_ALIGNED_BYTES = 64


class ArrowFormat:
    """Arrow IPC files, with their record batches as row groups, and IPC streams as one group.

    Which of the two a file is, its first bytes tell and not its name. A group's ``size_bytes``
    is the length of its body; where bodies are compressed, times what the first buffers of the
    first batch expand by. Batches have no statistics, so that no filter rules one out. Rows are
    read into memory of their own, never mapped, and may be written to.
    """

    name = "arrow"
    extensions: tuple[str, ...] = (".arrow", ".feather", ".ipc", ".arrows")

    def inspect(
        self, store: Store, file: DataFileInfo, keep: ds.Expression | None = None
    ) -> FileFacts:
        with naming(file.path, *MALFORMED), store.open(file) as source:
            if has_footer(source):
                blocks = file_blocks(source)
                batches = file_batches(source, blocks.batches)
                layout = seen(store, file, source, blocks, batches)
                schema = layout.schema
            else:
                blocks, batches = None, list(stream_batches(source))
                source.seek(0)
                schema = ipc.open_stream(source).schema
            sample_bytes = _LOCAL_SAMPLE_BYTES if store.local else _SAMPLE_BYTES
            expansion = body_expansion(source, batches, sample_bytes)
            rows = [batch.rows for batch in batches]
            sizes = [round(batch.body_length * expansion) for batch in batches]
            if blocks is None:
                rows, sizes = [sum(rows)], [sum(sizes)]
            groups = RowGroups.of(rows, sizes)
            schema = schema.remove_metadata()
            return FileFacts(schema, sum(rows), groups, splittable=blocks is not None)

    def read(
        self, store: Store, chunk: FileSplit, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        with naming(chunk, *MALFORMED), store.open(chunk.file) as source:
            layout = layout_of(store, chunk.file, source)
            if layout is None:
                yield from in_blocks(_stream_pieces(source, chunk, set(schema.names)), block_bytes)
            else:
                yield from _file_tables(source, chunk, layout, schema, block_bytes)


def _file_tables(
    source: pa.NativeFile, chunk: FileSplit, layout: Layout, schema: pa.Schema, block_bytes: int
) -> Iterator[pa.Table]:
    """The rows of each batch that fall into the range; batches outside it are not touched."""
    columns, options = _columns(layout.schema, set(schema.names))
    counts = batch_rows(source, chunk.file, layout)
    shares = _shares(chunk.row_range, counts)
    places = places_of(source, layout, shares, counts) if columns else None
    if not columns:
        yield from in_blocks((rows_only(last - first) for _, first, last in shares), block_bytes)
    elif layout.fixed is not None and places is not None:
        most_bytes = LARGEST_BLOCKS * block_bytes
        most_rows = max(most_bytes // layout.fixed.row_bytes(columns, schema), 1)
        yield from layout.fixed.tables(source.fileno(), shares, places, columns, most_rows)
    else:
        announce_batches(source, layout.blocks, [s[0] for s in shares], layout.schema, columns)
        if len(columns) == len(layout.schema) and stands_alone(layout.blocks):
            get_batch = partial(_whole_batch, source, layout)
        else:
            get_batch = ipc.open_file(source, options=options).get_batch
        yield from in_blocks(_pieces(get_batch, shares, counts), block_bytes)
    _refuse_beyond(chunk.row_range, int(counts.sum()))


def _pieces(
    get_batch: Callable[[int], pa.RecordBatch], shares: list[Share], counts: Int64Array
) -> Iterator[pa.Table]:
    for index, first, last in shares:
        batch = get_batch(index)
        if batch.num_rows != counts[index]:
            raise other_rows(index, batch.num_rows, int(counts[index]))
        yield _rows_of(batch, first, last)


def _whole_batch(source: pa.NativeFile, layout: Layout, index: int) -> pa.RecordBatch:
    """A batch by one read: pyarrow's reader takes many, after each of which it waits for Python."""
    offset, metadata_bytes, body_bytes = layout.blocks.batches[index]
    before = min(-metadata_bytes % _ALIGNED_BYTES, offset)  # so that the body is aligned in memory
    source.seek(offset - before)
    message = source.read_buffer(before + metadata_bytes + body_bytes).slice(before)
    return ipc.read_record_batch(message, layout.schema)


def _shares(wanted: RowRange | None, counts: Int64Array) -> list[Share]:
    """The batches that hold some rows, each with the first and last of them in it."""
    ends = np.cumsum(counts)
    first, last = (0, len(ends))
    if wanted is not None:
        first, last = np.searchsorted(ends, [wanted.offset, wanted.stop], side="right").tolist()
    found = []
    for index in range(first, min(last + 1, len(ends))):
        stop = int(ends[index])
        begin, end = _overlap(wanted, stop - int(counts[index]), stop)
        if begin < end:
            found.append((index, begin, end))
    return found


def _stream_pieces(source: pa.NativeFile, chunk: FileSplit, wanted: set[str]) -> Iterator[pa.Table]:
    """The rows of the range, for which all batches before it are read as well."""
    source.seek(0)
    columns, options = _columns(ipc.read_schema(source), wanted)
    will_read(source, [(0, source.size())])
    source.seek(0)
    reader = ipc.open_stream(source, options=options)
    stop = 0
    for batch in reader:
        start, stop = stop, stop + batch.num_rows
        first, last = _overlap(chunk.row_range, start, stop)
        if first < last:
            piece = _rows_of(batch, first, last)
            yield piece if columns else piece.select([])
        if chunk.row_range is not None and stop >= chunk.row_range.stop:
            return
    _refuse_beyond(chunk.row_range, stop)


def _rows_of(batch: pa.RecordBatch, first: int, last: int) -> pa.Table:
    """Some rows of a batch whose buffers are long enough, which pyarrow does not look at."""
    batch.validate()
    return cut_rows(pa.Table.from_batches([batch]), first, last)


def _columns(schema: pa.Schema, wanted: set[str]) -> tuple[list[int], ipc.IpcReadOptions]:
    """The wanted columns, and how to read them; all are read in one piece."""
    columns = [index for index, name in enumerate(schema.names) if name in wanted]
    some = columns if len(columns) < len(schema) else None
    return columns, ipc.IpcReadOptions(included_fields=some)


def _overlap(wanted: RowRange | None, start: int, stop: int) -> tuple[int, int]:
    """First and last row, counted within the batch, that is wanted of rows start to stop."""
    if wanted is None:
        return 0, stop - start
    return max(wanted.offset - start, 0), min(wanted.stop, stop) - start


def _refuse_beyond(wanted: RowRange | None, rows: int) -> None:
    if wanted is not None and wanted.stop > rows:
        raise ValueError(f"the file has {rows} rows only")
