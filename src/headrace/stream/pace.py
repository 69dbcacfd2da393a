"""How many jobs to have under way, where a job first waits and then works."""

from __future__ import annotations

import math
import threading

__all__ = ["Pace"]

_FORGET = 0.8
"""weight of the past in the mean of what jobs take"""


class Pace:
    """Enough jobs that each core has one to work on while the others wait, and few beyond.

    More gain nothing, and what they hold is memory that would else be used again. The wait that
    counts is the shortest one seen: a longer one may be that of a machine that has too much to do.
    """

    def __init__(self, cores: int, first: int, most: int) -> None:
        self._cores = cores
        self._most = most
        self._jobs = first
        self._wait_s = math.inf
        self._work_s: float | None = None
        self._lock = threading.Lock()

    @property
    def jobs(self) -> int:
        """How many there should be."""
        return self._jobs

    def note(self, waited_s: float, worked_s: float) -> None:
        """Tell how long a job waited, and how long it worked."""
        with self._lock:
            self._wait_s = min(self._wait_s, waited_s)
            before = worked_s if self._work_s is None else self._work_s
            self._work_s = _FORGET * before + (1 - _FORGET) * worked_s
            wanted = self._cores * (1 + self._wait_s / max(self._work_s, 1e-6))
            self._jobs = max(min(math.ceil(wanted) + 1, self._most), self._cores + 1)
