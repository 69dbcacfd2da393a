"""Beginnings and ends of files, once fetched, for all who open them again."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from headrace.model import DataFileInfo
from headrace.storage.process_lock import ProcessLock

__all__ = ["Parts"]

_LIMIT_BYTES = 256 << 20


class Parts:
    """What readers look at first, and would fetch each time. Goes with its store to workers."""

    def __init__(self) -> None:
        self._lock = ProcessLock()
        self._parts: OrderedDict[tuple[Any, ...], dict[int, bytes]] = OrderedDict()
        self._size = 0

    def of(self, file: DataFileInfo) -> list[tuple[int, memoryview]]:
        """What is known of a file, as (first byte, bytes)."""
        with self._lock:
            found = self._parts.get(_key(file), {})
            return [(start, memoryview(data)) for start, data in found.items()]

    def add(self, file: DataFileInfo, start: int, data: bytes) -> None:
        """Keep a part of a file; the oldest ones go when there are too many."""
        with self._lock:
            known = self._parts.setdefault(_key(file), {})
            before = known.get(start, b"")
            if len(before) >= len(data):
                return
            known[start] = data
            self._size += len(data) - len(before)
            while self._size > _LIMIT_BYTES:
                _, dropped = self._parts.popitem(last=False)
                self._size -= sum(map(len, dropped.values()))

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            copies = OrderedDict((key, dict(parts)) for key, parts in self._parts.items())
            return {"_parts": copies, "_size": self._size}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = ProcessLock()


def _key(file: DataFileInfo) -> tuple[Any, ...]:
    return file.path, file.file_size, file.etag
