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
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from headrace.errors import MissingExtraError, OptionError, WriteError

RunTask = Callable[[Any, Callable[[Any], None]], Any]
"""Function that does a task, and calls its second argument with its progress."""
Advance = Callable[[Any, Any], None]
"""Function that is called with a task and its progress, in the thread of the caller."""

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
    waiting = deque(tasks)
    workers: list[_Worker] = []
    running: dict[Any, _Worker] = {}

    def begin(worker: _Worker) -> None:
        if waiting:
            worker.task = waiting.popleft()
            worker.send(pickle.dumps(worker.task))
            running[worker.connection] = worker

    try:
        for _ in range(min(count, len(tasks))):
            workers.append(_Worker())
        for worker in workers:  # a large function waits until they have started, all at once
            worker.send(function)
            begin(worker)
        while running:
            for connection in wait(list(running)):
                worker = running[connection]
                kind, value = worker.answer()
                if kind == "error":
                    raise value
                if kind == "progress":
                    advance(worker.task, value)
                    continue
                del running[connection]
                task = worker.task
                begin(worker)
                yield task, value
    finally:
        for worker in workers:
            if running:
                worker.process.kill()
            worker.connection.close()
        for worker in workers:
            worker.process.wait()


class _Worker:
    """A process that does tasks, one after the other; its standard input is a socket."""

    def __init__(self) -> None:
        self.task: Any = None
        self.connection, theirs = Pipe()
        code = _MAIN.format(path=pickle.dumps(sys.path))
        with theirs:
            self.process = subprocess.Popen([sys.executable, "-c", code], stdin=theirs.fileno())

    def send(self, data: bytes) -> None:
        with suppress(ConnectionError):  # it has ended, which reading its answer reports
            self.connection.send_bytes(data)

    def answer(self) -> tuple[str, Any]:
        """Return ``"progress"``, ``"result"`` or ``"error"``, and a value."""
        try:
            kind, value = self.connection.recv()
        except (EOFError, OSError, pickle.UnpicklingError):
            status = self.process.wait()
            raise WriteError(
                f"a worker process ended with status {status}; run the same again"
            ) from None
        return kind, value


def serve() -> None:
    """Do tasks until the connection ends: the main function of a worker."""
    connection = Connection(os.dup(0))
    with open(os.devnull) as nothing:  # programs that the user's code starts must not read it
        os.dup2(nothing.fileno(), 0)
    messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, messages), daemon=True).start()
    run: RunTask = pickle.loads(messages.get())
    last = time.monotonic()

    def report(place: Any) -> None:
        nonlocal last
        if time.monotonic() - last >= _REPORT_EVERY_S:
            last = time.monotonic()
            connection.send(("progress", place))

    while True:
        connection.send_bytes(perform(run, pickle.loads(messages.get()), report))


def _receive(connection: Connection, messages: queue.SimpleQueue[bytes]) -> None:
    """Pass messages on; exit when the parent has ended or needs nothing more."""
    while True:
        try:
            messages.put(connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)


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
