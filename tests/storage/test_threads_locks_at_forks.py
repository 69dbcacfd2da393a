"""Locks that a thread has while its process forks: the child is free, and so is everybody else."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from headrace.model import DataFileInfo
from headrace.process import BoundedCache
from headrace.storage import Meter, Parts, Patience, RemoteStore
from headrace.storage import _threads as threads
from headrace.storage._threads import in_background

Holding = AbstractContextManager[object]


@contextmanager
def held_by_a_thread(holding: Holding) -> Iterator[None]:
    has_it, enough = threading.Event(), threading.Event()

    def hold() -> None:
        with holding:
            has_it.set()
            enough.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    has_it.wait()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def forked(work: Callable[[], object]) -> int:
    """A child that does something and then waits to be killed; or is killed, for it hangs."""
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def use_parts(parts: Parts) -> None:
    file = DataFileInfo("a", file_size=3)
    parts.add(file, 0, b"abc")
    assert parts.of(file)


def use_cache(cache: BoundedCache[str]) -> None:
    assert cache.get_or_make("key", lambda: "value", limit_bytes=100) == "value"


def wait_for_something(patience: Patience) -> None:
    assert patience.wait_for(in_background(lambda: 7)) == 7
    patience.give_up()
    assert not patience.sleep(60)


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("what", ["parts", "meter", "patience", "threads", "cache"])
def test_a_child_does_not_wait_for_a_thread_that_it_has_not_got(what: str) -> None:
    parts, meter, patience = Parts(), Meter(), Patience()
    cache = BoundedCache[str](len)
    uses: dict[str, tuple[Holding, Callable[[], object]]] = {
        "parts": (parts._kept.get().lock, lambda: use_parts(parts)),
        "meter": (meter._lock.get(), lambda: meter.add(requests=1)),
        "patience": (patience._end.get()._condition, lambda: wait_for_something(patience)),
        "threads": (threads._pools.get().requests._changed, lambda: in_background(int).result(9)),
        "cache": (cache._kept.get().lock, lambda: use_cache(cache)),
    }
    lock, use = uses[what]
    with held_by_a_thread(lock):
        child = forked(use)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    use()


def connect_at_once(store: RemoteStore, threads: int = 16) -> None:
    """End with an error unless all of many threads have the same engine."""
    sys.setswitchinterval(1e-6)
    together, found = threading.Barrier(threads), []

    def connect() -> None:
        together.wait()
        found.append(store._client()[0])

    started = [threading.Thread(target=connect) for _ in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    os._exit(0 if len(found) == threads and len(set(map(id, found))) == 1 else 1)


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_threads_of_a_child_connect_at_once() -> None:
    store = RemoteStore(protocol="http")
    assert store.identity
    children = [forked(lambda: connect_at_once(store)) for _ in range(20)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [0] * 20
