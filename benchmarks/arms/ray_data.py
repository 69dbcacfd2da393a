"""The peer: Ray Data, reading the Parquet files on a cluster of this one machine."""

from __future__ import annotations

import logging
from typing import Any

import ray
from data import Data

from arms.shuffling import BATCH_ROWS, BUFFER_ROWS, shuffle


def _start() -> None:
    """Start the cluster before the clock starts."""
    ray.init(num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False


@shuffle("ray_data.shuffle-buffer", prepare=_start)
def shuffle_in_a_buffer(data: Data) -> Any:
    rows = ray.data.read_parquet([str(path) for path in data.files("parquet")], shuffle="files")
    return rows.iter_torch_batches(
        batch_size=BATCH_ROWS,
        local_shuffle_buffer_size=BUFFER_ROWS,
        local_shuffle_seed=42,
    )
