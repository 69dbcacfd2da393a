"""Blocks made ahead of their use, by threads, within a budget of bytes."""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from headrace.process import PerProcess

_PAST = 0.8
"""Weight of earlier jobs in the mean of the times that jobs take."""


class Pace:
    """Chooses how many jobs are under way: each core has one to work on while the others wait.

    More jobs gain nothing, and the memory that they hold could be used again instead. The shortest
    wait seen counts: a longer one may come from a machine that is overloaded.
    """

    def __init__(self, cores: int, first: int, most: int) -> None:
        self._cores = cores
        self._most = most
        self._jobs = first
        self._wait_s = math.inf
        self._work_s: float | None = None
        self._lock = threading.Lock()

    @property
    def jobs(self) -> int:
        """Number of jobs that should be under way."""
        return self._jobs

    def note(self, waited_s: float, worked_s: float) -> None:
        """Note how long a job waited, and how long it worked."""
        with self._lock:
            self._wait_s = min(self._wait_s, waited_s)
            before = worked_s if self._work_s is None else self._work_s
            self._work_s = _PAST * before + (1 - _PAST) * worked_s
            wanted = self._cores * (1 + self._wait_s / max(self._work_s, 1e-6))
            self._jobs = max(min(math.ceil(wanted) + 1, self._most), self._cores + 1)


Spec = TypeVar("Spec")
Made = TypeVar("Made")

_FORGET = 0.9
"""Factor by which the correction of estimates shrinks with each job."""
_PENDING, _RUNNING, _MADE = range(3)


@dataclass(slots=True, eq=False)
class Job(Generic[Spec, Made]):
    """Something to make blocks of, for one lane.

    Attributes:
        lane: The lane that gets the blocks.
        spec: The argument of the function that makes them.
        cost_bytes: Estimate of what the job holds in memory while it is made and waits.
        exact: False if the estimate may be far too low; other jobs then wait until one has shown by
            how much.
    """

    lane: int
    spec: Spec
    cost_bytes: int
    exact: bool = True
    state: int = field(default=_PENDING, init=False)
    made: deque[tuple[Made, int]] = field(default_factory=deque, init=False)
    queued_bytes: int = field(default=0, init=False)
    handed_bytes: int = field(default=0, init=False)
    charged_bytes: int = field(default=0, init=False)
    made_bytes: int = field(default=0, init=False)
    limit_bytes: int = field(default=0, init=False)
    awaited: bool = field(default=False, init=False)
    error: BaseException | None = field(default=None, init=False)


class ReadAhead(Generic[Spec, Made]):
    """Runs jobs in threads, in the order given, and hands out each lane's blocks in order.

    Jobs begin while the budget lasts, and no more than ``most_jobs`` at a time. A job that a
    consumer waits for begins even if the budget is spent, and never waits for a thread that is
    itself waiting for the consumer: if the budget is too small, reading is slow, but does not stop.
    Threads start with the first block that is asked for.
    """

    def __init__(
        self,
        jobs: Iterable[Job[Spec, Made]],
        work: Callable[[Spec], Iterator[Made]],
        *,
        size_of: Callable[[Made], int],
        budget_bytes: int,
        threads: int,
        most_jobs: Callable[[], int | None] = lambda: None,
        give_up: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare to run jobs; nothing begins before the first block is asked for.

        Args:
            jobs: What to do, in the order in which blocks will be needed.
            work: Makes the blocks of a job.
            size_of: Returns the number of bytes of a block.
            budget_bytes: Number of bytes that blocks may hold while they are made or wait.
            most_jobs: Returns how many jobs may be under way; None for any number.
            give_up: Called by ``close`` before it waits, to end jobs that wait for a server.
        """
        self.waited_s = 0.0
        self.peak_bytes = 0
        self._jobs = iter(jobs)
        self._work = work
        self._size_of = size_of
        self._budget = budget_bytes
        self._threads_wanted = threads
        self._threads: list[threading.Thread] = []
        self._lock = threading.RLock()
        # Threads that wait to begin a job are alike, so that one is woken at a time.
        self._room = threading.Condition(self._lock)
        self._emptied = threading.Condition(self._lock)
        self._made = threading.Condition(self._lock)
        self._pending: deque[Job[Spec, Made]] = deque()
        self._lanes: dict[int, deque[Job[Spec, Made]]] = {}
        self._exhausted = False
        self._held = 0
        self._most_jobs = most_jobs
        self._give_up = give_up
        self._begun = 0
        self._growth = 1.0
        self._learned = False
        self._stuck = 0
        self._broken: BaseException | None = None
        self._closed = False
        self._process = os.getpid()

    def blocks(self, lane: int) -> Iterator[tuple[Spec, Made]]:
        """Yield the blocks of a lane, each with the spec of its job; errors come in their place."""
        self._start()
        while (job := self._next_job(lane)) is not None:
            while (block := self._take(job)) is not None:
                yield job.spec, block[0]

    def stop(self) -> None:
        """Let threads end, without waiting for them."""
        self._closed = True
        if self._process != os.getpid():
            return  # the threads stayed in the parent
        self._give_up()
        with self._lock:
            for condition in (self._room, self._emptied, self._made):
                condition.notify_all()

    def close(self) -> None:
        """Stop, and return when no thread is left. May be called more than once."""
        self.stop()
        if self._process != os.getpid():
            return
        for thread in self._threads:
            if thread.ident != threading.get_ident():
                thread.join()
        self._threads.clear()
        self._pending.clear()
        self._lanes.clear()

    # --- the consumer's side

    def _start(self) -> None:
        with self._lock:
            if not self._threads and not self._closed:
                _open.get().add(self)
                for _ in range(self._threads_wanted):
                    self._spawn()

    def _spawn(self) -> None:
        thread = threading.Thread(
            target=self._run, name=f"headrace-read-{len(self._threads)}", daemon=True
        )
        thread.start()
        self._threads.append(thread)

    def _next_job(self, lane: int) -> Job[Spec, Made] | None:
        with self._lock:
            waiting = self._lanes.setdefault(lane, deque())
            while not waiting and self._pull():
                pass
            self._room.notify()
            if not waiting and self._broken is not None:
                raise self._broken
            return waiting.popleft() if waiting else None

    def _take(self, job: Job[Spec, Made]) -> tuple[Made, int] | None:
        """Return the next block of a job; None when there are no more."""
        began = time.perf_counter()
        with self._lock:
            job.handed_bytes = 0  # the block handed out before is no longer needed
            self._charge(job)
            while not job.made and job.state != _MADE:
                if self._closed:
                    return None
                if job.state == _PENDING:
                    self._put_first(job)
                self._made.wait()
            self.waited_s += time.perf_counter() - began
            if not job.made:
                self._begun -= 1
                self._charge(job)
                self._room.notify()
                if job.error is not None:
                    raise job.error
                return None
            block = job.made.popleft()
            job.queued_bytes -= block[1]
            job.handed_bytes = block[1]
            self._charge(job)
            self._emptied.notify_all()
            return block

    def _put_first(self, job: Job[Spec, Made]) -> None:
        """Let a job that a consumer waits for begin before all others, even over budget."""
        if not job.awaited:
            job.awaited = True
            self._pending.remove(job)
            self._pending.appendleft(job)
            self._room.notify()
        if self._stuck >= len(self._threads):  # all of them wait to be emptied
            self._spawn()

    # --- the threads' side

    def _run(self) -> None:
        while (job := self._admit()) is not None:
            try:
                for block in self._work(job.spec):
                    if not self._put(job, block, self._size_of(block)):
                        break
            except BaseException as error:
                job.error = error
            with self._lock:
                job.state = _MADE
                self._learn(job)
                self._charge(job)
                self._made.notify_all()
                self._room.notify()

    def _admit(self) -> Job[Spec, Made] | None:
        """Wait until the next job may begin; return None if there is none left."""
        with self._lock:
            while not self._closed:
                if not self._pending and not self._pull():
                    return None
                job = self._pending[0]
                cost = int(job.cost_bytes * self._growth)
                if not job.exact and not self._learned:
                    cost = max(cost, self._budget)
                most = self._most_jobs()
                has_room = not self._held or self._held + cost <= self._budget
                if job.awaited or (has_room and (most is None or self._begun < most)):
                    self._pending.popleft()
                    self._begun += 1
                    job.limit_bytes = max(min(cost, self._budget - self._held), 1)
                    job.state = _RUNNING
                    self._charge(job)
                    self._room.notify()  # another one may begin, too
                    return job
                self._room.wait()
            return None

    def _pull(self) -> bool:
        """Move one more job from the plan to the known jobs; the caller holds the lock."""
        job = None
        try:
            job = None if self._exhausted else next(self._jobs, None)
        except BaseException as error:  # a thread cannot raise it, the consumer will
            self._broken = error
        if job is None:
            self._exhausted = True
            return False
        self._pending.append(job)
        self._lanes.setdefault(job.lane, deque()).append(job)
        return True

    def _put(self, job: Job[Spec, Made], block: Made, size: int) -> bool:
        """Queue a block when there is room for it; return False if it is no longer wanted."""
        with self._lock:
            if self._is_full(job, size):
                self._stuck += 1
                self._made.notify_all()  # a consumer may now need one more thread
                while self._is_full(job, size):
                    self._emptied.wait()
                self._stuck -= 1
            if self._closed:
                return False
            job.made.append((block, size))
            job.queued_bytes += size
            job.made_bytes += size
            self._charge(job)
            self._made.notify_all()
            return True

    def _is_full(self, job: Job[Spec, Made], size: int) -> bool:
        full = bool(job.made) and job.queued_bytes + size > job.limit_bytes
        return full and not self._closed

    def _charge(self, job: Job[Spec, Made]) -> None:
        """Update the account with what a job holds now, or is expected to hold while it runs."""
        holds = job.queued_bytes + job.handed_bytes
        now = max(holds, job.limit_bytes) if job.state == _RUNNING else holds
        if now != job.charged_bytes:
            self._held += now - job.charged_bytes
            job.charged_bytes = now
            self.peak_bytes = max(self.peak_bytes, self._held)
            self._room.notify()

    def _learn(self, job: Job[Spec, Made]) -> None:
        """Raise the estimates of later jobs if blocks turn out larger than expected."""
        if job.cost_bytes > 0:
            self._learned = True
            found = job.made_bytes / job.cost_bytes
            self._growth = max(1.0, found, self._growth * _FORGET)


def _closed_at_exit() -> weakref.WeakSet[ReadAhead[Any, Any]]:
    """Return a set whose members are closed at exit: threads that decode then could crash it."""
    atexit.register(_close_all)
    return weakref.WeakSet()


def _close_all() -> None:
    for readahead in list(_open.get()):
        readahead.close()


_open = PerProcess(_closed_at_exit)
"""Instances whose threads may run."""
