"""Threads that share work which releases the GIL, such as decoding images."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headrace.process import usable_cores

_PIECES_A_THREAD = 4
"""Number of values that make it worth starting a thread."""


def in_threads(function: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
    """Return the results of a function for all values, in order, computed by several threads."""
    threads = min(_decoding_threads(), len(values) // _PIECES_A_THREAD)
    if threads <= 1:
        return [function(value) for value in values]
    with ThreadPoolExecutor(threads, "headrace-decode") as pool:
        return list(pool.map(function, values))


def _decoding_threads() -> int:
    """Return the number of cores for this process, shared with other workers of a loader."""
    data = sys.modules.get("torch.utils.data")  # which a worker has imported
    info = None if data is None else data.get_worker_info()
    return max(1, usable_cores() // (info.num_workers if info else 1))
