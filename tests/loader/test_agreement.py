"""Ranks that do not read the same data report it before the first batch."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rank_scripts import comparing_ranks
from rank_scripts.rank_processes import run_ranks
from small_files import ROWS, all_ids, write_parquet

from headrace import StructuredDataset, WorkerError


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("compared")
    return run_ranks(partial(comparing_ranks.compare_in_all_ways, folder), 3, folder)


@pytest.mark.parametrize("case", ["copies", "copies of text", "by hand", "uneven"])
def test_copies_with_other_paths_and_times_are_the_same(
    results: list[dict[str, Any]], case: str
) -> None:
    rows = Counter(row for rank in results for row in rank[case])
    assert max(rows.values()) == 1
    assert len(rows) >= ROWS - (0 if case == "uneven" else 4 * 20)


@pytest.mark.parametrize("case", ["sets in filters", "other filters"])
def test_filters_need_not_look_the_same(results: list[dict[str, Any]], case: str) -> None:
    """Check filters made of sets, whose order differs by process: rows are divided before it."""
    assert all(isinstance(rank[case], list) for rank in results)


def test_samples_of_buckets_are_shared_out(results: list[dict[str, Any]]) -> None:
    assert sorted(row for rank in results for row in rank["buckets of copies"]) == list(range(18))


@pytest.mark.parametrize(
    ("case", "named"),
    [
        ("batch_size", "batch_size"),
        ("shuffle_seed", "shuffle_seed"),
        ("split_rows", "split_rows"),
        ("lanes", "lanes"),
        ("strategy", "split_strategy"),
        ("drop_last", "drop_last"),
    ],
)
def test_other_options_are_an_error_on_every_rank(
    results: list[dict[str, Any]], case: str, named: str
) -> None:
    for rank in results:
        assert named in rank[case]
        assert "not the same on ranks 0, 1 and rank 2" in rank[case]


@pytest.mark.parametrize(
    ("case", "here", "there"),
    [
        ("missing", "file 2 is .*/rank-0/write_parquet/part-02", "/rank-2/write_parquet/part-03"),
        ("missing text", "file 1 is .*/rank-0/write_csv/part-01", "/rank-2/write_csv/part-02"),
        ("another size", "file 2 is .*/rank-0/write_parquet/part-02", "/rank-2/.*/part-02"),
        ("buckets", "file 1 is .*/rank-0/tars/shard_0001", "/rank-2/tars/shard_0002"),
    ],
)
def test_the_first_file_that_differs_is_named_on_every_rank(
    results: list[dict[str, Any]], case: str, here: str, there: str
) -> None:
    for rank in results:
        assert rank[case] == results[0][case]
        found = rf"{here}.* bytes.*\) on ranks 0, 1, and .*{there}.* bytes.*\) on rank 2\."
        assert re.search(found, rank[case])


def test_ranks_of_their_own_are_not_compared(results: list[dict[str, Any]], tmp_path: Path) -> None:
    assert [rank["other ranks of their own"] for rank in results] == [ROWS, ROWS, ROWS - 300]
    folders = [write_parquet(tmp_path / str(n), [(100, 50)] * (2 + n)) for n in range(2)]
    for rank, folder in enumerate(folders):  # without a process group
        loader, _ = StructuredDataset.create_dataloader(
            folder, rank=rank, world_size=2, batch_size=10
        )
        assert all_ids(loader)


def test_the_first_of_many_files_is_found(tmp_path: Path) -> None:
    for message in run_ranks(comparing_ranks.name_of_many, 2, tmp_path):
        assert "file 4,321 is /data/of-rank-0/04321 (4,321 bytes) on rank 0" in message
        assert "/data/of-rank-1/04321 (1 bytes) on rank 1." in message


def test_a_rank_that_never_iterates_keeps_nobody_waiting(tmp_path: Path) -> None:
    data = write_parquet(tmp_path / "data")
    look = partial(comparing_ranks.look_on_one_rank_only, data)
    assert run_ranks(look, 2, tmp_path) == [20, 0]


def test_a_rank_that_is_lost_is_an_error_and_no_hang(tmp_path: Path) -> None:
    results = run_ranks(comparing_ranks.lose_before_telling, 2, tmp_path, die=(1,))
    kind, message, waited_s = results[0]
    assert kind is WorkerError
    assert "rank 0 of 2 waited 1 s for rank 1 to make the same loader" in message
    assert waited_s >= 1.0


def test_a_rank_reads_its_rows_after_the_rank_with_the_store_has_ended(tmp_path: Path) -> None:
    data = write_parquet(tmp_path / "data")
    read = partial(comparing_ranks.read_after_rank_0_has_ended, data, tmp_path)
    first, second = run_ranks(read, 2, tmp_path)
    assert sorted(first + second) == list(range(ROWS))


def test_a_rank_reads_its_rows_if_the_store_ends_after_it_was_told(tmp_path: Path) -> None:
    data = write_parquet(tmp_path / "data")
    read = partial(comparing_ranks.read_although_the_store_ends, data)
    first, second = run_ranks(read, 2, tmp_path)
    assert sorted(first + second) == list(range(ROWS))


def test_a_rank_reads_its_rows_if_the_store_ended_before_it_makes_its_loader(
    tmp_path: Path,
) -> None:
    data = write_parquet(tmp_path / "data")
    read = partial(comparing_ranks.make_after_rank_0_has_ended, data, tmp_path)
    _, rows = run_ranks(read, 2, tmp_path)
    assert len(rows) == ROWS // 2
