"""Counting requests and bytes, by whoever wants to know of them."""

from __future__ import annotations

from typing import Any

from headrace.storage.process_lock import ProcessLock

__all__ = ["Meter"]


class Meter:
    """Counters that threads add to. A copy in another process starts at nothing."""

    def __init__(self) -> None:
        self._lock = ProcessLock()
        self._counts: dict[str, int] = {}

    def add(self, **counts: int) -> None:
        """Add to some counters."""
        with self._lock:
            for name, count in counts.items():
                self._counts[name] = self._counts.get(name, 0) + count

    def drain(self) -> dict[str, int]:
        """What was counted since the last call."""
        with self._lock:
            counts, self._counts = self._counts, {}
        return counts

    def __reduce__(self) -> tuple[Any, ...]:
        return Meter, ()
