"""Daemon threads of a user that ask for batches while the interpreter goes down."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_files import write_parquet
from warm_interpreters import ColdProcess, WarmProcess

READING = """
import atexit, sys, threading, time
atexit.register(lambda: at_the_end())
at_the_end = lambda: None
import torch
from headrace import StructuredDataset

inside = threading.Event()

def work_in_torch(batch):
    if threading.current_thread() is not threading.main_thread():
        inside.set()
        for _ in range(50):
            torch.rand(20_000).sort()
    return batch

def read():
    for _ in batches:
        print("a batch")
    print("no more batches")

def make(**options):
    options = {"batch_size": 100, "num_workers": 0, **options}
    return StructuredDataset.create_dataloader(sys.argv[1], **options)[0]

"""
IN_TORCH = """
batches = make(transform=work_in_torch)
"""
BY_HAND = """
batches = make(transform=work_in_torch).dataset
"""
BEGIN = """
thread = threading.Thread(target=read, daemon=True)
thread.start()
inside.wait()
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parquet(tmp_path_factory.mktemp("data"), [(3000, 500)] * 2)


@pytest.mark.parametrize("made", [IN_TORCH, BY_HAND], ids=["loader", "dataset"])
def test_a_thread_within_torch_does_not_abort_the_process(data: Path, made: str) -> None:
    """Nor does it see an epoch that seems to end because reading was stopped."""
    with WarmProcess("-c", READING + made + BEGIN, data) as process:
        ended = process.finish()
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "no more batches" not in ended.stdout


LATE = """
batches = iter(make())
next(batches)

def at_the_end():
    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(1)
    print(thread.is_alive(), sum(1 for _ in make()))
"""


def test_a_thread_that_asks_too_late_gets_nothing_and_the_main_one_all(data: Path) -> None:
    """Cold, or the callback would be younger than the import, and run before the gate is shut."""
    with ColdProcess("-c", READING + LATE, data) as process:
        ended = process.finish()
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "True 60\n", "")


JOINED = """
atexit.register(lambda: (stop.set(), thread.join()))
stop = threading.Event()

def work_until_told(batch):
    inside.set()
    if stop.wait(0.01):
        raise SystemExit
    return batch

def read():
    while True:
        for _ in make(transform=work_until_told):
            pass
"""


def test_a_callback_at_exit_may_wait_for_a_thread_that_reads(data: Path) -> None:
    with WarmProcess("-c", READING + JOINED + BEGIN, data) as process:
        ended = process.finish()
    assert (ended.returncode, ended.stderr) == (0, "")


SLOW = """
def sleep(batch):
    inside.set()
    time.sleep(1000)

batches = make(transform=sleep)
"""


def test_nobody_waits_for_ever_for_a_thread_that_is_inside(data: Path) -> None:
    with WarmProcess("-c", READING + SLOW + BEGIN, data) as process:
        ended = process.finish()
    assert (ended.returncode, ended.stderr) == (0, "")
