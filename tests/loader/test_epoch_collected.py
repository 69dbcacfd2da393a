"""A pass that is left in a reference cycle is ended by garbage collection, at any place."""

from __future__ import annotations

import gc
import multiprocessing
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_files import eventually, write_parquet
from warm_interpreters import WarmProcess

from headrace import StatefulLoader, StructuredDataset


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parquet(tmp_path_factory.mktemp("data"), [(3000, 500)] * 2)


@pytest.fixture(autouse=True)
def collected_on_demand() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


class Cycle:
    def __init__(self, held: object) -> None:
        self.held, self.itself = held, self


def make(data: Path) -> StatefulLoader:
    return StructuredDataset.create_dataloader(data, batch_size=50, num_workers=0)[0]


def leave_in_a_cycle(loader: StatefulLoader) -> None:
    batches = iter(loader)
    next(batches)
    Cycle(batches)


def readers() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith("headrace-read")]


def finishes(work: Any) -> bool:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(30)
    return not thread.is_alive()


def test_a_collection_does_not_wait_for_a_lock_that_it_came_in(data: Path) -> None:
    """Collect within a lock that readers need, too: closing a pass waits for its readers."""
    loader = make(data)
    leave_in_a_cycle(loader)
    lock, stopped = threading.Lock(), []
    stop = loader._pass._close  # type: ignore[union-attr]

    def stop_within_the_lock() -> None:
        with lock:
            stop()
            stopped.append(True)

    def collect_within_the_lock() -> None:
        with lock:
            gc.collect()
            assert not stopped

    loader._pass._close = stop_within_the_lock  # type: ignore[union-attr]
    assert finishes(collect_within_the_lock)
    assert eventually(lambda: bool(stopped))
    assert loader.stats()["batches"] == 1


def test_nor_does_one_that_comes_to_a_reader_of_the_same_pass(data: Path) -> None:
    loader = make(data)
    leave_in_a_cycle(loader)
    ahead = loader._pass._close.__self__._ahead  # type: ignore[union-attr]

    def collect_as_a_reader() -> None:
        with ahead._lock:
            gc.collect()

    assert finishes(collect_as_a_reader)
    assert eventually(lambda: not readers())


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_that_are_left_in_a_cycle_end_at_once(data: Path, persistent: bool) -> None:
    """Check that a collection asks workers to end before it kills them, and does not wait."""
    options = {"batch_size": 50, "num_workers": 2, "persistent_workers": persistent}
    loader = StructuredDataset.create_dataloader(data, **options)[0]
    batches = iter(loader)
    next(batches)
    workers = multiprocessing.active_children()
    Cycle((loader, batches))
    del loader, batches
    began = time.monotonic()
    gc.collect()
    assert time.monotonic() - began < 4
    assert eventually(lambda: not any(worker.is_alive() for worker in workers))
    assert [worker.exitcode for worker in workers] == [0, 0]


COLLECTED_AT_EXIT = """
import gc, sys
gc.disable()
from headrace import StructuredDataset

batches = iter(StructuredDataset.create_dataloader(
    sys.argv[1], batch_size=10, num_workers=int(sys.argv[2])
)[0])
next(batches)
cycle = [batches]
cycle.append(cycle)
del batches, cycle
if sys.argv[3] == "collect":
    gc.collect()
"""


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("when", ["collect", "exit"])
def test_a_pass_that_is_collected_at_exit_ends(data: Path, workers: int, when: str) -> None:
    with WarmProcess("-c", COLLECTED_AT_EXIT, data, workers, when) as process:
        ended = process.finish(timeout_s=120)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_the_next_iteration_waits_for_the_end_of_the_pass_that_was_left(data: Path) -> None:
    loader = make(data)
    next(iter(loader))
    assert len(list(loader)) == len(loader)
    assert not readers()
