"""Iterating over a dataset by hand, or in the workers of a loader of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.utils.data import get_worker_info

from headrace.convert.packing import Batch
from headrace.loader.bookmark import Bookmark
from headrace.loader.fingerprint import Fingerprint
from headrace.loader.passes import Passes
from headrace.loader.planner import Planner, Readers
from headrace.loader.state import State

__all__ = ["DatasetIterator", "readers_here"]


class DatasetIterator:
    """One consumer's batches of a dataset; its state is that of the batches handed out."""

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
        """Where this consumer is."""
        now = self._began.after(self._running)
        if not self._in_worker and self._passes.has_ended(now, self._running):
            now = self._readers.start(now.epoch + 1)
        return now.as_json(self._fingerprint())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state in place of where it is."""
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
    """This process, or the worker of a loader of the user's own that it is."""
    info = get_worker_info()
    worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
    return planner.readers_by_hand(worker, workers)


def _crossing(batch: Any) -> Any:
    """A batch fit to leave a worker: a dict of many tensors goes in one piece."""
    return Batch(batch) if type(batch) is dict else batch
