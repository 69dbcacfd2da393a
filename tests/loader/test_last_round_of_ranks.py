"""Ranks share the last round of an epoch: equal steps, and hardly a row is left out."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from small_files import write_parquet
from torch.utils.data import DataLoader

from headrace import OptionError, StructuredDataset

ROWS = 15_000


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("last-round")
    write_parquet(folder, [(ROWS, 1000)])
    return folder


def read(data: Path, ranks: int, **options: Any) -> list[list[list[int]]]:
    """Return the ids of every batch of every rank."""
    options = {"batch_size": 1024, "num_workers": 0, "world_size": ranks, **options}
    found = []
    for rank in range(ranks):
        loader, _ = StructuredDataset.create_dataloader(data, rank=rank, **options)
        found.append([batch["id"].tolist() for batch in loader])
        assert len(loader) == len(found[-1])
    return found


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("ranks", [2, 7, 8])
def test_no_row_is_left_out_of_small_data(data: Path, ranks: int, shuffle: bool) -> None:
    found = read(data, ranks, shuffle=shuffle)
    assert len({len(batches) for batches in found}) == 1
    assert sorted(row for batches in found for batch in batches for row in batch) == [*range(ROWS)]
    last = [len(batches[-1]) for batches in found]
    assert max(last) - min(last) <= 1


def test_full_batches_leave_out_the_rest_and_warn(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="headrace"):
        found = read(data, 8, drop_last=True)
    assert {len(batch) for batches in found for batch in batches} == {1024}
    left_out = [record for record in caplog.records if "are left out" in record.message]
    assert {record.levelno for record in left_out} == {logging.WARNING}
    assert f"{ROWS - 8 * 1024} rows (45.4 %)" in left_out[0].message


def test_few_rows_that_are_left_out_are_no_warning(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="headrace"):
        found = read(data, 7, batch_size=1)
    assert sum(map(len, found)) == ROWS - ROWS % 7
    left_out = [record for record in caplog.records if "are left out" in record.message]
    assert {record.levelno for record in left_out} == {logging.INFO}


def test_fewer_rows_than_ranks(tmp_path: Path) -> None:
    write_parquet(tmp_path, [(3, 3)])
    with pytest.raises(OptionError, match="3 rows cannot be shared by 4 ranks"):
        read(tmp_path, 4)
    padded = read(tmp_path, 4, even="pad")
    assert [len(batches) for batches in padded] == [1] * 4
    assert {row for batches in padded for batch in batches for row in batch} == {0, 1, 2}


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_ranks_of_a_loader_of_the_users_own_take_equal_steps(data: Path, workers: int) -> None:
    found = []
    for rank in range(2):
        dataset = StructuredDataset(data, batch_size=1024, rank=rank, world_size=2)
        loader: DataLoader[Any] = DataLoader(dataset, batch_size=None, num_workers=workers)
        found.append([batch["id"].tolist() for batch in loader])
    assert len(found[0]) == len(found[1])
    assert sorted(row for batches in found for batch in batches for row in batch) == [*range(ROWS)]
