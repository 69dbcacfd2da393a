"""Indices in memory: each loaded once by the threads of a process, and not all for ever."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from headrace.process import PerProcess
from headrace.sources.tar.index import TarIndex

__all__ = ["HeldIndexes"]

_LIMIT_BYTES = 512 << 20
_DERIVED_BYTES = 16
"""of a member, for what is computed from an index"""
_ALL = -1


class HeldIndexes:
    """Indices by the number of their tar; those not used for longest go when there are too many.

    A forked child goes on with the indices of its parent, and with locks of its own.
    """

    def __init__(self, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._limit = limit_bytes
        self._held: OrderedDict[int, tuple[TarIndex, int]] = OrderedDict()
        self._total = 0
        self._locks: PerProcess[dict[int, threading.Lock]] = PerProcess(dict)

    def get(self, shard: int, load: Callable[[int], TarIndex]) -> TarIndex:
        """The index of a tar, by ``load`` if it is not here."""
        found = self._known(shard)
        if found is None:
            with self._lock(shard):
                found = self._known(shard)
                if found is None:
                    found = load(shard)
                    self._keep(shard, found)
            self._locks.get().pop(shard, None)
        return found

    def _known(self, shard: int) -> TarIndex | None:
        try:
            self._held.move_to_end(shard)
            return self._held[shard][0]
        except KeyError:  # it is not here, or another thread has just let go of it
            return None

    def _keep(self, shard: int, index: TarIndex) -> None:
        size = _size(index)
        with self._lock(_ALL):
            self._held[shard] = index, size
            self._total += size
            while self._total > self._limit and len(self._held) > 1:
                _, (_, dropped) = self._held.popitem(last=False)
                self._total -= dropped

    def _lock(self, shard: int) -> threading.Lock:
        return self._locks.get().setdefault(shard, threading.Lock())


def _size(index: TarIndex) -> int:
    columns = (
        index.names,
        index.offsets,
        index.sizes,
        index.widths,
        index.heights,
        index.captions,
        index.json,
        index.sha256,
        index.extras,
    )
    return sum(c.nbytes for c in columns if c is not None) + _DERIVED_BYTES * len(index)
