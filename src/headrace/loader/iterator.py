"""Iterating over a dataset by hand, or in the workers of a loader of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.utils.data import get_worker_info

from headrace.convert.packing import Batch
from headrace.convert.shared import is_shared, shared_integers
from headrace.loader.passes import Passes
from headrace.loader.planner import Planner
from headrace.options import check_count
from headrace.plan import Fingerprint, Readers, State

__all__ = ["Bookmark", "DatasetIterator", "readers_here"]

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
        """Choose the epoch; a position in another one is forgotten."""
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
        """Return the position for the iteration that begins now, and forget it: it counts once."""
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


class DatasetIterator:
    """The batches of one consumer of a dataset; a state counts those that were handed out."""

    def __init__(
        self,
        passes: Passes,
        bookmark: Bookmark,
        fingerprint: Callable[[], Fingerprint],
        *,
        readers: Readers,
        in_worker: bool,
    ) -> None:
        self._passes = passes
        self._bookmark = bookmark
        self._fingerprint = fingerprint
        self._readers = readers
        self._in_worker = in_worker

    def begin(self, position: State | None) -> None:
        """Read from a position on; None: from the start of the epoch."""
        passes, readers, epoch = self._passes, self._readers, self._bookmark.epoch
        if position is None or position.epoch != epoch:
            start = readers.start(epoch)
        else:
            start = passes.resume(position, readers)
        share = passes.pipeline.sharing(max(readers.ranks // passes.planner.ranks.size, 1))
        self._running = passes.begin(start, share)
        self._began = start
        self._batches = iter(self._running)

    def __iter__(self) -> DatasetIterator:
        return self

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            if not self._in_worker:  # workers see the epochs that their parent sets
                self._bookmark.end_epoch(self._running.epoch)
            raise
        return _crossing(batch) if self._in_worker else batch

    def state_dict(self) -> dict[str, Any]:
        """Return where this consumer is, as JSON."""
        now = self._began.after(self._running)
        if not self._in_worker and self._passes.has_ended(now, self._running):
            now = self._readers.start(now.epoch + 1)
        return now.as_json(self._fingerprint())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Stop where it is, and continue from a state."""
        self._running.end()
        position = State.from_json(state, self._fingerprint())
        self._bookmark.set_epoch(position.epoch)
        self.begin(position)

    def close(self) -> None:
        """Stop reading."""
        self._running.end()

    def __del__(self) -> None:
        if hasattr(self, "_batches"):
            self._running.leave()


def readers_here(planner: Planner) -> Readers:
    """Return the readers of this process, which may be a worker of a loader of the user's own."""
    info = get_worker_info()
    worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
    return planner.readers_by_hand(worker, workers)


def _crossing(batch: Any) -> Any:
    """Return a batch as it leaves a worker: a dict of many tensors goes in one piece."""
    return Batch(batch) if type(batch) is dict else batch
