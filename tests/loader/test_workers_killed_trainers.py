"""No process and no shared memory of a loader outlives a trainer that is killed."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest
from hung_processes import session_members
from small_files import eventually, is_running, write_parquet
from warm_interpreters import WarmProcess

TRAINER = """
import multiprocessing, os, sys, threading, time
from functools import partial
from pathlib import Path

import pyarrow as pa
from torch.utils.data import DataLoader

from headrace import StructuredDataset

calls = 0

def transform(batch, state, folder):
    global calls
    calls += 1
    if calls == 2:
        Path(folder, f"{state}-{os.getpid()}").touch()
        if state == "sleeping":
            time.sleep(3600)
        if state == "reading":
            pa.OSFile(f"{folder}/pipe").read()  # which nobody writes to
    return {"text": "x" * 1_000_000} if state == "sending" else 0

def opened(kind, data, workers, method, transform):
    if kind == "own":
        options = dict(num_workers=workers, multiprocessing_context=method, transform=transform)
        return StructuredDataset.create_dataloader(data, batch_size=50, **options)[0]
    options = dict(num_workers=workers, multiprocessing_context=method, collate_fn=transform)
    if kind == "plain":
        return DataLoader(StructuredDataset(data, batch_size=50), batch_size=None, **options)
    return DataLoader(StructuredDataset(data).rows, batch_size=50, **options)

if __name__ == "__main__":
    data, folder, method, count, *cases = sys.argv[1:]
    multiprocessing.set_forkserver_preload(["headrace.loader"])
    method = None if method == "own" else method
    running = []
    for case in cases:
        kind, _, state = case.partition(" ")
        stay = partial(transform, state=state, folder=folder)
        running.append(iter(opened(kind, data, int(count), method, stay)))
        next(running[-1])
    threading.Event().wait()
"""
CASES = ["own sleeping", "own reading", "own sending", "plain sleeping", "rows sleeping"]
"""loaders of the library, of the user and of rows by index, and the last action of workers"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parquet(tmp_path_factory.mktemp("data"), [(3000, 500)] * 6)


@pytest.mark.parametrize(
    ("method", "workers", "cases"),
    [
        ("own", 2, CASES[:3]),
        ("fork", 2, CASES[:3]),
        ("forkserver", 2, CASES),
        ("spawn", 1, CASES[:1]),
    ],
    ids=["own", "fork", "forkserver", "spawn"],
)
def test_no_process_and_no_shared_memory_outlives_a_killed_trainer(
    data: Path, tmp_path: Path, method: str, workers: int, cases: list[str]
) -> None:
    kill_a_trainer(data, tmp_path, method, workers, cases)


def test_twenty_kills_leave_no_process(data: Path, tmp_path: Path) -> None:
    """Check workers, their server and the resource tracker, which all belong to one session."""
    for number in range(16):  # and four above
        folder = tmp_path / str(number)
        folder.mkdir()
        kill_a_trainer(data, folder, "own", 2, [CASES[number % 3]])


def kill_a_trainer(data: Path, folder: Path, method: str, workers: int, cases: list[str]) -> None:
    script, states = folder / "trainer.py", folder / "states"
    script.write_text(TRAINER)
    states.mkdir()
    os.mkfifo(states / "pipe")
    with WarmProcess(script, data, states, method, workers, *cases) as trainer:
        try:
            expected = workers * len(cases)
            eventually(lambda: len(workers_in(states)) == expected or trainer.poll(), 300.0)
            assert trainer.poll() is None, trainer.finish().stderr
            started = session_members(trainer.pid)
            assert workers_in(states) < started
            names = shared_names(started)
            os.kill(trainer.pid, signal.SIGKILL)
            assert eventually(lambda: not any(map(is_running, started)))
            assert eventually(lambda: not session_members(trainer.pid))
            assert eventually(lambda: not any(map(os.path.exists, names)))
        finally:
            for pid in session_members(trainer.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def workers_in(folder: Path) -> set[int]:
    """Return the ids of the workers that have reached their waiting point."""
    return {int(path.name.partition("-")[2]) for path in folder.glob("*-*")}


def shared_names(processes: set[int]) -> set[str]:
    """Return the named files in shared memory that processes have mapped."""
    found = set()
    for pid in processes:
        with contextlib.suppress(FileNotFoundError):
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                path = line.partition("/")[2]
                if path.startswith("dev/shm/") and not path.endswith("(deleted)"):
                    found.add(f"/{path}")
    return found
