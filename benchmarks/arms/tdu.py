"""The peer: torch-dataloader-utils as installed, with the settings that it offers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from data import Data
from torch_dataloader_utils import RoundRobinSplitStrategy, StructuredDataset

from arms.registry import arm
from arms.resuming import Resumable, resumes
from arms.shuffling import BUFFER_ROWS, shuffle
from arms.touch import count_rows


def _create(data: Data, **settings: Any) -> Any:
    return StructuredDataset.create_dataloader(
        str(data.folder("parquet")), "parquet", batch_size=1024, **settings
    )


def _read(data: Data, **settings: Any) -> Iterator[int]:
    yield from count_rows(_create(data, **settings)[0], columns=21)


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
    """Read whole files: this strategy makes the library scan, which decodes in threads."""
    yield from _read(data, num_workers=0, split_strategy=RoundRobinSplitStrategy())


@arm("tdu.round-robin-workers-1", reads="parquet")
def read_files_in_one_worker(data: Data) -> Iterator[int]:
    yield from _read(data, num_workers=1, split_strategy=RoundRobinSplitStrategy())


@arm("tdu.round-robin-workers-2", reads="parquet")
def read_files_in_two_workers(data: Data) -> Iterator[int]:
    yield from _read(data, num_workers=2, split_strategy=RoundRobinSplitStrategy())


def _shuffled(data: Data, **settings: Any) -> Iterable[Any]:
    loader, _ = _create(data, shuffle=True, shuffle_buffer_size=BUFFER_ROWS, **settings)
    batches: Iterable[Any] = loader
    return batches


@shuffle("tdu.shuffle-workers-0")
def shuffle_here(data: Data) -> Iterable[Any]:
    return _shuffled(data, num_workers=0)


@shuffle("tdu.shuffle-workers-2")
def shuffle_in_two_workers(data: Data) -> Iterable[Any]:
    return _shuffled(data, num_workers=2)


@shuffle("tdu.shuffle-round-robin-workers-0")
def shuffle_files_here(data: Data) -> Iterable[Any]:
    strategy = RoundRobinSplitStrategy(shuffle=True, seed=42)
    return _shuffled(data, num_workers=0, split_strategy=strategy)


@resumes("tdu.resume-in-order")
def resume_in_order(data: Data) -> Resumable:
    loader, dataset = _create(data, num_workers=0)
    return Resumable(lambda: iter(loader), dataset.state_dict, dataset.load_state_dict)
