"""The library, through the loader that ``create_dataloader`` returns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from data import Data
from torch.utils.data import get_worker_info

from arms.registry import Pieces, arm, in_epochs
from arms.resuming import Resumable, resumes
from arms.shuffling import BUFFER_ROWS, shuffle
from arms.touch import count_rows
from headrace import StatefulLoader, StructuredDataset

Batch = dict[str, torch.Tensor]


def _loader(data: Data, **options: Any) -> StatefulLoader:
    loader, _ = StructuredDataset.create_dataloader(
        data.folder("parquet"), "parquet", batch_size=1024, **options
    )
    return loader


def _read(data: Data, **options: Any) -> Iterator[int]:
    yield from count_rows(_loader(data, **options), columns=21)


def _read_epochs(data: Data, kind: str, folder: str | None = None) -> Pieces:
    loader, _ = StructuredDataset.create_dataloader(
        data.folder(folder or kind), kind, batch_size=1024, num_workers=0
    )
    yield from in_epochs(lambda: count_rows(loader, columns=21))


@arm("library.parquet", reads="parquet")
def read_parquet(data: Data) -> Iterator[int]:
    yield from _read(data, num_workers=0)


@arm("library.chosen", reads="parquet")
def read_with_chosen_workers(data: Data) -> Iterator[int]:
    """Read with ``num_workers`` chosen by the library."""
    yield from _read(data)


@shuffle("library.shuffled")
def read_shuffled(data: Data) -> Iterable[Batch]:
    return _loader(data, num_workers=0, **_mixed(data))


@shuffle("library.shuffled-automatic")
def read_shuffled_automatically(data: Data) -> Iterable[Batch]:
    """Read with ``shuffle=True`` and no other option."""
    return _loader(data, num_workers=0, shuffle=True)


@shuffle("library.shuffled-more")
def read_shuffled_more(data: Data) -> Iterable[Batch]:
    """Read in windows of sixteen row groups."""
    return _loader(data, num_workers=0, shuffle=True, split_rows=data.rows_per_group, mix=16)


@shuffle("library.shuffled-whole")
def read_shuffled_as_a_whole(data: Data) -> Iterable[Batch]:
    """Read all row groups in one window: all orders of all rows are equally likely."""
    return _loader(data, num_workers=0, shuffle=True, split_rows=data.rows_per_group, mix=40)


@shuffle("library.shuffled-buffer")
def read_shuffled_through_a_buffer(data: Data) -> Iterable[Batch]:
    return _loader(data, num_workers=0, shuffle=True, shuffle_buffer_rows=BUFFER_ROWS)


@resumes("library.resume-in-order")
def resume_in_order(data: Data) -> Resumable:
    return _resumable(_loader(data, num_workers=0))


@resumes("library.resume-shuffled")
def resume_shuffled(data: Data) -> Resumable:
    return _resumable(_loader(data, num_workers=0, **_mixed(data)))


def _mixed(data: Data) -> dict[str, Any]:
    """Return options for windows of four row groups from all over the data."""
    return {"shuffle": True, "split_rows": data.rows_per_group, "mix": 4}


def _resumable(loader: StatefulLoader) -> Resumable:
    return Resumable(lambda: iter(loader), loader.state_dict, loader.load_state_dict)


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


@arm("library.arrow-written", reads="arrow-written")
def read_arrow_as_written(data: Data) -> Pieces:
    """Read the same files from a page cache that contains them as written, not as read."""
    yield from _read_epochs(data, "arrow", "arrow-written")


def slow_transform(batch: Batch) -> Batch:
    """Run about a millisecond of Python that holds the interpreter lock, as users' code does."""
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


def slower_in_first_worker(batch: Batch) -> Batch:
    """Run a millisecond of Python, and four in worker 0."""
    worker = get_worker_info()
    for _ in range(4 if worker is not None and worker.id == 0 else 1):
        slow_transform(batch)
    return batch


def _read_unevenly(data: Data, balance: str) -> Iterator[int]:
    """Read half of the files in two workers, one of which is slow."""
    loader, _ = StructuredDataset.create_dataloader(
        data.files("parquet")[:4],
        "parquet",
        batch_size=1024,
        split_rows=data.rows_per_group // 4,
        num_workers=2,
        transform=slower_in_first_worker,
        balance=balance,
    )
    yield from count_rows(loader, columns=21)


@arm("library.slow-worker-static", reads="parquet")
def read_with_a_slow_worker(data: Data) -> Iterator[int]:
    yield from _read_unevenly(data, "static")


@arm("library.slow-worker-adaptive", reads="parquet")
def read_around_a_slow_worker(data: Data) -> Iterator[int]:
    yield from _read_unevenly(data, "adaptive")
