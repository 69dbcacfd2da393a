"""State, caches and cores of a process, and the end of workers with their parent.

A fork copies locks that other threads hold, and handles of threads that the child does not have. A
child that uses them may wait forever. State in a ``PerProcess`` starts anew in every process,
without at-fork handlers: importing a module registers nothing.
"""

from __future__ import annotations

import _thread
import atexit
import math
import os
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

_EXIT_PATIENCE_S = 5.0

T = TypeVar("T")

_of_parents: list[Any] = []
"""Values that belong to parent processes and must not be freed here, kept after their holders."""


class PerProcess(Generic[T]):
    """A value that each process makes for itself, on first use.

    A forked child neither uses nor frees the value of its parent: freeing it might wait for threads
    that only the parent has. A process that receives the holder by pickle starts without a value,
    too.

    Args:
        make: Returns the value of a process. It is called once in each.

    Examples:
        >>> clients = PerProcess(dict)
        >>> clients.get() is clients.get()
        True
    """

    __slots__ = ("__weakref__", "_locks", "_make", "_values")

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._values: dict[int, T] = {}
        self._locks: dict[int, threading.RLock] = {}

    def get(self) -> T:
        """Return the value of this process."""
        pid = os.getpid()
        try:
            return self._values[pid]
        except KeyError:
            pass
        # The thread that makes the value may ask for it again in a garbage collection.
        with self._locks.setdefault(pid, threading.RLock()):
            if pid not in self._values:
                self._values.setdefault(pid, self._make())
            return self._values[pid]

    def __del__(self, own_pid: Callable[[], int] = os.getpid, kept: Any = _of_parents) -> None:
        """Keep the values of parents when the holder is freed, even while the interpreter exits."""
        pid = own_pid()
        for owner, value in self._values.items():
            if owner != pid:
                kept.append(value)

    def __reduce__(self) -> tuple[Any, ...]:
        return PerProcess, (self._make,)


def run_aside(work: Callable[[], Any]) -> None:
    """Run work that a finalizer must not wait for in a thread of its own.

    A garbage collection may start at any moment, in any thread, and so while any lock is held.
    Waiting there for another lock, or for a thread that needs one, may be a deadlock. At exit, the
    interpreter waits a few seconds for these threads; once it is finalizing, the work is not done.
    """
    if not sys.is_finalizing():
        _aside.get().start(work)


class _Aside:
    def __init__(self) -> None:
        self._pid = os.getpid()
        self._running: set[object] = set()
        self._waiting: deque[Callable[[], Any]] = deque()
        atexit.register(self._wait)

    def start(self, work: Callable[[], Any]) -> None:
        token = object()
        self._running.add(token)
        # Not passed as an argument: the thread would free it, with all that it refers to, at its
        # very end, when nothing waits for the thread any more. Freeing native memory at exit aborts
        # the process.
        self._waiting.append(work)
        _thread.start_new_thread(self._run, (token,))  # Thread.start takes locks, and waits

    def _run(self, token: object) -> None:
        try:
            self._waiting.popleft()()
        finally:
            self._running.discard(token)

    def _wait(self) -> None:
        until = time.monotonic() + _EXIT_PATIENCE_S
        while self._running and self._pid == os.getpid() and time.monotonic() < until:
            time.sleep(0.002)


_aside = PerProcess(_Aside)


def end_with_parent() -> None:
    """Make this process end, whatever it is doing, when the process that started it ends.

    A worker of torch looks from time to time whether its parent process has changed. That does not
    help while it runs code of the user, waits for a read, or writes to a full pipe. And under
    forkserver its parent is the fork server, which in turn lives for as long as there are workers.

    The call has an effect in workers of a DataLoader only, and may be repeated.
    """
    # Commands that start no workers do not import these.
    from multiprocessing import parent_process

    from torch.utils.data import get_worker_info

    if get_worker_info() is not None and parent_process() is not None:
        _watcher.get()


def _start_watcher() -> threading.Thread:
    from multiprocessing import parent_process

    watcher = threading.Thread(
        target=_watch, args=(parent_process(),), name="headrace-parent", daemon=True
    )
    watcher.start()
    return watcher


_watcher = PerProcess(_start_watcher)
"""The thread that waits for the end of the parent, in a worker."""


def _watch(parent: Any) -> None:
    """Wait for the end of the process that uses this worker, then end at once.

    Its sentinel is a pipe that it holds open. Workers that are forked later hold it open too, so
    the process itself is watched as well where that is possible.
    """
    from multiprocessing.connection import wait

    ends = [parent.sentinel]
    try:
        ends.append(os.pidfd_open(parent.pid))
    except ProcessLookupError:
        os._exit(1)
    except (AttributeError, OSError):
        pass  # not on this platform, or forbidden in this container
    wait(ends)
    os._exit(1)


def usable_cores(limits: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the number of cores that the affinity and the container allow this process to use.

    Args:
        limits: The folder in which the kernel states the limits of the container.
    """
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    quota, period = _cpu_quota(limits)
    return max(min(cores, math.ceil(quota / period)), 1) if quota > 0 < period else cores


def _cpu_quota(limits: Path) -> tuple[int, int]:
    """Return the microseconds of all cores that a container has in a period; 0 for no limit."""
    try:
        quota, period = (limits / "cpu.max").read_text().split()
        return (0, 0) if quota == "max" else (int(quota), int(period))
    except (OSError, ValueError):
        pass
    try:  # version 1 of control groups
        quota = (limits / "cpu" / "cpu.cfs_quota_us").read_text()
        period = (limits / "cpu" / "cpu.cfs_period_us").read_text()
        return int(quota), int(period)
    except (OSError, ValueError):
        return 0, 0


_PIECES_A_THREAD = 4
"""Number of values that make it worth starting a thread."""


def in_threads(function: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
    """Return the results of a function for all values, in order, computed by several threads.

    The function has to release the GIL. Workers of a loader share the cores of this process.
    """
    data = sys.modules.get("torch.utils.data")  # which a worker has imported
    info = None if data is None else data.get_worker_info()
    cores = usable_cores() // (info.num_workers if info else 1)
    threads = min(cores, len(values) // _PIECES_A_THREAD)
    if threads <= 1:
        return [function(value) for value in values]
    with ThreadPoolExecutor(threads, "headrace-decode") as pool:
        return list(pool.map(function, values))


@dataclass(slots=True)
class _ProcessCache:
    """The values that one process keeps."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    making: dict[Hashable, threading.Lock] = field(default_factory=dict)
    entries: OrderedDict[Hashable, tuple[Any, int]] = field(default_factory=OrderedDict)
    size: int = 0


class BoundedCache(Generic[T]):
    """Keeps the values used last, up to a number of bytes; one cache serves all threads.

    A forked child starts with an empty cache.

    Args:
        size_of: Returns the size of a value in bytes.
    """

    def __init__(self, size_of: Callable[[T], int]) -> None:
        self._size_of = size_of
        self._kept = PerProcess(_ProcessCache)

    def get(self, key: Hashable) -> T | None:
        """Return a value, or None if it is not kept."""
        kept = self._kept.get()
        with kept.lock:
            found = kept.entries.get(key)
            if found is not None:
                kept.entries.move_to_end(key)
            return None if found is None else found[0]

    def add(self, key: Hashable, value: T, *, limit_bytes: int) -> None:
        """Keep a value, and drop the oldest beyond the limit; a larger value is not kept."""
        size = self._size_of(value)
        if size > limit_bytes:
            return
        kept = self._kept.get()
        with kept.lock:
            replaced = kept.entries.pop(key, None)
            kept.size += size - (0 if replaced is None else replaced[1])
            kept.entries[key] = value, size
            while kept.size > limit_bytes and kept.entries:
                kept.size -= kept.entries.popitem(last=False)[1][1]

    def get_or_make(self, key: Hashable, make: Callable[[], T], *, limit_bytes: int) -> T:
        """Return a value; one thread makes it, while others that need it wait."""
        kept = self._kept.get()
        with kept.lock:
            making = kept.making.setdefault(key, threading.Lock())
        try:
            with making:
                value = self.get(key)
                if value is None:
                    value = make()
                    self.add(key, value, limit_bytes=limit_bytes)
                return value
        finally:
            with kept.lock:
                kept.making.pop(key, None)
