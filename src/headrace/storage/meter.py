"""Counting requests and bytes, by whoever wants to know of them."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from headrace.process import PerProcess

__all__ = ["Meter"]


@dataclass(slots=True)
class _Counts:
    """What one process has counted. A garbage collection may ask for the lock again."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    counts: Counter[str] = field(default_factory=Counter)


class Meter:
    """Counters that threads add to. A copy in another process starts at nothing."""

    def __init__(self) -> None:
        self._own = PerProcess(_Counts)

    def add(self, **counts: int) -> None:
        """Add to some counters."""
        own = self._own.get()
        with own.lock:
            own.counts.update(counts)

    def drain(self) -> dict[str, int]:
        """What was counted since the last call."""
        own = self._own.get()
        with own.lock:
            counts, own.counts = own.counts, Counter()
        return dict(counts)

    def __reduce__(self) -> tuple[Any, ...]:
        return Meter, ()
