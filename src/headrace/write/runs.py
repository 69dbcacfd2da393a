"""Sorted runs: some rows of the source with their keys, sorted, in one file on the disk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from headrace.matrices import rows_at, values_at
from headrace.model import Int64Array
from headrace.sources.files.failures import naming
from headrace.write.durable import whole_file
from headrace.write.failures import writing
from headrace.write.keys import KEY_BITS, Keys, row_keys

__all__ = ["Run", "joined_columns", "key_name", "open_run", "write_run"]

_ROWS, _BYTES = b"headrace.rows", b"headrace.bytes"


@dataclass(frozen=True, slots=True)
class Run:
    """A file of sorted rows in equal parts of the space of keys, each a record batch.

    Its reader is for one thread at a time.
    """

    path: Path
    rows: Int64Array
    """of each part"""
    size_bytes: Int64Array
    """of each part, in memory"""

    def read(self, reader: ipc.RecordBatchFileReader, first: int, last: int) -> Iterator[pa.Table]:
        """The rows with keys ``first`` to ``last``, both of them included."""
        for part in range(self._part(first), self._part(last) + 1):
            if self.rows[part]:
                with naming(self.path):
                    table = pa.Table.from_batches([reader.get_batch(part)])
                    yield _between(table, first, last)

    def _part(self, key: int) -> int:
        return key * len(self.rows) >> KEY_BITS


def open_run(path: Path) -> tuple[Run, ipc.RecordBatchFileReader]:
    """A run that was written to its end."""
    with naming(path):
        reader = ipc.open_file(pa.OSFile(str(path), "rb"))
        told = reader.schema.metadata
        rows, sizes = (np.array(json.loads(told[name]), np.int64) for name in (_ROWS, _BYTES))
        return Run(path, rows, sizes), reader


def write_run(path: Path, tables: list[pa.Table], *, seed: int, first_row: int, parts: int) -> None:
    """Sort rows by their keys and write them; ``tables`` is emptied, to free memory on the way."""
    schema = tables[0].schema
    count = sum(table.num_rows for table in tables)
    keys = row_keys(seed, first_row, count)
    order = np.argsort(keys, kind="stable")
    with writing(path):
        columns = [values_at(column, order) for column in joined_columns(tables)]
    columns.append(pa.array(keys[order]))
    fields = [*schema, pa.field(key_name(schema), pa.uint64(), nullable=False)]
    batch = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
    del columns
    pieces = list(_parts(batch, keys[order], parts))
    shared = batch.slice(0, 0).nbytes  # dictionaries
    told = {
        _ROWS: json.dumps([piece.num_rows for piece in pieces]),
        _BYTES: json.dumps([piece.nbytes - shared for piece in pieces]),
    }
    options = ipc.IpcWriteOptions(compression="lz4")
    with (
        writing(path),
        whole_file(path) as partial,
        pa.OSFile(str(partial), "wb") as sink,
        ipc.new_file(sink, batch.schema.with_metadata(told), options=options) as writer,
    ):
        for piece in pieces:
            writer.write_batch(piece)


def key_name(schema: pa.Schema) -> str:
    """A name for the column of keys that no other column has."""
    name = "key"
    while name in schema.names:
        name += "_"
    return name


def joined_columns(tables: list[pa.Table]) -> Iterator[pa.Array]:
    """Each column of tables laid end to end, in one piece; ``tables`` is emptied.

    The pieces of a column are given up when the next one is asked for, so that not all of them
    are there twice.
    """
    places = range(tables[0].num_columns)
    columns = [[table.column(place) for table in tables] for place in places]
    tables.clear()
    for place in places:
        chunks = [chunk for piece in columns[place] for chunk in piece.chunks]
        joined = pa.chunked_array(chunks, columns[place][0].type).combine_chunks()
        columns[place] = []
        del chunks
        yield joined.chunk(0) if isinstance(joined, pa.ChunkedArray) else joined
        del joined


def _parts(batch: pa.RecordBatch, keys: Keys, parts: int) -> Iterator[pa.RecordBatch]:
    """The rows of each of ``parts`` equal parts of the space of keys; ``parts`` is a power of 2."""
    starts = [(part << KEY_BITS) // parts for part in range(1, parts)]
    bounds = [0, *np.searchsorted(keys, np.array(starts, np.uint64)).tolist(), len(keys)]
    for start, stop in pairwise(bounds):
        yield batch.slice(start, stop - start)


def _between(table: pa.Table, first: int, last: int) -> pa.Table:
    """The rows of a sorted table with such keys; a copy if they are few of them."""
    keys = table.column(table.num_columns - 1).chunk(0).to_numpy()
    start = int(np.searchsorted(keys, np.uint64(first)))
    stop = int(np.searchsorted(keys, np.uint64(last), side="right"))
    if 2 * (stop - start) >= table.num_rows:
        return table.slice(start, stop - start)
    return rows_at(table, np.arange(start, stop))
