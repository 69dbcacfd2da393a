"""The loader that ``create_dataloader`` returns: a torch DataLoader with epochs and state."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from multiprocessing.context import BaseContext
from typing import Any

import torch
from torch.utils.data import DataLoader

from penstock.errors import StateMismatchError
from penstock.loader.board import Board
from penstock.loader.dataset import TabularDataset
from penstock.loader.epoch import EpochPass, LaneFeed
from penstock.loader.pipeline import LaneStart
from penstock.loader.state import Position
from penstock.loader.workers import Inbox, WorkerOptions
from penstock.plan import LanePlan

__all__ = ["StatefulLoader"]

logger = logging.getLogger(__name__)

_PARCEL_BYTES = 4 << 20
_PARCEL_BATCHES = 32


class StatefulLoader(DataLoader[Any]):
    """Batches of a dataset, read ahead by threads or by worker processes.

    ``iter`` starts the current epoch at its first batch, also after a ``break``; an epoch that
    ran to its end is followed by the next. ``state_dict`` may be called between any two
    batches, and ``load_state_dict`` makes the next ``iter`` go on from there, once.
    """

    dataset: TabularDataset

    def __init__(
        self,
        dataset: TabularDataset,
        *,
        num_workers: int,
        pin_memory: bool = False,
        prefetch_factor: int = 2,
        persistent_workers: bool = False,
        multiprocessing_context: str | BaseContext | None = None,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
    ) -> None:
        for_workers: dict[str, Any] = {}
        if num_workers:
            for_workers = {
                "prefetch_factor": prefetch_factor,
                "persistent_workers": persistent_workers,
                "timeout": timeout,
            }
        super().__init__(
            dataset,
            batch_size=None,
            num_workers=num_workers,
            collate_fn=dataset.collate,
            pin_memory=pin_memory,
            worker_init_fn=worker_init_fn,
            **for_workers,
        )
        self._options = WorkerOptions(
            num_workers,
            multiprocessing_context,
            persistent_workers,
            prefetch_factor,
            timeout,
            worker_init_fn,
        )
        self._pin = pin_memory and torch.cuda.is_available()
        if pin_memory and not self._pin:
            logger.warning("pin_memory has no effect: there is no CUDA device")
        self._lanes = dataset.lanes
        self._fingerprint = dataset.fingerprint
        self._pass: EpochPass | None = None
        self._resume: Position | None = None
        self._kept: tuple[Board, DataLoader[Any]] | None = None
        self._user_of_kept: weakref.ref[EpochPass] | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; a state of another epoch is forgotten."""
        self.dataset.set_epoch(epoch)
        if self._resume is not None and self._resume.epoch != epoch:
            self._resume = None

    # --- state

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is: after the last batch that was handed out. JSON-safe and small."""
        return self._position().as_state(self._fingerprint)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration go on from a state, unless another epoch is set before."""
        position = Position.from_state(state, self._fingerprint)
        lanes = self._fitting_lanes(len(position.cursors))
        self.dataset.check_position(position)
        self._lanes = lanes
        self._resume = position
        self._pass = None
        self.dataset.set_epoch(position.epoch)

    def _fitting_lanes(self, lanes: int) -> int:
        """The lanes of a state, if this loader can go on with them."""
        consumers = max(self.num_workers, 1)
        if lanes != self._lanes and (self.dataset.lanes_given or lanes % consumers):
            raise StateMismatchError(
                f"the state has {lanes} lanes, and this loader {self._lanes} (a lane a worker, or "
                f"lanes=); use num_workers={lanes}, or lanes={lanes} with a number of workers "
                "that divides it"
            )
        return lanes

    def _position(self) -> Position:
        epoch = self.dataset.epoch
        if self._resume is not None and self._resume.epoch == epoch:
            return self._resume
        if self._pass is None or self._pass.epoch != epoch:
            return Position.start(epoch, self._lanes)
        now = Position(epoch, self._pass.turn, tuple(self._pass.cursors))
        known = self.dataset.is_over(now)
        if self._pass.is_over() if known is None else known:
            return Position.start(epoch + 1, self._lanes)
        return now

    # --- iterating

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        epoch = self.dataset.epoch
        position, self._resume = self._resume, None
        if position is None or position.epoch != epoch:
            position = Position.start(epoch, self._lanes)
        self._pass = self._begin(position)
        return self._deliver(self._pass, resumed=any(map(any, position.cursors)))

    def _deliver(self, running: EpochPass, *, resumed: bool) -> Iterator[Any]:
        """The rest of an epoch; if a state left nothing of it, the next one."""
        empty = True
        for batch in running:
            empty = False
            yield batch
        self.dataset.end_epoch(running.epoch)
        if empty and resumed:
            self._pass = running = self._begin(Position.start(running.epoch + 1, self._lanes))
            yield from running
            self.dataset.end_epoch(running.epoch)

    def _begin(self, position: Position) -> EpochPass:
        plan = self.dataset.plan(self._lanes, position.epoch)
        if self.num_workers == 0:
            return self._begin_here(plan, position)
        return self._begin_in_workers(plan, position)

    def _begin_here(self, plan: LanePlan, position: Position) -> EpochPass:
        starts = [
            LaneStart(lane, plan.lane(lane), cursor) for lane, cursor in enumerate(position.cursors)
        ]
        pipeline = replace(self.dataset.pipeline, pin_memory=self._pin)
        return self.dataset.local_pass(pipeline, starts, position.epoch, turn=position.turn)

    def _begin_in_workers(self, plan: LanePlan, position: Position) -> EpochPass:
        board, source = self._workers(plan)
        board.post(position.epoch, plan, position.cursors)
        pipeline, stats = self.dataset.pipeline, self.dataset.counters
        inbox = Inbox(source, pipeline, len(plan), self._pin, stats)
        feeds = [
            LaneFeed(cursor, partial(inbox.next_run, lane))
            for lane, cursor in enumerate(position.cursors)
        ]
        made = EpochPass(position.epoch, feeds, turn=position.turn, stats=stats, close=inbox.close)
        if self._kept is not None and self._kept[1] is source:
            self._user_of_kept = weakref.ref(made)
        return made

    def _workers(self, plan: LanePlan) -> tuple[Board, DataLoader[Any]]:
        """The board and processes of the last epoch if they are kept, fit and idle, or new ones."""
        user = self._user_of_kept() if self._user_of_kept is not None else None
        idle = user is None or user.ended
        if self._kept is not None and idle and self._kept[0].holds(plan):
            return self._kept
        board = Board(plan)
        feed = self.dataset.feed(board, self._parcel_batches(), self.num_workers)
        made = board, self._options.start(feed, self.dataset.fork_safe)
        if self._options.persistent and idle:
            self._kept = made
        return made

    def _parcel_batches(self) -> int:
        """Batches to a parcel: enough to share its cost, few enough to wait for."""
        cost = self.dataset.pipeline.row_cost
        batch_bytes = max(cost.fixed_bytes, 1) * self.dataset.batch_size
        return max(1, min(_PARCEL_BATCHES, _PARCEL_BYTES // batch_bytes))

    def stats(self) -> dict[str, Any]:
        """What was done since the loader was made.

        ``rows`` and ``batches`` handed out, ``bytes`` decoded, ``seconds`` by stage (summed over
        threads and processes), ``skipped_chunks`` with the reason of each, ``retries``.
        """
        counted = self.dataset.counters.as_dict()
        if self._pass is not None and not self._pass.counted:
            for name, value in self._pass.handed_over.items():
                counted[name] += value
        return counted
