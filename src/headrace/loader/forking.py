"""Forked workers leave alone what is their parent's: its garbage, and its pools of threads.

A collection in a forked child would end what the parent has dropped and not collected yet: loaders,
process groups, whole trainers. That waits for threads, and for locks of threads, which the child
has not got. And a child that a thread of a ``ThreadPoolExecutor`` forked waits at its end for the
threads of all pools, itself among them: Python refuses that, and the child ends as one that failed.
"""

from __future__ import annotations

import concurrent.futures.thread
import gc
import os
import threading
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

__all__ = ["starting_workers"]

_threads_of_pools: MutableMapping[Any, Any] = getattr(
    concurrent.futures.thread, "_threads_queues", {}
)
_lock = threading.Lock()
_starts = 0
"""of workers that are under way, by any thread"""
_collects = False
"""whether there were collections before the first of them"""


@contextmanager
def starting_workers() -> Iterator[None]:
    """Processes that are forked meanwhile never collect what they inherit.

    There is no collection in that time at all: in a child one might come before it is told.
    """
    global _starts, _collects
    with _lock:
        if _starts == 0:
            _collects = gc.isenabled()
            gc.disable()
        _starts += 1
    try:
        yield
    finally:
        with _lock:
            _starts -= 1
            if _starts == 0 and _collects:
                gc.enable()


def _in_child() -> None:
    global _starts, _lock
    _lock = threading.Lock()
    if _starts:
        _starts = 0
        _threads_of_pools.clear()
        gc.freeze()
        if _collects:
            gc.enable()


os.register_at_fork(after_in_child=_in_child)
