"""The memory of batches that are freed, in the process that uses them."""

from __future__ import annotations

from functools import cache

__all__ = ["keep_freed_batches"]

_KEPT_BYTES = 24 << 20


@cache
def keep_freed_batches() -> None:
    """Let this process use the memory of batches of Python objects again.

    glibc gives what is freed back to the system, and fresh pages cost as much as the copy into
    them. From the first large block that is freed on it keeps twice the size of that.
    """
    bytes(_KEPT_BYTES)
