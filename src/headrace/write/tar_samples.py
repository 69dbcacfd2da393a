"""Samples that are copied into tars: where they come from, and how far they were read."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, TypeVar

from headrace.storage import side_threads

__all__ = ["Arriving", "Place", "Sample", "Samples", "digest_of", "numbered_key", "read_ahead"]

Sample = Mapping[str, Any]
"""fields and a ``__key__``, as a TarWriter takes them"""
Place = tuple[int, int]
"""how far a source was read: so many whole parts of it, and so many samples of the next"""
Arriving = Generator[tuple[Place, Sample], None, None]
"""samples one after the other, each with the place behind it"""

_THREADS = 8
_KEY_DIGITS = 9

T = TypeVar("T")


class Samples(Protocol):
    """Samples in an order that is always the same."""

    @property
    def facts(self) -> Mapping[str, str]:
        """What has to be the same when the work is gone on with."""
        ...

    @property
    def paths(self) -> Sequence[str]:
        """Of the files that are read."""
        ...

    @property
    def named(self) -> Sequence[str]:
        """What the user called them."""
        ...

    def read(self, place: Place, number: int) -> Arriving:
        """The samples from a place on, each with the place behind it; ``number`` were before."""
        ...

    def share(self, place: Place) -> float:
        """How much of all lies before a place, from 0 to 1."""
        ...


def numbered_key(number: int) -> str:
    """The key of a sample that is known by its number; they sort in their order."""
    return f"{number:0{_KEY_DIGITS}d}"


def digest_of(lines: Iterable[object]) -> str:
    """What is another if any of the lines is."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(f"{line}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]


def read_ahead(read: Callable[[int], T], numbers: Iterable[int]) -> Iterator[T]:
    """What is read by each number, in their order, while threads read the next."""
    under_way: deque[Future[T]] = deque()
    with side_threads(_THREADS) as submit:
        for number in numbers:
            under_way.append(submit(partial(read, number)))
            if len(under_way) > _THREADS:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
