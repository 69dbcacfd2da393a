"""Shared memory on its way to another process, used again when nobody there sees it any more.

Fresh shared memory is dear: every page of it is cleared, and found missing once in each process. So
a worker keeps a few segments. The first bytes of a segment say whose it is, and nobody else may
write to it:

======= =================================================================== ==============
state   whose it is                                                         becomes
======= =================================================================== ==============
FREE    the sender's, to be filled, sent or given up                        SENT, RETIRED
SENT    the receiver's, who has not looked yet                              LENT
LENT    the receiver's, for as long as there is any view of it              FREE, RETIRED
RETIRED nobody's: both sides forget it, and the last view ends it
======= =================================================================== ==============

What arrives is an array over a lease. Whatever is made of it (slices, tensors, Arrow buffers,
views of memory) keeps the array, and so the lease, whose end is the end of them all: nothing but
that gives a segment back. What a fork has copied views of is never given back.

``outgoing`` is the side that sends, ``arrivals`` the one that receives.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

__all__ = [
    "FREE",
    "HEADER_BYTES",
    "LENT",
    "RETIRED",
    "SENT",
    "STATE",
    "TIMES_SENT",
    "Bytes",
    "header_of",
]

Bytes = npt.NDArray[np.uint8]

FREE, SENT, LENT, RETIRED = range(4)
STATE, TIMES_SENT = range(2)
"""places in the header"""
HEADER_BYTES = 64


def header_of(memory: torch.Tensor) -> memoryview[int]:
    """The numbers before the bytes that are sent."""
    first: Any = memory[:HEADER_BYTES].numpy()  # numpy 1 does not say that it is a buffer
    return memoryview(first).cast("q")
