"""The peer: Mosaic streaming, over the same rows in shards of its own format."""

from __future__ import annotations

import arms.bare_torchvision  # noqa: F401, before streaming imports torchvision

# isort: split
import shutil
from collections.abc import Iterable
from typing import Any

from data import FLOAT_COLUMNS, Data
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from streaming.base.util import clean_stale_shared_memory

from arms.resuming import Resumable, resumes
from arms.shuffling import BATCH_ROWS, shuffle


def _convert(data: Data) -> None:
    """Write the rows one by one, as its writer requires, with the defaults of the library."""
    import pyarrow.parquet as pq

    folder = data.folder("mosaic")
    if folder.exists():
        return
    unfinished = folder.with_name("mosaic.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    columns = {**dict.fromkeys(FLOAT_COLUMNS, "float32"), "row": "int"}
    with MDSWriter(out=str(unfinished), columns=columns, progress_bar=False) as writer:
        for path in data.files("parquet"):
            for row in _rows(pq.read_table(path)):
                writer.write(row)
    unfinished.rename(folder)


def _rows(table: Any) -> Iterable[dict[str, Any]]:
    values = [
        table[name].to_pylist() if name == "row" else list(table[name].to_numpy())
        for name in table.column_names
    ]
    for row in zip(*values, strict=True):
        yield dict(zip(table.column_names, row, strict=True))


def _loader(data: Data, *, num_workers: int) -> StreamingDataLoader:
    clean_stale_shared_memory()
    rows = StreamingDataset(
        local=str(data.folder("mosaic")), shuffle=True, shuffle_seed=42, batch_size=BATCH_ROWS
    )
    return StreamingDataLoader(rows, batch_size=BATCH_ROWS, num_workers=num_workers)


@shuffle("mosaic.shuffle-workers-0", reads=None, beforehand=_convert)
def shuffle_here(data: Data) -> Any:
    return _loader(data, num_workers=0)


@shuffle("mosaic.shuffle-workers-2", reads=None, beforehand=_convert)
def shuffle_in_two_workers(data: Data) -> Any:
    return _loader(data, num_workers=2)


@resumes("mosaic.resume-shuffled", reads=None, beforehand=_convert)
def resume_shuffled(data: Data) -> Resumable:
    loader = _loader(data, num_workers=0)
    return Resumable(lambda: iter(loader), loader.state_dict, loader.load_state_dict)
