"""Memory of blocks, which is used again when no array or tensor refers to it.

The kernel clears each page of fresh memory when it is first touched, which takes several times as
long as the copy into it. Blocks are of a few sizes, live for less than a second and follow each
other for hours, so their memory is kept for the next ones. An array of this memory is a numpy array
like any other: its memory comes back when the last array or tensor over it is freed, however long
the user keeps one.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headrace.process import PerProcess

_SMALLEST_BYTES = 64 << 10
"""Size of the smallest array; smaller ones get memory from numpy, which is fast for them."""


class BlockMemory:
    """Makes arrays whose memory is used again. Any thread may use it.

    It never holds more than was in use at one time: before fresh memory is made, unused memory of
    other sizes is freed.

    >>> memory = BlockMemory()
    >>> first = memory.empty((100_000,), np.dtype("f8"))
    >>> address = first.ctypes.data
    >>> del first
    >>> memory.empty((100_000,), np.dtype("i8")).ctypes.data == address
    True
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unused: dict[int, deque[npt.NDArray[np.uint8]]] = {}  # by size

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return an array of this shape with arbitrary values."""
        size = math.prod(shape) * dtype.itemsize
        if size < _SMALLEST_BYTES or dtype.hasobject:
            return np.empty(shape, dtype)
        room = _rounded(size)
        unused = self._unused.get(room)
        try:
            memory = unused.pop() if unused else None
        except IndexError:  # another thread was faster
            memory = None
        if memory is None:
            self._let_go(room)
            memory = np.empty(room, np.uint8)
        lent = np.asarray(_Lent(memory, self))
        return lent[:size].view(dtype).reshape(shape)

    def give_back(self, memory: npt.NDArray[np.uint8]) -> None:
        """Keep memory that is not in use any more.

        A garbage collection may call this in any thread and at any moment, even within the other
        functions of this class. So it waits for no lock.
        """
        self._unused[memory.nbytes].append(memory)

    def _let_go(self, size: int) -> None:
        """Free about ``size`` bytes of unused memory, and prepare to keep memory of this size."""
        with self._lock:
            self._unused.setdefault(size, deque())
            for room, unused in self._unused.items():
                while size > 0 and unused:
                    unused.popleft()
                    size -= room


class _Lent:
    """Memory of a numpy array, which comes back when the last array over it is freed."""

    __slots__ = ("__array_interface__", "_lender", "_memory")

    def __init__(self, memory: npt.NDArray[np.uint8], lender: BlockMemory) -> None:
        self.__array_interface__ = memory.__array_interface__
        self._memory = memory
        self._lender = lender

    def __del__(self) -> None:
        self._lender.give_back(self._memory)


def _rounded(size: int) -> int:
    """Return a size that is at most an eighth larger and has few values."""
    step = 1 << (size.bit_length() - 4)  # keeps the four highest bits
    return -(-size // step) * step  # rounded up


_ALIGNMENT = 256
SMALL_COPY_BYTES = 128 << 10
"""Size up to which arrays are copied without releasing the GIL."""

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of columns in one piece of memory; columns of one type lie together.

    Each operation of torch, and each large one of numpy, releases the GIL and waits to get it back,
    which may take longer than the operation. So small columns are copied without releasing it, and
    the columns of a type can be cut apart in one operation.

    Attributes:
        size: Number of bytes of the memory.
        shapes: The shape of each column.
        runs: For each type, the numbers of its columns, and where the first one begins.
    """

    size: int
    shapes: Sequence[tuple[int, ...]]
    runs: Sequence[tuple[np.dtype[Any], Sequence[int], int]]

    @classmethod
    def of(cls, columns: Sequence[Sequence[Array]]) -> Layout:
        """Return a layout for columns, each of which has one part or more."""
        by_type: dict[np.dtype[Any], list[int]] = {}
        for number, parts in enumerate(columns):
            by_type.setdefault(parts[0].dtype, []).append(number)
        runs, size = [], 0
        for dtype, numbers in by_type.items():
            runs.append((dtype, numbers, size))
            size += sum([_aligned(_size(columns[number])) for number in numbers])
        shapes = [(sum(map(len, parts)), *parts[0].shape[1:]) for parts in columns]
        return cls(size, shapes, runs)

    def fill(self, memory: npt.NDArray[np.uint8], columns: Sequence[Sequence[Array]]) -> None:
        """Copy the columns into memory of this layout."""
        target = memory.data
        for _, numbers, start in self.runs:
            for number in numbers:
                at = start
                for part in columns[number]:
                    piece = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
                    stop = at + piece.nbytes
                    if piece.nbytes <= SMALL_COPY_BYTES:
                        target[at:stop] = piece.data  # does not release the GIL
                    else:
                        memory[at:stop] = piece
                    at = stop
                start += _aligned(at - start)

    def tensors(self, memory: torch.Tensor) -> list[torch.Tensor]:
        """Return the columns as views of memory of this layout, which may be on a device."""
        made: dict[int, torch.Tensor] = {}
        for dtype, numbers, start in self.runs:
            sizes = []  # sizes of each column and of the gap behind it
            for number in numbers:
                count = math.prod(self.shapes[number])
                sizes += [count, _aligned(count * dtype.itemsize) // dtype.itemsize - count]
            stop = start + sum(sizes) * dtype.itemsize
            typed = memory[start:stop].view(torch.from_numpy(np.empty(0, dtype)).dtype)
            for number, view in zip(numbers, typed.split_with_sizes(sizes)[::2], strict=True):
                shape = self.shapes[number]
                made[number] = view if len(shape) == 1 else view.view(shape)
        return [made[number] for number in range(len(self.shapes))]


def _size(parts: Sequence[Array]) -> int:
    return sum([part.nbytes for part in parts])


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


block_memory = PerProcess(BlockMemory)
"""The memory of the blocks of this process."""
