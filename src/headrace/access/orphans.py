"""Worker processes that end when the process that uses them is gone.

A worker of torch looks from time to time whether its parent process has changed. That does not
help while it runs code of the user, waits for a read, or writes to a full pipe. And under
forkserver its parent is the fork server, which in turn lives for as long as there are workers.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

from torch.utils.data import get_worker_info

__all__ = ["end_with_parent"]

_watching_pid: int | None = None
"""The process that has the thread: a forked child inherits the number, but not the thread."""


def end_with_parent() -> None:
    """Make this process end, whatever it is doing, when the process that started it ends.

    It has an effect in workers of a DataLoader only, and is cheap to call again.
    """
    global _watching_pid
    if _watching_pid == os.getpid() or get_worker_info() is None:
        return
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    _watching_pid = os.getpid()
    threading.Thread(target=_watch, args=(parent,), name="headrace-parent", daemon=True).start()


def _watch(parent: BaseProcess) -> None:
    """Wait for the end of the process that uses this worker, then end at once.

    Its sentinel is a pipe that it holds open. Workers that are forked later hold it open too, so
    the process itself is watched as well where that is possible.
    """
    ends = [parent.sentinel]
    assert parent.pid is not None
    try:
        ends.append(os.pidfd_open(parent.pid))
    except ProcessLookupError:
        os._exit(1)
    except (AttributeError, OSError):
        pass  # not on this platform, or forbidden in this container
    wait(ends)
    os._exit(1)
