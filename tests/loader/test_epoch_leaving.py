"""Leaving a loop, a loader or the interpreter at any moment leaves nothing behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from small_files import all_ids, descriptors, eventually, is_running, write_parquet
from warm_interpreters import ColdProcess, WarmProcess
from worker_code import with_process

from headrace import StatefulLoader, StructuredDataset

KINDS = [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parquet(tmp_path_factory.mktemp("data"), [(3000, 500)] * 6)


def make(data: Path, **options: Any) -> StatefulLoader:
    settings = {"batch_size": 50, **options}
    return StructuredDataset.create_dataloader(data, **settings)[0]


def reading_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("headrace")]


def shared_files() -> set[str]:
    """Return the names of torch's shared memory; semaphores may belong to other tests."""
    return {name for name in os.listdir("/dev/shm") if name.startswith("torch_")}


def nothing_is_left() -> bool:
    return not reading_threads() and not multiprocessing.active_children()


def run_a_few(loader: StatefulLoader) -> None:
    for _ in islice(loader, 3):
        pass


def raise_in_the_loop(loader: StatefulLoader) -> None:
    with pytest.raises(KeyboardInterrupt):
        _interrupted(loader)


def _interrupted(loader: StatefulLoader) -> None:
    for _ in loader:
        raise KeyboardInterrupt


def run_to_the_end(loader: StatefulLoader) -> None:
    assert len(all_ids(loader)) == 18000


def ask_for_an_iterator(loader: StatefulLoader) -> None:
    iter(loader)


def ask_for_a_state_before_the_first_batch(loader: StatefulLoader) -> None:
    running = iter(loader)
    loader.state_dict()
    del running


def ask_for_a_state_after_the_last(loader: StatefulLoader) -> None:
    for _ in islice(loader, 3):
        loader.state_dict()
    loader.state_dict()


@pytest.mark.parametrize("filters", [None, [("id", ">=", 0)]])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "act",
    [
        run_a_few,
        raise_in_the_loop,
        run_to_the_end,
        ask_for_an_iterator,
        ask_for_a_state_before_the_first_batch,
        ask_for_a_state_after_the_last,
    ],
)
def test_nothing_is_left_behind(
    data: Path, act: Callable[[StatefulLoader], None], kind: dict[str, Any], filters: Any
) -> None:
    shared, open_files = shared_files(), descriptors()
    loader = make(data, filters=filters, **kind)
    act(loader)
    gc.collect()
    if kind.get("persistent_workers"):
        assert eventually(lambda: not reading_threads())
        del loader
    assert eventually(nothing_is_left)
    assert eventually(lambda: shared_files() <= shared)
    gc.collect()
    assert eventually(lambda: descriptors() <= open_files + 8)


def test_descriptors_and_threads_do_not_pile_up(data: Path) -> None:
    loader = make(data, num_workers=2)
    run_a_few(loader)
    before = descriptors()
    for _ in range(6):
        run_a_few(loader)
    assert eventually(nothing_is_left)
    assert eventually(lambda: descriptors() <= before + 4)


def test_two_iterators_dropped_at_once(data: Path) -> None:
    loader = make(data, num_workers=2, persistent_workers=True)
    first, second = iter(loader), iter(loader)
    next(first), next(second)
    del first, second, loader
    gc.collect()
    assert eventually(nothing_is_left)


EXIT = """
import sys
from headrace import StructuredDataset

def main():
    global kept, loader
    loader, _ = StructuredDataset.create_dataloader(
        sys.argv[1], num_workers=int(sys.argv[2]), batch_size=50, split_bytes=20_000
    )
    kept = iter(loader)
    for _ in range(3):
        next(kept)
    if sys.argv[3] == "raise":
        raise SystemExit(0)

main()
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_the_interpreter_exits_in_mid_epoch(data: Path, tmp_path: Path, workers: int) -> None:
    script = tmp_path / "exit.py"
    script.write_text(EXIT)
    ended = []
    for start in (ColdProcess, *[WarmProcess] * 3):
        with (
            start(script, data, workers, "fall off") as one,
            WarmProcess(script, data, workers, "raise") as other,
        ):
            ended += [one.finish(), other.finish()]
    assert [(done.returncode, done.stderr) for done in ended] == [(0, "")] * 8


INTERRUPT = """
import os, sys, time
from itertools import chain, repeat
from headrace import StructuredDataset

def transform(batch):
    return {**batch, "pid": os.getpid()}

if __name__ == "__main__":
    loader, _ = StructuredDataset.create_dataloader(
        sys.argv[1], num_workers=int(sys.argv[2]), batch_size=10, transform=transform
    )
    pids = set()
    epochs = chain.from_iterable(repeat(loader))
    for number, batch in enumerate(epochs):  # and goes on for ever
        if number < 8:
            pids.add(batch["pid"])
        if number == 8:
            print(*pids, flush=True)
        time.sleep(0.01)
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_an_interrupt_from_the_keyboard_ends_everything(
    data: Path, tmp_path: Path, workers: int
) -> None:
    script = tmp_path / "interrupt.py"
    script.write_text(INTERRUPT)
    with WarmProcess(script, data, workers) as process:
        pids = list(map(int, process.first_line().split()))
        assert len(pids) == max(workers, 1)
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        done = process.finish()
    assert done.returncode in (-signal.SIGINT, 130, 1)
    assert "KeyboardInterrupt" in done.stderr
    assert "terminate called" not in done.stderr
    assert eventually(lambda: not any(map(is_running, pids)))


def test_workers_end_when_their_parent_is_killed(data: Path, tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(INTERRUPT)
    with WarmProcess(script, data, 2) as process:
        pids = list(map(int, process.first_line().split()))
        assert len(pids) == 2
        os.kill(process.pid, signal.SIGKILL)
        process.finish()
    assert eventually(lambda: not any(map(is_running, pids)))


def test_persistent_workers_are_the_same_and_others_are_not(data: Path) -> None:
    kept = make(data, num_workers=2, persistent_workers=True, transform=with_process)
    first, second = ({batch["pid"] for batch in kept} for _ in range(2))
    assert first == second
    fresh = make(data, num_workers=2, transform=with_process)
    first, second = ({batch["pid"] for batch in fresh} for _ in range(2))
    assert not first & second


EXITING = """
import sys, threading, time
from multiprocessing import util
from headrace import StructuredDataset

loader, _ = StructuredDataset.create_dataloader(
    sys.argv[1], batch_size=50, num_workers=2, transform=lambda batch: time.sleep(0.1) or batch
)
batches = iter(loader)
next(batches)
reading = threading.Thread(target=list, args=(batches,), daemon=True)
reading.start()
util._exit_function()  # the part of the exit that ends the workers
reading.join(3)
print("waits" if reading.is_alive() else "ended")
"""


def test_a_daemon_thread_that_reads_at_exit_says_nothing(data: Path) -> None:
    """An error printed there may abort the process, because streams are being closed."""
    with WarmProcess("-c", EXITING, data) as process:
        done = process.finish()
    assert (done.returncode, done.stdout, done.stderr) == (0, "waits\n", "")
