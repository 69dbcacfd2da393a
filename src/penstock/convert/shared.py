"""Memory that processes share. Its name is gone at once: a crash leaves nothing behind."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["is_shared", "shared_bytes", "shared_integers"]

_UntypedStorage: Any = torch.UntypedStorage  # torch declares no types for what is used of it


def shared_bytes(size: int) -> torch.Tensor:
    """So many bytes, not initialised."""
    storage = _UntypedStorage._new_shared(max(size, 1))
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def is_shared(tensor: torch.Tensor) -> bool:
    """Whether other processes may see this memory."""
    return bool(tensor.untyped_storage().is_shared())


def shared_integers(count: int) -> torch.Tensor:
    """So many zeros."""
    return shared_bytes(8 * count).view(torch.int64).zero_()
