"""The peer: Hugging Face datasets, streaming the Parquet files."""

from __future__ import annotations

from typing import Any

from data import Data
from datasets import IterableDataset, disable_progress_bars, load_dataset
from torch.utils.data import DataLoader

from arms.resuming import Resumable, resumes
from arms.shuffling import BATCH_ROWS, BUFFER_ROWS, shuffle

disable_progress_bars()


def _stream(data: Data, columns: list[str] | None = None) -> IterableDataset:
    files = [str(path) for path in data.files("parquet")]
    stream = load_dataset(
        "parquet", data_files=files, columns=columns, split="train", streaming=True
    )
    return stream.with_format("torch")


def _shuffled(data: Data, columns: list[str] | None = None) -> IterableDataset:
    return _stream(data, columns).shuffle(seed=42, buffer_size=BUFFER_ROWS)


def _order(data: Data) -> Any:
    return _shuffled(data, ["row"]).iter(batch_size=BATCH_ROWS)


@shuffle("hf_datasets.shuffle-workers-0", order=_order)
def shuffle_here(data: Data) -> Any:
    return _shuffled(data).iter(batch_size=BATCH_ROWS)


@shuffle("hf_datasets.shuffle-workers-2", order=_order)
def shuffle_in_two_workers(data: Data) -> Any:
    return DataLoader(_shuffled(data).batch(BATCH_ROWS), batch_size=None, num_workers=2)


def _resumable(stream: IterableDataset) -> Resumable:
    return Resumable(
        lambda: iter(stream.iter(batch_size=BATCH_ROWS)), stream.state_dict, stream.load_state_dict
    )


@resumes("hf_datasets.resume-in-order")
def resume_in_order(data: Data) -> Resumable:
    return _resumable(_stream(data))


@resumes("hf_datasets.resume-shuffled")
def resume_shuffled(data: Data) -> Resumable:
    return _resumable(_shuffled(data))
