"""State of a process that a forked child must not inherit.

A fork copies locks that other threads hold and handles of threads that the child does not have. A
child that uses them may wait for ever. State that lives in a ``PerProcess`` starts anew in every
process, without at-fork handlers: importing a module registers nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

__all__ = ["PerProcess"]

T = TypeVar("T")

_of_parents: list[Any] = []
"""values of parents whose holders are gone"""


class PerProcess(Generic[T]):
    """A value that each process makes for itself, when it first asks for it.

    The value of a parent is neither used nor freed in a forked child: to free it might wait for
    threads that only the parent has. A process that receives the holder by pickle starts with
    nothing, too.

    Args:
        make: Returns the value of a process. It is called once in each.

    Example:
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
        """Keep the values of parents when the holder goes; the interpreter may be going, too."""
        pid = own_pid()
        kept.extend(value for owner, value in self._values.items() if owner != pid)

    def __reduce__(self) -> tuple[Any, ...]:
        return PerProcess, (self._make,)
