"""The peer: torch-dataloader-utils as installed, with the settings that it offers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from data import Data
from torch_dataloader_utils import RoundRobinSplitStrategy, StructuredDataset

from arms.registry import arm
from arms.touch import count_rows


def _read(data: Data, **settings: Any) -> Iterator[int]:
    loader, _ = StructuredDataset.create_dataloader(
        str(data.folder("parquet")), "parquet", batch_size=1024, **settings
    )
    yield from count_rows(loader, columns=21)


@arm("tdu.workers-0", reads="parquet")
def read_here(data: Data) -> Iterator[int]:
    yield from _read(data, num_workers=0)


@arm("tdu.workers-1", reads="parquet")
def read_in_one_worker(data: Data) -> Iterator[int]:
    yield from _read(data, num_workers=1)


@arm("tdu.workers-2", reads="parquet")
def read_in_two_workers(data: Data) -> Iterator[int]:
    yield from _read(data, num_workers=2)


@arm("tdu.round-robin-workers-0", reads="parquet")
def read_files_here(data: Data) -> Iterator[int]:
    """Whole files: this strategy makes the library scan, which decodes in threads."""
    yield from _read(data, num_workers=0, split_strategy=RoundRobinSplitStrategy())


@arm("tdu.round-robin-workers-1", reads="parquet")
def read_files_in_one_worker(data: Data) -> Iterator[int]:
    yield from _read(data, num_workers=1, split_strategy=RoundRobinSplitStrategy())


@arm("tdu.round-robin-workers-2", reads="parquet")
def read_files_in_two_workers(data: Data) -> Iterator[int]:
    yield from _read(data, num_workers=2, split_strategy=RoundRobinSplitStrategy())
