"""Threads that wait for stores: few, shared by a process, and never blocking its exit.

An executor of Python joins its threads when the interpreter exits, even if a server is silent. The
threads here are daemons: at exit, work that has not begun is dropped, and work that has begun is
waited for a few seconds.
"""

from __future__ import annotations

import atexit
import heapq
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from functools import partial
from typing import Any, Self, TypeVar
from weakref import WeakValueDictionary

from headrace.errors import WorkerError
from headrace.process import PerProcess

S = TypeVar("S")
T = TypeVar("T")

_REQUESTS_AT_ONCE = 64
_SLICE_S = 1.0
"""Seconds after which a wait for a result lets Python handle signals."""
_IDLE_S = 1.0
_EXIT_PATIENCE_S = 4.0
"""Seconds that a silent server may delay the exit of the interpreter."""


class _Threads:
    """A bounded number of daemon threads that start with work, and end when there is none."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._changed = threading.Condition()
        self._work: list[tuple[int, int, Future[Any], Callable[[], Any]]] = []
        self._submitted = 0
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._closed = False

    def submit(self, work: Callable[[], T], rank: int = 0) -> Future[T]:
        """Run a function in a thread; functions of the lowest rank run first."""
        future: Future[T] = Future()
        with self._changed:
            if self._closed:
                _cancel(future)
                return future
            heapq.heappush(self._work, (rank, self._submitted, future, work))
            self._submitted += 1
            if self._idle < len(self._work) and len(self._threads) < self._most:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._threads.add(thread)
                thread.start()
            self._changed.notify()
        return future

    def drop(self, future: Future[Any]) -> None:
        """Cancel work that has not begun."""
        with self._changed:
            _cancel(future)

    def close(self) -> list[threading.Thread]:
        """Begin nothing more; return the threads that are still at work."""
        with self._changed:
            self._closed = True
            for _, _, future, _ in self._work:
                _cancel(future)
            self._work.clear()
            self._changed.notify_all()
            return list(self._threads)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                while not self._work and not self._closed and self._changed.wait(_IDLE_S):
                    pass
                self._idle -= 1
                if not self._work:
                    self._threads.discard(threading.current_thread())
                    return
                _, _, future, work = heapq.heappop(self._work)
                begun = not future.cancelled() and future.set_running_or_notify_cancel()
            if begun:
                try:
                    future.set_result(work())
                except BaseException as error:
                    future.set_exception(error)
            del future, work  # or the result would be held until there is more to do


def _cancel(future: Future[Any]) -> None:
    """Cancel a future and wake its waiters, which ``cancel`` alone does only for begun futures."""
    if not future.cancelled() and future.cancel():
        future.set_running_or_notify_cancel()


class _Pools:
    """The threads of one process, which end with its interpreter.

    Attributes:
        requests: Threads that make requests.
        limited: Threads of calls that may be given up. A lost call keeps its thread.
        all: All threads, including those of the callers of ``SideThreads``.
        exit: Done when the interpreter exits.
    """

    def __init__(self) -> None:
        self.requests = _Threads(_REQUESTS_AT_ONCE, "headrace-fetch")
        self.limited = _Threads(2 * _REQUESTS_AT_ONCE, "headrace-limited")
        self.all: WeakValueDictionary[int, _Threads] = WeakValueDictionary()
        self.add(self.requests)
        self.add(self.limited)
        self.exit: Future[None] = Future()
        self._pid = os.getpid()
        atexit.register(self.leave)

    def add(self, threads: _Threads) -> None:
        """Register threads that end with the interpreter."""
        self.all[id(threads)] = threads

    def leave(self) -> None:
        """Wake all waiters and join the threads; a forked child does not have them."""
        if self._pid != os.getpid():
            return
        if not self.exit.done():
            self.exit.set_result(None)
        until = time.monotonic() + _EXIT_PATIENCE_S
        pools = [reference() for reference in self.all.valuerefs()]  # other threads may add some
        for thread in [thread for some in pools if some for thread in some.close()]:
            thread.join(max(until - time.monotonic(), 0.0))


_pools = PerProcess(_Pools)


class GivenUp(Exception):
    """The caller has stopped waiting."""


class Patience:
    """The time for which a reader waits for bytes: until they come, or until it gives up.

    A copy in another process begins anew.
    """

    def __init__(self) -> None:
        self._end: PerProcess[Future[None]] = PerProcess(Future)
        self._waited = threading.local()

    @property
    def waited_s(self) -> float:
        """The seconds that this thread has waited, in all."""
        return getattr(self._waited, "seconds", 0.0)

    def give_up(self) -> None:
        """Wake all waiters; a request under way ends by itself and is not retried."""
        end = self._end.get()
        if not end.done():
            end.set_result(None)

    def sleep(self, seconds: float) -> bool:
        """Sleep; return False at once if the reader gives up or the interpreter shuts down."""
        done, _ = wait([self._end.get(), _pools.get().exit], seconds, FIRST_COMPLETED)
        return not done

    def wait_for(self, future: Future[T]) -> T:
        """Return the result of a future.

        Raises:
            GivenUp: The reader gave up first.
        """
        if not future.done():
            began = time.perf_counter()
            either: list[Future[Any]] = [future, self._end.get(), _pools.get().exit]
            wait(either, return_when=FIRST_COMPLETED)
            self._waited.seconds = self.waited_s + time.perf_counter() - began
        if not future.done() or future.cancelled():
            raise GivenUp
        return future.result()

    def __reduce__(self) -> tuple[Any, ...]:
        return Patience, ()


def in_background(work: Callable[[], T]) -> Future[T]:
    """Run a request in one of a bounded number of threads."""
    return _pools.get().requests.submit(work)


def forget(future: Future[Any]) -> None:
    """Cancel a request that has not begun."""
    _pools.get().requests.drop(future)


def within(seconds: float, work: Callable[[], T]) -> T:
    """Return the result of ``work``, or raise an error after ``seconds``.

    This is for clients that cannot be interrupted. A call that is given up continues in its own
    thread until the client returns. When all threads are taken by such calls, further calls do not
    begin, and are given up as well.

    Raises:
        TimeoutError: The time is over.
    """
    limited = _pools.get().limited
    future = limited.submit(work)
    done, _ = wait([future], seconds)
    if not done:
        limited.drop(future)  # if it waits for a thread
    if not done or future.cancelled():
        raise TimeoutError(
            f"time-out: the answer is too slow, not all of it came in {seconds:.1f} s"
        )
    return future.result()


def side_by_side(
    work: Callable[[S], T],
    items: Iterable[S],
    *,
    threads: int,
    ahead: int | None = None,
    join: bool = False,
) -> Generator[T, None, None]:
    """Yield the result of ``work`` for each item, in order; ``work`` may wait for stores.

    Args:
        work: The function, which is called in the threads.
        items: The items, which are iterated in the thread of the caller.
        threads: Number of threads.
        ahead: Number of items that are begun before their results are asked for; None for all.
        join: True to wait at the end for work that has begun.
    """
    with SideThreads(threads, join=join) as beside:
        begun: deque[Future[T]] = deque()
        for item in items:
            begun.append(beside.submit(partial(work, item)))
            if ahead is not None and len(begun) > ahead:
                yield _result_of(begun.popleft())
        while begun:
            yield _result_of(begun.popleft())


def _result_of(future: Future[T]) -> T:
    """Wait for a result in slices, so that no interrupt is lost.

    A signal that arrives between two instructions of Python and the start of a wait without end
    would be handled only when that wait is over.
    """
    while not future.done():
        wait([future], _SLICE_S)
    return future.result()


class SideThreads(_Threads):
    """Threads for the work of one caller, which may wait for stores.

    Args:
        threads: The number of threads.
        join: True to wait at the end for work that has begun. By default such work is left
            alone, because a server may be silent.
    """

    def __init__(self, threads: int, *, join: bool = False) -> None:
        super().__init__(threads, "headrace-side")
        self._join = join
        _pools.get().add(self)

    def end(self) -> None:
        """Begin nothing more. May be called more than once, and by several threads."""
        for thread in self.close():
            if self._join and thread is not threading.current_thread():
                thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.end()
        if isinstance(error, CancelledError):
            raise GivenUp from None


# --- native libraries whose threads do not survive a fork: a child would wait for them forever


class NativeLibrary:
    """Tracks which process uses a library, as seen by the processes that are forked from it.

    Args:
        name: The name of the library in errors.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._user: int | None = None

    def use(self) -> None:
        """Note that this process uses the library; call it before each use.

        Raises:
            WorkerError: The process was forked from one that has used the library.
        """
        if self._user is None:
            self._user = os.getpid()
        if self._user != os.getpid():
            raise WorkerError(
                f"this process was forked from one that has used {self._name}, and would hang or "
                'crash: start worker processes with multiprocessing_context="forkserver"'
            )


PYARROW_CLIENTS = NativeLibrary("a remote filesystem of pyarrow")
"""The clients of object stores in pyarrow."""
