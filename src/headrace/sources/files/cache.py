"""Recently used values, up to a number of bytes; one cache in each process, for all threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from headrace.process import PerProcess

__all__ = ["BoundedCache"]

T = TypeVar("T")


@dataclass(slots=True)
class _Kept:
    """What one process keeps."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    making: dict[Hashable, threading.Lock] = field(default_factory=dict)
    entries: OrderedDict[Hashable, tuple[Any, int]] = field(default_factory=OrderedDict)
    size: int = 0


class BoundedCache(Generic[T]):
    """Keeps what was used last. A forked child starts with an empty one."""

    def __init__(self, size_of: Callable[[T], int]) -> None:
        self._size_of = size_of
        self._kept = PerProcess(_Kept)

    def get(self, key: Hashable) -> T | None:
        """A value, if it is still there."""
        kept = self._kept.get()
        with kept.lock:
            found = kept.entries.get(key)
            if found is not None:
                kept.entries.move_to_end(key)
            return None if found is None else found[0]

    def add(self, key: Hashable, value: T, *, limit_bytes: int) -> None:
        """Keep a value, and drop the oldest beyond the limit; one that is larger is not kept."""
        size = self._size_of(value)
        if size > limit_bytes:
            return
        kept = self._kept.get()
        with kept.lock:
            replaced = kept.entries.pop(key, None)
            kept.size += size - (0 if replaced is None else replaced[1])
            kept.entries[key] = value, size
            while kept.size > limit_bytes and kept.entries:
                kept.size -= kept.entries.popitem(last=False)[1][1]

    def get_or_make(self, key: Hashable, make: Callable[[], T], *, limit_bytes: int) -> T:
        """A value that is made by one thread only, while others that want it wait."""
        kept = self._kept.get()
        with kept.lock:
            making = kept.making.setdefault(key, threading.Lock())
        try:
            with making:
                value = self.get(key)
                if value is None:
                    value = make()
                    self.add(key, value, limit_bytes=limit_bytes)
                return value
        finally:
            with kept.lock:
                kept.making.pop(key, None)
