"""Rows of Parquet files by index: which pages and row groups are read, and which are kept."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from parquet_pages import SMALL_PAGES, cheap_pages, numbered, wanted, write  # noqa: F401  # fixtures

from headrace.sources.files import _backend as file_rows
from headrace.sources.files._backend import GroupReader, GroupRows
from headrace.sources.parquet import backend as page_rows
from headrace.sources.parquet.backend import ParquetBackend


def in_memory(name: str, table: pa.Table, **writing: Any) -> ParquetBackend:
    """Files in a store whose meter counts what is fetched."""
    import fsspec

    files = fsspec.filesystem("memory")
    with files.open(f"/parquet-rows/{name}.parquet", "wb") as sink:
        pq.write_table(table, sink, **{**SMALL_PAGES, **writing})
    backend = ParquetBackend(f"memory://parquet-rows/{name}.parquet")
    fetched(backend)
    return backend


def fetched(backend: ParquetBackend) -> int:
    """Bytes since the last call."""
    return int(backend.store.meter.drain().get("fetched_bytes", 0))  # type: ignore[attr-defined]


def test_only_pages_are_fetched() -> None:
    table = numbered(8000, width=3000)
    backend = in_memory("pages", table, row_group_size=2000)
    rows = np.random.default_rng(0).integers(0, 8000, 20)
    assert backend.take(rows).to_pylist() == wanted(table, rows)
    assert 0 < fetched(backend) < 20 * 2 * 30_000
    assert backend.slice(3000, 3).to_pylist() == table.slice(3000, 3).to_pylist()
    assert 0 < fetched(backend) < 100_000


@pytest.mark.parametrize("width", [500, 3000])
def test_pages_of_small_groups_are_not_worth_it(width: int) -> None:
    backend = in_memory(f"small-{width}", numbered(2000, width=width), row_group_size=2000)
    backend.take([7])
    before = fetched(backend)
    backend.take([8])
    assert (before > 2000 * width) == (fetched(backend) == 0) == (width == 500)


@pytest.mark.usefixtures("cheap_pages")
def test_groups_that_are_asked_again_and_again_are_kept() -> None:
    table = numbered(4000)
    backend = in_memory("again", table, row_group_size=2000)
    rng = np.random.default_rng(1)
    for _ in range(12):
        rows = rng.integers(0, 4000, 100)
        assert backend.take(rows).to_pylist() == wanted(table, rows)
    assert fetched(backend) < 3 * 4_200_000
    assert backend.take(rows[::-1]).to_pylist() == wanted(table, rows[::-1])
    assert fetched(backend) == 0


@pytest.mark.usefixtures("cheap_pages")
def test_groups_that_cannot_be_kept_cost_their_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (file_rows, page_rows):
        monkeypatch.setattr(module, "CACHE_BYTES", 5 << 20)
    table = numbered(10_000)
    backend = in_memory("more", table, row_group_size=2000)
    rng = np.random.default_rng(2)
    costs = []
    for _ in range(25):
        rows = rng.integers(0, 10_000, 100)
        assert backend.take(rows).to_pylist() == wanted(table, rows)
        costs.append(fetched(backend))
    assert max(costs) < 100 * 3 * 10_000


def test_groups_without_page_index_are_decoded_once() -> None:
    table = numbered(4000)
    backend = in_memory("whole", table, row_group_size=1000, write_page_index=False)
    assert backend.take([5, 3999]).to_pylist() == wanted(table, [5, 3999])
    assert fetched(backend) < 3_000_000
    assert backend.take([3000, 999, 0]).to_pylist() == wanted(table, [3000, 999, 0])
    assert fetched(backend) == 0


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The row groups that were decoded whole."""
    groups: list[int] = []
    decode = GroupReader.decoded

    def noting(self: GroupReader, one: GroupRows) -> Any:
        groups.append(one.group)
        return decode(self, one)

    monkeypatch.setattr(GroupReader, "decoded", noting)
    return groups


def test_groups_that_are_kept_are_used_before_others_push_them_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoded: list[int]
) -> None:
    monkeypatch.setattr(file_rows, "CACHE_BYTES", 5 << 20)
    write(tmp_path / "a.parquet", numbered(8000), row_group_size=1000)
    backend = ParquetBackend(tmp_path)
    every = list(range(0, 8000, 1000))
    backend.take(every)
    assert decoded == list(range(8))
    for _ in range(3):
        decoded.clear()
        backend.take(every)
        assert len(decoded) == 3


@pytest.mark.parametrize("index", [True, False])
def test_pages_are_read_by_the_index(tmp_path: Path, decoded: list[int], index: bool) -> None:
    table = numbered(4000, width=3000)
    write(tmp_path / "a.parquet", table, row_group_size=2000, write_page_index=index)
    backend = ParquetBackend(tmp_path)
    assert backend.take([3999, 0, 17]).to_pylist() == wanted(table, [3999, 0, 17])
    assert decoded == ([] if index else [0, 1])


@pytest.mark.parametrize("columns", [["text"], ["id"]])
def test_groups_larger_than_what_is_kept(
    monkeypatch: pytest.MonkeyPatch, columns: list[str]
) -> None:
    monkeypatch.setattr(file_rows, "CACHE_BYTES", 1 << 20)
    table = numbered(4000)
    name = f"large-{columns[0]}"
    backend = in_memory(name, table, row_group_size=4000, write_page_index=False)
    for rows in ([3999, 0, 17], list(range(4000))):
        got = backend.take(rows, columns=columns)
        assert got.to_pylist() == wanted(table.select(columns), rows)
    kept = fetched(backend) < 100_000
    assert kept == (columns == ["id"])


def test_writing_into_rows_does_not_reach_what_is_kept(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", numbered(100), write_page_index=False)
    backend = ParquetBackend(tmp_path)
    for got in (backend.take([7, 8]), backend.slice(7, 2), backend.take(range(100)).slice(7, 2)):
        buffer = got["id"].chunk(0).buffers()[1]
        if buffer.is_mutable:
            np.frombuffer(buffer, np.int64)[:] = -1
    assert backend.take([7, 8])["id"].to_pylist() == [7, 8]


@pytest.mark.usefixtures("cheap_pages")
def test_threads_share_what_is_kept(tmp_path: Path) -> None:
    table = numbered(6000)
    write(tmp_path / "a.parquet", table, row_group_size=1000)
    backend = ParquetBackend(tmp_path)

    def check(seed: int) -> bool:
        rows = np.random.default_rng(seed).integers(0, 6000, 200)
        return bool(backend.take(rows).to_pylist() == wanted(table, rows))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(check, range(40)))


def test_copies_of_what_is_elsewhere_are_small_too() -> None:
    table = numbered(20_000, width=3)
    backend = in_memory("small", table, row_group_size=50)
    backend.take([1])
    sent = pickle.dumps(backend)
    assert len(sent) < 30_000  # of 400 row groups
    assert pickle.loads(sent).take([19_999, 0]).to_pylist() == wanted(table, [19_999, 0])
