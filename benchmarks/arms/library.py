"""The library, through the loader that ``create_dataloader`` returns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from data import Data

from arms.registry import Pieces, arm, in_epochs
from arms.touch import count_rows
from penstock import StructuredDataset

Batch = dict[str, torch.Tensor]


def _read(data: Data, **options: Any) -> Iterator[int]:
    loader, _ = StructuredDataset.create_dataloader(
        data.folder("parquet"), "parquet", batch_size=1024, **options
    )
    yield from count_rows(loader, columns=21)


def _read_epochs(data: Data, kind: str) -> Pieces:
    loader, _ = StructuredDataset.create_dataloader(
        data.folder(kind), kind, batch_size=1024, num_workers=0
    )
    yield from in_epochs(lambda: count_rows(loader, columns=21))


@arm("library.parquet", reads="parquet")
def read_parquet(data: Data) -> Iterator[int]:
    yield from _read(data, num_workers=0)


@arm("library.chosen", reads="parquet")
def read_with_chosen_workers(data: Data) -> Iterator[int]:
    """``num_workers`` left to the library."""
    yield from _read(data)


@arm("library.shuffled", reads="parquet")
def read_shuffled(data: Data) -> Iterator[int]:
    yield from _read(data, num_workers=0, shuffle=True, split_rows=data.rows_per_group, mix=4)


@arm("library.workers-2", reads="parquet")
def read_in_two_workers(data: Data) -> Iterator[int]:
    yield from _read(data, num_workers=2)


@arm("library.filter", reads="parquet")
def read_filtered(data: Data) -> Pieces:
    first, last = data.filter_range()
    loader, _ = StructuredDataset.create_dataloader(
        data.folder("parquet"),
        "parquet",
        batch_size=1024,
        num_workers=0,
        columns=["f00", "row"],
        filters=[("row", ">=", first), ("row", "<=", last)],
    )
    yield from in_epochs(lambda: count_rows(loader, columns=2))


@arm("library.lists", reads="lists")
def read_lists(data: Data) -> Pieces:
    loader, _ = StructuredDataset.create_dataloader(
        data.folder("lists"), "parquet", batch_size=1024, num_workers=0
    )
    yield from in_epochs(lambda: count_rows(loader, columns=1, count="vector"))


@arm("library.csv", reads="csv")
def read_csv(data: Data) -> Pieces:
    yield from _read_epochs(data, "csv")


@arm("library.jsonl", reads="jsonl")
def read_jsonl(data: Data) -> Pieces:
    yield from _read_epochs(data, "jsonl")


@arm("library.orc", reads="orc")
def read_orc(data: Data) -> Pieces:
    yield from _read_epochs(data, "orc")


@arm("library.arrow", reads="arrow")
def read_arrow(data: Data) -> Pieces:
    yield from _read_epochs(data, "arrow")


def slow_transform(batch: Batch) -> Batch:
    """About a millisecond of Python that holds the interpreter lock, as users' code does."""
    for _ in range(42_000):
        batch["row"]
    return batch


@arm("library.transform-workers-0", reads="parquet")
def transform_here(data: Data) -> Iterator[int]:
    yield from _read(data, num_workers=0, transform=slow_transform)


@arm("library.transform-workers-2", reads="parquet")
def transform_in_two_workers(data: Data) -> Iterator[int]:
    yield from _read(data, num_workers=2, transform=slow_transform)


@arm("library.transform-chosen", reads="parquet")
def transform_with_chosen_workers(data: Data) -> Iterator[int]:
    yield from _read(data, transform=slow_transform)
