"""Datasets alone: copied, pickled, iterated without a loader, with few rows or none."""

from __future__ import annotations

import copy
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest
from small_files import ROWS, all_ids, write_csv, write_parquet

from headrace import RoundRobinSplitStrategy, StructuredDataset
from headrace.testing import frozen

OPTIONS: dict[str, Any] = {"batch_size": 100, "shuffle": True, "split_rows": 70, "mix": 2}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parquet(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda d: pickle.loads(pickle.dumps(d))])
def test_a_copy_gives_the_same_and_has_epochs_of_its_own(data: Path, copied: Any) -> None:
    original = StructuredDataset(data, **OPTIONS)
    original.set_epoch(3)
    list(original)
    original.set_epoch(3)
    twin = copied(original)
    assert twin.epoch == 3
    twin.set_epoch(0)
    assert original.epoch == 3
    twin.set_epoch(3)
    assert list(map(frozen, twin)) == list(map(frozen, original))
    assert (twin.num_rows, len(twin), twin.schema) == (ROWS, 12, original.schema)


def test_a_dataset_iterated_by_hand(data: Path) -> None:
    dataset = StructuredDataset(data, batch_size=100)
    assert all_ids(dataset) == list(range(ROWS))
    assert dataset.epoch == 1
    for _ in dataset:
        break
    assert dataset.epoch == 1
    assert len(dataset) == 12


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("files", [[(0, 1)], [(0, 1)] * 3, [(1, 1)], [(0, 1), (1, 1), (0, 1)]])
def test_no_row_or_one(
    tmp_path: Path, files: list[tuple[int, int]], shuffle: bool, num_workers: int
) -> None:
    write_parquet(tmp_path, files)
    loader, dataset = StructuredDataset.create_dataloader(
        tmp_path, num_workers=num_workers, batch_size=10, shuffle=shuffle
    )
    rows = sum(rows for rows, _ in files)
    for epoch in range(2):
        assert all_ids(loader) == list(range(rows))
        assert dataset.epoch == epoch + 1
    assert len(loader) == rows
    assert dataset.num_rows == rows
    loader.load_state_dict(loader.state_dict())
    assert len(all_ids(loader)) == rows


def test_fewer_batches_than_workers(tmp_path: Path) -> None:
    write_parquet(tmp_path, [(15, 4)])
    loader, _ = StructuredDataset.create_dataloader(tmp_path, num_workers=2, lanes=6, batch_size=10)
    assert [batch["id"].tolist() for batch in loader] == [list(range(10)), list(range(10, 15))]


def test_drop_last_may_leave_nothing(tmp_path: Path) -> None:
    write_parquet(tmp_path, [(9, 4)])
    for num_workers in (0, 2):
        loader, _ = StructuredDataset.create_dataloader(
            tmp_path, num_workers=num_workers, batch_size=10, drop_last=True
        )
        assert list(loader) == []
        assert len(loader) == 0


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("filters", [[("id", "<", 0)], [("x", "==", 0.1)]])
def test_a_filter_that_leaves_nothing_is_no_error(
    data: Path, filters: Any, num_workers: int
) -> None:
    loader, dataset = StructuredDataset.create_dataloader(
        data, num_workers=num_workers, filters=filters
    )
    assert list(loader) == []
    assert list(loader) == []
    assert dataset.epoch == 2


def test_a_filter_keeps_exactly_its_rows(data: Path) -> None:
    for num_workers in (0, 2):
        loader, dataset = StructuredDataset.create_dataloader(
            data,
            num_workers=num_workers,
            filters=[("id", "in", [0, 399, 400, 1153])],
            columns=["x"],
        )
        values = sorted(value for batch in loader for value in batch["x"].tolist())
        assert values == [0.0, 99.75, 100.0, 288.25]
        assert dataset.num_rows is None
        with pytest.raises(TypeError, match="filtered"):
            len(loader)


def test_only_a_lanes_last_batch_is_short_where_rows_are_not_counted(tmp_path: Path) -> None:
    write_csv(tmp_path)
    loader, _ = StructuredDataset.create_dataloader(
        tmp_path, "csv", num_workers=0, batch_size=100, split_bytes=1000, lanes=3
    )
    sizes = [len(batch["id"]) for batch in loader]
    assert sum(sizes) == ROWS
    assert sum(size != 100 for size in sizes) <= 3
    assert 0 not in sizes
    loader, _ = StructuredDataset.create_dataloader(
        tmp_path, "csv", num_workers=0, batch_size=100, split_bytes=1000, lanes=3, drop_last=True
    )
    assert {len(batch["id"]) for batch in loader} == {100}
    with pytest.raises(TypeError, match="not counted"):
        len(loader)


@pytest.mark.parametrize(
    ("options", "description"),
    [
        ({"shuffle": True}, "1 lane; shuffled: all rows together>"),
        ({"shuffle": True, "lanes": 2}, "2 lanes; shuffled: all rows of a lane together>"),
        ({"shuffle": True, "prefetch_bytes": 20_000}, "shuffled: windows of 2 chunks of ~"),
        (
            {"shuffle": True, "split_rows": 70, "mix": 3},
            "shuffled: windows of 3 chunks of ~70 rows>",
        ),
        ({"shuffle": True, "split_rows": 70}, "chunks of ~70 rows, whose rows stay in order>"),
        ({"interleave": 2}, "in order, rows of 2 files in turn>"),
        ({"split_strategy": RoundRobinSplitStrategy()}, "dealt by RoundRobinSplitStrategy>"),
        ({"filters": [("id", ">", 3)]}, "rows not counted; batches of 100; 1 lane"),
        ({"rank": 1, "world_size": 2}, "1,154 rows; rank 1 of 2: 6 batches of 100; 2 lanes;"),
    ],
    ids=str,
)
def test_it_says_in_which_order_rows_come(
    data: Path, options: dict[str, Any], description: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="headrace"):
        dataset = StructuredDataset(data, batch_size=100, **options)
    assert description in repr(dataset)
    assert len(repr(dataset)) < 300
    chosen = options.get("shuffle") and "split_rows" not in options
    assert bool(chosen) == ("shuffled: " in caplog.text)
    assert description.removesuffix(">") in repr(dataset.loader(num_workers=0))


def test_a_loader_says_what_it_is(data: Path) -> None:
    loader, dataset = StructuredDataset.create_dataloader(data, batch_size=100, num_workers=2)
    assert repr(loader) == f"<StatefulLoader: {dataset.summary}; epoch 0, 2 workers>"
    assert "2 lanes" in repr(loader)


def test_it_says_what_it_is(data: Path) -> None:
    dataset = StructuredDataset(data, batch_size=100)
    assert repr(dataset) == (
        f"<StructuredDataset: 6 parquet files of {data}, 1,154 rows; 12 batches of 100; 1 lane; "
        "in order>"
    )
    assert dataset.format == "parquet"
    assert [file.record_count for file in dataset.files] == [400, 1, 300, 250, 0, 203]
    assert dataset.schema.names == ["id", "x", "name"]
