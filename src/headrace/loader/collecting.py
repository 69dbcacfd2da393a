"""What a collection of garbage ends, and must not wait for.

A collection comes at any moment, in any thread, and so within any lock: to wait there for another
lock, or for a thread that may want one, may be to wait for ever.
"""

from __future__ import annotations

import _thread
import gc
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["in_collection", "outside_collection"]

_collector: int | None = None
"""the thread that collects garbage"""


def in_collection() -> bool:
    """Whether this thread is in a collection: at the end of something that was in a cycle."""
    return _collector == threading.get_ident()


def outside_collection(work: Callable[[], Any]) -> None:
    """Do something that may wait: now, or in a thread of its own if this one collects.

    Not if that is the last one, of an interpreter that goes down: no thread is begun any more.
    """
    if in_collection():
        if not sys.is_finalizing():
            _thread.start_new_thread(work, ())  # Thread.start takes locks, and waits
    else:
        work()


def _note(phase: str, info: object) -> None:
    global _collector
    _collector = threading.get_ident() if phase == "start" else None


def _forget() -> None:
    """In a forked child the thread that collected is gone, and another may have its number."""
    global _collector
    _collector = None


gc.callbacks.append(_note)
os.register_at_fork(after_in_child=_forget)
