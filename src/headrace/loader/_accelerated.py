"""A loader that Accelerate treats as one of its own; needs accelerate."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from accelerate import Accelerator
from accelerate.data_loader import DataLoaderStateMixin
from accelerate.state import GradientState
from accelerate.utils import send_to_device

from headrace.loader._dataloader import StatefulLoader
from headrace.loader._epoch import EpochPass
from headrace.options import LoaderOptions

if TYPE_CHECKING:
    from headrace.loader._dataset import TabularDataset

_UNKNOWN = -1
"""Value by which Accelerate marks a remainder that is not known."""


class AcceleratedLoader(StatefulLoader, DataLoaderStateMixin):  # type: ignore[misc]
    """Moves batches to the accelerator's device, and tells it which batch is the last.

    ``end_of_dataloader`` is true while the user works on the last batch, so that an accumulation of
    gradients ends there. No batch is handed out ahead to find this out: a state counts the batches
    that the user has.
    """

    def __init__(self, dataset: TabularDataset, options: LoaderOptions) -> None:
        super().__init__(dataset, options)
        accelerator: Accelerator = options["accelerator"]
        self.gradient_state = GradientState()
        self.device = accelerator.device if accelerator.device_placement else None
        self._non_blocking = accelerator.non_blocking
        self._announced: object = None

    @property
    def total_batch_size(self) -> int:
        """Number of rows in a step of all ranks."""
        return self.dataset.batch_size * self.dataset.ranks.size

    def begin(self) -> None:
        """Let the accelerator know that batches of this loader follow."""
        self.reset()
        self.gradient_state._add_dataloader(self)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return self._announce(super().__iter__())

    def _announce(self, batches: Iterator[Any]) -> Iterator[Any]:
        self._announced = batches
        self.begin()
        try:
            yield from batches
        finally:
            if self._announced is batches:  # else a later iteration has begun
                self._announced = None
                self.end()

    def _deliver(self, running: EpochPass) -> Generator[Any, None, None]:
        left = self._epochs.planner.batches_left(self._began)
        self.remainder = self._rows_of_last_step()
        for batch in super()._deliver(running):
            if left is None:
                self.end_of_dataloader = self._is_over(self._began, running)
            else:
                left -= 1
                self.end_of_dataloader = left == 0
            yield self._on_device(batch)

    def _on_device(self, batch: Any) -> Any:
        if self.device is None or self.device.type == "cpu":
            return batch
        return send_to_device(batch, self.device, non_blocking=self._non_blocking)

    def _rows_of_last_step(self) -> int:
        """Return the number of rows of the last step of all ranks, without repeats; 0 for all."""
        if self.dataset.num_rows is None:
            return _UNKNOWN
        ranks, planner = self.dataset.ranks.size, self._epochs.planner
        plan = planner.plan(self._began)
        repeated = sum(plan.repeated_rows(rank, ranks) for rank in range(ranks))
        if not repeated:
            return 0
        # Only a last step of one row for each rank holds repeated rows.
        return ranks - repeated if planner.dealt_evenly(self._began) else _UNKNOWN
