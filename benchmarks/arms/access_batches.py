"""Rows in random order for random access, and checks that an arm delivers the right ones.

Both sides of a comparison take the same rows in the same order, and return them the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.ipc as ipc
import torch
from access_data import VECTOR, row_count
from data import Data

__all__ = ["BATCH_ROWS", "Tensors", "check_tensors", "opened", "orders", "tensors_of"]

BATCH_ROWS = 256
Tensors = tuple[torch.Tensor, torch.Tensor, list[bytes]]
"""vectors, numbers of the rows, blobs"""
Rows = npt.NDArray[np.int64]

_CHECKED_ROWS = 8


def orders(rows: int, batch_rows: int, epoch: int = 0) -> list[Rows]:
    """Return all rows once, in batches."""
    order = np.random.default_rng(epoch).permutation(rows)
    return np.split(order, range(batch_rows, rows, batch_rows))


def opened(data: Data) -> pa.Table:
    """Return the rows as pyarrow maps them: 200 chunks."""
    files = [ipc.open_file(pa.memory_map(str(path))) for path in data.files("access-arrow")]
    return pa.concat_tables([file.read_all() for file in files])


def tensors_of(table: pa.Table) -> Tensors:
    """Return columns of a table as tensors; bytes become objects, one for each row."""
    vector, row, blob = (_whole(table.column(name)) for name in ("vector", "row", "blob"))
    vectors = torch.from_numpy(vector.flatten().to_numpy()).view(-1, VECTOR)
    return vectors, torch.from_numpy(row.to_numpy()), blob.to_pylist()


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def check_tensors(data: Data, rows: Sequence[int] | Rows, batch: Tensors) -> None:
    """Compare some rows of a batch with the files."""
    vectors, numbers, blobs = batch
    if not len(rows) == len(vectors) == len(numbers) == len(blobs):
        raise SystemExit(f"{len(rows)} rows were asked for, {len(numbers)} came")
    table = opened(data)
    for place, row in _some(rows):
        expected = table.slice(row, 1).to_pylist()[0]
        same = vectors[place].tolist() == expected["vector"] and blobs[place] == expected["blob"]
        if not same or int(numbers[place]) != row:
            raise SystemExit(f"row {row} is not what the files say")
    if len(table) != row_count(data):
        raise SystemExit(f"the files have {len(table)} rows, not {row_count(data)}")


def _some(rows: Sequence[int] | Rows) -> Iterator[tuple[int, int]]:
    for place in np.linspace(0, len(rows) - 1, _CHECKED_ROWS, dtype=int).tolist():
        yield place, int(rows[place])
