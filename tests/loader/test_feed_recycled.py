"""Batches that a consumer keeps stay unchanged while workers reuse the memory of others."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from small_files import eventually
from torch.utils.data import DataLoader
from warm_interpreters import run_warm
from worker_code import with_process

from headrace import StructuredDataset, WorkerError
from headrace.access import ArrowBackend, RowDataset
from headrace.convert import shared
from headrace.convert.shared import forget_dead_senders

ROWS, BATCH_ROWS, EPOCHS = 6_000, 50, 3


def table() -> pa.Table:
    ids = np.arange(ROWS)
    vectors = np.random.default_rng(0).standard_normal((ROWS, 32), np.float32)
    return pa.table(
        {
            "id": ids,
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), 32),
            "text": [f"row {i} " * (i % 7) for i in range(ROWS)],
        }
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("data")
    pq.write_table(table(), directory / "rows.parquet", row_group_size=500)
    return directory


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Free the segments of workers that have ended. Parcels are small, so that there are many."""
    monkeypatch.setattr("headrace.loader._workers._PARCEL_BATCHES", 3)
    names = shared_memory_files()
    yield
    gc.collect()
    assert eventually(no_segments)
    assert not shared_memory_files() - names


def mapped_segments() -> int:
    return len(shared._mapped.get())


def no_segments() -> bool:
    forget_dead_senders()
    return mapped_segments() == 0


def shared_memory_files() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if f"_{os.getpid()}_" in name}


def checksum(batch: Any) -> int:
    """Return a checksum of all values of a batch."""
    if isinstance(batch, pa.RecordBatch):
        return crc32(repr(batch.to_pylist()).encode())
    total = 0
    for value in batch.values():
        if isinstance(value, torch.Tensor | np.ndarray) and value.dtype != object:
            total = crc32(np.ascontiguousarray(value).view(np.uint8), total)
        else:
            total = crc32(repr(list(value)).encode(), total)
    return total


class Keeper:
    """Takes batches and keeps some of them for a while, at random."""

    def __init__(self) -> None:
        self._random = random.Random(3)
        self._kept: list[tuple[int, Any]] = []

    def take(self, batches: Iterable[Any]) -> list[int]:
        """Return the checksum of each batch, checking that the kept ones have not changed."""
        sums = []
        for batch in batches:
            sums.append(checksum(batch))
            if self._random.random() < 0.3:
                self._kept.append((sums[-1], batch))
            while len(self._kept) > 12:
                self._look_at(self._kept.pop(self._random.randrange(len(self._kept))))
        return sums

    def finish(self) -> None:
        assert self._kept
        for one in self._kept:
            self._look_at(one)
        self._kept.clear()

    @staticmethod
    def _look_at(kept: tuple[int, Any]) -> None:
        was, batch = kept
        assert checksum(batch) == was, "a kept batch has changed"


def read_epochs(loader: Any) -> list[list[int]]:
    keeper = Keeper()
    epochs = [keeper.take(loader) for _ in range(EPOCHS)]
    keeper.finish()
    return epochs


@pytest.mark.parametrize("output_format", ["torch", "numpy", "arrow"])
@pytest.mark.parametrize("persistent", [True, False])
def test_kept_batches_of_a_loader(data: Path, output_format: str, persistent: bool) -> None:
    options = {"batch_size": BATCH_ROWS, "output_format": output_format, "shuffle": True}
    here, _ = StructuredDataset.create_dataloader(data, num_workers=0, lanes=2, **options)
    loader, _ = StructuredDataset.create_dataloader(
        data, num_workers=2, persistent_workers=persistent, **options
    )
    epochs = read_epochs(loader)
    assert epochs == [[checksum(batch) for batch in here] for _ in range(EPOCHS)]
    if persistent:
        assert 2 <= mapped_segments() <= 32
        places = mapped_segments()
        read_epochs(loader)
        assert mapped_segments() <= places + 8, "segments are not reused"


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.parametrize("rows_by_index", [False, True])
def test_kept_batches_of_a_loader_of_torch(data: Path, method: str, rows_by_index: bool) -> None:
    if rows_by_index:
        rows = RowDataset(ArrowBackend(table=table()))
        options: dict[str, Any] = {"batch_size": BATCH_ROWS}
    else:
        rows = StructuredDataset(data, batch_size=BATCH_ROWS, lanes=2)
        options = {"batch_size": None, "collate_fn": rows.collate}
    loader = DataLoader(
        rows, num_workers=2, persistent_workers=True, multiprocessing_context=method, **options
    )
    epochs = read_epochs(loader)
    expected = [checksum(batch) for batch in DataLoader(rows, **options)]
    assert epochs == [expected] * EPOCHS
    assert 2 <= mapped_segments() <= 32


def test_batches_of_several_loaders_at_once(data: Path) -> None:
    loaders = [
        StructuredDataset.create_dataloader(
            data, num_workers=1, batch_size=size, multiprocessing_context=method
        )[0]
        for size, method in ((50, "forkserver"), (70, "fork"), (110, "fork"))
    ]
    keepers = [Keeper() for _ in loaders]
    passes = [iter(loader) for loader in loaders]
    sums: list[list[int]] = [[] for _ in loaders]
    for _ in range(50):
        for which, (batches, keeper) in enumerate(zip(passes, keepers, strict=True)):
            sums[which] += keeper.take(batch for _, batch in zip(range(1), batches, strict=False))
    for keeper in keepers:
        keeper.finish()
    for loader, found in zip(loaders, sums, strict=True):
        size = loader.dataset.batch_size
        here, _ = StructuredDataset.create_dataloader(data, num_workers=0, batch_size=size)
        assert found == [checksum(batch) for _, batch in zip(range(50), here, strict=False)]


@pytest.mark.parametrize("persistent", [True, False])
def test_nothing_is_held_for_a_loader_that_is_gone(data: Path, persistent: bool) -> None:
    loader, _ = StructuredDataset.create_dataloader(
        data, num_workers=2, batch_size=BATCH_ROWS, persistent_workers=persistent
    )
    kept = [list(loader)[-1] for _ in range(2)]
    assert bool(mapped_segments()) == persistent
    del loader
    gc.collect()
    assert eventually(lambda: mapped_segments() == 0)
    assert [checksum(batch) for batch in kept] == [checksum(kept[0])] * 2


def test_all_batches_may_be_kept(data: Path) -> None:
    loader, _ = StructuredDataset.create_dataloader(data, num_workers=2, batch_size=20)
    kept = list(loader)
    assert torch.equal(torch.cat([batch["id"] for batch in kept]).sort()[0], torch.arange(ROWS))


def test_a_loader_that_is_left_in_mid_epoch(data: Path) -> None:
    loader, _ = StructuredDataset.create_dataloader(
        data, num_workers=2, batch_size=BATCH_ROWS, persistent_workers=True
    )
    keeper = Keeper()
    for batches in (3, 17, 1):
        sums = keeper.take(batch for _, batch in zip(range(batches), loader, strict=False))
        assert len(sums) == batches
    assert len(keeper.take(loader)) == ROWS // BATCH_ROWS
    del loader
    keeper.finish()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_batches_outlive_a_worker_that_is_killed(data: Path) -> None:
    loader, _ = StructuredDataset.create_dataloader(
        data, num_workers=2, batch_size=BATCH_ROWS, transform=with_process
    )
    batches = iter(loader)
    kept = [next(batches) for _ in range(30)]
    sums = list(map(checksum_of_numbers, kept))
    with pytest.raises((WorkerError, RuntimeError)):
        kill_and_go_on(kept[-1]["pid"], batches)
    del batches, loader
    gc.collect()
    assert list(map(checksum_of_numbers, kept)) == sums


def checksum_of_numbers(batch: dict[str, Any]) -> int:
    return checksum({"id": batch["id"], "vector": batch["vector"]})


def kill_and_go_on(pid: int, batches: Iterable[Any]) -> None:
    os.kill(pid, signal.SIGKILL)
    for _ in batches:
        pass


def test_what_a_forked_process_was_given_stays_as_it_was(data: Path) -> None:
    loader, _ = StructuredDataset.create_dataloader(data, num_workers=1, batch_size=BATCH_ROWS)
    context = multiprocessing.get_context("fork")
    batches = iter(loader)
    held = next(batches)
    was = checksum(held)
    go, done = context.Event(), context.SimpleQueue()
    child = context.Process(target=look_later, args=(held, go, done))
    child.start()
    del held
    for _ in batches:
        pass
    go.set()
    assert done.get() == was
    child.join()


def look_later(batch: Any, go: Any, done: Any) -> None:
    go.wait(60)
    done.put(checksum(batch))


FEW_DESCRIPTORS = """
import resource, sys
import torch
from torch.utils.data import DataLoader
from headrace import StructuredDataset

kept = None
if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    seen = 0
    for _ in range(2):
        own, _ = StructuredDataset.create_dataloader(sys.argv[1], num_workers=4, batch_size=10)
        dataset = StructuredDataset(sys.argv[1], batch_size=10)
        plain = DataLoader(dataset, batch_size=None, num_workers=4, collate_fn=dataset.collate)
        for batch, other in zip(own, plain):
            seen += len(batch["id"]) + len(other["id"])
            kept = batch, other["id"]
    print(seen)
"""


def test_256_descriptors_are_enough_and_the_end_is_quiet(data: Path, tmp_path: Path) -> None:
    script = tmp_path / "few.py"
    script.write_text(FEW_DESCRIPTORS)
    done = run_warm(script, data)
    assert (done.returncode, done.stdout.strip()) == (0, str(4 * ROWS)), done.stderr
    assert "Exception ignored" not in done.stderr
