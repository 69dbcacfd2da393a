"""Locks of what a forked child goes on using."""

from __future__ import annotations

import os
import threading

__all__ = ["ProcessLock"]


class ProcessLock:
    """A lock that each process has for itself: one that a fork copies may be held for ever.

    The thread that has it may take it again, for a collection of garbage comes at any moment, and
    what it ends may want the lock too.
    """

    def __init__(self) -> None:
        self._locks: dict[int, threading.RLock] = {}

    def __enter__(self) -> None:
        self._locks.setdefault(os.getpid(), threading.RLock()).acquire()

    def __exit__(self, *error: object) -> None:
        self._locks[os.getpid()].release()
