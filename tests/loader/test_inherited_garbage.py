"""What is garbage in a process when it forks: its children leave it alone, and do not hang."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_files import write_parquet
from warm_interpreters import ColdProcess, WarmProcess

COLLECTED_AT_ONCE = """
import gc, os, sys
os.register_at_fork(after_in_child=gc.collect)
gc.disable()
"""
IN_CYCLES = """
class Cycle:
    def __init__(self, held):
        self.held, self.self = held, self
"""
FORKED = """
import warnings
warnings.filterwarnings("ignore", "This process .* is multi-threaded")  # from Python 3.12 on
child = os.fork()
if child == 0:
    gc.collect()
    os._exit(7)
print("exit status", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
GROUP = """
from torch import distributed as dist
from headrace.loader.agreement import Agreement
from headrace.loader.ranks import find_ranks

store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
agreement = Agreement(find_ranks())
assert agreement.agree(3) == (3, 3)
"""
LEFT_PASS = """
import threading
from headrace import StructuredDataset

loader, _ = StructuredDataset.create_dataloader(sys.argv[1], batch_size=10)
batches = iter(loader)
next(batches)
"""
LOCKED_BY_ANOTHER_THREAD = """
def hold():
    loader._pass._close.__self__._ahead._changed.acquire()
    held.set()
    threading.Event().wait()

held = threading.Event()
threading.Thread(target=hold, daemon=True).start()
held.wait()
"""
WORKERS = """
from headrace import StructuredDataset

class Told(Cycle):
    def __del__(self):
        print("collected by", "parent" if os.getpid() == parent else "worker", flush=True)

def collecting(batch):
    gc.collect()
    print("worker collects", gc.isenabled(), flush=True)
    return batch

parent = os.getpid()
gc.set_threshold(0)  # only when it is told to
gc.enable() if sys.argv[2] == "True" else gc.disable()
loader, _ = StructuredDataset.create_dataloader(
    sys.argv[1], batch_size=10_000, num_workers=1, multiprocessing_context="fork",
    transform=collecting,
)
Told(None)
assert len(list(loader)) == 1
print("parent collects", gc.isenabled())
gc.collect()
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parquet(tmp_path_factory.mktemp("data"))


def printed(code: str, *args: object, cold: bool = False) -> list[str]:
    with (ColdProcess if cold else WarmProcess)("-c", code, *args) as process:
        ended = process.finish(timeout_s=120)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.splitlines()


def test_the_connections_of_ranks() -> None:
    """A collection in the child may come before anybody is told of the fork."""
    garbage = "Cycle(agreement)\ndel agreement\n"
    code = COLLECTED_AT_ONCE + IN_CYCLES + GROUP + garbage + FORKED
    assert printed(code, cold=True) == ["exit status 7"]


def test_they_end_in_the_parent() -> None:
    code = GROUP + "import gc, os, sys, weakref\ngone = weakref.ref(agreement._group)\n"
    code += FORKED + "del agreement\ngc.collect()\nprint(gone())\n"
    assert printed(code) == ["exit status 7", "None"]


def test_a_pass_that_another_thread_reads_for(data: Path) -> None:
    """Nor does the child begin a thread to end it."""
    garbage = "Cycle((batches, loader))\ndel batches, loader\n"
    code = COLLECTED_AT_ONCE + IN_CYCLES + LEFT_PASS + LOCKED_BY_ANOTHER_THREAD + garbage
    alone = FORKED.replace("os._exit(7)", 'os._exit(6 + len(os.listdir("/proc/self/task")))')
    at_once = "os._exit(0)\n"
    assert printed(code + alone + at_once, data) == ["exit status 7"]


@pytest.mark.parametrize("collects", [True, False])
def test_workers_collect_what_is_theirs(data: Path, collects: bool) -> None:
    code = COLLECTED_AT_ONCE.replace("os.register_at_fork", "#") + IN_CYCLES + WORKERS
    assert printed(code, data, collects) == [
        f"worker collects {collects}",
        f"parent collects {collects}",
        "collected by parent",
    ]
