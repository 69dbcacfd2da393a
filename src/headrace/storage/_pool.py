"""Run tasks in worker processes of this machine, or on a Ray cluster.

A worker process is a Python interpreter of its own that reads tasks from its standard input. It
inherits no threads, locks or native clients, and never imports the user's script: its function
arrives pickled by value. A thread of the worker waits for the input to end. It ends whenever the
parent does, even if that is killed, and then the worker exits at once.

Tasks on Ray may run anywhere and more than once: Ray repeats tasks of a lost node on another one.
Their results come to the process that began the work.
"""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from typing import IO, Any

from headrace.errors import MissingExtraError, OptionError, WriteError

RunTask = Callable[[Any, Callable[[Any], None]], Any]
"""Function that does a task, and calls its second argument with its progress."""
Advance = Callable[[Any, Any], None]
"""Function that is called with a task and its progress, in the thread of the caller."""
Event = tuple[Any, str, Any]
"""A task, ``"progress"``, ``"result"`` or ``"error"``, and a value."""

_REPORT_EVERY_S = 0.2
# Ctrl-C goes to all processes of a terminal; the parent ends its workers itself.
_MAIN = """
import pickle, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.path[:] = pickle.loads({path!r})
from headrace.storage._pool import serve
serve()
"""


def run_by_processes(
    run: RunTask, tasks: Sequence[Any], count: int, advance: Advance
) -> Iterator[tuple[Any, Any]]:
    """Yield tasks and their results, in the order in which processes of this machine do them.

    Args:
        run: Does a task.
        tasks: The tasks.
        count: Largest number of processes.
        advance: Called with the progress of tasks.
    """
    import cloudpickle

    function = cloudpickle.dumps(run)
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    waiting = deque(tasks)
    workers = [_start() for _ in range(min(count, len(tasks)))]
    threads = []
    for worker in workers:
        given = (worker, function, waiting, events)
        threads.append(threading.Thread(target=_lead, args=given, daemon=True))
        threads[-1].start()
    left = len(tasks)
    try:
        while left:
            task, kind, value = events.get()
            if kind == "error":
                raise value
            if kind == "result":
                left -= 1
                yield task, value
            else:
                advance(task, value)
    finally:
        for worker in workers:
            if left:
                worker.kill()
            assert worker.stdin is not None
            with suppress(BrokenPipeError):
                worker.stdin.close()
        for thread in threads:
            thread.join()
        for worker in workers:
            with worker:
                pass  # which closes its pipes and waits for its end


def _start() -> subprocess.Popen[bytes]:
    code = _MAIN.format(path=pickle.dumps(sys.path))
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def _lead(
    worker: subprocess.Popen[bytes],
    function: bytes,
    waiting: deque[Any],
    events: queue.SimpleQueue[Event],
) -> None:
    """Let a worker do tasks, one after the other, until there are none or it has ended."""
    assert worker.stdout is not None
    task = None
    try:
        _send(worker.stdin, function)
        while True:
            try:
                task = waiting.popleft()
            except IndexError:
                return
            _send(worker.stdin, pickle.dumps(task))
            kind = "progress"
            while kind == "progress":
                kind, value = pickle.load(worker.stdout)
                events.put((task, kind, value))
    except (EOFError, OSError, ValueError, pickle.UnpicklingError):  # it or its pipes are closed
        status = worker.wait()
        failure = WriteError(f"a worker process ended with status {status}; run the same again")
        events.put((task, "error", failure))


def _send(stream: IO[bytes] | None, data: bytes) -> None:
    assert stream is not None
    stream.write(len(data).to_bytes(8, "little") + data)
    stream.flush()


def serve() -> None:
    """Do tasks until the standard input ends: the main function of a worker."""
    source = os.fdopen(os.dup(0), "rb")
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # Output of the user's code must not come between answers.
    messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(source, messages), daemon=True).start()
    run: RunTask = pickle.loads(messages.get())
    while True:
        _answer(run, pickle.loads(messages.get()), sink)


def _receive(source: IO[bytes], messages: queue.SimpleQueue[bytes]) -> None:
    """Pass messages on; exit when the parent has ended or needs nothing more."""
    while len(size := source.read(8)) == 8:
        messages.put(source.read(int.from_bytes(size, "little")))
    os._exit(0)


def _answer(run: RunTask, task: Any, sink: IO[bytes]) -> None:
    last = time.monotonic()

    def report(place: Any) -> None:
        nonlocal last
        if time.monotonic() - last >= _REPORT_EVERY_S:
            last = time.monotonic()
            pickle.dump(("progress", place), sink)
            sink.flush()

    sink.write(perform(run, task, report))
    sink.flush()


def perform(run: RunTask, task: Any, report: Callable[[Any], None]) -> bytes:
    """Do a task; return a pickle of ``"result"`` and its result, or of ``"error"`` and an error."""
    try:
        return pickle.dumps(("result", run(task, report)))
    except BaseException as error:
        return _pickled_error(error)


def _pickled_error(error: BaseException) -> bytes:
    """Pickle an error; if it cannot be pickled, pickle an error with its text."""
    try:
        data = pickle.dumps(("error", error))
        pickle.loads(data)
        return data
    except Exception:
        return pickle.dumps(("error", WriteError(f"{type(error).__name__}: {error}")))


# --- Ray

_RAY_RETRIES = 5
"""Number of retries of a task whose node or process is lost."""
_SUBMITTED_BEYOND = 16
"""Number of tasks that are submitted beyond twice the cores of the cluster."""


def check_on(on: str | None) -> None:
    """Raise an OptionError unless ``on`` names a place where tasks can run."""
    if on not in (None, "ray"):
        raise OptionError(f'on must be "ray", or None for this machine, not {on!r}')


def run_on_ray(run: RunTask, tasks: Sequence[Any], count: int | None) -> Iterator[tuple[Any, Any]]:
    """Yield tasks and their results, in the order in which the nodes of a cluster do them.

    Args:
        run: Does a task.
        tasks: The tasks.
        count: Number of tasks that run at the same time; None for the number of cores of the
            cluster.
    """
    import cloudpickle

    ray = _connected()
    shared = ray.put(cloudpickle.dumps(run))
    remote = ray.remote(num_cpus=1, max_retries=_RAY_RETRIES)(_do)
    waiting = iter(tasks)
    running: dict[Any, Any] = {}

    def begin() -> None:
        # More than the cluster can run, because one that grows on demand has to see a demand.
        limit = count or 2 * int(ray.cluster_resources().get("CPU", 1)) + _SUBMITTED_BEYOND
        for task in islice(waiting, max(limit - len(running), 0)):
            running[remote.remote(shared, task)] = task

    try:
        begin()
        while running:
            [done], _ = ray.wait(list(running), num_returns=1)
            task = running.pop(done)
            try:
                kind, value = pickle.loads(ray.get(done))
            except ray.exceptions.RayError as error:
                raise WriteError(
                    f"Ray gave up {task} after {_RAY_RETRIES} retries: {error}; run the same "
                    "again: it continues where it stopped"
                ) from error
            if kind == "error":
                raise value
            begin()
            yield task, value
    finally:
        for reference in running:
            ray.cancel(reference, force=True)


def cores_of_a_node() -> int:
    """Return the number of cores of the largest node; they share its memory."""
    ray = _connected()
    alive = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
    return max(1, int(max(alive, default=1)))


def _do(run: bytes, task: Any) -> bytes:
    return perform(_loaded(run), task, lambda rows: None)


@lru_cache(maxsize=1)
def _loaded(run: bytes) -> RunTask:
    function: RunTask = pickle.loads(run)
    return function


def _connected() -> Any:
    """Return Ray, connected to the user's cluster, or else to this machine alone."""
    try:
        import ray
    except ImportError:
        raise MissingExtraError(
            'on="ray" needs Ray, which is not installed; run: pip install ray'
        ) from None
    if not ray.is_initialized():
        # Without an address Ray would join a cluster that is left over on this machine.
        ray.init(address=os.environ.get("RAY_ADDRESS", "local"))
    return ray
