"""The peer: litdata, over the Parquet files themselves with an index that it makes of them."""

from __future__ import annotations

import os
import shutil
from typing import Any

from data import Data
from litdata import StreamingDataLoader, StreamingDataset, index_parquet_dataset
from litdata.streaming.item_loader import ParquetLoader

from arms.resuming import Resumable, resumes
from arms.shuffling import BATCH_ROWS, shuffle


def _index(data: Data) -> None:
    """Make links to the files in a separate folder, because the index is written beside them."""
    folder = data.folder("litdata")
    if folder.exists():
        return
    unfinished = folder.with_name("litdata.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    for path in data.files("parquet"):
        os.link(path, unfinished / path.name)
    index_parquet_dataset(str(unfinished), num_workers=1)
    unfinished.rename(folder)


def _loader(data: Data, *, num_workers: int) -> StreamingDataLoader:
    rows = StreamingDataset(
        str(data.folder("litdata")),
        item_loader=ParquetLoader(),
        shuffle=True,
        seed=42,
        drop_last=False,
    )
    # It refuses to be forked.
    context = "forkserver" if num_workers else None
    return StreamingDataLoader(
        rows, batch_size=BATCH_ROWS, num_workers=num_workers, multiprocessing_context=context
    )


@shuffle("litdata.shuffle-workers-0", beforehand=_index)
def shuffle_here(data: Data) -> Any:
    return _loader(data, num_workers=0)


@shuffle("litdata.shuffle-workers-2", beforehand=_index)
def shuffle_in_two_workers(data: Data) -> Any:
    return _loader(data, num_workers=2)


@resumes("litdata.resume-shuffled", beforehand=_index)
def resume_shuffled(data: Data) -> Resumable:
    loader = _loader(data, num_workers=0)
    return Resumable(lambda: iter(loader), loader.state_dict, loader.load_state_dict)
