"""ArrayRecord files in worker processes and threads: what hangs with other ways to read them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from array_record_files import records_of, write_records
from array_record_processes import TASKS
from warm_interpreters import run_warm

SCRIPT = Path(__file__).with_name("array_record_processes.py")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """All tasks, in a process that is killed if one of them hangs; the first is in a fresh one."""
    folder = tmp_path_factory.mktemp("records")
    path = write_records(folder / "a.array_record", records_of(150, size=3000))
    return run_warm(SCRIPT, path)


@pytest.mark.parametrize("task", [task.__name__ for task in TASKS])
def test_a_task_of_processes(done: subprocess.CompletedProcess[str], task: str) -> None:
    assert f"done {task}\n" in done.stdout, done.stderr
