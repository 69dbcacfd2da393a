"""Files that are rewritten while they are read: an error, never old rows or rows of both."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from headrace import StructuredDataset
from headrace.access import Backend
from headrace.errors import FileChangedError
from headrace.model import FileSplit
from headrace.sources.files.discovery import discover

ROWS = 40_000
WRITERS: dict[str, Callable[[pa.Table, str], None]] = {
    "orc": lambda table, path: orc.write_table(table, path, stripe_size=1, batch_size=5000),
    "parquet": lambda table, path: pq.write_table(table, path, row_group_size=5000),
    "arrow": lambda table, path: feather.write_feather(table, path, "lz4", chunksize=5000),
}


def write(path: Path, first: int) -> None:
    """Write rows whose files are of the same size, wherever they begin."""
    ids = np.arange(first, first + ROWS)
    noise = np.random.default_rng(0).random(ROWS)
    WRITERS[path.suffix[1:]](pa.table({"id": ids, "x": noise}), str(path))


@pytest.fixture(params=list(WRITERS))
def path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    found = tmp_path / f"a.{request.param}"
    write(found, 0)
    old = found.stat().st_mtime_ns - 10**9  # longer ago than the clock of a file system ticks
    os.utime(found, ns=(old, old))
    return found


def other_rows_in_place(path: Path) -> None:
    copy = path.with_stem("copy")
    write(copy, ROWS)
    shutil.copyfile(copy, path)  # opens the same file for writing


def other_file(path: Path) -> None:
    copy = path.with_stem("copy")
    write(copy, ROWS)
    os.replace(copy, path)


def other_file_as_old(path: Path) -> None:
    """Replace a file by one with the same size and time of change."""
    before, copy = path.stat(), path.with_stem("copy")
    write(copy, ROWS)
    with open(copy, "r+b") as file:
        file.truncate(before.st_size)
    os.utime(copy, ns=(before.st_mtime_ns, before.st_mtime_ns))
    os.replace(copy, path)


REWRITES = [other_rows_in_place, other_file, other_file_as_old, os.remove]


def by_index(path: Path) -> Backend:
    reader = discover(path, path.suffix[1:]).reader
    return reader.source.by_index(reader.schema)


@pytest.mark.parametrize("rewrite", REWRITES)
def test_kept_rows_by_index(path: Path, rewrite: Callable[[Path], None]) -> None:
    backend = by_index(path)
    assert backend.take([7, 30_000])["id"].to_pylist() == [7, 30_000]
    assert pa.concat_tables(backend.stream(5, 100, backend.schema, 1 << 20)).num_rows == 100
    rewrite(path)
    for read in (
        lambda: backend.take([8]),
        lambda: backend.take([30_001, 8]),
        lambda: backend.get_row(8),
        lambda: list(backend.stream(5, 100, backend.schema, 1 << 20)),
    ):
        with pytest.raises(FileChangedError, match=r"/a\."):
            read()


@pytest.mark.parametrize("rewrite", REWRITES)
def test_kept_rows_in_order(path: Path, rewrite: Callable[[Path], None]) -> None:
    dataset = StructuredDataset(
        path,
        path.suffix[1:],
        split_rows=100,
        batch_size=100,
        shuffle=True,
        # Nothing but groups that are kept is read ahead of this.
        prefetch_bytes="2MiB",
    )
    assert sorted(i for batch in dataset for i in batch["id"].tolist()) == list(range(ROWS))
    rewrite(path)
    with pytest.raises(FileChangedError, match=r"/a\."):
        next(iter(dataset))


@pytest.mark.parametrize("rewrite", [other_rows_in_place, os.remove])
def test_rows_that_are_being_read_in_order(path: Path, rewrite: Callable[[Path], None]) -> None:
    source = discover(path, path.suffix[1:]).reader.source
    seen: list[int] = []

    def read_all() -> None:
        for table in source.read(FileSplit(source.files[0]), source.schema, 1 << 12):
            seen.extend(table["id"].to_pylist())
            if seen[-1] == 4999:
                rewrite(path)

    with pytest.raises(FileChangedError, match=r"/a\."):
        read_all()
    assert seen == list(range(len(seen)))


def test_the_same_bytes_at_another_time_or_in_another_file(path: Path) -> None:
    backend = by_index(path)
    expected = backend.take([7, 30_000])
    os.utime(path, ns=(1, 1))
    assert backend.take([7, 30_000]).equals(expected)
    copy = path.with_stem("copy")
    shutil.copyfile(path, copy)
    os.replace(copy, path)
    assert backend.take([7, 30_000]).equals(expected)
