"""Cut blocks of any length into runs of batches of exactly ``batch_size`` rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

from headrace.model import Cursor


class Sliceable(Protocol):
    """A block that can be cut into batches."""

    @property
    def num_rows(self) -> int: ...
    def slice(self, start: int, length: int) -> Self: ...


B = TypeVar("B", bound=Sliceable)


@dataclass(frozen=True, slots=True)
class Located(Generic[B]):
    """A block, and the place in its lane where it begins."""

    block: B
    window: int
    row: int


@dataclass(frozen=True, slots=True)
class Run(Generic[B]):
    """Whole batches that follow each other in one block; the last one of a lane may be short."""

    block: B
    batch_size: int
    window: int
    """Window in which the batches of the run end."""
    row: int
    """Number of rows of that window before the run; negative if the run began before the window."""

    @property
    def batches(self) -> int:
        """Number of batches of the run."""
        return -(-self.block.num_rows // self.batch_size)

    def cursor(self, delivered: int) -> Cursor:
        """Return the place after ``delivered`` of the run's batches."""
        rows = min(delivered * self.batch_size, self.block.num_rows)
        return Cursor(self.window, self.row + rows)


def cut(
    blocks: Iterable[Located[B]],
    batch_size: int,
    *,
    concat: Callable[[Sequence[B]], B],
    drop_last: bool = False,
) -> Iterator[Run[B]]:
    """Yield runs of full batches; rows where two blocks meet are copied, all others are views."""
    rest: list[B] = []
    kept = 0
    last = (0, 0)
    for located in blocks:
        block, rows = located.block, located.block.num_rows
        used = min(batch_size - kept, rows) if rest else 0
        if used:
            rest.append(block.slice(0, used))
            kept += used
            last = (located.window, located.row + used)
            if kept == batch_size:
                yield Run(concat(rest), batch_size, last[0], last[1] - batch_size)
                rest, kept = [], 0
        whole = (rows - used) // batch_size * batch_size
        if whole:
            part = block if whole == rows else block.slice(used, whole)
            yield Run(part, batch_size, located.window, located.row + used)
        if used + whole < rows:
            kept = rows - used - whole
            rest = [block.slice(used + whole, kept)]
            last = (located.window, located.row + rows)
    if rest and not drop_last:
        yield Run(concat(rest), batch_size, last[0], last[1] - kept)
