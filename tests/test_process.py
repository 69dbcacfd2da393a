"""State that a forked child does not inherit."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from pathlib import Path

import pytest
from warm_interpreters import run_warm

from headrace.process import PerProcess, usable_cores

_PATIENCE_S = 20.0


def _exit_code(pid: int) -> int:
    """Return the exit code of a child, after killing it if it does not end."""
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -signal.SIGKILL


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_children_do_not_wait_for_a_lock_that_a_thread_of_the_parent_holds() -> None:
    lock = PerProcess(threading.Lock)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock.get():
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    codes = []
    try:
        for _ in range(30):
            child = os.fork()
            if child == 0:
                with lock.get():
                    os._exit(0)
            codes.append(_exit_code(child))
    finally:
        done.set()
        thread.join()

    assert codes == [0] * 30


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_children_do_not_wait_for_a_value_that_a_thread_of_the_parent_makes() -> None:
    begun, done = threading.Event(), threading.Event()

    def make() -> int:
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            done.wait()
        return os.getpid()

    value = PerProcess(make)
    thread = threading.Thread(target=value.get)
    thread.start()
    begun.wait()
    child = os.fork()
    if child == 0:
        os._exit(0 if value.get() == os.getpid() else 1)
    code = _exit_code(child)
    done.set()
    thread.join()

    assert code == 0
    assert value.get() == os.getpid()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_does_not_free_what_its_parent_made() -> None:
    class Handle:
        def __init__(self) -> None:
            self.owner = os.getpid()

        def __del__(self) -> None:
            if self.owner != os.getpid():
                os._exit(1)

    value = PerProcess(Handle)
    value.get()
    child = os.fork()
    if child == 0:
        own = value.get().owner == os.getpid()
        del value
        os._exit(0 if own else 2)

    assert _exit_code(child) == 0


def test_threads_share_one_value() -> None:
    made = []

    def make() -> object:
        time.sleep(0.01)  # gives other threads time to arrive
        made.append(object())
        return made[-1]

    value = PerProcess(make)
    threads = [threading.Thread(target=value.get) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert made == [value.get()]


def test_a_holder_arrives_empty_where_it_is_sent() -> None:
    value = PerProcess(threading.Lock)
    value.get()

    arrived = pickle.loads(pickle.dumps(value))

    assert arrived.get() is not value.get()


FREED_AT_EXIT = """
import time
from headrace.process import run_aside


class Held:
    def nothing(self):
        pass

    def __del__(self):
        time.sleep(0.5)  # as memory of native code takes a while to be freed
        print("freed", flush=True)


run_aside(Held().nothing)
"""


def test_the_exit_waits_until_what_the_work_held_is_freed(tmp_path: Path) -> None:
    """Check that no thread frees native memory during the exit, which would abort the process."""
    script = tmp_path / "script.py"
    script.write_text(FREED_AT_EXIT)
    ended = run_warm(script)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "freed\n", "")


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "100000 100000\n"}, 1),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "6400000 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_cores_of_a_container(tmp_path: Path, files: dict[str, str], cores: int | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    all_of_them = len(os.sched_getaffinity(0))
    assert usable_cores(tmp_path) == min(all_of_them, cores or all_of_them)
