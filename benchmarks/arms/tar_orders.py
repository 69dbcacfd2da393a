"""The samples that are read of tars, and their order, the same on both sides."""

from __future__ import annotations

import numpy as np
from data import Data
from tar_data import TARS, sample_count

from arms.registry import Mark, Pieces

__all__ = [
    "BATCH_SAMPLES",
    "RANDOM_EPOCHS",
    "SEQUENTIAL_EPOCHS",
    "WORKERS",
    "random_samples",
    "whole_epoch",
]

BATCH_SAMPLES = 64
SEQUENTIAL_EPOCHS = 5
RANDOM_EPOCHS = 3
WORKERS = 2


def random_samples(data: Data) -> list[tuple[int, int]]:
    """Return all samples once, as (tar, sample in it)."""
    order = np.random.default_rng(0).permutation(sample_count(data))
    shards, samples = np.divmod(order, sample_count(data) // TARS)
    return list(zip(shards.tolist(), samples.tolist(), strict=True))


def whole_epoch(data: Data, count: int) -> Pieces:
    """Mark the end of an epoch, which must have had all samples to count as a result."""
    if count != sample_count(data):
        raise SystemExit(f"{count} samples")
    yield count
    yield Mark.EPOCH_END
