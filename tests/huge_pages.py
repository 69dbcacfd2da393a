"""Memory of this process in huge pages, for tests that fork.

A fork copies an entry of the page table for each page, and the end of a child looks at each again:
30 ms for a process that has imported all tests, and there are thousands of forks in them. A huge
page is one entry for 512.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

HUGE_BYTES = 2 << 20
MADV_COLLAPSE = 25


def into_huge_pages() -> None:
    """Collapse what this process has allocated so far; a kernel that cannot leaves it as it is."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    for line in Path("/proc/self/maps").read_text().splitlines():
        region, access, _, _, inode, *_ = line.split()
        if access == "rw-p" and inode == "0":
            begin, end = (int(address, 16) for address in region.split("-"))
            for start in range(-(-begin // HUGE_BYTES) * HUGE_BYTES, end - HUGE_BYTES, HUGE_BYTES):
                libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(HUGE_BYTES), MADV_COLLAPSE)
