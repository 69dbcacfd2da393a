"""Where the next iteration over a dataset begins."""

from __future__ import annotations

from typing import Any

from headrace.convert.shared import is_shared, shared_integers
from headrace.options import check_count
from headrace.plan import State

__all__ = ["Bookmark"]

_EPOCH, _READ_BY_WORKERS = 0, 1
"""places in the memory that is shared with workers"""


class Bookmark:
    """The epoch that the next iteration reads, and the position in it from which it goes on.

    The epoch is in shared memory, so that workers that are already running see a new one.
    """

    def __init__(self) -> None:
        self.position: State | None = None
        self._shared = shared_integers(2)

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration reads."""
        return int(self._shared[_EPOCH])

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; a position in another is forgotten."""
        check_count("epoch", epoch, least=0)
        self._shared[_EPOCH] = epoch
        if self.position is not None and self.position.epoch != epoch:
            self.position = None

    def end_epoch(self, epoch: int) -> None:
        """Go on to the next epoch, unless another was chosen in the meantime."""
        if self.epoch == epoch:
            self._shared[_EPOCH] = epoch + 1

    def put(self, position: State) -> None:
        """Let the next iteration go on from a position."""
        self.position = position
        self.set_epoch(position.epoch)

    def take(self) -> State | None:
        """The position for the iteration that begins now: it counts once."""
        position, self.position = self.position, None
        return position

    @property
    def read_by_workers(self) -> bool:
        """Whether a worker process has begun to read, so that the parent knows no position."""
        return bool(self._shared[_READ_BY_WORKERS])

    def tell_parent(self) -> None:
        """Let the parent of this worker know that it reads."""
        self._shared[_READ_BY_WORKERS] = 1

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if not is_shared(self._shared):  # copied, and not sent to a worker
            self._shared = shared_integers(2).copy_(self._shared)
