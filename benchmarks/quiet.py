"""Passes in quiet moments: measure the load of other processes, and wait until it is low."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from descendants import living_descendants_cpu_s

__all__ = ["FOREIGN_SHARE", "in_a_quiet_moment"]

Result = TypeVar("Result")

FOREIGN_SHARE = 0.1
"""a pass is repeated if other processes used more of the machine than this"""
_SAMPLE_S = 0.25
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_IDLE, _IOWAIT = 3, 4


def in_a_quiet_moment(
    work: Callable[[], Result],
    *,
    patience_s: float,
    attempts: int,
    unseen_s: Callable[[Result], float],
) -> tuple[Result, float]:
    """Run ``work`` when the machine is idle, and again if it was disturbed.

    Return the least disturbed result of a limited number of attempts, and the share of the machine
    that other processes used meanwhile. ``unseen_s`` returns the CPU time of the work that is not
    counted for ended children of this process, because other processes waited for them.
    """
    done: list[tuple[float, Result]] = []
    for _ in range(attempts):
        _wait_until_idle(patience_s)
        before = _Clocks()
        result = work()
        share = before.foreign_share(unseen_s(result))
        done.append((share, result))
        if share <= FOREIGN_SHARE:
            break
    share, result = min(done, key=lambda one: one[0])
    return result, share


def _wait_until_idle(patience_s: float) -> None:
    """Wait until the machine has been idle for a moment, or until patience runs out."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        before = _Clocks()
        time.sleep(_SAMPLE_S)
        if before.foreign_share() <= FOREIGN_SHARE:
            return


class _Clocks:
    """CPU time of the whole machine and of this process and its descendants, at one moment."""

    def __init__(self) -> None:
        self._wall_s = time.monotonic()
        self._busy_s = _machine_busy_s()
        self._own_s = _own_s()

    def foreign_share(self, unseen_s: float = 0.0) -> float:
        """Return the share of the machine that other processes have used since."""
        elapsed_s = time.monotonic() - self._wall_s
        own_s = _own_s() - self._own_s + unseen_s
        busy_s = _machine_busy_s() - self._busy_s
        return max(busy_s - own_s, 0.0) / (elapsed_s * (os.cpu_count() or 1))


def _machine_busy_s() -> float:
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(ticks) - ticks[_IDLE] - ticks[_IOWAIT]) / _TICKS_PER_S


def _own_s() -> float:
    usages = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    ended_s = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    return ended_s + living_descendants_cpu_s()  # servers that run during all passes
