"""Arrow files that are rewritten under an open reader: an error, never other rows or a SIGBUS."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import ipc

from headrace import StructuredDataset
from headrace.access import ArrowBackend, RowDataset
from headrace.errors import FileChangedError
from headrace.sources.files._source import content_tag

ROWS = 40_000


def rows(first: int, count: int = ROWS) -> pa.Table:
    ids = np.arange(first, first + count)
    return pa.table({"id": ids, "text": [str(i) for i in ids], "pair": [{"i": i} for i in ids]})


def write(path: Path, table: pa.Table, **options: str) -> None:
    with ipc.new_file(path, table.schema, options=ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=1_000)


def other_rows_in_place(path: Path) -> None:
    size, copy = path.stat().st_size, path.with_suffix(".copy")
    write(copy, rows(ROWS + 10_000))
    assert copy.stat().st_size == size
    shutil.copyfile(copy, path)  # opens the same file for writing


def fewer_rows(path: Path) -> None:
    write(path, rows(0, 10))


def nothing(path: Path) -> None:
    os.truncate(path, 0)


def gone(path: Path) -> None:
    os.remove(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "a.arrow"
    write(found, rows(ROWS))
    old = found.stat().st_mtime_ns - 10**9  # longer ago than the clock of a file system ticks
    os.utime(found, ns=(old, old))
    return found


@pytest.mark.parametrize("rewrite", [other_rows_in_place, fewer_rows, nothing, gone])
@pytest.mark.parametrize("columns", [["id"], ["id", "text"], ["pair"]])
def test_rows_by_index(path: Path, rewrite: Callable[[Path], None], columns: list[str]) -> None:
    backend = ArrowBackend(path)
    picks = np.random.default_rng(0).integers(0, ROWS, 200)
    assert backend.take(picks, columns=columns).num_rows == 200
    dataset = RowDataset(backend, columns=columns)
    assert list(dataset[5]) == list(dataset[7]) == columns
    rewrite(path)
    for take in (
        lambda: dataset[5],
        lambda: backend.take(picks, columns=columns),
        lambda: backend.get_row(5),
        lambda: backend.slice(30, 40),
        lambda: RowDataset(backend, columns=columns).batch(picks),
        lambda: list(backend.iter_batches()),
    ):
        with pytest.raises(FileChangedError, match=r"a\.arrow"):
            take()


@pytest.mark.parametrize("rewrite", [fewer_rows, nothing])
def test_a_row_of_a_batch_that_was_not_read_before(
    path: Path, rewrite: Callable[[Path], None]
) -> None:
    """The header of the batch is behind the end of the file now: reading it would be a SIGBUS."""
    dataset = RowDataset(ArrowBackend(path), columns=["id"])
    assert dataset[5]["id"] == ROWS + 5
    rewrite(path)
    with pytest.raises(FileChangedError, match=r"a\.arrow"):
        dataset[ROWS - 1]


def test_a_compressed_file_by_index(path: Path) -> None:
    write(path, rows(ROWS), compression="lz4")
    backend = ArrowBackend(path)
    assert backend.take([7])["id"].to_pylist() == [ROWS + 7]
    fewer_rows(path)
    with pytest.raises(FileChangedError, match=r"a\.arrow"):
        backend.take([30_000])


def test_the_same_bytes_at_another_time_or_in_another_file(path: Path) -> None:
    backend = ArrowBackend(path)
    expected = backend.take([3, 30_000])
    os.utime(path, ns=(1, 1))
    assert backend.take([3, 30_000]).equals(expected)
    copy = path.with_suffix(".copy")
    shutil.copyfile(path, copy)
    os.replace(copy, path)
    assert backend.take([3, 30_000]).equals(expected)
    other_rows_in_place(path)
    with pytest.raises(FileChangedError, match=r"a\.arrow"):
        backend.take([3, 30_000])


def test_another_file_in_its_place(path: Path) -> None:
    """The map still shows the old rows; nobody who opens the file now would see them."""
    backend = ArrowBackend(path)
    backend.take([0])
    write(path.with_suffix(".copy"), rows(ROWS + 10_000))
    os.replace(path.with_suffix(".copy"), path)
    with pytest.raises(FileChangedError, match=r"a\.arrow was written again"):
        backend.take([0])


@pytest.mark.parametrize("rewrite", [other_rows_in_place, fewer_rows, nothing])
def test_rows_in_order(path: Path, rewrite: Callable[[Path], None]) -> None:
    loader, _ = StructuredDataset.create_dataloader(
        path, "arrow", batch_size=100, num_workers=0, prefetch_bytes="64KiB", columns=["id"]
    )
    seen: list[int] = []

    def read_all() -> None:
        for number, batch in enumerate(loader):
            seen.extend(batch["id"].tolist())
            if number == 3:
                rewrite(path)

    with pytest.raises(FileChangedError, match=r"a\.arrow"):
        read_all()
    assert seen == list(range(ROWS, ROWS + len(seen)))


def test_a_file_that_is_rewritten_while_rows_are_taken(path: Path) -> None:
    """By another process, block by block, without becoming shorter."""
    copy = path.with_suffix(".copy")
    write(copy, rows(ROWS + 10_000))
    code = """
import sys
path, other = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
with open(path, "r+b") as file, open(other, "rb") as source:
    while block := source.read(4096):
        file.write(block)
        file.flush()
"""
    command = [sys.executable, "-c", code, str(path), str(copy)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        writer.stdout.readline()
        backend, rng = ArrowBackend(path), np.random.default_rng(0)
        backend.take([0])
        writer.stdin.write(b"\n")
        writer.stdin.close()

        def take_on() -> None:
            while True:
                picks = rng.integers(0, ROWS, 256)
                assert backend.take(picks)["id"].to_pylist() == (picks + ROWS).tolist()

        with pytest.raises(FileChangedError):
            take_on()


def test_a_tag_is_of_the_content(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(1_000_000))
    tag = content_tag(str(path))
    os.utime(path, ns=(1, 1))
    assert content_tag(str(path)) == tag
    for place in (0, 999_999, 999_000):
        changed = bytearray(1_000_000)
        changed[place] = 1
        path.write_bytes(changed)
        assert content_tag(str(path)) != tag
    path.write_bytes(b"")
    assert content_tag(str(path)) != tag
