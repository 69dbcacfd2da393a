"""Batches arrive, though more slowly, where there is no room for more shared memory."""

from __future__ import annotations

import logging
import resource
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

from headrace import StructuredDataset
from headrace.convert import shared
from headrace.convert.packing import pack, unpack

ROWS, BATCH_ROWS = 100_000, 10_000
ROOM = 200_000
"""bytes, fewer than those of a batch"""


def leave_little_room(worker: int = 0) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, most))


@pytest.fixture
def little_room() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    leave_little_room()
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("data")
    numbers = {f"c{i}": np.arange(ROWS, dtype=np.float32) + i for i in range(8)}
    table = pa.table({"id": np.arange(ROWS), **numbers})
    pq.write_table(table, directory / "rows.parquet", row_group_size=20_000)
    return directory


def loaders(data: Path, *, own: bool) -> Any:
    if own:
        return StructuredDataset.create_dataloader(
            data, num_workers=2, batch_size=BATCH_ROWS, worker_init_fn=leave_little_room
        )[0]
    rows = StructuredDataset(data, batch_size=BATCH_ROWS, lanes=2)
    options: dict[str, Any] = {"collate_fn": rows.collate, "worker_init_fn": leave_little_room}
    return DataLoader(rows, batch_size=None, num_workers=2, **options)


@pytest.mark.parametrize("own", [True, False])
def test_all_rows_come(data: Path, own: bool) -> None:
    batches = list(loaders(data, own=own))
    ids = torch.cat([batch["id"] for batch in batches])
    assert torch.equal(ids.sort()[0], torch.arange(ROWS))
    for batch in batches:
        assert torch.equal(batch["c7"], batch["id"].float() + 7)
        batch["c7"].zero_()  # batches may be written to


@pytest.mark.usefixtures("little_room")
def test_it_is_said_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "get_worker_info", lambda: SimpleNamespace(num_workers=1))
    with caplog.at_level(logging.WARNING):
        arrived = [unpack(*pack({"a": torch.full((ROOM,), value)})) for value in range(3)]
    assert [int(one["a"].sum()) for one in arrived] == [0, ROOM, 2 * ROOM]
    (message,) = [record.getMessage() for record in caplog.records]
    assert "File too large" in message
    assert "prefetch_factor" in message
