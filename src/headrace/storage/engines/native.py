"""Clients with threads of their own, which a forked process has not got: it would wait for ever."""

from __future__ import annotations

import os

from headrace.errors import WorkerError

__all__ = ["check_not_forked"]

_used = False
_inherited = False


def check_not_forked() -> None:
    """To be called before each use of such a client."""
    global _used
    if _inherited:
        raise WorkerError(
            "this process was forked from one that had read from an object store, and would hang: "
            "start worker processes with multiprocessing_context='forkserver' or 'spawn'"
        )
    _used = True


def _forked() -> None:
    global _inherited
    _inherited = _inherited or _used


os.register_at_fork(after_in_child=_forked)
