"""Arrow IPC: files with a footer (Feather V2), and streams, which can only be read in order.

pyarrow does all of the decoding. It offers no way to ask how many rows a record batch has, or which
bytes it will read, without reading it. `_HeaderFile` stands between pyarrow and a file to find both
out: it notes or refuses the reads of pyarrow, and leaves out the bodies of messages.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.types as pt
from pyarrow import ipc

from headrace.errors import naming
from headrace.matrices import width_of
from headrace.model import (
    DataFileInfo,
    FileSplit,
    Int64Array,
    RowGroups,
    computed_once,
)
from headrace.sources.files.protocol import FileFacts, cut_rows, in_blocks, rows_only, shares_of
from headrace.sources.files.schemas import plain_schema, plain_table
from headrace.storage import Store, will_read

_FILE_MAGIC = b"ARROW1"
_PREFIX_BYTES = 8
"""Length of the prefix of a message; no longer read is that of a body worth leaving out."""
_SAMPLE_BYTES, _REMOTE_SAMPLE_BYTES = 1 << 20, 1 << 16
"""Length of a first record batch that is decoded to find out how much it expands."""

_MOST_EXPANSION = 10_000
"""Largest size of a buffer in memory, as a multiple of the size of its file."""
_UNKNOWN_BYTES = 1 << 32

BufferSpan = tuple[int, int]


@contextmanager
def reading(place: object, file_bytes: int | None) -> Iterator[None]:
    """Raise errors of reading bytes that are not Arrow IPC as a ReadError of ``place``.

    A damaged file can request any amount of memory. If more memory is requested than a file of
    ``file_bytes`` can hold, the failure is an error of the file.
    """
    with naming(place, ValueError, IndexError):
        try:
            yield
        except pa.ArrowMemoryError as error:
            wanted = max(map(int, re.findall(r"\d+", str(error))), default=0)
            if wanted < _MOST_EXPANSION * (file_bytes or _UNKNOWN_BYTES):
                raise
            raise ValueError(f"a buffer claims to have {wanted} bytes; it is damaged") from error


class ArrowFormat:
    """Arrow IPC files, with their record batches as row groups, and IPC streams as one group.

    The first bytes of a file tell which of the two it is. Batches have no statistics, so that a
    filter excludes none. Every batch is validated in full: a damaged one is an error, never a
    crash.
    """

    name = "arrow"
    extensions: tuple[str, ...] = (".arrow", ".feather", ".ipc", ".arrows")

    def inspect(
        self, store: Store, file: DataFileInfo, keep: ds.Expression | None = None
    ) -> FileFacts:
        with reading(file.path, file.file_size), store.open(file) as source:
            index = read_batch_index(source)
            rows, sizes = index.rows, _decoded_sizes(source, index, local=store.local)
            if index.is_stream:
                rows, sizes = rows.sum(keepdims=True), sizes.sum(keepdims=True)
            schema = index.plain.remove_metadata()
            groups = RowGroups.of(rows, sizes)
            return FileFacts(schema, int(rows.sum()), groups, splittable=not index.is_stream)

    def read(
        self, store: Store, chunk: FileSplit, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        with reading(chunk, chunk.file.file_size), store.open(chunk.file) as source:
            read = _stream_tables if _is_stream(source) else _file_tables
            yield from in_blocks(read(source, chunk, set(schema.names)), block_bytes)


# --- what is in a file


@dataclass(frozen=True, eq=False)
class BatchIndex:
    """The headers of a file, as plain data that can be pickled.

    Attributes:
        schema: The columns as they are stored.
        rows: Number of rows of each record batch.
        sizes: Bytes of the body of each record batch, as stored.
        is_stream: True for the stream format.
    """

    schema: pa.Schema
    rows: Int64Array
    sizes: Int64Array
    is_stream: bool

    @computed_once
    def plain(self) -> pa.Schema:
        """The columns as they are read."""
        return plain_schema(self.schema)

    @computed_once
    def starts(self) -> Int64Array:
        """First row of each record batch, and the number of all rows."""
        return np.concatenate([[0], np.cumsum(self.rows, dtype=np.int64)])

    @property
    def num_rows(self) -> int:
        """Number of rows of all record batches."""
        return int(self.starts[-1])


def read_batch_index(source: pa.NativeFile) -> BatchIndex:
    """Read the headers of all record batches, and none of their data.

    Raises:
        ValueError: The file is not Arrow IPC, or is damaged.
    """
    is_stream = _is_stream(source)
    file = _HeaderFile(source)
    batches: list[tuple[int, int]]
    if is_stream:
        schema = ipc.open_stream(pa.PythonFile(file, "r")).schema
        file.seek(0)
        file.leaves_out = True
        reader = ipc.MessageReader.open_stream(pa.PythonFile(file, "r"))
        batches = [_counted(m, schema) for m in reader if m.type == "record batch"]
    else:
        probe = _Probe(source)
        schema, numbers = probe.schema, range(probe.count)
        heads = probe.first_reads(numbers)  # raises if one is not in the file
        if len(schema):
            heads = _Probe(source, [0]).first_reads(numbers)
        will_read(source, heads)
        file.leaves_out = True
        batches = [_counted(_message_at(file, start), schema) for start, _ in heads]
    found = np.array(batches, np.int64).reshape(-1, 2)
    return BatchIndex(schema, found[:, 0], found[:, 1], is_stream)


def planned_index(source: pa.NativeFile, file: DataFileInfo) -> BatchIndex | None:
    """Return the headers of a file if the plan knows all of them, else None."""
    groups = file.row_groups
    if groups is None or not file.splittable or groups.rows.sum() != file.record_count:
        return None
    reader = ipc.open_file(source)
    if reader.num_record_batches != len(groups):
        return None
    return BatchIndex(reader.schema, groups.rows, groups.size_bytes, is_stream=False)


def _is_stream(source: pa.NativeFile) -> bool:
    return bool(source.read_at(len(_FILE_MAGIC), 0) != _FILE_MAGIC)


def _message_at(file: _HeaderFile, start: int) -> ipc.Message:
    file.seek(start)
    message = ipc.read_message(pa.PythonFile(file, "r"))
    if message.type != "record batch":
        raise ValueError(f"the footer names a record batch at byte {start}, where there is none")
    return message


def _counted(message: ipc.Message, schema: pa.Schema) -> tuple[int, int]:
    """Return the rows and the bytes of a record batch whose body was left out.

    Any first column can be read as one of nulls, which has a length and no data. pyarrow refuses a
    length that differs from that of the batch.
    """
    read_as = pa.schema([("", pa.null())] if len(schema) else [])
    batch = ipc.read_record_batch(message, read_as)
    if batch.num_rows < 0:
        raise ValueError(f"a record batch claims to have {batch.num_rows} rows")
    return batch.num_rows, message.body.size if message.body is not None else 0


def _decoded_sizes(source: pa.NativeFile, index: BatchIndex, *, local: bool) -> Int64Array:
    """Estimate the bytes of each batch in memory; reading corrects the estimates."""
    widths = [width_of(field.type) for field in index.schema]
    if None not in widths:
        return index.rows * sum(width or 0 for width in widths)
    filled = np.flatnonzero(index.rows)
    most = _SAMPLE_BYTES if local else _REMOTE_SAMPLE_BYTES
    if not len(filled) or index.is_stream or index.sizes[filled[0]] > most:
        return index.sizes
    first = int(filled[0])
    source.seek(0)
    held = ipc.open_file(source).get_batch(first).get_total_buffer_size()
    expanded: Int64Array = index.sizes * int(held) // max(int(index.sizes[first]), 1)
    return expanded


# --- record batches


class _Probe:
    """Finds the bytes that pyarrow reads of the record batches of a file, without reading them.

    Args:
        source: The file.
        columns: The places of the columns that are read; None for all.
    """

    def __init__(self, source: pa.NativeFile, columns: Sequence[int] | None = None) -> None:
        self._file = _HeaderFile(source)
        options = ipc.IpcReadOptions(included_fields=columns)
        self._reader = ipc.open_file(pa.PythonFile(self._file, "r"), options=options)
        self.schema: pa.Schema = self._reader.schema
        self.count: int = self._reader.num_record_batches
        if self.count and any(map(has_dictionary, ipc.open_file(source).schema.types)):
            self._reader.get_batch(0)  # reads all dictionaries first, and once

    def first_reads(self, numbers: Sequence[int]) -> list[BufferSpan]:
        """Return the spans that pyarrow reads first of some batches.

        With all columns these are whole batches, with some columns only their headers.

        Raises:
            ValueError: The footer names bytes that are not in the file.
        """
        size, spans = self._file.size(), []
        for number in numbers:
            start, length = self._file.first_read(partial(self._reader.get_batch, number))
            if not 0 <= start <= start + length <= size:
                raise ValueError(f"record batch {number} would end after the end of the file")
            spans.append((start, start + length))
        return spans

    def later_reads(self, numbers: Sequence[int]) -> list[BufferSpan]:
        """Return the spans that pyarrow reads of some batches after their headers."""
        found: list[BufferSpan] = []
        for number in numbers:
            found += self._file.later_reads(partial(self._reader.get_batch, number))
        return found


def _announce(source: pa.NativeFile, numbers: Sequence[int], columns: Sequence[int] | None) -> None:
    """Announce the bytes of some batches of a remote file, so that they are fetched together."""
    if isinstance(source, pa.PythonFile):
        probe = _Probe(source, columns)
        spans = probe.first_reads(numbers)
        will_read(source, spans)
        if columns is not None:  # these were headers; the wanted columns are read after them
            will_read(source, [*spans, *probe.later_reads(numbers)])


def _check_batch(batch: pa.RecordBatch, number: int, rows: int, schema: pa.Schema) -> pa.Table:
    """Return a batch in the plain types of ``schema``, after validating all of its data.

    Raises:
        ValueError: The batch is damaged, or has other rows than its header says.
    """
    batch.validate(full=True)
    if batch.num_rows != rows:
        raise ValueError(f"record batch {number} has {batch.num_rows} rows and not {rows}")
    return plain_table(pa.Table.from_batches([batch]), schema)


def has_dictionary(type_: pa.DataType) -> bool:
    """Return True if a type is, or contains, a dictionary type."""
    if isinstance(type_, pa.BaseExtensionType):
        return has_dictionary(type_.storage_type)
    inside = (type_.field(number).type for number in range(type_.num_fields))
    return pt.is_dictionary(type_) or any(map(has_dictionary, inside))


class _Refused(Exception):
    """Raised to pyarrow in place of an answer."""


class _HeaderFile(io.RawIOBase):
    """A file for pyarrow that notes how it is read, and can leave out the bodies of messages.

    A message is a prefix, a header and a body. A read that follows the read of a header is that of
    a body. It is answered with zeros, for which the system allocates memory only if they are used.
    """

    def __init__(self, source: pa.NativeFile) -> None:
        super().__init__()
        self._source, self._size = source, int(source.size())
        self._position = 0
        self._reads: list[BufferSpan] = []
        self._refuses = False
        self._last = 0
        self.leaves_out = False
        """True if bodies are left out."""

    def first_read(self, read: Callable[[], object]) -> BufferSpan:
        """Return the place and length of the first read of a call, which fails."""
        return self._noted(read, refuses=True)[0]

    def later_reads(self, read: Callable[[], object]) -> list[BufferSpan]:
        """Return the spans that a call reads after its first read; only that one is answered."""
        return [(start, start + length) for start, length in self._noted(read, refuses=False)[1:]]

    def _noted(self, read: Callable[[], object], *, refuses: bool) -> list[BufferSpan]:
        self._reads, self._refuses, self._last = [], refuses, 0
        self.leaves_out = True
        try:
            read()
        except (_Refused, pa.ArrowException, OSError):
            pass  # zeros are not valid compressed data either
        finally:
            self._refuses = self.leaves_out = False
        if not self._reads:
            raise ValueError("pyarrow reads nothing of a record batch")
        return self._reads

    def read(self, nbytes: int = -1) -> bytes:
        start = self._position
        length = self._size - start if nbytes is None or nbytes < 0 else nbytes
        self._reads.append((start, length))
        if self._refuses:
            raise _Refused
        is_body = self.leaves_out and min(self._last, length) > _PREFIX_BYTES
        self._last = length
        length = max(min(length, self._size - start), 0)
        self._position += length
        if is_body:
            return bytes(length)
        return bytes(self._source.read_at(length, start))

    def seek(self, position: int, whence: int = 0) -> int:
        self._position = (0, self._position, self._size)[whence] + position
        return self._position

    def tell(self) -> int:
        return self._position

    def size(self) -> int:
        return self._size

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True


# --- rows of a chunk


def _file_tables(source: pa.NativeFile, chunk: FileSplit, wanted: set[str]) -> Iterator[pa.Table]:
    """Yield the rows of each batch that are in the range; other batches are not read."""
    index = planned_index(source, chunk.file) or read_batch_index(source)
    columns = _columns(index.schema, wanted)
    shares = shares_of(chunk.row_range, index.rows)
    if not columns:
        yield from (rows_only(last - first) for _, first, last in shares)
        return
    some = columns if len(columns) < len(index.schema) else None
    _announce(source, [number for number, _, _ in shares], some)
    reader = ipc.open_file(source, options=ipc.IpcReadOptions(included_fields=some))
    schema = plain_schema(reader.schema)
    for number, first, last in shares:
        table = _check_batch(reader.get_batch(number), number, int(index.rows[number]), schema)
        yield cut_rows(table, first, last)


def _stream_tables(source: pa.NativeFile, chunk: FileSplit, wanted: set[str]) -> Iterator[pa.Table]:
    """Yield the rows of the range; all batches before it are read, too."""
    will_read(source, [(0, source.size())])
    # If all messages are in the file, none makes pyarrow allocate more.
    index = read_batch_index(source)
    columns = _columns(index.schema, wanted)
    some = columns if columns and len(columns) < len(index.schema) else None
    source.seek(0)
    reader = ipc.open_stream(source, options=ipc.IpcReadOptions(included_fields=some))
    schema = plain_schema(reader.schema)
    shares = {number: share for number, *share in shares_of(chunk.row_range, index.rows)}
    for number, rows in enumerate(index.rows.tolist()):
        if number > max(shares, default=-1):
            break
        batch = reader.read_next_batch()
        if number in shares:
            first, last = shares[number]
            table = _check_batch(batch, number, rows, schema)
            yield cut_rows(table, first, last) if columns else rows_only(last - first)


def _columns(schema: pa.Schema, wanted: set[str]) -> list[int]:
    return [place for place, name in enumerate(schema.names) if name in wanted]
