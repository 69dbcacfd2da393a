"""Local files as one range of memory, so that one gather copies rows of all of them."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.model import Int64Array

__all__ = ["Region"]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED = ctypes.c_void_p(-1).value
_PROT_NONE = 0
_FIXED = 0x10
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
_LONG_BYTES = 512
"""width from which on it pays to look at both ends of all rows before they are copied"""
_MOST_WIDTHS = 64
"""of records, whose views are kept"""


class _Held:
    """What buffers of a region keep alive; without it the addresses are given back."""


class Region:
    """Addresses reserved for some files, each of which is mapped when it is first needed.

    Python's own maps keep a descriptor each (until 3.13), which many shards run out of, and
    pyarrow's read all of a file ahead. Of files that are not mapped nothing may be read.

    Args:
        sizes: The number of bytes of each file.

    Raises:
        OSError: The process may not have so many addresses.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        page = mmap.PAGESIZE
        ends = np.cumsum([-(-max(size, 1) // page) * page for size in sizes], dtype=np.int64)
        self._starts: list[int] = [0, *ends.tolist()]
        size = self._starts[-1]
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        self.address: int = _mapped(None, size, _PROT_NONE, flags, -1)
        self._held = _Held()
        # Not at exit: threads may still read then, and the system takes all back anyway.
        weakref.finalize(self._held, _libc.munmap, self.address, size).atexit = False
        whole = pa.foreign_buffer(self.address, size, base=self._held)
        self._bytes: npt.NDArray[np.uint8] = np.frombuffer(whole, np.uint8)
        self.view = self._bytes.data
        self._windows: dict[int, npt.NDArray[Any]] = {}

    def map(self, number: int, descriptor: int) -> pa.Buffer:
        """Map a file, which may be closed then, and return its bytes.

        Raises:
            OSError: The file has another size than was said, or cannot be mapped.
        """
        start, size = self._starts[number], os.fstat(descriptor).st_size
        if not 0 < size <= self._starts[number + 1] - start:
            raise OSError(f"it has {size} bytes, which is not its size when it was found")
        address = self.address + start
        _mapped(address, size, mmap.PROT_READ, mmap.MAP_SHARED | _FIXED, descriptor)
        if hasattr(mmap, "MADV_RANDOM"):  # what lies beside rows that are picked is not read ahead
            _libc.madvise(address, size, mmap.MADV_RANDOM)
        return pa.foreign_buffer(address, size, base=self._held)

    def records(self, places: Int64Array, width: int) -> npt.NDArray[Any]:
        """Copy ``width`` bytes from each place. numpy refuses any that would leave the region."""
        data = self._bytes
        if width >= _LONG_BYTES:
            # The processor finds the pages of all ends side by side, those of copies one by one.
            data.take(places)
            data.take(places + (width - 1))
        windows = self._windows.get(width)
        if windows is None:
            count = max(data.size - width + 1, 0)
            windows = np.ndarray((count,), f"V{width}", data, strides=(1,))
            if len(self._windows) < _MOST_WIDTHS:
                self._windows[width] = windows
        copied: npt.NDArray[Any] = windows[places]
        return copied

    def joined(self, starts: Int64Array, stops: Int64Array) -> bytearray:
        """Copy the bytes from each start to its stop, one behind the other."""
        first, last, view = starts.tolist(), stops.tolist(), self.view
        return bytearray().join([view[a:b] for a, b in zip(first, last, strict=True)])

    def bits(self, places: Int64Array) -> npt.NDArray[np.uint8]:
        """Return single bits, whose places are counted in bits."""
        holding = self.records(places >> 3, 1).view(np.uint8)
        return (holding >> (places & 7).astype(np.uint8)) & np.uint8(1)


def _mapped(address: int | None, size: int, access: int, flags: int, descriptor: int) -> int:
    found = _libc.mmap(address, size, access, flags, descriptor, 0)
    if found == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot be mapped into memory: {os.strerror(number)}")
    made: int = found
    return made
