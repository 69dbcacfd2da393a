"""Threads of the user that ask for batches while the interpreter goes down.

A daemon thread that is inside of torch at that moment, and wants the interpreter back, is ended by
Python in the midst of C++, which ends the process: "terminate called without an active exception".
So the interpreter waits a while for those who are inside, and from then on daemon threads neither
begin nor come back. A pass asks for that before and behind each batch: ``if leaving.exiting``.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Generator
from inspect import GEN_RUNNING, getgeneratorstate
from typing import Any
from weakref import WeakValueDictionary

from headrace.loader.collecting import in_collection

__all__ = ["exiting", "stay", "watched"]

_EXIT_PATIENCE_S = 2.0
"""how long a thread that waits for a batch may hold up the end of the interpreter"""

exiting = False
_passes: WeakValueDictionary[int, Generator[Any, None, None]] = WeakValueDictionary()
_staying: list[threading.Thread] = []


def watched(batches: Generator[Any, None, None]) -> Generator[Any, None, None]:
    """The same batches, for which the interpreter waits if it goes down while one is made."""
    _passes[id(batches)] = batches
    return batches


def stay() -> None:
    """Stay for good, except in a thread for which Python, or a callback at exit, may wait.

    Nor where a collection ends what others have left: that may be any thread, within any lock.
    """
    if threading.current_thread().daemon and not in_collection():
        _staying.append(threading.current_thread())
        threading.Event().wait()


def _see_off() -> None:
    global exiting
    exiting = True
    until = time.monotonic() + _EXIT_PATIENCE_S
    while _at_work() > len(_staying) and time.monotonic() < until:
        time.sleep(0.001)


def _at_work() -> int:
    passes = [reference() for reference in _passes.valuerefs()]
    return sum(one is not None and getgeneratorstate(one) == GEN_RUNNING for one in passes)


def _forget() -> None:
    """In a forked child there are no such threads."""
    _passes.clear()
    _staying.clear()


# With the import: callbacks that users register later run before, and may wait for their threads.
atexit.register(_see_off)
os.register_at_fork(after_in_child=_forget)
