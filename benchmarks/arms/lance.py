"""The peer: lance.torch, over the same rows in a Lance dataset of eight fragments."""

from __future__ import annotations

import shutil
from typing import Any

import lance
from data import Data
from lance.sampler import ShardedBatchSampler
from lance.torch.data import LanceDataset, SafeLanceDataset, get_safe_loader

from arms.shuffling import BATCH_ROWS, shuffle


def _convert(data: Data) -> None:
    """Write the Parquet files as fragments of one dataset, with the defaults of the library."""
    import pyarrow.parquet as pq

    folder = data.folder("lance")
    if folder.exists():
        return
    unfinished = folder.with_name("lance.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    for path in data.files("parquet"):
        lance.write_dataset(pq.read_table(path), unfinished / "rows.lance", mode="append")
    unfinished.rename(folder)


@shuffle("lance.shuffle-blocks-workers-0", reads=None, beforehand=_convert)
def shuffle_blocks(data: Data) -> Any:
    """Use its own shuffle for training: runs of a batch's rows in random order."""
    sampler = ShardedBatchSampler(rank=0, world_size=1, randomize=True, seed=42)
    return LanceDataset(_place(data), batch_size=BATCH_ROWS, sampler=sampler)


@shuffle("lance.shuffle-rows-workers-2", reads=None, beforehand=_convert)
def shuffle_rows_in_two_workers(data: Data) -> Any:
    """Take every row by its number, with its map-style dataset and loader."""
    return get_safe_loader(
        SafeLanceDataset(_place(data)), batch_size=BATCH_ROWS, num_workers=2, shuffle=True
    )


def _place(data: Data) -> str:
    return str(data.folder("lance") / "rows.lance")
