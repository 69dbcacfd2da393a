"""Rows of Parquet files by index: forks while threads read, and more bytes than an array holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from warm_interpreters import run_warm

from headrace.sources.files._plain_types import plain_type
from headrace.sources.parquet.backend import ParquetBackend

FORKING = """
import faulthandler, os, sys, threading, warnings
import numpy as np
from headrace.sources.files._plain_types import plain_type
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
