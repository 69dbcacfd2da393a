"""Row groups into Parquet and Arrow IPC files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import ipc

__all__ = ["AddGroup", "arrow_file", "parquet_file"]

AddGroup = Callable[[pa.Table], None]


@contextmanager
def parquet_file(compression: str, sink: pa.NativeFile, schema: pa.Schema) -> Iterator[AddGroup]:
    """Begin a Parquet file; what it gives adds row groups."""
    writers: list[pq.ParquetWriter] = []

    def opened(first: pa.Table) -> pq.ParquetWriter:
        if not writers:
            repeating = _repeating(first)
            writers.append(
                pq.ParquetWriter(sink, schema, compression=compression, use_dictionary=repeating)
            )
        return writers[0]

    try:
        yield lambda table: opened(table).write_table(table, row_group_size=table.num_rows)
        opened(schema.empty_table())
    finally:
        for writer in writers:
            writer.close()


@contextmanager
def arrow_file(compression: str, sink: pa.NativeFile, schema: pa.Schema) -> Iterator[AddGroup]:
    """Begin an Arrow IPC file; what it gives adds record batches."""
    options = ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
    with ipc.new_file(sink, schema, options=options) as writer:
        yield lambda table: writer.write_table(table, max_chunksize=table.num_rows)


def _repeating(table: pa.Table) -> list[str]:
    """Columns of Parquet that a dictionary makes smaller, judged by some rows.

    Row groups are small, so that a dictionary of values that hardly repeat would still be
    written, beside the numbers that stand for them: a quarter more to write and to read.
    """
    sink = pa.BufferOutputStream()
    pq.write_table(table.schema.empty_table(), sink)
    leaves = pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema
    places = {name: place for place, name in enumerate(table.column_names)}
    paths = [leaves.column(place).path for place in range(len(leaves))]
    # The path of a flat column is its name, with whatever dots there are in it.
    return [path for path in paths if path not in places or _repeats(table.column(places[path]))]


def _repeats(column: pa.ChunkedArray) -> bool:
    try:
        return bool(2 * pc.count_distinct(column).as_py() <= len(column))
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):  # dictionaries, and what is nested
        return True
