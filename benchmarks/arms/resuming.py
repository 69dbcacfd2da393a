"""Arms that resume from the state of another process in mid-epoch, up to the first batch."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from data import Data
from order_rows import RESUME_PLACES

from arms.registry import Arm, Mark, Pieces, register

__all__ = ["Resumable", "resumes"]


@dataclass(frozen=True, slots=True)
class Resumable:
    """A loader that has not begun, and functions to save and load its state."""

    batches: Callable[[], Iterator[Mapping[str, Any]]]
    state_dict: Callable[[], Any]
    load_state_dict: Callable[[Any], object]


def resumes(
    name: str,
    *,
    reads: str | None = "parquet",
    beforehand: Callable[[Data], None] | None = None,
) -> Callable[[Callable[[Data], Resumable]], Callable[[Data], Resumable]]:
    """Declare the arms ``name-fresh``, ``name-1``, ``name-50`` and ``name-99``."""

    def declare(make: Callable[[Data], Resumable]) -> Callable[[Data], Resumable]:
        register(Arm(f"{name}-fresh", reads, partial(_start, make), beforehand=beforehand))
        for place in RESUME_PLACES:
            resume = Arm(
                f"{name}-{place}",
                reads,
                partial(_resume, make, f"{name}-{place}"),
                beforehand=partial(_take_state, make, f"{name}-{place}", place, beforehand),
            )
            register(resume)
        return make

    return declare


def _start(make: Callable[[Data], Resumable], data: Data) -> Pieces:
    loader = make(data)
    yield Mark.CLOCK_STARTS
    batches = loader.batches()  # kept: leaving the loop is not timed
    yield len(next(batches)["row"])


def _resume(make: Callable[[Data], Resumable], name: str, data: Data) -> Pieces:
    state, expected = pickle.loads(_state_file(data, name).read_bytes())
    loader = make(data)
    yield Mark.CLOCK_STARTS
    loader.load_state_dict(state)
    batches = loader.batches()
    # A library that lost the rows of its buffer may have none left.
    batch = next(batches, {"row": ()})
    yield len(batch["row"])
    if not np.array_equal(np.array(batch["row"]), expected):
        yield Mark.NOT_THE_NEXT


def _take_state(
    make: Callable[[Data], Resumable],
    name: str,
    place: int,
    beforehand: Callable[[Data], None] | None,
    data: Data,
) -> None:
    """Save the state at that place, and the rows that follow it."""
    if beforehand is not None:
        beforehand(data)
    loader = make(data)
    epoch_batches = -(-data.rows("parquet") // 1024)
    batches = loader.batches()
    for _ in islice(batches, max(1, epoch_batches * place // 100)):
        pass
    state = pickle.dumps(loader.state_dict())
    following = np.array(next(batches)["row"])
    path = _state_file(data, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps((pickle.loads(state), following)))


def _state_file(data: Data, name: str) -> Path:
    return data.folder("states") / f"{name}.pickle"
