"""Memory of blocks, which is used again when nothing refers to it any more.

The kernel clears each page of fresh memory when it is first touched, which takes several times as
long as the copy into it. Blocks are of a few sizes, live for less than a second and follow each
other for hours, so their memory is kept for the next ones. An array of this memory is a numpy array
like any other: its memory comes back when the last array or tensor over it is gone, however long a
user keeps one.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.process import PerProcess

__all__ = ["BlockMemory", "block_memory"]

_SMALLEST_BYTES = 64 << 10
"""Smaller arrays get memory from numpy, which has it at hand."""
_IDLE_BYTES = 128 << 20
"""Size of the memory that is kept while nothing is read."""


class BlockMemory:
    """Arrays whose memory is used again. Any thread may ask for one.

    >>> memory = BlockMemory()
    >>> first = memory.empty((100_000,), np.dtype("f8"))
    >>> address = first.ctypes.data
    >>> del first
    >>> memory.empty((100_000,), np.dtype("i8")).ctypes.data == address
    True
    """

    def __init__(self, idle_bytes: int = _IDLE_BYTES) -> None:
        """Prepare to keep memory.

        Args:
            idle_bytes: Number of bytes that are kept while nobody has reserved more.
        """
        self._lock = threading.Lock()
        self._limit = idle_bytes
        self._held = 0  # bytes of all memory made here, in use or not
        self._free: dict[int, deque[npt.NDArray[np.uint8]]] = {}
        self._dropped: deque[int] = deque()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return an array of this shape with arbitrary values."""
        size = math.prod(shape) * dtype.itemsize
        if size < _SMALLEST_BYTES or dtype.hasobject:
            return np.empty(shape, dtype)
        room = _rounded(size)
        with self._lock:
            free = self._free.setdefault(room, deque())
            memory = free.pop() if free else None
            if memory is None:
                self._held += room
                self._trim()
        if memory is None:
            memory = np.empty(room, np.uint8)
        lent = np.asarray(_Lent(memory, self))
        return lent[:size].view(dtype).reshape(shape)

    def reserve(self, size: int) -> None:
        """Keep this much more memory, until it is released."""
        with self._lock:
            self._limit += size

    def release(self, size: int) -> None:
        """Keep less memory again."""
        with self._lock:
            self._limit -= size
            self._trim()

    def give_back(self, memory: npt.NDArray[np.uint8]) -> None:
        """Keep memory that is not in use any more, or let go of it.

        A garbage collection calls this in any thread and at any moment, also within the other
        functions of this class: so it waits for no lock.
        """
        if self._held <= self._limit:
            self._free[memory.nbytes].append(memory)
        else:
            self._dropped.append(memory.nbytes)

    def _trim(self) -> None:
        """Let go of unused memory while too much is held; the lock is held."""
        while self._dropped:
            self._held -= self._dropped.popleft()
        for room, free in self._free.items():
            while self._held > self._limit and free:
                free.pop()
                self._held -= room


class _Lent:
    """Memory that numpy makes an array of, and that comes back with the last such array."""

    __slots__ = ("__array_interface__", "_lender", "_memory")

    def __init__(self, memory: npt.NDArray[np.uint8], lender: BlockMemory) -> None:
        self.__array_interface__ = memory.__array_interface__
        self._memory = memory
        self._lender = lender

    def __del__(self) -> None:
        self._lender.give_back(self._memory)


def _rounded(size: int) -> int:
    """Return a size that is at most an eighth larger and has few values."""
    step = 1 << (size.bit_length() - 4)
    return -(-size // step) * step


block_memory = PerProcess(BlockMemory)
"""The memory of the blocks of this process."""
