"""The declaration of arms. An arm does its work and yields the rows of each piece it got."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from typing import Any

from data import Data

__all__ = ["Arm", "Mark", "Pieces", "arm", "find", "in_epochs", "register"]

EPOCHS = 5


class Mark(Enum):
    """A mark that an arm may yield between the rows of its pieces."""

    EPOCH_END = "the rows of an epoch end here"
    CLOCK_STARTS = "all that came before was preparation and is not timed"
    NOT_THE_NEXT = "this is not the batch that would have come next, had there been no break"


Pieces = Iterator[int | Mark]


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to do one piece of work."""

    name: str
    """``module.name``, where the module is one of this package"""
    reads: str | None
    """the kind of data that it reads, for warming the page cache; None: no data"""
    run: Callable[[Data], Pieces]
    """opens, reads to the end and yields rows; all of it is timed"""
    prepare: Callable[[], None] | None = None
    """prepares the process before the clock starts"""
    beforehand: Callable[[Data], None] | None = None
    """prepares data once, in another process, before the first pass: a conversion, a state"""
    batches: Callable[[Data], Iterable[Any]] | None = None
    """for shuffles: returns only the batches, to measure their order"""


_ARMS: dict[str, Arm] = {}


def register(arm: Arm) -> None:
    """Register an arm by its name."""
    _ARMS[arm.name] = arm


def arm(
    name: str, *, reads: str | None, prepare: Callable[[], None] | None = None
) -> Callable[[Callable[[Data], Pieces]], Callable[[Data], Pieces]]:
    """Declare a generator function as the arm ``name``."""

    def declare(run: Callable[[Data], Pieces]) -> Callable[[Data], Pieces]:
        register(Arm(name, reads, run, prepare))
        return run

    return declare


def find(name: str) -> Arm:
    """Return the arm of this name, after importing its module and all that the arm needs."""
    import_module(f"arms.{name.partition('.')[0]}")
    return _ARMS[name]


def in_epochs(read: Callable[[], Iterable[int]]) -> Pieces:
    """Yield the rows of several epochs: one pass over little data ends before a process is warm."""
    for _ in range(EPOCHS):
        yield from read()
        yield Mark.EPOCH_END
