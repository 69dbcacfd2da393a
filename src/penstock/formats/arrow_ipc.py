"""Arrow IPC: files with a footer (Feather V2), and streams, which can only be read in order."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import ipc

from penstock.formats.blocks import cut_rows, in_blocks, rows_only
from penstock.formats.cache import BoundedCache
from penstock.formats.failures import naming
from penstock.formats.ipc_buffers import announce_batches
from penstock.formats.ipc_footer import (
    FILE_MAGIC,
    MALFORMED,
    Blocks,
    body_expansion,
    file_batches,
    file_blocks,
    stream_batches,
)
from penstock.formats.protocol import FileFacts
from penstock.model import DataFileInfo, FileSplit, RowGroups, RowRange
from penstock.storage import Store, will_read

__all__ = ["ArrowFormat"]

_FEATHER_V1_MAGIC = b"FEA1"
_SCHEMA_OFFSET_IN_FILE = 8
_LOCAL_SAMPLE_BYTES, _SAMPLE_BYTES = 1 << 20, 1 << 16
_KNOWN_BYTES = 32 << 20
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
            is_file = _has_footer(source)
            batches = file_batches(source) if is_file else list(stream_batches(source))
            sample_bytes = _LOCAL_SAMPLE_BYTES if store.local else _SAMPLE_BYTES
            expansion = body_expansion(source, batches, sample_bytes)
            rows = [batch.rows for batch in batches]
            sizes = [round(batch.body_length * expansion) for batch in batches]
            source.seek(0)
            if is_file:
                schema = ipc.open_file(source).schema
                groups = RowGroups.of(rows, sizes)
            else:
                schema = ipc.open_stream(source).schema
                groups = RowGroups.of([sum(rows)], [sum(sizes)])
            return FileFacts(schema.remove_metadata(), sum(rows), groups, splittable=is_file)

    def read(
        self, store: Store, chunk: FileSplit, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        with naming(chunk, *MALFORMED), store.open(chunk.file) as source:
            layout = _layout(store, chunk.file, source)
            if layout is None:
                pieces = _stream_pieces(source, chunk, set(schema.names))
            else:
                pieces = _file_pieces(source, chunk, layout, set(schema.names))
            yield from in_blocks(pieces, block_bytes)


@dataclass(frozen=True, slots=True)
class _Layout:
    """What the footer of a file tells."""

    schema: pa.Schema
    blocks: Blocks

    @property
    def nbytes(self) -> int:
        return 1000 + 300 * len(self.schema) + 200 * len(self.blocks.batches)

    @property
    def stands_alone(self) -> bool:
        """Whether a batch needs no reader, who knows dictionaries and swaps bytes."""
        native = self.blocks.little_endian == (sys.byteorder == "little")
        return native and not self.blocks.dictionaries


def _layout(store: Store, file: DataFileInfo, source: pa.NativeFile) -> _Layout | None:
    """That of a file, read once if it is known which version of it this is; None for a stream."""
    key = store.identity, file.path, file.file_size, file.etag
    known = None if file.etag is None else _known.get(key)
    if known is None and _has_footer(source):
        blocks = file_blocks(source)
        source.seek(_SCHEMA_OFFSET_IN_FILE)
        known = _Layout(ipc.read_schema(source), blocks)
        if file.etag is not None:
            _known.add(key, known, limit_bytes=_KNOWN_BYTES)
    return known


_known: BoundedCache[_Layout] = BoundedCache(lambda layout: layout.nbytes)


def _has_footer(source: pa.NativeFile) -> bool:
    """Whether it is a file and not a stream."""
    magic = source.read_at(6, 0)
    if magic[:4] == _FEATHER_V1_MAGIC:
        raise ValueError(
            "it is a Feather V1 file, which is not read; write it again as Feather V2, "
            "with pyarrow.feather.write_feather(table, path, version=2)"
        )
    return bool(magic == FILE_MAGIC)


def _file_pieces(
    source: pa.NativeFile, chunk: FileSplit, layout: _Layout, wanted: set[str]
) -> Iterator[pa.Table]:
    """The rows of each batch that fall into the range; batches outside it are not touched."""
    columns, options = _columns(layout.schema, wanted)
    counts = _batch_rows(source, chunk.file, layout.blocks)
    shares = list(_shares(chunk.row_range, counts))
    if columns:
        indices = [index for index, _, _ in shares]
        announce_batches(source, layout.blocks, indices, layout.schema, columns)
    get_batch: Callable[[int], pa.RecordBatch]
    if len(columns) == len(layout.schema) and layout.stands_alone:
        get_batch = partial(_whole_batch, source, layout)
    else:
        get_batch = ipc.open_file(source, options=options).get_batch
    for index, first, last in shares:
        if not columns:
            yield rows_only(last - first)
            continue
        batch = get_batch(index)
        if batch.num_rows != counts[index]:
            found = batch.num_rows
            raise ValueError(f"record batch {index} has {found} rows and not {counts[index]}")
        yield _rows_of(batch, first, last)
    _refuse_beyond(chunk.row_range, sum(counts))


def _whole_batch(source: pa.NativeFile, layout: _Layout, index: int) -> pa.RecordBatch:
    """A batch by one read: pyarrow's reader takes many, after each of which it waits for Python."""
    offset, metadata_bytes, body_bytes = layout.blocks.batches[index]
    before = min(-metadata_bytes % _ALIGNED_BYTES, offset)  # so that the body is aligned in memory
    source.seek(offset - before)
    message = source.read_buffer(before + metadata_bytes + body_bytes).slice(before)
    return ipc.read_record_batch(message, layout.schema)


def _shares(wanted: RowRange | None, counts: list[int]) -> Iterator[tuple[int, int, int]]:
    """The batches that hold some rows, each with the first and last of them in it."""
    stop = 0
    for index, rows in enumerate(counts):
        start, stop = stop, stop + rows
        first, last = _overlap(wanted, start, stop)
        if first < last:
            yield index, first, last


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


def _batch_rows(source: pa.NativeFile, file: DataFileInfo, blocks: Blocks) -> list[int]:
    """Rows of each batch: as inspected, if that was all of the file, else as each says."""
    groups, batches = file.row_groups, len(blocks.batches)
    if groups is not None and len(groups) == batches and groups.rows.sum() == file.record_count:
        return [int(rows) for rows in groups.rows]
    return [batch.rows for batch in file_batches(source, blocks.batches)]


def _overlap(wanted: RowRange | None, start: int, stop: int) -> tuple[int, int]:
    """First and last row, counted within the batch, that is wanted of rows start to stop."""
    if wanted is None:
        return 0, stop - start
    return max(wanted.offset - start, 0), min(wanted.stop, stop) - start


def _refuse_beyond(wanted: RowRange | None, rows: int) -> None:
    if wanted is not None and wanted.stop > rows:
        raise ValueError(f"the file has {rows} rows only")
