"""A dataset in a user's own loader, whose workers are forked while this process reads it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from small_files import ROWS, all_ids, write_parquet
from torch.utils.data import DataLoader

from headrace import StructuredDataset


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_workers_do_not_wait_for_who_counted_when_they_were_forked(tmp_path: Path) -> None:
    dataset = StructuredDataset(write_parquet(tmp_path / "data"), batch_size=100)
    counting, enough = threading.Event(), threading.Event()

    def count() -> None:
        with dataset.counters._lock.get():
            counting.set()
            enough.wait()

    thread = threading.Thread(target=count)
    thread.start()
    counting.wait()
    own = DataLoader(
        dataset, batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=60
    )
    try:
        assert len(all_ids(own)) == ROWS
    finally:
        enough.set()
        thread.join()
