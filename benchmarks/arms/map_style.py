"""The map-style dataset in a torch ``DataLoader``: batch by batch, and row by row."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import Any

import torch
from access_data import make_access_data, row_count
from data import Data
from torch.utils.data import DataLoader, Dataset

from arms.access_batches import BATCH_ROWS, check_tensors, orders
from arms.registry import Arm, Mark, Pieces, register
from headrace.access import ArrowBackend, RowDataset

EPOCHS = 3
SINGLE_BATCHES = 20
"""rows come at a constant rate when they are read one by one"""


class OneByOne(Dataset[Any]):
    """The same rows without ``__getitems__``: a loader asks for each row and collates them."""

    def __init__(self, rows: RowDataset) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Any:
        return self._rows[index]


def _read(dataset: Dataset[Any], order: list[int], workers: int, data: Data) -> Pieces:
    """Read with a clock that starts before the loader is made, to include the start of workers."""
    _look_at(next(iter(DataLoader(dataset, BATCH_ROWS, sampler=order))), order[:BATCH_ROWS], data)
    yield Mark.CLOCK_STARTS
    loader = DataLoader(dataset, BATCH_ROWS, sampler=order, num_workers=workers)
    for batch in loader:
        yield len(batch["vector"])


def _look_at(batch: Any, rows: list[int], data: Data) -> None:
    vectors, numbers, blobs = (batch[name] for name in ("vector", "row", "blob"))
    if not (isinstance(vectors, torch.Tensor) and isinstance(numbers, torch.Tensor)):
        raise SystemExit("vectors and numbers are no tensors")
    check_tensors(data, rows, (vectors, numbers, blobs))


def _rows(data: Data) -> RowDataset:
    return RowDataset(ArrowBackend(data.files("access-arrow")))


def _batched(workers: int, data: Data) -> Pieces:
    epochs = [orders(row_count(data), row_count(data), epoch)[0] for epoch in range(EPOCHS)]
    order = list(chain.from_iterable(epoch.tolist() for epoch in epochs))
    yield from _read(_rows(data), order, workers, data)


def _single(workers: int, data: Data) -> Pieces:
    (order,) = orders(row_count(data), row_count(data))
    chosen = order[: SINGLE_BATCHES * BATCH_ROWS].tolist()
    yield from _read(OneByOne(_rows(data)), chosen, workers, data)


for _workers in (0, 2):
    for _name, _run in (("batched", _batched), ("single", _single)):
        register(
            Arm(
                f"map_style.{_name}-workers-{_workers}",
                "access-arrow",
                partial(_run, _workers),
                beforehand=make_access_data,
            )
        )
