"""Files of this machine as memory, without a file descriptor for each."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref

import pyarrow as pa

__all__ = ["mapped"]

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


class _Map:
    """What buffers of a map keep alive; without it the map is gone."""


def mapped(descriptor: int, *, sequential: bool) -> pa.Buffer:
    """A file that may be closed now: only what is read of the map holds it.

    Python's own maps keep a descriptor each (until 3.13), which many shards run out of, and
    pyarrow's read all of a file ahead. ``sequential``: what follows is read ahead, which is a waste
    where rows are picked.
    """
    size = os.fstat(descriptor).st_size
    address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot be mapped into memory: {os.strerror(number)}")
    held = _Map()
    # Not at exit: threads may still read then, and the system takes all back anyway.
    weakref.finalize(held, _libc.munmap, address, size).atexit = False
    if not sequential and hasattr(mmap, "MADV_RANDOM"):
        _libc.madvise(address, size, mmap.MADV_RANDOM)
    return pa.foreign_buffer(address, size, base=held)
