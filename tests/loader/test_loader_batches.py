"""Batches belong to the user: they stay as they are, and writing to one changes nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_files import ROWS, all_ids, write_parquet

from headrace import StatefulLoader, StructuredDataset
from headrace.testing import frozen

KINDS = [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}]
MIB = 1 << 20


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parquet(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def one_group(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write one large row group, from which small chunks are cut."""
    return write_parquet(tmp_path_factory.mktemp("group"), [(5000, 5000)])


def make(data: Path, **options: Any) -> StatefulLoader:
    settings = {"batch_size": 100, "num_workers": 0, **options}
    return StructuredDataset.create_dataloader(data, **settings)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_that_is_kept_stays_as_it_was(data: Path, kind: dict[str, Any]) -> None:
    loader = make(data, shuffle=True, split_rows=70, mix=2, **kind)
    kept, before = [], []
    for batch in loader:
        kept.append(batch)
        before.append(frozen(batch))
    for _ in range(2):
        for batch in loader:
            batch["id"].fill_(-1)
    del loader
    assert list(map(frozen, kept)) == before


@pytest.mark.parametrize("output_format", ["torch", "numpy"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"split_rows": 70},
        {"split_rows": 70, "shuffle": True, "mix": 3},
        {"num_workers": 2, "split_rows": 70},
        {"num_workers": 2, "persistent_workers": True},
    ],
)
def test_writing_into_batches_harms_nobody(
    one_group: Path, output_format: str, options: dict[str, Any]
) -> None:
    loader = make(one_group, output_format=output_format, **options)
    for _ in range(2):
        ids: list[int] = []
        for batch in loader:
            ids += batch["id"].tolist()
            assert (batch["x"] * 4 == batch["id"]).all()
            batch["id"][:] = -1
            batch["x"][:] = -1
        assert sorted(ids) == list(range(5000))


def test_writing_into_one_batch_does_not_show_in_the_next(one_group: Path) -> None:
    loader = make(one_group, split_rows=33, batch_size=50)
    batches = []
    for batch in loader:
        batches.append(batch)
        batches[0]["id"].fill_(-7)
    assert all_ids(batches[1:]) == list(range(50, 5000))


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_inside_a_loop_over_the_same_loader(data: Path, kind: dict[str, Any]) -> None:
    loader = make(data, lanes=2, **kind)
    expected = all_ids(make(data, lanes=2))
    outer: list[int] = []
    for number, batch in enumerate(loader):
        outer += batch["id"].tolist()
        if number in (0, 5):
            assert sorted(all_ids(loader)) == list(range(ROWS))
    assert outer == expected


@pytest.mark.parametrize("kind", KINDS)
def test_two_iterators_in_step(data: Path, kind: dict[str, Any]) -> None:
    loader = make(data, lanes=2, **kind)
    pairs = [(a["id"].tolist(), b["id"].tolist()) for a, b in zip(loader, loader, strict=True)]
    assert len(pairs) == 12
    assert all(a == b for a, b in pairs)


def test_two_loaders_at_once(data: Path) -> None:
    loaders = [make(data, num_workers=n, lanes=2) for n in (0, 2, 0)]
    for a, b, c in zip(*loaders, strict=True):
        assert frozen(a) == frozen(b) == frozen(c)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_loaders_in_threads(data: Path, num_workers: int) -> None:
    def run(_: int) -> list[int]:
        return all_ids(make(data, num_workers=num_workers, lanes=2))

    with ThreadPoolExecutor(2) as threads:
        results = list(threads.map(run, range(2)))
    assert results[0] == results[1] == run(0)


def test_an_iterator_may_move_to_another_thread(data: Path) -> None:
    running = iter(make(data))
    first = next(running)["id"].tolist()
    with ThreadPoolExecutor(1) as threads:
        rest = threads.submit(all_ids, running).result()
    assert first + rest == list(range(ROWS))


@contextmanager
def peak_of_arrow() -> Iterator[list[int]]:
    """Yield a list with the peak of the bytes that Arrow holds beyond those it held before."""
    before, peak, stop = pa.total_allocated_bytes(), [0], threading.Event()

    def watch() -> None:
        while not stop.is_set():
            peak[0] = max(peak[0], pa.total_allocated_bytes() - before)
            time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        stop.set()
        watcher.join()


def write_wide_group(path: Path) -> int:
    """Write a row group of 96 MB in pages of 1 MB, and return its decoded size in bytes."""
    rows, columns = 1_500_000, 8
    random = np.random.default_rng(0)
    values = {f"c{i}": random.random(rows, np.float64) for i in range(columns)}
    table = pa.table(values)
    pq.write_table(table, path, row_group_size=rows, compression="none", use_dictionary=False)
    return int(table.nbytes)


@pytest.mark.parametrize("output_format", ["torch", "arrow"])
def test_a_large_row_group_is_not_held_whole(tmp_path: Path, output_format: str) -> None:
    decoded = write_wide_group(tmp_path / "wide.parquet")
    assert decoded == 96_000_000
    loader = make(tmp_path, batch_size=1000, prefetch_bytes="4MiB", output_format=output_format)
    rows = 0
    with peak_of_arrow() as peak:
        for batch in loader:
            column = batch["c0"]
            rows += len(column)
    assert rows == 1_500_000
    assert peak[0] < 24 * MIB, f"{peak[0] / MIB:.0f} MiB"


@pytest.mark.parametrize(
    ("options", "bound"),
    [({}, 100 * MIB), ({"split_rows": 2000, "mix": 4, "shuffle": True}, 200 * MIB)],
)
def test_strings_that_grow_when_decoded_stay_within_bounds(
    tmp_path: Path, options: dict[str, Any], bound: int
) -> None:
    """Decode a dictionary of long strings: 100 KB in the file, 200 MB in memory.

    A window of 8,000 rows is 32 MB, more than the budget: one is delivered while the next one is
    decoded and mixed, in row groups of 20 MB.
    """
    words = [chr(97 + i) * 4000 for i in range(10)]
    for number in range(2):
        column = pa.array([words[i % 10] for i in range(25_000)])
        table = pa.table({"id": range(25_000), "text": column})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=5000)
    loader = make(
        tmp_path, batch_size=100, prefetch_bytes="16MiB", output_format="arrow", **options
    )
    with peak_of_arrow() as peak:
        rows = sum(len(batch) for batch in loader)
    assert rows == 50_000
    assert peak[0] < bound, f"{peak[0] / MIB:.0f} MiB"
