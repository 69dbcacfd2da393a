"""Memory that processes share. Its name is gone at once: a crash leaves nothing behind."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["shared_bytes", "shared_integers"]

_UntypedStorage: Any = torch.UntypedStorage  # torch declares no types for what is used of it


def shared_bytes(size: int) -> torch.Tensor:
    """So many bytes, not initialised."""
    storage = _UntypedStorage._new_shared(max(size, 1))
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def shared_integers(count: int) -> torch.Tensor:
    """So many zeros."""
    return shared_bytes(8 * count).view(torch.int64).zero_()
