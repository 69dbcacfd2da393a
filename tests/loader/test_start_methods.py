"""Every way to start worker processes, in the library's loader and in one made by the user."""

from __future__ import annotations

import json
import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from small_files import ROWS, all_ids, write_csv, write_parquet
from torch.utils.data import DataLoader
from warm_interpreters import run_warm
from worker_code import as_pair, doubled, with_process

from headrace import StructuredDataset
from headrace.testing import frozen

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parquet(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_our_loader_with_every_start_method(data: Path, method: str) -> None:
    options: dict[str, Any] = {"batch_size": 100, "transform": doubled, "shuffle": True, "mix": 2}
    loader, _ = StructuredDataset.create_dataloader(
        data,
        num_workers=1,
        lanes=2,
        multiprocessing_context=multiprocessing.get_context(method),
        persistent_workers=True,
        split_rows=70,
        **options,
    )
    here, _ = StructuredDataset.create_dataloader(
        data, num_workers=0, lanes=2, split_rows=70, **options
    )
    for _ in range(2):
        assert list(map(frozen, loader)) == list(map(frozen, here))


@pytest.mark.parametrize(
    ("method", "fast"),
    [("fork", False), ("fork", True), ("forkserver", False), ("forkserver", True), ("spawn", True)],
)
def test_a_plain_loader_with_every_start_method(data: Path, method: str, fast: bool) -> None:
    dataset = StructuredDataset(data, batch_size=100, transform=doubled)
    plain = DataLoader(
        dataset,
        batch_size=None,
        num_workers=1,
        multiprocessing_context=method,
        collate_fn=dataset.collate if fast else None,
        persistent_workers=True,
    )
    for epoch in range(2):
        dataset.set_epoch(epoch)
        batches = list(plain)
        assert all_ids(batches) == list(range(ROWS))
        assert all(torch.equal(batch["twice"], 2 * batch["id"]) for batch in batches)
        assert isinstance(batches[0]["name"], list)


@pytest.mark.parametrize("num_workers", [1, 2, 3])
@pytest.mark.parametrize("output_format", ["torch", "numpy", "arrow", "dict"])
def test_a_plain_loader_may_have_any_number_of_workers(
    data: Path, output_format: str, num_workers: int
) -> None:
    dataset = StructuredDataset(data, batch_size=100, output_format=output_format, shuffle=True)
    for collate in (None, dataset.collate):
        plain = DataLoader(dataset, batch_size=None, num_workers=num_workers, collate_fn=collate)
        row_ids: list[int] = []
        for batch in plain:
            ids = batch["id"]
            row_ids += ids.to_pylist() if isinstance(ids, pa.Array) else list(map(int, ids))
        assert sorted(row_ids) == list(range(ROWS))


@pytest.mark.parametrize("lanes", [1, 3, 5])
def test_a_plain_loader_with_other_workers_than_lanes(data: Path, lanes: int) -> None:
    dataset = StructuredDataset(data, batch_size=100, lanes=lanes, shuffle=True, split_rows=70)
    plain = DataLoader(dataset, batch_size=None, num_workers=2)
    assert len(plain) == 12
    assert sorted(all_ids(plain)) == list(range(ROWS))


def test_workers_of_a_loader_in_a_pool_of_threads_end_well(data: Path) -> None:
    """Run a loader in threads of a pool: Python fails at the exit of processes that they fork."""

    def run() -> list[multiprocessing.process.BaseProcess]:
        loader, _ = StructuredDataset.create_dataloader(data, batch_size=100, num_workers=2)
        batches = iter(loader)
        next(batches)
        workers = multiprocessing.active_children()
        assert sum(1 for _ in batches) == len(loader) - 1
        return workers

    with ThreadPoolExecutor(1) as pool:
        workers = pool.submit(run).result()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]


def test_a_plain_loader_over_text(tmp_path: Path) -> None:
    write_csv(tmp_path)
    dataset = StructuredDataset(tmp_path, "csv", batch_size=100, split_bytes=1500)
    plain = DataLoader(dataset, batch_size=None, num_workers=3, collate_fn=dataset.collate)
    assert sorted(all_ids(plain)) == list(range(ROWS))


def test_transform_and_collate_fn_run_in_the_worker_in_this_order(data: Path) -> None:
    loader, _ = StructuredDataset.create_dataloader(
        data, num_workers=2, batch_size=100, transform=with_process, collate_fn=sorted
    )
    assert next(iter(loader)) == ["id", "name", "pid", "x"]
    loader, _ = StructuredDataset.create_dataloader(
        data, num_workers=2, batch_size=100, transform=with_process
    )
    pids = {batch["pid"] for batch in loader}
    assert len(pids) == 2
    assert multiprocessing.current_process().pid not in pids


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("output_format", ["torch", "numpy", "arrow", "dict"])
def test_what_a_transform_returns_arrives_as_it_is(
    data: Path, output_format: str, num_workers: int
) -> None:
    loader, _ = StructuredDataset.create_dataloader(
        data,
        num_workers=num_workers,
        batch_size=500,
        output_format=output_format,
        collate_fn=as_pair,
    )
    ids, x = next(iter(loader))
    kinds = {"torch": torch.Tensor, "arrow": pa.Array, "dict": list}
    if output_format in kinds:
        assert isinstance(ids, kinds[output_format])
    assert len(ids) == len(x) == 500
    last = x[499].as_py() if isinstance(x, pa.Array) else float(x[499])
    assert last == 499 / 4


WIDE = """
import json, resource, sys
import torch
from torch.utils.data import DataLoader
from headrace import StructuredDataset

if __name__ == "__main__":
    directory, own, output_format = sys.argv[1], sys.argv[2] == "own", sys.argv[3]
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    options = dict(batch_size=20, output_format=output_format)
    if own:
        loader, _ = StructuredDataset.create_dataloader(directory, num_workers=2, **options)
    else:
        dataset = StructuredDataset(directory, **options)
        loader = DataLoader(
            dataset, batch_size=None, num_workers=2, collate_fn=dataset.collate
        )
    kept = list(loader)
    print(json.dumps([[len(b), sum(float(c[0]) for c in b.values())] for b in kept]))
"""


@pytest.mark.parametrize("own", ["own", "plain"])
def test_600_columns_with_256_descriptors(tmp_path: Path, own: str) -> None:
    rows, columns = 400, 600
    table = pa.table({f"c{i}": pa.array([float(i)] * rows, pa.float32()) for i in range(columns)})
    (tmp_path / "data").mkdir()
    pq.write_table(table, tmp_path / "data" / "wide.parquet", row_group_size=150)
    script = tmp_path / "wide.py"
    script.write_text(WIDE)
    done = run_warm(script, tmp_path / "data", own, "torch")
    assert done.returncode == 0, done.stderr
    total = sum(range(columns))
    assert json.loads(done.stdout) == [[columns, total]] * (rows // 20)


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_workers_do_not_wait_for_who_counted_when_they_were_forked(tmp_path: Path) -> None:
    dataset = StructuredDataset(write_parquet(tmp_path / "data"), batch_size=100)
    counting, enough = threading.Event(), threading.Event()

    def count() -> None:
        with dataset.epochs.counters._lock.get():
            counting.set()
            enough.wait()

    thread = threading.Thread(target=count)
    thread.start()
    counting.wait()
    own = DataLoader(
        dataset, batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=60
    )
    try:
        assert len(all_ids(own)) == ROWS
    finally:
        enough.set()
        thread.join()
