"""Samplers over the same buckets."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.access import BucketBatchSampler

SAMPLES = 1000
BUCKETS = np.random.default_rng(3).choice(7, SAMPLES, p=[0.4, 0.3, 0.2, 0.05, 0.03, 0.015, 0.005])
BATCH = 16


def make(buckets: Any = BUCKETS, batch_size: Any = BATCH, **options: Any) -> BucketBatchSampler:
    return BucketBatchSampler(buckets, batch_size, **options)


def ranks_of(size: int, buckets: Any = BUCKETS, **options: Any) -> list[BucketBatchSampler]:
    return [make(buckets, rank=rank, world_size=size, **options) for rank in range(size)]
