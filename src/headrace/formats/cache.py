"""Recently used values, up to a number of bytes; one cache in each process, for all threads."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["BoundedCache"]

T = TypeVar("T")


class BoundedCache(Generic[T]):
    """Keeps what was used last. A forked child starts with an empty one, and with free locks."""

    def __init__(self, size_of: Callable[[T], int]) -> None:
        self._size_of = size_of
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._making: dict[Hashable, threading.Lock] = {}
        self._entries: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._size = 0

    def get(self, key: Hashable) -> T | None:
        """A value, if it is still there."""
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
            return None if found is None else found[0]

    def add(self, key: Hashable, value: T, *, limit_bytes: int) -> None:
        """Keep a value, and drop the oldest beyond the limit; one that is larger is not kept."""
        size = self._size_of(value)
        if size > limit_bytes:
            return
        with self._lock:
            replaced = self._entries.pop(key, None)
            self._size += size - (0 if replaced is None else replaced[1])
            self._entries[key] = value, size
            while self._size > limit_bytes and self._entries:
                self._size -= self._entries.popitem(last=False)[1][1]

    def get_or_make(self, key: Hashable, make: Callable[[], T], *, limit_bytes: int) -> T:
        """A value that is made by one thread only, while others that want it wait."""
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        try:
            with making:
                value = self.get(key)
                if value is None:
                    value = make()
                    self.add(key, value, limit_bytes=limit_bytes)
                return value
        finally:
            with self._lock:
                self._making.pop(key, None)
