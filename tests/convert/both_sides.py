"""A process that sends as a worker does, and receives."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.convert import arrivals
from headrace.convert import outgoing as sending
from headrace.convert.outgoing import outgoing

__all__ = ["SIZE", "WORKER", "both_sides", "received", "sent"]

SIZE = 100_000
WORKER = SimpleNamespace(num_workers=1)


@pytest.fixture
def both_sides(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process sends as a worker does, and receives; it begins and ends with no segments."""
    monkeypatch.setattr(sending, "get_worker_info", lambda: WORKER)
    begin()
    yield
    gc.collect()
    begin()


def begin() -> None:
    arrivals._here.begin()
    sending._begin()


def sent(value: int, size: int = SIZE) -> bytes:
    """The message that brings so many bytes of a value."""
    buffer = outgoing(size)
    buffer.memory[:] = value
    return bytes(ForkingPickler.dumps(buffer))


def received(value: int, size: int = SIZE) -> Any:
    array = pickle.loads(sent(value, size))
    assert array.shape == (size,)
    assert (array == value).all()
    return array
