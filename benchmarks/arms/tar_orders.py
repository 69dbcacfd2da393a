"""Which samples are read of tars, and in which order: the same on both sides."""

from __future__ import annotations

import numpy as np
from data import Data
from tar_data import TARS, sample_count

__all__ = ["BATCH_SAMPLES", "RANDOM_EPOCHS", "SEQUENTIAL_EPOCHS", "WORKERS", "random_samples"]

BATCH_SAMPLES = 64
SEQUENTIAL_EPOCHS = 5
RANDOM_EPOCHS = 3
WORKERS = 2


def random_samples(data: Data) -> list[tuple[int, int]]:
    """All samples once, as (tar, sample of it)."""
    order = np.random.default_rng(0).permutation(sample_count(data))
    shards, samples = np.divmod(order, sample_count(data) // TARS)
    return list(zip(shards.tolist(), samples.tolist(), strict=True))
