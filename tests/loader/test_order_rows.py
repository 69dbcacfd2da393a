"""Orders of rows: mixed, interleaved, or by a buffer. They are pinned and platform-independent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_files import all_ids, write_csv, write_parquet

from headrace import OptionError, StructuredDataset, TargetSizeSplitStrategy

ROWS = 60
FILES = ((20, 5), (20, 5), (20, 5))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parquet(tmp_path_factory.mktemp("rows"), FILES)


def order(folder: Path, epochs: int = 1, **options: Any) -> list[int]:
    loader, _ = StructuredDataset.create_dataloader(
        folder, **{"batch_size": 7, "num_workers": 0, **options}
    )
    return [row for _ in range(epochs) for row in all_ids(loader)]


def test_rows_of_files_in_turn(folder: Path) -> None:
    found = order(folder, interleave=3, split_rows=5)
    assert found[:15] == [0, 20, 40, 1, 21, 41, 2, 22, 42, 3, 23, 43, 4, 24, 44]
    assert found[15:18] == [5, 25, 45]
    assert sorted(found) == list(range(ROWS))


def test_a_file_that_ends_makes_room_for_the_next(tmp_path: Path) -> None:
    folder = write_parquet(tmp_path, ((2, 2), (4, 2), (4, 2)))
    assert order(folder, interleave=2, split_rows=2) == [0, 2, 1, 3, 4, 6, 5, 7, 8, 9]


def test_files_in_turn_by_lines(tmp_path: Path) -> None:
    folder = write_csv(tmp_path, FILES)
    found = order(folder, format="csv", interleave=2, split_bytes="1MiB")
    assert found[:6] == [0, 20, 1, 21, 2, 22]
    assert sorted(found) == list(range(ROWS))


def test_filters_thin_out_what_takes_turns(folder: Path) -> None:
    found = order(folder, interleave=3, split_rows=5, filters=[("id", "not in", [1, 20, 21])])
    assert found[:9] == [0, 22, 40, 2, 23, 41, 3, 24, 42]


GOLDEN = {
    (42, 0): [45, 17, 16, 19, 15, 18, 54, 46, 48, 50, 49, 53, 52, 51, 47],
    (42, 1): [22, 32, 49, 21, 45, 33, 20, 48, 34, 47, 31, 24, 23, 30, 46],
    (7, 0): [20, 26, 25, 29, 38, 36, 23, 35, 37, 28, 27, 39, 24, 21, 22],
    (7, 1): [28, 35, 19, 36, 15, 29, 27, 26, 39, 18, 25, 37, 16, 38, 17],
}


@pytest.mark.parametrize("seed", [42, 7])
@pytest.mark.parametrize("epoch", [0, 1])
def test_golden_order_of_mixed_rows(folder: Path, seed: int, epoch: int) -> None:
    loader, dataset = StructuredDataset.create_dataloader(
        folder, batch_size=7, num_workers=0, shuffle=True, split_rows=5, mix=3, shuffle_seed=seed
    )
    loader.set_epoch(epoch)
    assert dataset.epoch == epoch
    assert all_ids(loader)[:15] == GOLDEN[seed, epoch]


def test_windows_mix_chunks_from_all_over_and_nothing_else(folder: Path) -> None:
    chunks = order(folder, shuffle=True, split_rows=5)
    mixed = order(folder, shuffle=True, split_rows=5, mix=3)
    assert mixed != chunks
    for start in range(0, ROWS, 15):
        assert sorted(mixed[start : start + 15]) == sorted(chunks[start : start + 15])


def test_epochs_and_seeds_do_not_meet(folder: Path) -> None:
    """Check that seed and epoch are not just added: 1 and 1 is not the same as 2 and 0."""
    orders = {}
    for seed in range(4):
        rows = order(folder, epochs=4, shuffle=True, split_rows=5, mix=2, shuffle_seed=seed)
        for epoch in range(4):
            orders[tuple(rows[ROWS * epoch : ROWS * (epoch + 1)])] = (seed, epoch)
    assert len(orders) == 16


@pytest.mark.parametrize("rows", [1, 8, 20, 59, 1000])
def test_a_buffer_holds_at_least_so_many_rows(folder: Path, rows: int) -> None:
    loader, dataset = StructuredDataset.create_dataloader(
        folder, batch_size=7, num_workers=0, shuffle=True, shuffle_buffer_rows=rows
    )
    assert sorted(all_ids(loader)) == list(range(ROWS))
    lane = dataset.plan(lanes=1, epoch=0).lane(0)
    sizes = window_sizes(lane.window, lane.chunks.length)
    assert all(size >= min(rows, ROWS) for size in sizes[:-1])
    chunks = np.bincount(lane.window)
    assert all(count >= 2 for count in chunks[:-1])


@pytest.mark.parametrize(
    "options",
    [
        {"split_rows": 5},
        {"split_bytes": 200},
        {"split_strategy": TargetSizeSplitStrategy(split_rows=4), "shuffle": False},
    ],
)
def test_a_buffer_of_chunks_of_a_given_size(folder: Path, options: dict[str, Any]) -> None:
    given = {"shuffle": True, "batch_size": 7, "num_workers": 0, **options}
    _, dataset = StructuredDataset.create_dataloader(folder, shuffle_buffer_rows=20, **given)
    lane = dataset.plan(lanes=1, epoch=0).lane(0)
    assert all(size >= 20 for size in window_sizes(lane.window, lane.chunks.length)[:-1])
    assert len(lane.chunks) > 4


def window_sizes(window: Any, length: Any) -> Sequence[float]:
    sizes: Sequence[float] = np.bincount(window, weights=length)
    return sizes


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle_buffer_rows": 0},
        {"shuffle_buffer_rows": "10"},
        {"shuffle_buffer_rows": 10, "mix": 2},
        {"shuffle_buffer_rows": 10, "interleave": 2},
    ],
)
def test_a_buffer_that_cannot_be_is_refused(folder: Path, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="shuffle_buffer_rows"):
        order(folder, **options)


def test_a_buffer_of_uncounted_rows_is_refused(tmp_path: Path) -> None:
    folder = write_csv(tmp_path, FILES)
    with pytest.raises(OptionError, match="use mix"):
        order(folder, format="csv", shuffle=True, shuffle_buffer_rows=10)


def test_shards_by_hand_are_the_lanes_of_a_plan(folder: Path) -> None:
    _, dataset = StructuredDataset.create_dataloader(
        folder, batch_size=7, num_workers=0, shuffle=True, split_rows=5
    )
    plan = dataset.plan(lanes=4)
    ids = []
    for index in range(2):
        shard = plan.shard(index, 2)
        assert shard.row_count == sum(c.row_range.length for c in shard.file_splits if c.row_range)
        ids += [
            (chunk.file.path, row)
            for chunk in shard.file_splits
            if chunk.row_range is not None
            for row in range(chunk.row_range.offset, chunk.row_range.stop)
        ]
    assert len(ids) == len(set(ids)) == ROWS
    for wrong in ((2, 2), (-1, 2), (0, 3)):
        with pytest.raises(OptionError):
            plan.shard(*wrong)
