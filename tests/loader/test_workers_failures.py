"""Errors in a worker process reach the user with the worker's own message and traceback."""

from __future__ import annotations

import collections
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_files import all_ids, write_parquet
from warm_interpreters import run_warm
from worker_code import (
    die_at_row_777,
    leave_at_row_777,
    raise_what_does_not_pickle,
    refuse_row_777,
    slowly,
    stop_iteration_at_row_777,
    with_process,
)

from headrace import (
    ConversionError,
    FileChangedError,
    HeadraceError,
    OptionError,
    StatefulLoader,
    StructuredDataset,
    WorkerError,
)
from headrace.loader._feed import Failure


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_parquet(tmp_path / "data")


def make(data: Path, **options: Any) -> StatefulLoader:
    settings = {"batch_size": 100, "num_workers": 2, **options}
    return StructuredDataset.create_dataloader(data, **settings)[0]


def exhaust(loader: StatefulLoader) -> None:
    """Iterate without Python code in between, where a signal handler might raise."""
    collections.deque(loader, maxlen=0)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_file_that_changed_is_named(data: Path, num_workers: int) -> None:
    loader = make(data, num_workers=num_workers)
    broken = data / "part-02.parquet"
    broken.write_bytes(broken.read_bytes()[:-100])
    with pytest.raises(FileChangedError, match="part-02") as caught:
        exhaust(loader)
    check_cause(caught.value, num_workers, "FileChangedError")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_null_without_a_place_names_file_rows_and_column(data: Path, num_workers: int) -> None:
    rows = pa.table({"id": pa.array([1, None, 3], pa.int64()), "x": [1.0, 2.0, 3.0]})
    pq.write_table(rows, data / "part-07.parquet")
    loader = make(data, num_workers=num_workers, columns=["id"])
    with pytest.raises(ConversionError, match=r"part-07\.parquet, rows 0-3.*'id'") as caught:
        exhaust(loader)
    check_cause(caught.value, num_workers, "ConversionError")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_a_transform_raises_arrives_as_it_is(data: Path, num_workers: int) -> None:
    loader = make(data, num_workers=num_workers, transform=refuse_row_777)
    with pytest.raises(LookupError, match="row 777 is not welcome") as caught:
        exhaust(loader)
    check_cause(caught.value, num_workers, "refuse_row_777")


def test_an_exception_that_does_not_pickle_keeps_its_name_and_words(data: Path) -> None:
    loader = make(data, transform=raise_what_does_not_pickle)
    with pytest.raises(WorkerError, match=r"HardToSend: no luck \(7\)") as caught:
        exhaust(loader)
    check_cause(caught.value, 2, "raise_what_does_not_pickle")
    with pytest.raises(Exception, match="no luck") as local:
        exhaust(make(data, num_workers=0, transform=raise_what_does_not_pickle))
    assert type(local.value).__name__ == "HardToSend"


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 2}, {"lanes": 3}])
def test_a_stop_iteration_does_not_end_the_epoch_in_silence(
    data: Path, options: dict[str, Any]
) -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        exhaust(make(data, transform=stop_iteration_at_row_777, **options))


def test_workers_have_ended_when_an_error_arrives(data: Path) -> None:
    """Keep the traceback: a later collection of the iterator would wait for workers."""
    before = set(multiprocessing.active_children())
    loader = make(data, transform=refuse_row_777)
    with pytest.raises(LookupError) as caught:
        exhaust(loader)
    assert set(multiprocessing.active_children()) <= before
    assert caught.tb is not None


def test_an_error_ends_the_epoch_and_not_the_loader(data: Path) -> None:
    failing = make(data, transform=refuse_row_777, persistent_workers=True)
    for _ in range(2):
        with pytest.raises(LookupError):
            exhaust(failing)
    assert failing.dataset.epoch == 0


# Torch raises in a handler of SIGCHLD, which may strike where the error cannot be caught.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("transform", [die_at_row_777, leave_at_row_777])
def test_a_worker_that_dies_is_an_error_and_not_a_hang(data: Path, transform: Any) -> None:
    loader = make(data, transform=transform)
    with pytest.raises(WorkerError, match="worker"):
        exhaust(loader)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_death_is_noticed_at_once(data: Path, tmp_path: Path) -> None:
    """Check that the library notices before torch, which looks every five seconds."""
    note = tmp_path / "died"

    def note_and_die(batch: Any) -> Any:
        if (batch["id"] == 777).any():
            note.write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        return batch

    # If the pipe ends before torch notices the death, the message is another one.
    with pytest.raises(WorkerError, match="a worker process died"):
        exhaust(make(data, transform=note_and_die))
    assert time.time() - float(note.read_text()) < 4


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_persistent_workers_that_died_are_replaced(data: Path) -> None:
    loader = make(data, transform=with_process, persistent_workers=True)
    pids = {batch["pid"] for batch in loader}
    assert pids == {batch["pid"] for batch in loader}
    with pytest.raises(RuntimeError):  # torch's signal handler may be faster than the library
        kill_and_go_on(pids.pop(), loader)
    assert len(all_ids(loader)) == 1154


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_lock_that_a_worker_died_with_is_not_waited_for(data: Path) -> None:
    """Check that the workers that replace the dead one have a lock of their own."""
    loader = make(data, transform=with_process, persistent_workers=True, balance="adaptive")
    pids = {batch["pid"] for batch in loader}
    kept = loader._pool._kept
    assert kept is not None
    assert kept.claims is not None
    kept.claims._lock.acquire()
    with pytest.raises(RuntimeError):
        kill_and_go_on(pids.pop(), loader)
    assert len(all_ids(loader)) == 1154


def kill_and_go_on(pid: int, loader: StatefulLoader) -> None:
    os.kill(pid, signal.SIGKILL)
    exhaust(loader)


def test_a_timeout_is_an_error_that_says_so(data: Path) -> None:
    loader = make(data, transform=sleep_long, timeout=0.2)
    with pytest.raises(WorkerError, match=r"timed out.*timeout"):
        exhaust(loader)


def sleep_long(batch: Any) -> Any:
    time.sleep(3)
    return batch


@pytest.mark.parametrize("method", [None, "spawn", "forkserver"])
@pytest.mark.parametrize("name", ["transform", "collate_fn", "worker_init_fn"])
def test_what_cannot_be_sent_names_the_cures(data: Path, name: str, method: str | None) -> None:
    lock = threading.Lock()
    loader = make(data, multiprocessing_context=method, **{name: lambda batch: lock})
    with pytest.raises(WorkerError, match=rf"{name}.*lock.*worker_init_fn.*num_workers=0"):
        exhaust(loader)


@pytest.mark.parametrize("name", ["transform", "collate_fn"])
def test_what_cannot_be_sent_back_is_an_error(data: Path, name: str) -> None:
    loader = make(data, **{name: lambda batch: threading.Lock()})
    with pytest.raises(WorkerError, match=r"cannot be sent from a worker.*lock"):
        exhaust(loader)


def test_what_worker_init_fn_raises_arrives_as_it_is(data: Path) -> None:
    loader = make(data, worker_init_fn=fail_in_the_second)
    with pytest.raises(LookupError, match="no such worker") as caught:
        exhaust(loader)
    check_cause(caught.value, 2, "fail_in_the_second")


def fail_in_the_second(worker: int) -> None:
    if worker == 1:
        raise LookupError("no such worker")


@pytest.mark.parametrize("context", ["thread", 7, "Fork"])
def test_an_unknown_start_method_is_refused_at_once(data: Path, context: Any) -> None:
    with pytest.raises(OptionError, match="multiprocessing_context"):
        make(data, multiprocessing_context=context)


UNGUARDED = """
import sys
from functools import partial
from headrace import StructuredDataset

def transform(ballast, batch):
    return batch

loader, _ = StructuredDataset.create_dataloader(
    sys.argv[1],
    num_workers=1,
    multiprocessing_context=sys.argv[2],
    transform=partial(transform, bytes(int(sys.argv[3]))),
)
for batch in loader:
    pass
"""


@pytest.mark.parametrize(("method", "ballast"), [("spawn", 300_000), ("forkserver", 0)])
def test_a_script_without_a_guard_is_told_to_have_one(
    data: Path, tmp_path: Path, method: str, ballast: int
) -> None:
    """Check workers that die before they have received all their input, too."""
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    done = run_warm(script, data, method, ballast)
    assert done.returncode == 1
    last = done.stderr[done.stderr.rindex("WorkerError") :]
    assert 'if __name__ == "__main__":' in last


def test_every_error_of_ours_crosses_as_itself() -> None:
    for kind in HeadraceError.__subclasses__():
        sent = Failure.of(kind("what, where, what to do"))
        with pytest.raises(kind, match="what, where") as caught:
            sent.reraise()
        assert "what, where" in str(caught.value.__cause__)


def test_slow_workers_lose_nothing(data: Path) -> None:
    assert len(all_ids(make(data, transform=slowly, prefetch_factor=1))) == 1154


def check_cause(error: BaseException, num_workers: int, words: str) -> None:
    """Check that an error from a worker carries the worker's traceback."""
    if num_workers:
        assert isinstance(error.__cause__, WorkerError)
        assert "Traceback" in str(error.__cause__)
        assert words in str(error.__cause__)
