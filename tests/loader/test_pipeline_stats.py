"""The statistics of a loader, and data that it skips on request."""

from __future__ import annotations

import os
import threading
import warnings
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from small_files import ROWS, all_ids, write_parquet
from worker_code import doubled

from headrace import SkippedDataWarning, StatefulLoader, StructuredDataset
from headrace.loader._pipeline import Stats


def make(data: Path, **options: Any) -> StatefulLoader:
    settings = {"batch_size": 100, **options}
    return StructuredDataset.create_dataloader(data, **settings)[0]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_counts_of_whole_epochs(tmp_path: Path, num_workers: int) -> None:
    loader = make(write_parquet(tmp_path), num_workers=num_workers, transform=doubled)
    assert loader.stats()["rows"] == 0
    for epoch in (1, 2):
        list(loader)
        stats = loader.stats()
        assert (stats["rows"], stats["batches"]) == (epoch * ROWS, epoch * 12)
        assert stats["bytes"] >= epoch * ROWS * 12
        assert stats["skipped_chunks"] == []
        assert stats["retries"] == 0
    assert {"read", "convert"} <= set(stats["seconds"])
    assert all(seconds >= 0 for seconds in stats["seconds"].values())


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("lanes", [2, 3])
def test_counts_in_mid_epoch(tmp_path: Path, num_workers: int, lanes: int) -> None:
    loader = make(write_parquet(tmp_path), num_workers=num_workers, lanes=lanes)
    rows = 0
    for number, batch in enumerate(loader, start=1):
        rows += len(batch["id"])
        stats = loader.stats()
        assert (stats["rows"], stats["batches"]) == (rows, number)
    for _ in islice(loader, 4):
        pass
    stats = loader.stats()
    assert (stats["rows"], stats["batches"]) == (rows + 400, 16)


def test_mixing_is_timed(tmp_path: Path) -> None:
    loader = make(write_parquet(tmp_path), num_workers=0, shuffle=True, split_rows=70, mix=3)
    list(loader)
    assert loader.stats()["seconds"]["mix"] > 0


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_file_that_is_broken_from_the_start_is_skipped_and_named(
    tmp_path: Path, num_workers: int
) -> None:
    write_parquet(tmp_path)
    (tmp_path / "part-02.parquet").write_bytes(b"PAR1 nothing that is Parquet")
    with pytest.warns(SkippedDataWarning, match=r"part-02\.parquet"):
        loader = make(tmp_path, num_workers=num_workers, on_error="skip")
    assert sorted(all_ids(loader)) == [*range(401), *range(701, ROWS)]
    stats = loader.stats()
    assert stats["rows"] == ROWS - 300
    assert len(stats["skipped_chunks"]) == 1
    assert "part-02.parquet" in stats["skipped_chunks"][0]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("options", [{}, {"shuffle": True, "split_rows": 70, "mix": 3}])
def test_a_file_that_breaks_later_is_skipped_and_named(
    tmp_path: Path, num_workers: int, options: dict[str, Any]
) -> None:
    write_parquet(tmp_path)
    loader = make(tmp_path, num_workers=num_workers, on_error="skip", **options)
    broken = tmp_path / "part-02.parquet"
    break_without_a_trace(broken)
    with pytest.warns(SkippedDataWarning, match=r"part-02\.parquet"):
        ids = all_ids(loader)
    assert sorted(ids) == [*range(401), *range(701, ROWS)]
    skipped = loader.stats()["skipped_chunks"]
    assert skipped
    assert all("part-02.parquet" in reason for reason in skipped)


def break_without_a_trace(path: Path) -> None:
    """Damage a file as a bad disk does: its size and time of change stay the same."""
    was = path.stat()
    path.write_bytes(b"\xff" * was.st_size)
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_data_damaged_in_the_middle_is_skipped_and_named(tmp_path: Path, num_workers: int) -> None:
    """Damage only the data: the footer and the listing are intact, and decoding fails."""
    write_parquet(tmp_path, [(400, 100), (400, 100)])
    damaged = tmp_path / "part-01.parquet"
    content = bytearray(damaged.read_bytes())
    content[4:2000] = b"\xff" * 1996
    damaged.write_bytes(content)
    loader = make(tmp_path, num_workers=num_workers, on_error="skip")
    with pytest.warns(SkippedDataWarning, match=r"part-01\.parquet"):
        ids = all_ids(loader)
    assert ids.count(0) == 1
    assert set(range(400)) <= set(ids)
    assert len(ids) == len(set(ids))
    with pytest.raises(OSError, match=r"part-01\.parquet"):
        all_ids(make(tmp_path, num_workers=num_workers))


def test_nothing_is_said_when_nothing_is_skipped(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = make(write_parquet(tmp_path), num_workers=0, on_error="skip")
        assert len(all_ids(loader)) == ROWS
    with pytest.raises(TypeError, match="skip"):
        len(loader)


def test_a_pass_may_end_by_a_collection_while_its_counters_are_in_use() -> None:
    counters = Stats()

    class Left:
        def __del__(self) -> None:
            counters.spend("wait", 1.0)

    def count() -> None:
        left = [Left()]
        with counters._lock.get():
            left.clear()

    thread = threading.Thread(target=count, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert counters.as_dict()["seconds"] == {"wait": 1.0}
