"""How many threads decode frames: as many as turn out to do good, where the work is done."""

from __future__ import annotations

import os

__all__ = ["Crew"]

_MOST_THREADS = 4
"""a good part of decoding a small frame holds the GIL: more would only wait for each other"""
_FRAMES_A_THREAD = 4
"""with fewer the work of starting a thread is not worth it"""
_TRIES = 2
"""that each number gets before one is preferred"""
_CALLS_BETWEEN = 16
"""until the slower number is tried again: the machine may be less busy by then"""


class Crew:
    """Chooses between one thread and several, by the time that frames took with either.

    Several are slower than one where the cores that a process sees are not its own: others use
    them, or a quota keeps it from them. Threads may share a crew: what they note is an estimate.
    """

    def __init__(self, cores: int | None = None) -> None:
        self._most = min(_usable_cores() if cores is None else cores, _MOST_THREADS)
        self._calls = 0
        self._tries = {1: 0, self._most: 0}
        self._frame_s = dict.fromkeys(self._tries, 0.0)

    def size(self, frames: int) -> int:
        """With how many threads to decode so many frames."""
        if frames < 2 * _FRAMES_A_THREAD or self._most == 1:
            return 1
        self._calls += 1
        by_tries = min(self._tries, key=self._tries.__getitem__)
        if self._tries[by_tries] < _TRIES:
            return by_tries
        by_speed = sorted(self._frame_s, key=self._frame_s.__getitem__)
        return by_speed[-1] if self._calls % _CALLS_BETWEEN == 0 else by_speed[0]

    def note(self, threads: int, frames: int, seconds: float) -> None:
        """How long frames took that ``size`` was asked for; later ones count more."""
        if frames < 2 * _FRAMES_A_THREAD:
            return
        took = seconds / frames
        if self._tries[threads]:
            took = (self._frame_s[threads] + took) / 2
        self._frame_s[threads] = took
        self._tries[threads] += 1


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
