"""Rows of Lance datasets in workers of a user's own DataLoader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lance_elsewhere import Elsewhere
from torch.utils.data import DataLoader

from headrace.access import LanceBackend, RowDataset
from headrace.errors import WorkerError

LIVE = [number for number in range(400) if number % 5 != 1]


@pytest.fixture(scope="module")
def numbers(elsewhere: Elsewhere, tmp_path_factory: pytest.TempPathFactory) -> Path:
    uri = tmp_path_factory.mktemp("workers") / "numbers.lance"
    elsewhere.write(uri, pa.table({"id": range(400)}), max_rows_per_file=150)
    elsewhere.change(uri, "delete", "id % 5 = 1")
    return uri


def loaded(uri: Path, method: str) -> list[int]:
    """The ids that two workers read of a backend that this process has read from."""
    backend = LanceBackend(uri)
    assert backend.get_row(0) == {"id": 0}
    loader: Any = DataLoader(
        RowDataset(backend), batch_size=50, num_workers=2, multiprocessing_context=method
    )
    return [number for batch in loader for number in batch["id"].tolist()]


def test_workers_that_are_not_forked_read(numbers: Path) -> None:
    assert loaded(numbers, "forkserver") == LIVE


def test_forked_workers_are_refused(numbers: Path) -> None:
    with pytest.raises(WorkerError, match='multiprocessing_context="forkserver"'):
        loaded(numbers, "fork")
