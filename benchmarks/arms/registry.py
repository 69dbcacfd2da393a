"""How an arm is declared. An arm does its work and yields the rows of each piece it got."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module

from data import Data

__all__ = ["EPOCH_END", "Arm", "Pieces", "arm", "find", "in_epochs"]

EPOCH_END = None
"""what an arm yields between the rows of one epoch and the next"""
EPOCHS = 5
Pieces = Iterator[int | None]


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to do one piece of work."""

    name: str
    """``module.what``, where the module is one of this package"""
    reads: str | None
    """the kind of data it reads, for warming the page cache; None: no data"""
    run: Callable[[Data], Pieces]
    """opens, reads to the end and yields rows; all of it is timed"""
    prepare: Callable[[], None] | None = None
    """what is there before the clock starts"""


_ARMS: dict[str, Arm] = {}


def arm(
    name: str, *, reads: str | None, prepare: Callable[[], None] | None = None
) -> Callable[[Callable[[Data], Pieces]], Callable[[Data], Pieces]]:
    """Declare a generator function as the arm ``name``."""

    def declare(run: Callable[[Data], Pieces]) -> Callable[[Data], Pieces]:
        _ARMS[name] = Arm(name, reads, run, prepare)
        return run

    return declare


def find(name: str) -> Arm:
    """The arm of this name; imports its module and with it all that the arm needs."""
    import_module(f"arms.{name.partition('.')[0]}")
    return _ARMS[name]


def in_epochs(read: Callable[[], Iterable[int]]) -> Pieces:
    """The rows of several epochs: one pass over little data is over before a process is warm."""
    for _ in range(EPOCHS):
        yield from read()
        yield EPOCH_END
