"""Every test module has to leave the machine as it found it."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import warm_interpreters
from hypothesis import settings

# What is imported here is a fixture for all tests.
from servers.fixtures import (  # noqa: F401
    azure_server,
    http_server,
    hub_server,
    proxy_to,
    s3_server,
)

# Files are written and read in an example: how long that takes is the machine's affair.
collect_ignore = ["access/rank_scripts"]  # what tests start, and no tests

settings.register_profile("without deadline", deadline=None)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile("without deadline")

# Where children are started by a server, that has imported what they need.
multiprocessing.get_context("forkserver").set_forkserver_preload(["headrace.loader"])

# A shell starts jobs in the background with interrupts ignored, and all their children with them.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)  # some tests run pytest without pytest-xdist
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Fork the processes of pytest-xdist, which would all import torch.

    Not where lines are counted: those that run while modules are imported would be missed.
    """
    if config.pluginmanager.hasplugin("_cov"):
        return
    server = warm_interpreters.share_servers()
    client = Path(__file__).with_name("warm_client.py")
    for spec in specs:
        spec.python = shlex.join([sys.executable, "-I", "-S", str(client), server])


# Modules and tests stay for good. To look for garbage among them takes half a second each time,
# and tests that ask for that are many.
gc.disable()


def pytest_collection_finish() -> None:
    gc.enable()
    gc.collect()
    gc.freeze()


# Tests that fork thousands of workers. What is read and imported in other tests stays in memory,
# and forks of a process that has been through them take half as long again.
FORKING = (
    "loader/",
    "integrations/",
    "testing/",
    "plan/test_resume_elastic.py",
    "plan/test_resume_padded.py",
    "plan/test_state_",
    "plan/test_strategies_in_loaders.py",
    "sources/iceberg/test_iceberg_contracts.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest tests: one that begins last keeps the other processes waiting."""
    folders = tuple(str(Path(__file__).parent / room) for room in FORKING)

    def place(item: pytest.Item) -> tuple[bool, bool]:
        return item.get_closest_marker("slow") is None, not str(item.path).startswith(folders)

    items.sort(key=place)


@pytest.fixture
def warm_workers(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the workers that copy and index, which else import torch for each call."""
    folder = tmp_path_factory.mktemp("warm")
    monkeypatch.setattr(sys, "executable", str(warm_interpreters.write_executable(folder)))


SHARED_MEMORY = Path("/dev/shm")
PATIENCE_S = 100.0


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Fail a module that leaves a child process, a thread or a shared-memory file behind."""
    before = _leftovers()
    yield
    _end_pool_of_pyiceberg()
    deadline = time.monotonic() + PATIENCE_S
    left = _leftovers() - before
    while left and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.05)
        left = _leftovers() - before
    _give_memory_back()
    assert not left, f"left behind by the tests of this module: {sorted(left)}"


def _give_memory_back() -> None:
    """Allocators keep it: gigabytes after some modules, and to fork takes ten times as long."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)


def _end_pool_of_pyiceberg() -> None:
    """It keeps one for as long as a process lives."""
    pools = sys.modules.get("pyiceberg.utils.concurrent")
    if pools is not None and pools.ExecutorFactory._instance is not None:
        pools.ExecutorFactory._instance.shutdown()
        pools.ExecutorFactory._instance = None


def _leftovers() -> set[str]:
    children = {f"process {child.pid}" for child in multiprocessing.active_children()}
    threads = {f"thread {thread.name} ({thread.ident})" for thread in _threads()}
    return children | threads | {f"shared memory {path}" for path in _orphaned_segments()}


def _threads() -> Iterator[threading.Thread]:
    """Threads that would keep the process alive; the alarm of a time-out is none."""
    for thread in threading.enumerate():
        if not thread.daemon and not thread.name.startswith("pytest_timeout"):
            yield thread


def _orphaned_segments() -> Iterator[Path]:
    """Segments of torch that are ours or nobody's; a test runner beside this one may hold more."""
    for path in SHARED_MEMORY.glob("torch_*"):
        owner = path.name.split("_")[1]
        if owner == str(os.getpid()) or not Path("/proc", owner).exists():
            yield path
