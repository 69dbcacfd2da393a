"""Statistics of a loader, counted in its threads and processes, and added up here."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from headrace.process import PerProcess

__all__ = ["Stats"]

STORAGE_COUNTS = ("requests", "retries", "fetched_bytes", "cached_bytes")
"""what stores count: how often they were asked, again, for how much, and what a disk had"""


class Stats:
    """Counters of one process. Threads may add to them; ``drain`` hands them to another Stats."""

    def __init__(self) -> None:
        self._lock = PerProcess(threading.RLock)
        self.rows = 0
        self.batches = 0
        self.bytes = 0
        self.storage = dict.fromkeys(STORAGE_COUNTS, 0)
        self.padded = 0
        self.seconds: dict[str, float] = {}
        self.skipped: list[str] = []

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time of the block to a stage."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.spend(stage, time.perf_counter() - began)

    def spend(self, stage: str, seconds: float) -> None:
        """Add to the time of a stage."""
        with self._lock.get():
            self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds

    def decoded(self, size_bytes: int) -> None:
        """Count what was decoded."""
        with self._lock.get():
            self.bytes += size_bytes

    def stored(self, counts: Mapping[str, int]) -> None:
        """Count what stores did."""
        with self._lock.get():
            for name, count in counts.items():
                self.storage[name] += count

    def skip(self, reason: str) -> None:
        """Note a chunk or file that could not be read and was left out."""
        with self._lock.get():
            self.skipped.append(reason)

    def drain(self) -> dict[str, Any]:
        """Return what was counted in reading since the last call, for ``add``."""
        with self._lock.get():
            taken = {
                "bytes": self.bytes,
                "storage": self.storage,
                "seconds": self.seconds,
                "skipped": self.skipped,
            }
            self.bytes, self.seconds, self.skipped = 0, {}, []
            self.storage = dict.fromkeys(STORAGE_COUNTS, 0)
        return taken

    def add(self, drained: dict[str, Any]) -> None:
        """Add what another process drained."""
        for stage, seconds in drained["seconds"].items():
            self.spend(stage, seconds)
        self.stored(drained["storage"])
        with self._lock.get():
            self.bytes += drained["bytes"]
            self.skipped.extend(drained["skipped"])

    def as_dict(self) -> dict[str, Any]:
        """Return the counters as plain values."""
        with self._lock.get():
            return {
                "rows": self.rows,
                "batches": self.batches,
                "bytes": self.bytes,
                "seconds": dict(self.seconds),
                "padded": self.padded,
                "skipped_chunks": list(self.skipped),
                **self.storage,
            }
