"""Functions that worker processes of any start method can import."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from torch.utils.data import get_worker_info


def doubled(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "twice": batch["id"] * 2}


def with_process(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "pid": os.getpid()}


def slow_first_worker(batch: dict[str, Any]) -> dict[str, Any]:
    """Return each batch with the number of the worker that made it; worker 0 is slow."""
    info = get_worker_info()
    if info is not None and info.id == 0:
        time.sleep(0.03)
    return {"id": batch["id"], "worker": info.id if info is not None else -1}


def as_pair(batch: dict[str, Any]) -> tuple[Any, Any]:
    return batch["id"], batch["x"]


def slowly(batch: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.02)
    return batch


def refuse_row_777(batch: dict[str, Any]) -> dict[str, Any]:
    if (batch["id"] == 777).any():
        raise LookupError("row 777 is not welcome")
    return batch


class HardToSend(Exception):
    """An exception that cannot be unpickled: its constructor needs arguments that are not kept."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{reason} ({code})")
        self.lock = __import__("threading").Lock()


def raise_what_does_not_pickle(batch: dict[str, Any]) -> dict[str, Any]:
    raise HardToSend(7, "no luck")


def die_at_row_777(batch: dict[str, Any]) -> dict[str, Any]:
    if (batch["id"] == 777).any():
        os.kill(os.getpid(), signal.SIGKILL)
    return batch


def leave_at_row_777(batch: dict[str, Any]) -> dict[str, Any]:
    if (batch["id"] == 777).any():
        sys.exit(3)
    return batch


def stop_iteration_at_row_777(batch: dict[str, Any]) -> dict[str, Any]:
    if (batch["id"] == 777).any():
        raise StopIteration
    return batch
