"""Rows of Parquet files by index: the contract, files that differ, and bad input."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from parquet_pages import SMALL_PAGES, cheap_pages, numbered, wanted, write  # noqa: F401  # fixtures
from warm_interpreters import run_warm

from headrace.access import Backend
from headrace.errors import (
    FileChangedError,
    NothingFoundError,
    OptionError,
    ReadError,
    SchemaError,
)
from headrace.sources.files.discovery import discover
from headrace.sources.files.schemas import plain_type
from headrace.sources.parquet.backend import ParquetBackend
from headrace.testing import BackendContract


class TestParquetFiles(BackendContract):
    writing: dict[str, Any] = {"row_group_size": 70}  # noqa: RUF012

    @classmethod
    def write(cls, directory: Path, table: pa.Table) -> None:
        for number, start in enumerate(range(0, cls.rows, 400)):
            pq.write_table(table.slice(start, 400), directory / f"{number}.parquet", **cls.writing)

    @classmethod
    def open(cls, directory: Path) -> Backend:
        return ParquetBackend(directory)


@pytest.mark.usefixtures("cheap_pages")
class TestFilesOfPages(TestParquetFiles):
    writing = SMALL_PAGES


class TestFilesOfNewerPages(TestFilesOfPages):
    writing = {**SMALL_PAGES, "data_page_version": "2.0"}  # noqa: RUF012


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
    with pytest.raises(SchemaError, match="'txet'; did you mean 'text'"):
        ParquetBackend(tmp_path).take([0], columns=["txet"])


def test_a_filter_has_no_place(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", numbered(10))
    found = discover(tmp_path, "parquet", filters=[("id", ">", 3)])
    with pytest.raises(OptionError, match="without filters"):
        found.reader.source.by_index(found.reader.schema)


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
    backend = found.reader.source.by_index(found.reader.schema)
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


FORKING = """
import faulthandler, os, sys, threading, warnings
import numpy as np
from headrace.sources.parquet.backend import ParquetBackend

warnings.simplefilter("ignore")
backend = ParquetBackend(sys.argv[1])
going = True
random = np.random.default_rng  # imported by numpy when it is asked for, under a lock

def read():
    rows = random().integers(0, 600, 16)
    assert backend.take(rows)["id"].to_pylist() == rows.tolist()

def busy():
    while going:
        read()

read()
threads = [threading.Thread(target=busy) for _ in range(2)]
for thread in threads:
    thread.start()
ends = []
for _ in range(40):
    pid = os.fork()
    if not pid:
        faulthandler.dump_traceback_later(60, exit=True)
        for _ in range(3):
            read()
        os._exit(0)
    ends.append(os.waitpid(pid, 0)[1])
    if ends[-1]:
        break
going = False
for thread in threads:
    thread.join()
assert not any(ends), ends
"""


def test_children_that_are_forked_while_threads_take_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": range(600)}), path, row_group_size=100)
    done = run_warm("-c", FORKING, path)
    assert done.returncode == 0, done.stderr


def test_columns_are_described_once(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": range(6), "other": range(6)}), path)
    backend = ParquetBackend(path)
    some = backend.projected(["id"])
    assert backend._reader(some) is backend._reader(backend.projected(["id"]))
    assert backend._reader(some) is not backend._reader(backend.schema)


@pytest.mark.parametrize("row_group_size", [50, 2_000], ids=["small groups", "large groups"])
@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view(), pa.list_(pa.string_view())])
def test_strings_behind_views(tmp_path: Path, kind: pa.DataType, row_group_size: int) -> None:
    text = ["long enough for a page of its own " * 120 + str(i) for i in range(4_000)]
    values = [[one] for one in text] if pa.types.is_nested(kind) else text
    table = pa.table({"id": range(4_000), "text": pa.array(values, kind)})
    path = tmp_path / "a.parquet"
    small_pages = {"data_page_size": 4_096, "write_batch_size": 16, "write_page_index": True}
    plain = {"use_dictionary": False, "compression": "none"}
    pq.write_table(table, path, row_group_size=row_group_size, **small_pages, **plain)
    backend = ParquetBackend(path)
    for rows in ([3_999, 0, 7, 7], [2, 3]):
        taken = backend.take(rows)
        assert taken.to_pylist() == [table.slice(row, 1).to_pylist()[0] for row in rows]
        assert taken.schema == backend.schema
        assert taken.schema.field("text").type == plain_type(kind)
    assert backend.slice(30, 40).to_pylist() == table.slice(30, 40).to_pylist()


@pytest.mark.slow
def test_more_strings_than_fit_into_one_array(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    width, times = 40 << 20, 54
    text = pa.array([b"a" * width, b"b"], pa.binary())
    pq.write_table(pa.table({"text": text}), path, use_dictionary=False, write_statistics=False)
    taken = ParquetBackend(path).take([1, *[0] * times, 1])["text"]
    lengths = np.concatenate([np.diff(_offsets(chunk)) for chunk in taken.chunks])
    assert lengths.tolist() == [1, *[width] * times, 1]
    assert taken[0].as_py() == taken[-1].as_py() == b"b"


def _offsets(chunk: pa.Array) -> np.ndarray:
    return np.frombuffer(chunk.buffers()[1], np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
