"""How many threads share work: as many as turn out to do good, where it is done."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torch.utils.data import get_worker_info

__all__ = ["Crew", "in_threads", "usable_cores"]

_MOST_THREADS = 4
"""a good part of a small piece of work holds the GIL: more would only wait for each other"""
_PIECES_A_THREAD = 4
"""with fewer the work of starting a thread is not worth it"""
_TRIES = 2
"""that each number gets before one is preferred"""
_CALLS_BETWEEN = 16
"""until the slower number is tried again: the machine may be less busy by then"""
_ONCE = 2
"""how much longer than before one call can have taken: anything may have come in between"""
_WORTH = 1.1
"""by which several have to be faster: they take more of the machine"""


class Crew:
    """Chooses between one thread and several, by the time that pieces of work took with either.

    Several are slower than one where the cores that a process sees are not its own: others use
    them, or a quota keeps it from them. Threads may share a crew: what they note is an estimate.
    """

    def __init__(self, cores: int | None = None, *, most: int = _MOST_THREADS) -> None:
        self._most = min(usable_cores() if cores is None else cores, most)
        self._calls = 0
        self._tries = {1: 0, self._most: 0}
        self._piece_s = dict.fromkeys(self._tries, 0.0)

    def size(self, pieces: int) -> int:
        """With how many threads to do so much."""
        if pieces < 2 * _PIECES_A_THREAD or self._most == 1:
            return 1
        self._calls += 1
        by_tries = min(self._tries, key=self._tries.__getitem__)
        if self._tries[by_tries] < _TRIES:
            return by_tries
        several = self._piece_s[self._most] * _WORTH < self._piece_s[1]
        tries_other = self._calls % _CALLS_BETWEEN == 0
        return self._most if several != tries_other else 1

    def note(self, threads: int, pieces: int, seconds: float) -> None:
        """How long pieces took that ``size`` was asked for; later ones count more."""
        if pieces < 2 * _PIECES_A_THREAD:
            return
        took = seconds / pieces
        if self._tries[threads]:
            before = self._piece_s[threads]
            took = (before + min(took, _ONCE * before)) / 2
        self._piece_s[threads] = took
        self._tries[threads] += 1


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_threads(function: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
    """Return what a function makes of each value, by threads where that is faster."""
    threads = min(_decoding_threads(), len(values) // _PIECES_A_THREAD)
    if threads <= 1:
        return [function(value) for value in values]
    with ThreadPoolExecutor(threads, "headrace-decode") as pool:
        return list(pool.map(function, values))


def _decoding_threads() -> int:
    """Return the number of cores for this process, shared with other workers of a loader."""
    info = get_worker_info()
    return max(1, usable_cores() // (info.num_workers if info else 1))
