"""Rows of Parquet files by index: the contract, whole row groups and pages, and bad input."""

from __future__ import annotations

import logging
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.access import Backend
from penstock.access.parquet import groups as parquet_groups
from penstock.access.parquet.backend import ParquetBackend
from penstock.access.parquet.groups import GroupRows, RowTaker
from penstock.errors import (
    FileChangedError,
    NothingFoundError,
    OptionError,
    ReadError,
    SchemaError,
)
from penstock.formats.discovery import discover
from penstock.testing import BackendContract

SMALL_PAGES: dict[str, Any] = {
    "write_page_index": True,
    "data_page_size": 4096,
    "write_batch_size": 8,
    "compression": "none",
    "use_dictionary": False,
}


class TestParquetFiles(BackendContract):
    writing: dict[str, Any] = {"row_group_size": 70}  # noqa: RUF012

    @classmethod
    def write(cls, directory: Path, table: pa.Table) -> None:
        for number, start in enumerate(range(0, cls.rows, 400)):
            pq.write_table(table.slice(start, 400), directory / f"{number}.parquet", **cls.writing)

    @classmethod
    def open(cls, directory: Path) -> Backend:
        return ParquetBackend(directory)


@pytest.fixture
def cheap_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups need not be as large as those of which pages are read."""
    for name in ("_SMALL_GROUP_BYTES", "_COLUMN_COST_BYTES", "_PAGE_COST_BYTES"):
        monkeypatch.setattr(parquet_groups, name, 0)


@pytest.mark.usefixtures("cheap_pages")
class TestFilesOfPages(TestParquetFiles):
    writing = SMALL_PAGES


class TestFilesOfPagesWithoutIndex(TestFilesOfPages):
    writing = {**SMALL_PAGES, "write_page_index": False}  # noqa: RUF012


class TestFilesOfNewerPages(TestFilesOfPagesWithoutIndex):
    writing = {**SMALL_PAGES, "write_page_index": False, "data_page_version": "2.0"}  # noqa: RUF012


def numbered(rows: int, first: int = 0, width: int = 1000) -> pa.Table:
    ids = np.arange(first, first + rows)
    return pa.table({"id": ids, "text": [f"{i:0{width}}" for i in ids]})


def write(path: Path, table: pa.Table, **writing: Any) -> Path:
    pq.write_table(table, path, **{**SMALL_PAGES, **writing})
    return path


def wanted(table: pa.Table, rows: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.take(pa.array(rows)).to_pylist()
    return found


# --- wrong input


def test_a_location_without_files(tmp_path: Path) -> None:
    with pytest.raises(NothingFoundError):
        ParquetBackend(tmp_path)
    with pytest.raises(NothingFoundError):
        ParquetBackend(tmp_path / "*.parquet")
    with pytest.raises(OptionError):
        ParquetBackend([])


def test_files_without_rows(tmp_path: Path) -> None:
    pq.write_table(numbered(0), tmp_path / "a.parquet")
    backend = ParquetBackend(tmp_path)
    assert (backend.num_rows, backend.num_shards) == (0, 1)
    assert backend.take([]).schema.names == ["id", "text"]
    assert backend.table.num_rows == 0
    assert list(backend.iter_batches()) == []
    with pytest.raises(IndexError):
        backend.take([0])


def test_empty_files_and_groups_among_others(tmp_path: Path) -> None:
    table = numbered(10)
    with pq.ParquetWriter(tmp_path / "b.parquet", table.schema) as writer:
        for start, length in [(0, 0), (0, 4), (4, 0), (4, 3), (7, 0)]:
            writer.write_table(table.slice(start, length))
    pq.write_table(numbered(0), tmp_path / "a.parquet")
    pq.write_table(table.slice(7), tmp_path / "c.parquet")
    backend = ParquetBackend(tmp_path)
    assert backend.take(range(10)).to_pylist() == table.to_pylist()
    assert backend.slice(3, 5).to_pylist() == table.slice(3, 5).to_pylist()
    assert backend.table.to_pylist() == table.to_pylist()
    shuffled = pa.Table.from_batches(backend.iter_batches(shuffle=True, seed=1))
    assert sorted(shuffled["id"].to_pylist()) == list(range(10))


@pytest.mark.parametrize("left", [0.5, 0.999])
def test_a_truncated_file(tmp_path: Path, left: float) -> None:
    path = write(tmp_path / "cut.parquet", numbered(1000))
    os.truncate(path, int(path.stat().st_size * left))
    with pytest.raises(ReadError, match=r"cut\.parquet"):
        ParquetBackend(tmp_path)


@pytest.mark.usefixtures("cheap_pages")
@pytest.mark.parametrize("rows", [[5], range(1000)], ids=["pages", "group"])
@pytest.mark.parametrize("change", ["cut", "written again", "gone"])
def test_a_file_that_changed(tmp_path: Path, change: str, rows: Any) -> None:
    path = write(tmp_path / "a.parquet", numbered(1000))
    backend = ParquetBackend(tmp_path)
    if change == "cut":
        os.truncate(path, path.stat().st_size // 2)
    elif change == "gone":
        path.unlink()
    else:
        write(path, numbered(1000, first=7))
        os.utime(path, ns=(1, 1))
    with pytest.raises(FileChangedError, match=r"a\.parquet"):
        backend.take(rows)
    with pytest.raises(FileChangedError, match=r"a\.parquet"):
        backend.slice(0, 1000)


@pytest.mark.usefixtures("cheap_pages")
@pytest.mark.parametrize("rows", [[500], range(1000)], ids=["pages", "group"])
def test_damaged_pages(tmp_path: Path, rows: Any) -> None:
    path = write(tmp_path / "a.parquet", numbered(1000), compression="zstd")
    backend = ParquetBackend(tmp_path)
    size, changed = path.stat().st_size, path.stat().st_mtime_ns
    column = pq.read_metadata(path).row_group(0).column(1)
    with path.open("r+b") as file:
        file.seek(column.data_page_offset)
        file.write(os.urandom(column.total_compressed_size))
    os.utime(path, ns=(changed, changed))
    assert path.stat().st_size == size
    with pytest.raises(ReadError, match=r"a\.parquet"):
        backend.take(rows)


def test_rows_that_pyarrow_does_not_find(tmp_path: Path) -> None:
    """Some versions take a first page without rows, which they write, for the end."""
    path = tmp_path / "a.parquet"
    table = pa.table({"flags": [[False, False, False]]})
    pq.write_table(table, path, data_page_version="2.0", data_page_size=64, write_batch_size=1)
    if pq.read_table(path).num_rows == 1:
        assert ParquetBackend(path).take([0]).to_pylist() == table.to_pylist()
    else:
        with pytest.raises(ReadError, match=r"a\.parquet, rows 0-1: .*only 0 of"):
            ParquetBackend(path).take([0])


@pytest.mark.usefixtures("cheap_pages")
def test_a_page_index_that_is_wrong_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = numbered(1000)
    path = write(tmp_path / "a.parquet", table, row_group_size=500)
    data = path.read_bytes()
    column = pq.read_metadata(path).row_group(1).column(1)
    end = column.data_page_offset + column.total_compressed_size
    footer = int.from_bytes(data[-8:-4], "little") + 8
    path.write_bytes(data[:end] + bytes(len(data) - end - footer) + data[-footer:])
    backend = ParquetBackend(path)
    with caplog.at_level(logging.WARNING):
        for rows in ([7, 3], [505]):
            assert backend.take(rows).to_pylist() == wanted(table, rows)
    assert caplog.text.count(f"{path}: its row groups are read whole") == 1


def test_a_missing_column_names_those_there_are(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", numbered(10))
    with pytest.raises(SchemaError, match=r"'txet'.*id, text"):
        ParquetBackend(tmp_path).take([0], columns=["txet"])


def test_a_filter_has_no_place(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", numbered(10))
    found = discover(tmp_path, "parquet", filters=[("id", ">", 3)])
    with pytest.raises(OptionError, match="without filters"):
        ParquetBackend.of(found)


# --- files that differ


@pytest.mark.usefixtures("cheap_pages")
@pytest.mark.parametrize("width", [1, 1000], ids=["groups", "pages"])
def test_files_with_other_columns_and_types(tmp_path: Path, width: int) -> None:
    write(tmp_path / "a.parquet", numbered(500, width=width))
    other = numbered(500, first=500, width=width)
    other = other.set_column(0, "id", other["id"].cast(pa.int32()))
    write(tmp_path / "b.parquet", other.append_column("more", pa.array(range(500))))
    backend = ParquetBackend(tmp_path)
    assert backend.schema.field("id").type == pa.int64()
    rows = [501, 3, 999]
    got = backend.take(rows)
    assert got.schema.equals(backend.schema)
    assert got["id"].to_pylist() == rows
    assert got["more"].to_pylist() == [1, None, 499]
    assert backend.take(rows, columns=["more"])["more"].to_pylist() == [1, None, 499]
    assert backend.table["id"].to_pylist() == list(range(1000))


def test_types_that_do_not_fit_are_an_error(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", pa.table({"id": [1]}))
    write(tmp_path / "b.parquet", pa.table({"id": ["x"]}))
    with pytest.raises(SchemaError, match="id"):
        ParquetBackend(tmp_path)


@pytest.mark.usefixtures("cheap_pages")
@pytest.mark.parametrize("columns", [["day"], ["id", "day"], ["day", "text", "id"], []])
def test_columns_in_paths(tmp_path: Path, columns: list[str]) -> None:
    for day in (1, 2):
        (tmp_path / f"day={day}").mkdir()
        write(tmp_path / f"day={day}" / "a.parquet", numbered(500, first=500 * day))
    found = discover(tmp_path, "parquet", partitioning="hive")
    backend = ParquetBackend.of(found)
    rows = [700, 2, 2]
    expected = [{"id": 500 + r, "text": f"{500 + r:01000}", "day": 1 + r // 500} for r in rows]
    got = backend.take(rows, columns=columns)
    assert got.num_rows == 3
    assert got.to_pylist() == [{name: row[name] for name in columns} for row in expected]
    assert backend.slice(498, 4, columns=columns).num_rows == 4


def test_lists_and_globs_of_paths(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / f"{number}.parquet", numbered(10, first=10 * number))
    some = ParquetBackend([tmp_path / "2.parquet", tmp_path / "0.parquet"])
    assert some.take([0, 19])["id"].to_pylist() == [0, 29]
    assert ParquetBackend(str(tmp_path / "[12].parquet")).num_rows == 20
    assert some.shard_bytes == [path.stat().st_size for path in map(Path, some.shard_names)]


# --- what is read, and what is kept


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
    return int(backend._store.meter.drain().get("fetched_bytes", 0))  # type: ignore[attr-defined]


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
    monkeypatch.setattr(parquet_groups, "_CACHE_BYTES", 5 << 20)
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
    decode = RowTaker._decoded

    def noting(self: RowTaker, one: GroupRows) -> Any:
        groups.append(one.group)
        return decode(self, one)

    monkeypatch.setattr(RowTaker, "_decoded", noting)
    return groups


def test_groups_that_are_kept_are_used_before_others_push_them_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoded: list[int]
) -> None:
    monkeypatch.setattr(parquet_groups, "_CACHE_BYTES", 5 << 20)
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
def test_pages_of_local_files_are_found_without_an_index(
    tmp_path: Path, decoded: list[int], index: bool
) -> None:
    table = numbered(4000, width=3000)
    write(tmp_path / "a.parquet", table, row_group_size=2000, write_page_index=index)
    backend = ParquetBackend(tmp_path)
    assert backend.take([3999, 0, 17]).to_pylist() == wanted(table, [3999, 0, 17])
    assert decoded == []


@pytest.mark.parametrize("columns", [["text"], ["id"]])
def test_groups_larger_than_what_is_kept(
    monkeypatch: pytest.MonkeyPatch, columns: list[str]
) -> None:
    monkeypatch.setattr(parquet_groups, "_CACHE_BYTES", 1 << 20)
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
