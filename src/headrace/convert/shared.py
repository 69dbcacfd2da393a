"""Memory that processes share. Its name is gone at once: a crash leaves nothing behind."""

from __future__ import annotations

import os
from typing import Any

import torch

__all__ = ["is_shared", "shared_bytes", "shared_integers"]

# torch declares no types for what is used of these
_UntypedStorage: Any = torch.UntypedStorage
_multiprocessing: Any = torch.multiprocessing


def shared_bytes(size: int) -> torch.Tensor:
    """So many bytes, not initialised. An OSError or RuntimeError if there is no room for them."""
    if hasattr(os, "memfd_create") and _multiprocessing.get_sharing_strategy() == "file_descriptor":
        storage = _without_name(max(size, 1))
    else:
        storage = _UntypedStorage._new_shared(max(size, 1))
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def _without_name(size: int) -> Any:
    """Not in /dev/shm, which is small in containers, and where torch leaves names if it is full."""
    descriptor = os.memfd_create("headrace")
    try:
        os.posix_fallocate(descriptor, 0, size)
        return _UntypedStorage._new_shared_fd_cpu(descriptor, size)
    finally:
        os.close(descriptor)


def is_shared(tensor: torch.Tensor) -> bool:
    """Whether other processes may see this memory."""
    return bool(tensor.untyped_storage().is_shared())


def shared_integers(count: int) -> torch.Tensor:
    """So many zeros."""
    return shared_bytes(8 * count).view(torch.int64).zero_()
