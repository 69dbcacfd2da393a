"""The threads that wait for stores: shared by all files of a process, and never many."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

from headrace.process import PerProcess
from headrace.storage.pace import TooSlowError

__all__ = [
    "GivenUp",
    "Patience",
    "forget",
    "in_background",
    "interruptibly",
    "side_by_side",
    "side_threads",
    "within",
]

S = TypeVar("S")
T = TypeVar("T")


class Submit(Protocol):
    """Has something done by a thread."""

    def __call__(self, work: Callable[[], T], /) -> Future[T]: ...


_REQUESTS_AT_ONCE = 64
_IDLE_S = 1.0
_EXIT_PATIENCE_S = 4.0
"""how long a server that is silent may hold up the end of the interpreter"""


class _Threads:
    """Begin with work, and end when there has been none for a while.

    They must not be in the middle of native code when the interpreter goes down: then what has
    not begun is given up, and what has is waited for, though not for ever.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._changed = threading.Condition()
        self._work: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._closed = False

    def submit(self, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        with self._changed:
            if self._closed:
                _cancel(future)
                return future
            self._work.append((future, work))
            if self._idle < len(self._work) and len(self._threads) < self._most:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._threads.add(thread)
                thread.start()
            self._changed.notify()
        return future

    def drop(self, future: Future[Any]) -> None:
        with self._changed:
            _cancel(future)

    def close(self) -> list[threading.Thread]:
        """Begin nothing more; the threads that are still at work."""
        with self._changed:
            self._closed = True
            for future, _ in self._work:
                _cancel(future)
            self._work.clear()
            self._changed.notify_all()
            return list(self._threads)

    def _run(self) -> None:
        while (next_one := self._next()) is not None:
            future, work = next_one
            if self._begin(future):
                try:
                    future.set_result(work())
                except BaseException as error:
                    future.set_exception(error)
            del next_one, future, work  # or what was fetched is held until there is more to do

    def _begin(self, future: Future[Any]) -> bool:
        with self._changed:
            return not future.cancelled() and future.set_running_or_notify_cancel()

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


def _cancel(future: Future[Any]) -> None:
    """Cancel, and tell those who wait for it: by itself a future tells them once it is begun."""
    if not future.cancelled() and future.cancel():
        future.set_running_or_notify_cancel()


@dataclass(slots=True)
class _Pools:
    """The threads of one process, which are told when its interpreter goes down."""

    requests: _Threads
    limited: _Threads
    """of calls that may be given up: as many as there are callers, and as many lost ones"""
    others: WeakValueDictionary[int, _Threads] = field(default_factory=WeakValueDictionary)
    """those of whoever does something else side by side"""
    exit: Future[None] = field(default_factory=Future)
    """done when the interpreter goes down"""
    pid: int = field(default_factory=os.getpid)

    @classmethod
    def begin(cls) -> _Pools:
        """Make pools that have no threads yet, and see to their end."""
        made = cls(
            _Threads(_REQUESTS_AT_ONCE, "headrace-fetch"),
            _Threads(2 * _REQUESTS_AT_ONCE, "headrace-limited"),
        )
        atexit.register(made.leave)
        return made

    def leave(self) -> None:
        """Let go of all who wait, and see the threads off; a forked child does not have them."""
        if self.pid != os.getpid():
            return
        if not self.exit.done():
            self.exit.set_result(None)
        until = time.monotonic() + _EXIT_PATIENCE_S
        others = [reference() for reference in self.others.valuerefs()]  # there may come more
        pools = [some for some in (self.requests, self.limited, *others) if some]
        for thread in [thread for some in pools for thread in some.close()]:
            thread.join(max(until - time.monotonic(), 0.0))


_pools = PerProcess(_Pools.begin)


class GivenUp(Exception):
    """Nobody waits for this any more."""


class Patience:
    """How long somebody waits for what is fetched: until it comes, or until they give up."""

    def __init__(self) -> None:
        self._end: PerProcess[Future[None]] = PerProcess(Future)
        self._waited = threading.local()

    @property
    def waited_s(self) -> float:
        """How long this thread has waited, in all."""
        return getattr(self._waited, "seconds", 0.0)

    def give_up(self) -> None:
        """Let go of all who wait; what is under way ends by itself, and is not tried again."""
        end = self._end.get()
        if not end.done():
            end.set_result(None)

    @property
    def over(self) -> bool:
        """Whether nobody waits any more."""
        return self._end.get().done() or _pools.get().exit.done()

    def wait_for(self, future: Future[T]) -> T:
        """What a future gives, or GivenUp."""
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


def forget(future: Future[Any]) -> None:
    """Do not begin what has not begun; whoever waits for it is told so."""
    _pools.get().requests.drop(future)


def interruptibly(work: Callable[[], T]) -> T:
    """What ``work`` returns. The main thread is not to be inside a client when a signal comes."""
    if threading.current_thread() is threading.main_thread():
        return in_background(work).result()
    return work()


def in_background(work: Callable[[], T]) -> Future[T]:
    """Run something that waits, in one of a bounded number of threads."""
    return _pools.get().requests.submit(work)


def within(seconds: float, work: Callable[[], T]) -> T:
    """Return what ``work`` returns, or give it up after ``seconds``.

    This is for clients that cannot be interrupted. A call that is given up goes on in a thread of
    its own until the client returns. When there are as many lost calls as threads, further ones
    do not begin, and are given up as well.

    Raises:
        TooSlowError: The time is over.
    """
    limited = _pools.get().limited
    future = limited.submit(work)
    done, _ = wait([future], seconds)
    if not done:
        limited.drop(future)  # if it waits for a thread
    if not done or future.cancelled():
        raise TooSlowError.after(seconds)
    return future.result()


def side_by_side(work: Callable[[S], T], items: Iterable[S], *, threads: int) -> Iterator[T]:
    """What ``work``, which may itself wait for stores, makes of each item, in their order."""
    with side_threads(threads) as submit:
        made = deque([submit(partial(work, item)) for item in items])
        while made:
            yield made.popleft().result()


@contextmanager
def side_threads(threads: int, *, see_off: bool = False) -> Iterator[Submit]:
    """Threads for work that may itself wait for stores, and what gives them some.

    An executor of Python waits for all that has begun when one has failed, at an interrupt and
    at the end of the interpreter: as long as a server is silent. Here nobody waits for the rest,
    unless told to ``see_off`` threads, for what they do never takes long.
    """
    mine = _Threads(threads, "headrace-side")
    _pools.get().others[id(mine)] = mine
    try:
        yield mine.submit
    except CancelledError:
        raise GivenUp from None
    finally:
        for thread in mine.close():
            if see_off:
                thread.join()
