"""Chunks that are small parts of row groups: exact, decoded once where possible, and said."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from headrace import StructuredDataset
from headrace.model import DataFileInfo, FileList, RowGroups
from headrace.plan import cut_chunks, decode_factor
from headrace.process import BoundedCache


def ids(dataset: StructuredDataset) -> list[int]:
    return [value for batch in dataset for value in batch["id"].tolist()]


@pytest.mark.parametrize("writer", ["parquet", "orc"])
@pytest.mark.parametrize("prefetch_bytes", ["64KiB", "256MiB"])
def test_every_row_once_whatever_is_kept(tmp_path: Path, writer: str, prefetch_bytes: str) -> None:
    table = pa.table({"id": np.arange(20_000), "x": np.random.default_rng(0).random(20_000)})
    path = tmp_path / f"a.{writer}"
    pq.write_table(table, path) if writer == "parquet" else orc.write_table(table, path)
    dataset = StructuredDataset(
        path, writer, shuffle=True, split_rows=70, batch_size=64, prefetch_bytes=prefetch_bytes
    )
    seen = ids(dataset)
    assert seen != list(range(20_000))
    assert sorted(seen) == list(range(20_000))


def test_writing_into_a_batch_does_not_reach_what_is_kept(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": np.arange(5_000)}), tmp_path / "a.parquet")
    dataset = StructuredDataset(tmp_path, shuffle=True, split_rows=10, batch_size=10)
    for batch in dataset:
        batch["id"].zero_()
    assert sorted(ids(dataset)) == list(range(5_000))


def test_chunks_much_smaller_than_row_groups_are_remarked_upon(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pq.write_table(pa.table({"id": np.arange(100_000)}), tmp_path / "a.parquet")
    with caplog.at_level(logging.WARNING):
        StructuredDataset(tmp_path, shuffle=True, split_rows=100_000, prefetch_bytes=1000)
    assert "times the work" not in caplog.text
    with caplog.at_level(logging.WARNING):
        StructuredDataset(tmp_path, shuffle=True, split_rows=1000, prefetch_bytes=1000)
    assert "up to 100 times the work" in caplog.text


def test_the_factor_counts_whole_groups() -> None:
    files = FileList(
        [
            DataFileInfo("a", 1, 300, RowGroups.of([100, 100, 100], [1, 1, 1])),
            DataFileInfo("b", 1, 50, RowGroups.of([50], [1])),
            DataFileInfo("c", 1, 300, RowGroups.of([100] * 3, [1] * 3).keep([0, 2])),
        ]
    )

    def factor(split_rows: int) -> float:
        return decode_factor(files, cut_chunks(files, split_bytes=1, split_rows=split_rows))

    assert factor(100) == 1.0
    assert factor(10) == pytest.approx((30 * 100 + 5 * 50 + 20 * 100) / 550)
    assert factor(150) == pytest.approx((200 + 200 + 50 + 100 + 100) / 550)


def test_a_cache_makes_a_value_once_and_stays_within_its_limit() -> None:
    cache: BoundedCache[bytes] = BoundedCache(len)
    made: list[int] = []
    gate = threading.Barrier(4)

    def make(size: int) -> bytes:
        made.append(size)
        return b"x" * size

    def want() -> None:
        gate.wait()
        assert cache.get_or_make("a", lambda: make(10), limit_bytes=100) == b"x" * 10

    threads = [threading.Thread(target=want) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [10]
    cache.add("b", b"y" * 60, limit_bytes=100)
    assert cache.get("a") is not None
    cache.add("c", b"z" * 40, limit_bytes=100)
    assert cache.get("b") is None, "the one used longest ago goes first"
    assert cache.get("a") is not None
    cache.add("d", b"w" * 500, limit_bytes=100)
    assert cache.get("d") is None, "what is larger than the limit is not kept"
