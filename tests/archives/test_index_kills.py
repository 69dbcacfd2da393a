"""Runs of ``penstock index`` at the same time, interrupted and killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tar_making import write_tar

from penstock.archives import index_tars
from penstock.archives.tar.arrow_index import ArrowIndexes

PENSTOCK = [sys.executable, "-m", "penstock", "index"]


def many(folder: Path, tars: int = 40) -> Path:
    for number in range(tars):
        write_tar(folder / f"{number}.tar", [(f"{m}.jpg", b"1") for m in range(200)])
    return folder


def test_runs_into_one_file_at_the_same_time(tmp_path: Path) -> None:
    place = tmp_path / "all.arrow"
    command = [*PENSTOCK, str(many(tmp_path / "d")), "--one-file", str(place)]
    runs = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    told = [run.communicate(timeout=100)[1] for run in runs]
    assert [run.returncode for run in runs] == [0, 0, 0], told
    assert len(ArrowIndexes.open(str(place), "all").tars) == 40
    assert sorted(os.listdir(tmp_path)) == ["all.arrow", "d"]


def started(folder: Path, workers: int) -> subprocess.Popen[str]:
    """A run over a tar that takes long, of which a first tar is done."""
    write_tar(folder / "0.tar", [("a.jpg", b"1")])
    for number in (1, 2, 3):
        slow = write_tar(folder / f"{number}.tar", [("a.jpg", b"1")])
        with slow.open("r+b") as file:
            file.write(slow.read_bytes()[:512].replace(b"%011o" % 1, b"%011o" % (7 << 30)))
            file.truncate((7 << 30) + 2048)
    command = [*PENSTOCK, str(folder), "--hash", "--workers", str(workers)]
    run = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while not (folder / "0.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return run


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_is_told_in_one_line(tmp_path: Path, workers: int) -> None:
    run = started(tmp_path, workers)
    os.killpg(run.pid, signal.SIGINT)
    told = run.communicate(timeout=60)[0]
    assert run.returncode == 130, told
    assert told.splitlines()[-1] == "penstock index: interrupted"
    assert "Traceback" not in told


def test_a_worker_that_is_killed(tmp_path: Path) -> None:
    run = started(tmp_path, 2)
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)
    told = run.communicate(timeout=60)[0]
    assert run.returncode == 2, told
    assert "penstock index: a process that indexes tars was killed, at " in told
    assert "Traceback" not in told


def test_what_a_killed_run_left_goes(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "x.tar", [("a.jpg", b"1")])
    left = tar.with_name("x.json.partial")
    left.write_bytes(b"half an ind")
    index_tars(tar)
    assert not left.exists()
    left.write_bytes(b"half an ind")
    assert index_tars(tar).tars[0].was_there
    assert not left.exists()
