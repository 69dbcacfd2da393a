"""The threads that wait for stores: shared by all files of a process, and never many."""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

__all__ = ["in_background"]

T = TypeVar("T")

_REQUESTS_AT_ONCE = 48
_IDLE_S = 1.0


class _Threads:
    """Begin with work, and end when there has been none for a while.

    They must not be in the middle of native code when the interpreter goes down: then what has
    not begun is given up, and what has is waited for.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._work: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._closed = False

    def submit(self, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        with self._changed:
            if self._closed:
                future.cancel()
                return future
            self._work.append((future, work))
            if self._idle < len(self._work) and len(self._threads) < _REQUESTS_AT_ONCE:
                thread = threading.Thread(target=self._run, name="penstock-fetch", daemon=True)
                self._threads.add(thread)
                thread.start()
            self._changed.notify()
        return future

    def close(self) -> None:
        with self._changed:
            self._closed = True
            for future, _ in self._work:
                future.cancel()
            self._work.clear()
            self._changed.notify_all()
            threads = list(self._threads)
        for thread in threads:
            thread.join()

    def _run(self) -> None:
        while (next_one := self._next()) is not None:
            future, work = next_one
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:
                    future.set_exception(error)
            del next_one, future, work  # or what was fetched is held until there is more to do

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._changed:
            self._idle += 1
            while not self._work and not self._closed:
                if not self._changed.wait(_IDLE_S):
                    break
            self._idle -= 1
            if self._work:
                return self._work.popleft()
            self._threads.discard(threading.current_thread())
            return None


_threads = _Threads()


def in_background(work: Callable[[], T]) -> Future[T]:
    """Run something that waits, in one of a bounded number of threads."""
    return _threads.submit(work)


def _forget() -> None:
    """In a forked child there are no such threads, but their lock may be held for ever."""
    global _threads
    _threads = _Threads()


atexit.register(lambda: _threads.close())
os.register_at_fork(after_in_child=_forget)
