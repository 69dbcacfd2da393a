"""Native libraries whose threads do not survive a fork.

A child of a process that has used such a library waits for ever for threads that only its parent
has, or crashes. Each library notes which process uses it, so that a child refuses instead.
"""

from __future__ import annotations

import os

from headrace.errors import WorkerError

__all__ = ["PYARROW_CLIENTS", "NativeLibrary"]


class NativeLibrary:
    """The process that uses a library, as the processes that are forked from it see it.

    Args:
        name: What the library is called in errors.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._user: int | None = None

    def use(self) -> None:
        """Note that this process uses the library; call it before each use.

        Raises:
            WorkerError: The process was forked from one that has used the library.
        """
        if self._user is None:
            self._user = os.getpid()
        if self._user != os.getpid():
            raise WorkerError(
                f"this process was forked from one that has used {self._name}, and would hang or "
                'crash: start worker processes with multiprocessing_context="forkserver"'
            )


PYARROW_CLIENTS = NativeLibrary("a remote filesystem of pyarrow")
"""The clients of object stores in pyarrow."""
