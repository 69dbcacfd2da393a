"""256 random rows, again and again: through backends, and through their libraries alone.

The clock starts when the source is open and one batch of it has been checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from access_data import BLOB_BYTES, VECTOR, lance_uri, make_access_data, row_count
from data import Data

from arms.access_batches import (
    BATCH_ROWS,
    Rows,
    Tensors,
    check_tensors,
    opened,
    orders,
    tensors_of,
)
from arms.registry import EPOCHS, Arm, Mark, Pieces, register

LANCE_BATCHES = 100
TABLE_BATCHES = 10
PARQUET_BATCHES = 5
"""enough at a constant and low rate"""
Take = Callable[[Rows], Any]


def _taken(data: Data, take: Take, tensors: Callable[[Any], Tensors], batches: int) -> Pieces:
    """Take some batches, after one that is compared with the files."""
    epoch = orders(row_count(data), BATCH_ROWS)[:batches]
    check_tensors(data, epoch[0], tensors(take(epoch[0])))
    yield Mark.CLOCK_STARTS
    for rows in epoch:
        take(rows)
        yield len(rows)


def _taken_in_epochs(data: Data, take: Callable[[Rows], Tensors]) -> Pieces:
    """Take all rows several times, as tensors."""
    epochs = [orders(row_count(data), BATCH_ROWS, epoch) for epoch in range(EPOCHS)]
    check_tensors(data, epochs[0][0], take(epochs[0][0]))
    yield Mark.CLOCK_STARTS
    for epoch in epochs:
        for rows in epoch:
            take(rows)
            yield len(rows)
        yield Mark.EPOCH_END


def _arrow(data: Data) -> Pieces:
    """Take rows as tensors in the way of the library."""
    from headrace.access import ArrowBackend, RowDataset

    dataset = RowDataset(ArrowBackend(data.files("access-arrow")))

    def take(rows: Rows) -> Tensors:
        batch = dataset.batch(rows)
        return batch["vector"], batch["row"], batch["blob"]

    yield from _taken_in_epochs(data, take)


def _arrow_taken(data: Data) -> Pieces:
    """Take rows through the table that a backend returns, and convert it as users would."""
    from headrace.access import ArrowBackend

    backend = ArrowBackend(data.files("access-arrow"))
    yield from _taken_in_epochs(data, lambda rows: tensors_of(backend.take(rows)))


def _arrow_rows(data: Data) -> Pieces:
    """Take rows as a loader asks the dataset for a batch."""
    from torch.utils.data import default_collate

    from headrace.access import ArrowBackend, RowDataset

    dataset = RowDataset(ArrowBackend(data.files("access-arrow")))

    def take(rows: Rows) -> Tensors:
        batch = default_collate(dataset.__getitems__(rows.tolist()))
        return batch["vector"], batch["row"], batch["blob"]

    yield from _taken_in_epochs(data, take)


def _in_memory(data: Data) -> tuple[Any, Any, pa.Array]:
    """Return one batch: vectors and numbers as arrays, and the blobs."""
    (batch,) = opened(data).combine_chunks().to_batches()
    vectors = batch["vector"].flatten().to_numpy().reshape(-1, VECTOR)
    return vectors, batch["row"].to_numpy(), batch["blob"]


def _gather(data: Data) -> Pieces:
    """Gather blobs at once, too, because they have equal lengths."""
    vectors, numbers, blob = _in_memory(data)
    blobs = np.frombuffer(blob.buffers()[2], f"V{BLOB_BYTES}")

    def take(rows: Rows) -> Tensors:
        vector, number = vectors.take(rows, axis=0), numbers.take(rows)
        return torch.from_numpy(vector), torch.from_numpy(number), blobs[rows].tolist()

    yield from _taken_in_epochs(data, take)


def _gather_cut(data: Data) -> Pieces:
    """Cut blobs by their offsets, as is necessary for blobs of different lengths."""
    vectors, numbers, blob = _in_memory(data)
    ends, whole = np.frombuffer(blob.buffers()[1], np.int32), memoryview(blob.buffers()[2])

    def take(rows: Rows) -> Tensors:
        vector, number = vectors.take(rows, axis=0), numbers.take(rows)
        spans = zip(ends[rows].tolist(), ends[rows + 1].tolist(), strict=True)
        blobs = [bytes(whole[start:end]) for start, end in spans]
        return torch.from_numpy(vector), torch.from_numpy(number), blobs

    yield from _taken_in_epochs(data, take)


def _table(data: Data) -> Pieces:
    table = opened(data)

    def take(rows: Rows) -> Tensors:
        return tensors_of(table.take(pa.array(rows)))

    yield from _taken(data, take, lambda batch: batch, TABLE_BATCHES)


def _lance(data: Data) -> Pieces:
    from headrace.access import LanceBackend

    yield from _taken(data, LanceBackend(lance_uri(data)).take, tensors_of, LANCE_BATCHES)


def _lance_bare(data: Data) -> Pieces:
    import lance

    yield from _taken(data, lance.dataset(lance_uri(data)).take, tensors_of, LANCE_BATCHES)


def _parquet(kind: str, data: Data) -> Pieces:
    from headrace.access import ParquetBackend

    yield from _taken(data, ParquetBackend(data.files(kind)).take, tensors_of, PARQUET_BATCHES)


def _parquet_groups(data: Data) -> Pieces:
    """Read row groups that contain rows of the batch, each once, and take the rows from them."""
    files = [pq.ParquetFile(path) for path in data.files("access-parquet")]
    groups = [(file, group) for file in files for group in range(file.num_row_groups)]
    lengths = [file.metadata.row_group(group).num_rows for file, group in groups]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    yield from _taken(data, partial(_from_groups, groups, starts), tensors_of, PARQUET_BATCHES)


def _from_groups(
    groups: Sequence[tuple[pq.ParquetFile, int]], starts: Rows, rows: Rows
) -> pa.Table:
    order = np.argsort(rows)
    held = np.searchsorted(starts, rows[order], side="right") - 1
    parts = []
    for number in np.unique(held).tolist():
        file, group = groups[number]
        wanted = rows[order][held == number] - starts[number]
        parts.append(file.read_row_group(group).take(pa.array(wanted)))
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return pa.concat_tables(parts).combine_chunks().take(pa.array(back))


for _name, _kind, _run in (
    ("arrow", "access-arrow", _arrow),
    ("arrow-taken", "access-arrow", _arrow_taken),
    ("arrow-rows", "access-arrow", _arrow_rows),
    ("gather", "access-arrow", _gather),
    ("gather-cut", "access-arrow", _gather_cut),
    ("table", "access-arrow", _table),
    ("lance", "access-lance", _lance),
    ("lance-bare", "access-lance", _lance_bare),
    ("parquet", "access-parquet", partial(_parquet, "access-parquet")),
    ("paged", "access-paged", partial(_parquet, "access-paged")),
    ("parquet-groups", "access-parquet", _parquet_groups),
):
    register(Arm(f"take.{_name}", _kind, _run, beforehand=make_access_data))
