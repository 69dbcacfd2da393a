"""Ranks share the last round of an epoch: equal numbers of steps, and few rows left out."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from small_files import write_parquet
from torch.utils.data import DataLoader

from headrace import ArrowDataset, OptionError, StructuredDataset

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


def _in_memory(rows: int, rank: int, ranks: int, **options: Any) -> Any:
    return ArrowDataset.create_dataloader(
        pa.table({"id": list(range(rows))}), num_workers=0, rank=rank, world_size=ranks, **options
    )[0]


@pytest.mark.parametrize("seed", range(30))
def test_ranks_that_change_several_times_stay_in_step(seed: int) -> None:
    """Check that ranks have equal numbers of batches left after every change of their number."""
    draw = random.Random(seed)
    rows, lanes = draw.randint(6, 40), draw.choice([4, 6])
    even = draw.choice(["drop", "pad"])
    options = {"batch_size": draw.choice([1, 2, 3, 4]), "lanes": lanes, "even": even}
    options["shuffle"] = draw.random() < 0.5
    ids, left_out, state = list[int](), 0, None
    for leg in range(4):
        ranks = draw.choice([count for count in (1, 2, 3, 4, 6) if lanes % count == 0])
        loaders = [_in_memory(rows, rank, ranks, **options) for rank in range(ranks)]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        remaining = {loader.remaining for loader in loaders}
        assert len(remaining) == 1
        left_out += ranks - 1
        steps = remaining.pop()
        if not steps:  # all remaining rows are left out: a state would belong to the next epoch
            batches = [iter(()) for _ in loaders]
            break
        steps = steps if leg == 3 else draw.randint(0, steps - 1)
        batches = [iter(loader) for loader in loaders]
        for _ in range(steps):
            ids += [row for each in batches for row in next(each)["id"].tolist()]
        state = loaders[-1].state_dict()
    assert [next(each, None) for each in batches] == [None] * ranks
    missing = set(range(rows)) - set(ids)
    if even == "pad":
        assert not missing
    else:
        assert len(missing) <= left_out
        assert len(ids) == len(set(ids))


@pytest.mark.parametrize(("rows", "even"), [(9, "drop"), (7, "pad")])
def test_ranks_that_come_within_the_last_round(rows: int, even: str) -> None:
    options = {"batch_size": 3, "lanes": 4, "even": even}
    two = [_in_memory(rows, rank, 2, **options) for rank in range(2)]
    batches = [iter(loader) for loader in two]
    ids = [row for each in batches for row in next(each)["id"].tolist()]
    counts = []
    for rank in range(4):
        loader = _in_memory(rows, rank, 4, **options)
        loader.load_state_dict(two[0].state_dict())
        rest = [batch["id"].tolist() for batch in loader]
        counts.append(len(rest))
        ids += [row for batch in rest for row in batch]
    assert counts == [1] * 4
    assert set(ids) == set(range(rows))
