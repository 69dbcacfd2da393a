"""Loaders that continue where others stopped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["batches", "check_another_goes_on"]


def batches(loader: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in loader]


def check_another_goes_on(loader: Callable[[], Any]) -> None:
    """Check that a loader with the state of another one delivers the rest of its epoch, and the
    next.
    """
    whole = loader()
    expected = [batches(whole), batches(whole)]
    assert expected[0] != expected[1]
    stopped = loader()
    running = iter(stopped)
    first = [next(running)["id"].tolist() for _ in range(9)]
    state = stopped.state_dict()
    del running
    assert first == expected[0][:9]
    resumed = loader()
    resumed.load_state_dict(state)
    assert batches(resumed) == expected[0][9:]
    assert batches(resumed) == expected[1]
