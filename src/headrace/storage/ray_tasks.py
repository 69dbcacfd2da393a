"""Run tasks on a Ray cluster: the same function as worker processes run.

Tasks may run anywhere and more than once: Ray runs those of a lost node again on another one. Their
results come to the process that began the work.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

from headrace.errors import MissingExtraError, OptionError, WriteError
from headrace.storage.pool import RunTask, perform

__all__ = ["check_on", "cores_of_a_node", "run_on_ray"]

_RETRIES = 5
"""Retries of a task whose node or process is lost."""
_MORE = 16
"""Tasks that are submitted beyond twice the cores of the cluster."""


def check_on(on: str | None) -> None:
    """Raise an OptionError unless ``on`` names a place where tasks can run."""
    if on not in (None, "ray"):
        raise OptionError(f'on must be "ray", or None for this machine, not {on!r}')


def run_on_ray(run: RunTask, tasks: Sequence[Any], count: int | None) -> Iterator[tuple[Any, Any]]:
    """Yield tasks and their results, in the order in which the nodes of a cluster do them.

    Args:
        run: Does a task.
        tasks: The tasks.
        count: How many run at a time; None for as many as the cluster has cores.
    """
    import cloudpickle

    ray = _connected()
    shared = ray.put(cloudpickle.dumps(run))
    remote = ray.remote(num_cpus=1, max_retries=_RETRIES)(_do)
    waiting = iter(tasks)
    running: dict[Any, Any] = {}

    def begin() -> None:
        # More than the cluster can run: one that grows on demand has to see a demand.
        limit = count or 2 * int(ray.cluster_resources().get("CPU", 1)) + _MORE
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
                    f"Ray gave up {task} after {_RETRIES} retries: {error}; run the same "
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
    """Return the number of cores of the largest node, which share its memory."""
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
    """Return Ray, connected to the cluster of the user, else to one of this machine alone."""
    try:
        import ray
    except ImportError:
        raise MissingExtraError(
            'on="ray" needs Ray, which is not installed; run: pip install ray'
        ) from None
    if not ray.is_initialized():
        # Without an address Ray would join whatever an earlier cluster left on this machine.
        ray.init(address=os.environ.get("RAY_ADDRESS", "local"))
    return ray
