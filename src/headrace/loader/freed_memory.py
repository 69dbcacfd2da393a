"""What a worker process does with memory that it frees."""

from __future__ import annotations

import ctypes
import os
from functools import cache

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""names of glibc's options"""
_KEPT_BYTES = 64 << 20
_LARGEST_BYTES = 32 << 20
"""of a piece that is taken from kept memory: glibc allows no more"""
_ARENAS = 2
"""places that threads take memory from, each of which keeps some"""


@cache
def keep_freed_memory() -> None:
    """Let this process, which is there to fill buffers again and again, keep some of what it frees.

    Given back to the system it would be cleared and mapped anew, page by page, the next time.
    Whoever has set options of the allocator is left alone, and so is any other than glibc's.
    """
    is_set = any(name.startswith("MALLOC_") for name in os.environ)
    if is_set or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return
    library.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
    library.mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES)
    library.mallopt(_ARENA_MAX, _ARENAS)
