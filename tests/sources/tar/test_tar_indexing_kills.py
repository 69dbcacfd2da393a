"""Runs of ``headrace index`` at the same time, interrupted and killed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from tar_making import write_tar
from warm_interpreters import PATIENCE_S, ColdProcess, WarmProcess

from headrace.sources.tar import index_tars
from headrace.sources.tar.index import IndexFile

INDEX = ["-m", "headrace", "index"]


def many(folder: Path, tars: int = 40) -> Path:
    for number in range(tars):
        write_tar(folder / f"{number}.tar", [(f"{m}.jpg", b"1") for m in range(200)])
    return folder


def test_runs_into_one_file_at_the_same_time(tmp_path: Path) -> None:
    place = tmp_path / "all.arrow"
    command = [*INDEX, many(tmp_path / "d"), "--one-file", place]
    with WarmProcess(*command) as one, WarmProcess(*command) as two:
        ended = [run.finish() for run in (one, two)]
    assert [run.returncode for run in ended] == [0, 0], ended
    assert len(IndexFile.open(place).tars) == 40
    assert sorted(os.listdir(tmp_path)) == ["all.arrow", "d"]


def write_slow_tars(folder: Path) -> None:
    """A tar that is done at once, and others that take long."""
    write_tar(folder / "0.tar", [("a.jpg", b"1")])
    for number in (1, 2, 3):
        member = tarfile.TarInfo("a.jpg")
        member.size = 7 << 30
        with (folder / f"{number}.tar").open("wb") as file:
            file.write(member.tobuf(tarfile.USTAR_FORMAT))
            file.truncate(member.size + 2048)


def wait_for_first_tar(folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not (folder / "0.idx.arrow").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_is_told_in_one_line(tmp_path: Path, workers: int) -> None:
    write_slow_tars(tmp_path)
    with WarmProcess(*INDEX, tmp_path, "--hash", "--workers", workers) as run:
        wait_for_first_tar(tmp_path)
        run.send_signal(signal.SIGINT)
        ended = run.finish()
    assert ended.returncode == 130, ended.stderr
    assert ended.stderr.splitlines()[-1] == "headrace index: interrupted"
    assert "Traceback" not in ended.stderr


def children_of(pid: int) -> list[int]:
    return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_workers_end_with_a_run_that_is_killed(tmp_path: Path) -> None:
    write_slow_tars(tmp_path)
    with ColdProcess(*INDEX, tmp_path, "--hash", "--workers", 2) as run:
        wait_for_first_tar(tmp_path)
        workers = [os.pidfd_open(child) for child in children_of(run.pid)]
        assert len(workers) == 2
        run.send_signal(signal.SIGKILL)
        run.finish()
        for worker in workers:  # which become readable when the process ends
            ended, _, _ = select.select([worker], [], [], PATIENCE_S)
            assert ended, "a worker is left behind"
            os.close(worker)
    # An index is the record of what is done.
    assert [one.was_there for one in index_tars(tmp_path).tars] == [True, False, False, False]


def test_a_worker_that_is_killed(tmp_path: Path) -> None:
    write_slow_tars(tmp_path)
    with WarmProcess(*INDEX, tmp_path, "--hash", "--workers", 2) as run:
        wait_for_first_tar(tmp_path)
        os.kill(children_of(run.pid)[-1], signal.SIGKILL)
        ended = run.finish()
    assert ended.returncode == 2, ended.stderr
    assert (
        "headrace index: a worker process ended with status -9; run the same again" in ended.stderr
    )
    assert "Traceback" not in ended.stderr


def test_what_a_killed_run_left_goes(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "x.tar", [("a.jpg", b"1")])
    left = tar.with_name("x.idx.arrow.partial")
    left.write_bytes(b"half an ind")
    index_tars(tar)
    assert not left.exists()
    left.write_bytes(b"half an ind")
    assert index_tars(tar).tars[0].was_there
    assert not left.exists()


def test_locks_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "a.tar", [("a.jpg", b"1")])
    index_tars(tar)
    script = (
        "import os, signal, sys; from headrace.sources.tar.index_files import index_lock\n"
        "from headrace.storage import atomic_write\n"
        "with index_lock(sys.argv[1]), atomic_write(sys.argv[1]):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script, tmp_path / "a.idx.arrow"], check=False)
    left = {".a.idx.arrow.change.lock", ".a.idx.arrow.lock"}
    assert left < set(os.listdir(tmp_path))
    assert index_tars(tar).tars[0].was_there
    assert sorted(os.listdir(tmp_path)) == ["a.idx.arrow", "a.tar"]
