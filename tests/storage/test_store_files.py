"""Files that appear whole, and locks between processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.storage import atomic_write, file_lock, remove_partial

_WRITER = """
import sys, time
from headrace.storage import atomic_write
with atomic_write(sys.argv[1]) as partial:
    partial.write_bytes(b"half")
    print("writing", flush=True)
    time.sleep(600)
"""


def started_writer(target: Path) -> subprocess.Popen[str]:
    """Return a process that has written half of a file and waits."""
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(target)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    return process


def killed(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_a_file_appears_at_the_end_of_the_block(tmp_path: Path) -> None:
    target = tmp_path / "index"
    with atomic_write(target) as partial:
        partial.write_bytes(b"new")
        assert not target.exists()
    assert target.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["index"]


def _write_and_fail(path: Path) -> None:
    path.write_bytes(b"new")
    raise ZeroDivisionError


def test_an_error_keeps_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "index"
    target.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), atomic_write(target) as partial:
        _write_and_fail(partial)
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["index"]


def test_a_folder_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), atomic_write(tmp_path / "none" / "index"):
        pass
    assert not (tmp_path / "none").exists()


def test_mode_and_link_of_the_old_file_stay(tmp_path: Path) -> None:
    target, link = tmp_path / "index", tmp_path / "link"
    target.write_bytes(b"old")
    target.chmod(0o640)
    link.symlink_to(target)
    with atomic_write(link) as partial:
        partial.write_bytes(b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert target.stat().st_mode & 0o777 == 0o640


def test_a_killed_writer_leaves_the_old_file_and_no_lock(tmp_path: Path) -> None:
    target = tmp_path / "index"
    target.write_bytes(b"old")
    killed(started_writer(target))
    assert target.read_bytes() == b"old"
    with atomic_write(target) as partial:
        partial.write_bytes(b"new")
    assert target.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["index"]


def test_leftovers_are_removed_unless_a_writer_is_alive(tmp_path: Path) -> None:
    target = tmp_path / "index"
    writer = started_writer(target)
    remove_partial(target)
    assert (tmp_path / "index.partial").exists()
    killed(writer)
    remove_partial(target)
    assert not (tmp_path / "index.partial").exists()


def test_a_lock_that_is_held_is_refused_at_once(tmp_path: Path) -> None:
    with file_lock(tmp_path / "lock"):
        other = multiprocessing.get_context("forkserver").Process(
            target=_try_to_lock, args=(tmp_path / "lock", tmp_path / "answer")
        )
        other.start()
        other.join()
    assert (tmp_path / "answer").read_text() == "refused"


def _try_to_lock(lock: Path, answer: Path) -> None:
    try:
        with file_lock(lock, wait=False):
            answer.write_text("locked")
    except TimeoutError:
        answer.write_text("refused")


def _sleep(started: Any) -> None:
    started.set()
    signal.pause()


def test_a_forked_child_does_not_keep_a_lock(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    started = context.Event()
    with file_lock(tmp_path / "lock"):
        child = context.Process(target=_sleep, args=(started,), daemon=True)
        child.start()
        assert started.wait(60)
    try:
        with file_lock(tmp_path / "lock", wait=False):
            pass
    finally:
        child.kill()
        child.join()
