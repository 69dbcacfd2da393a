"""webdataset, as it is installed."""

from __future__ import annotations

import webdataset
from data import Data
from tar_data import tar_paths
from torch.utils.data import DataLoader

from arms.registry import Arm, Pieces, register
from arms.tar_orders import BATCH_SAMPLES, SEQUENTIAL_EPOCHS, WORKERS, whole_epoch


def _dataset(data: Data) -> webdataset.WebDataset:
    return webdataset.WebDataset([str(path) for path in tar_paths(data)], shardshuffle=False)


def _sequential(data: Data) -> Pieces:
    for _ in range(SEQUENTIAL_EPOCHS):
        count = 0
        for sample in _dataset(data):
            count += len(sample["jpg"]) > 0 and len(sample["json"]) > 0
        yield from whole_epoch(data, count)


def _raw(samples: list[dict[str, bytes]]) -> dict[str, list[bytes]]:
    return {name: [sample[name] for sample in samples] for name in samples[0]}


def _loader(batched_in_pipeline: bool, data: Data) -> Pieces:
    """Make batches with torch's loader, or in the pipeline as its documentation advises."""
    dataset, batch_size = _dataset(data), BATCH_SAMPLES
    if batched_in_pipeline:
        dataset, batch_size = dataset.batched(BATCH_SAMPLES, collation_fn=_raw), None
    loader = DataLoader(
        dataset,
        batch_size=batch_size,
        num_workers=WORKERS,
        collate_fn=None if batched_in_pipeline else _raw,
        persistent_workers=True,
    )
    for _ in range(SEQUENTIAL_EPOCHS):
        count = 0
        for batch in loader:
            count += len(batch["jpg"])
        yield from whole_epoch(data, count)


register(Arm("webdataset_tar.sequential", "tar", _sequential))
register(Arm("webdataset_tar.loader", "tar", lambda data: _loader(False, data)))
register(Arm("webdataset_tar.loader-batched", "tar", lambda data: _loader(True, data)))
