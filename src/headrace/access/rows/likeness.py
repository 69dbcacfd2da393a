"""Whether what rows hold is what they were made with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

__all__ = ["is_alike"]


def is_alike(value: Any, made: Any) -> bool:
    """Whether what a row holds is what it was made with; tensors may have been written to."""
    if value is made:
        return True
    if type(value) is not type(made):
        return False
    if isinstance(made, torch.Tensor):
        if value.dtype != made.dtype or value.shape != made.shape:
            return False
        is_there = value.data_ptr() == made.data_ptr() and value.stride() == made.stride()
        return is_there or torch.equal(value, made)
    if isinstance(made, np.ndarray):
        if value.dtype != made.dtype or value.shape != made.shape:
            return False
        if made.dtype == object:
            return all(map(is_alike, value.flat, made.flat))
        return np.array_equal(value, made, equal_nan=made.dtype.kind in "fc")
    if isinstance(made, dict):
        return value.keys() == made.keys() and all(is_alike(value[k], made[k]) for k in made)
    if isinstance(made, list | tuple):
        return len(value) == len(made) and all(map(is_alike, value, made))
    return bool(value == made) or _is_nan(value, made)


def _is_nan(*values: Any) -> bool:
    return all(isinstance(value, float | np.floating) and np.isnan(value) for value in values)
