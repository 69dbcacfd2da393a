"""Lance does not survive a fork: workers read what they should all the same, however they begin."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lance_elsewhere import Elsewhere
from warm_interpreters import run_warm

SCRIPT = Path(__file__).with_name("forking_script.py")
LIVE = [number for number in range(400) if number % 5 != 1]
PATIENCE_S = 200.0


@pytest.fixture(scope="module")
def numbers(elsewhere: Elsewhere, tmp_path_factory: pytest.TempPathFactory) -> Path:
    uri = tmp_path_factory.mktemp("forks") / "numbers.lance"
    elsewhere.write(uri, pa.table({"id": range(400)}), max_rows_per_file=150)
    elsewhere.change(uri, "delete", "id % 5 = 1")
    return uri


def told(uri: Path, *steps: str) -> list[dict[str, Any]]:
    done = run_warm(SCRIPT, uri, *steps)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_workers_of_a_process_that_only_made_a_backend_use_lance(numbers: Path) -> None:
    """Also if Lance was imported there, and nothing else."""
    made, imported = told(numbers, "fork", "import", "fork")
    for one in (made, imported):
        assert one["ids"] == LIVE
        assert one["warned"] == []
        assert not any(one["helped"])


def test_it_counts_who_has_used_lance_and_not_by_what(numbers: Path) -> None:
    used, served, spawned = told(numbers, "use", "fork", "forkserver", "spawn")
    assert used["ids"] == LIVE
    assert all(used["helped"])
    for one in (served, spawned):
        assert one["ids"] == LIVE
        assert one["warned"] == []
        assert not any(one["helped"])


def test_workers_of_a_process_that_has_read_have_others_read_for_them(numbers: Path) -> None:
    """Which end with them."""
    command = [sys.executable, str(SCRIPT), str(numbers), "read", "fork", "wait"]
    script = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert script.stdout is not None
        one = json.loads(script.stdout.readline())
        assert one["ids"] == LIVE
        assert all(one["helped"])
        assert len(one["warned"]) == 2  # once in each worker
        assert all('multiprocessing_context="forkserver"' in text for text in one["warned"])
        found = json.loads(script.stdout.readline())
        assert is_running(found["helper"])
        os.kill(found["child"], signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE_S / 4
        while is_running(found["helper"]):
            assert time.monotonic() < deadline, "it goes on without anybody who could ask"
            time.sleep(0.05)
        assert script.wait(PATIENCE_S) == 0
    finally:
        script.kill()
        script.wait()
        script.stdout.close()


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
