"""Tasks in worker processes of this machine."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace.errors import ReadError, WriteError
from headrace.storage import run_by_processes

pytestmark = pytest.mark.usefixtures("warm_workers")

Report = Callable[[Any], None]


def ignore(task: Any, place: Any) -> None:
    pass


def test_results_come_with_their_tasks_and_progress() -> None:
    def run(task: int, report: Report) -> tuple[int, bytes]:
        time.sleep(0.3)
        report(task + 0.5)
        return os.getpid(), bytes(task * 1_000_000)

    places = []
    found = dict(run_by_processes(run, [1, 2, 3], 2, lambda task, place: places.append(place)))
    assert {task: len(data) for task, (_, data) in found.items()} == {
        task: task * 1_000_000 for task in (1, 2, 3)
    }
    assert len({pid for pid, _ in found.values()}) == 2
    assert os.getpid() not in {pid for pid, _ in found.values()}
    assert sorted(places) == [1.5, 2.5, 3.5]


def test_a_large_function_reaches_all_workers() -> None:
    ballast = os.urandom(3_000_000)
    found = run_by_processes(lambda task, report: len(ballast) + task, range(4), 2, ignore)
    assert sorted(found) == [(task, len(ballast) + task) for task in range(4)]


def test_an_error_ends_all_workers() -> None:
    def run(task: int, report: Report) -> None:
        if task == 1:
            raise ReadError("it is broken")
        time.sleep(1000)

    with pytest.raises(ReadError, match="it is broken"):
        list(run_by_processes(run, [0, 1], 2, ignore))


def test_a_worker_that_ends_is_noticed_while_a_program_that_it_started_runs() -> None:
    def run(task: int, report: Report) -> None:
        subprocess.Popen(["sleep", "20"])
        os._exit(3)

    began = time.monotonic()
    with pytest.raises(
        WriteError, match="a worker process ended with status 3; run the same again"
    ):
        list(run_by_processes(run, [0], 1, ignore))
    assert time.monotonic() - began < 15


def test_programs_that_a_task_starts_do_not_read_its_messages() -> None:
    def run(task: int, report: Report) -> bytes:
        return subprocess.run(["cat"], stdout=subprocess.PIPE, check=True).stdout

    assert list(run_by_processes(run, [0, 1], 1, ignore)) == [(0, b""), (1, b"")]
