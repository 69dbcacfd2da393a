"""State that a forked child does not inherit."""

from __future__ import annotations

import ast
import os
import pickle
import signal
import threading
import time
from pathlib import Path

import pytest
from warm_interpreters import run_warm

import headrace
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


INHERITED = {
    "_NO_KINDS in sources/array_record/codecs.py",  # stays empty
    "_classes_of_trainer in convert/packing.py",  # the same in a child of a worker
    "_looked_at in matrices.py",  # follows from a schema alone
    "_of_parents in process.py",  # must stay with the child, too
}
"""Values that a forked child may have."""
CHANGING = {
    *("Counter", "OrderedDict", "bytearray", "count", "cycle", "defaultdict", "deque", "dict"),
    *("iter", "list", "set", "Random", "local", "Lock", "RLock", "Condition", "Event", "Semaphore"),
    *("Queue", "SimpleQueue", "WeakSet", "WeakKeyDictionary", "WeakValueDictionary"),
}
"""Names of functions whose results change."""


def test_values_of_modules_that_change_start_anew_in_a_forked_child() -> None:
    """Look for values that functions change, and for containers that are empty at first.

    Such a value belongs in a `PerProcess`, or in `INHERITED` if a child may have it.
    """
    package = Path(headrace.__file__).parent
    found = set()
    for path in package.rglob("*.py"):
        names = _changing_values(ast.parse(path.read_text()))
        found |= {f"{name} in {path.relative_to(package)}" for name in names}
    assert found == INHERITED


def _changing_values(module: ast.Module) -> set[str]:
    """Return the names of a module that functions rebind, or that begin empty or as an iterator."""
    values: dict[str, ast.expr | None] = {}
    for node in module.body:
        if isinstance(node, ast.Assign):
            values.update((ast.unparse(target), node.value) for target in node.targets)
        elif isinstance(node, ast.AnnAssign):
            values[ast.unparse(node.target)] = node.value
    rebound = {
        name for node in ast.walk(module) if isinstance(node, ast.Global) for name in node.names
    }
    return rebound | {name for name, value in values.items() if _is_changing(value)}


def _is_changing(value: ast.expr | None) -> bool:
    if isinstance(value, ast.List | ast.Set):
        return not value.elts
    if isinstance(value, ast.Dict):
        return not value.keys
    if isinstance(value, ast.Call):
        name = ast.unparse(value.func).rpartition(".")[2].partition("[")[0]
        return name in CHANGING
    return False


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
