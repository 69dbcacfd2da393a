"""Locks of files and folders, by which processes wait for each other.

A fork copies the descriptor and shares its lock: closing it ends the lock only when the child has
closed its copy as well, which it knows nothing of. So who has a lock lets go of it by name.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

__all__ = ["close_locked", "locked"]


@contextmanager
def locked(file: IO[bytes], how: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Hold the lock of an open file, waiting for it unless ``how`` says not to."""
    fcntl.flock(file, how)
    try:
        yield
    finally:
        _unlock(file.fileno())


def close_locked(descriptor: int) -> None:
    """Close what may be locked, and let go of the lock."""
    _unlock(descriptor)
    os.close(descriptor)


def _unlock(descriptor: int) -> None:
    with suppress(OSError):  # not every network file system has locks
        fcntl.flock(descriptor, fcntl.LOCK_UN)
