"""Beginnings and ends of files, once fetched, for all who open them again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from headrace.model import DataFileInfo
from headrace.process import PerProcess

__all__ = ["Parts"]

_LIMIT_BYTES = 256 << 20


@dataclass(slots=True)
class _Kept:
    """The parts that one process has. A garbage collection may ask for the lock again."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    parts: OrderedDict[tuple[Any, ...], dict[int, bytes]] = field(default_factory=OrderedDict)
    size: int = 0


class Parts:
    """What readers look at first, and would fetch each time. Goes with its store to workers."""

    def __init__(self) -> None:
        self._kept = PerProcess(_Kept)

    def of(self, file: DataFileInfo) -> list[tuple[int, memoryview]]:
        """What is known of a file, as (first byte, bytes)."""
        kept = self._kept.get()
        with kept.lock:
            found = kept.parts.get(_key(file), {})
            return [(start, memoryview(data)) for start, data in found.items()]

    def add(self, file: DataFileInfo, start: int, data: bytes) -> None:
        """Keep a part of a file; the oldest ones go when there are too many."""
        kept = self._kept.get()
        with kept.lock:
            known = kept.parts.setdefault(_key(file), {})
            before = known.get(start, b"")
            if len(before) >= len(data):
                return
            known[start] = data
            kept.size += len(data) - len(before)
            while kept.size > _LIMIT_BYTES:
                _, dropped = kept.parts.popitem(last=False)
                kept.size -= sum(map(len, dropped.values()))

    def __getstate__(self) -> dict[str, Any]:
        kept = self._kept.get()
        with kept.lock:
            copies = OrderedDict((key, dict(parts)) for key, parts in kept.parts.items())
            return {"parts": copies, "size": kept.size}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._kept = PerProcess(_Kept)
        kept = self._kept.get()
        kept.parts, kept.size = state["parts"], state["size"]


def _key(file: DataFileInfo) -> tuple[Any, ...]:
    return file.path, file.file_size, file.etag
