"""The engine of every tabular data set: what was found, planned and turned into batches."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
from torch.utils.data import IterableDataset, get_worker_info

from penstock.convert import Converter
from penstock.errors import StateMismatchError
from penstock.formats.discovery import Discovered
from penstock.loader.board import Board
from penstock.loader.epoch import EpochPass, LaneFeed, LocalRun, SkippedDataWarning
from penstock.loader.feed import Feed
from penstock.loader.options import Finish, OrderOptions, check_count
from penstock.loader.parcels import Batch
from penstock.loader.pipeline import LaneStart, Pipeline
from penstock.loader.shared import is_shared, shared_integers
from penstock.loader.state import Fingerprint, Position
from penstock.loader.stats import Stats
from penstock.model import DataFileInfo, Split
from penstock.plan import LanePlan, decode_factor, plan_lanes, rows_left

__all__ = ["TabularDataset"]

logger = logging.getLogger(__name__)

_WASTEFUL = 1.5
"""rows decoded for each row wanted, from which on decoded row groups are kept"""


class TabularDataset(IterableDataset[Any]):
    """Batches of the rows of files.

    Iterating gives every row exactly once, in one process as in the workers of a plain
    ``DataLoader(dataset, batch_size=None, num_workers=n)``, whatever their number.
    """

    def __init__(
        self,
        found: Discovered,
        order: OrderOptions,
        *,
        output_format: str,
        nulls: str | Mapping[str, Any] | None,
        ragged: str,
        finish: Finish | None,
        skip_broken: bool,
        prefetch_bytes: int,
    ) -> None:
        super().__init__()
        self._found = found
        self._order = order
        self._finish = finish
        self.pipeline = Pipeline(
            found.reader,
            Converter(found.reader.schema, output_format, nulls=nulls, ragged=ragged),
            batch_size=order.batch_size,
            drop_last=order.drop_last,
            seed=order.shuffle_seed,
            mix=order.mix,
            counted=found.counted and not skip_broken,
            skip_broken=skip_broken,
            prefetch_bytes=prefetch_bytes,
        )
        self.counters = Stats()
        self.consumers = 1
        self._planned: tuple[tuple[int, int], LanePlan] | None = None
        # In shared memory, so that workers that are already running see a new epoch.
        self._shared_epoch = shared_integers(1)
        if order.split_strategy is None:
            self._provide_for_small_chunks()
        for reason in found.broken:
            self.counters.skip(reason)
            warnings.warn(f"skipped: {reason}", SkippedDataWarning, stacklevel=4)

    # --- what there is

    @property
    def files(self) -> Sequence[DataFileInfo]:
        """The files that are read, sorted by path."""
        return self._found.files

    @property
    def schema(self) -> pa.Schema:
        """Columns and Arrow types of what comes out."""
        return self._found.reader.schema

    @property
    def format(self) -> str:
        """Name of the file format."""
        return self._found.reader.format.name

    @property
    def num_rows(self) -> int | None:
        """Rows of an epoch; None when only reading them would tell."""
        return int(self._found.files.counts.sum()) if self.pipeline.counted else None

    @property
    def batch_size(self) -> int:
        """Rows of a batch."""
        return self._order.batch_size

    @property
    def splits(self) -> list[Split]:
        """Who reads what in the current epoch: one Split a lane."""
        return list(self.plan(self.lanes, self.epoch))

    def __len__(self) -> int:
        """Batches of an epoch; a TypeError when only reading them would tell."""
        if not self.pipeline.counted:
            raise TypeError(
                "the number of batches is not known before they are read: rows are filtered, "
                'not counted in this format, or may be skipped (on_error="skip")'
            )
        plan = self.plan(self.lanes, self.epoch)
        rows = [int(plan.lane(lane).length.sum()) for lane in range(len(plan))]
        size = self._order.batch_size
        return sum(r // size if self._order.drop_last else -(-r // size) for r in rows)

    def __repr__(self) -> str:
        rows = "?" if self.num_rows is None else f"{self.num_rows:,}"
        return f"<{type(self).__name__}: {len(self.files)} {self.format} files, {rows} rows>"

    # --- epochs

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration reads."""
        return int(self._shared_epoch[0])

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; running workers see it too."""
        check_count("epoch", epoch, least=0)
        self._shared_epoch[0] = epoch

    # --- iterating by hand

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        index, consumers = (0, 1) if info is None else (info.id, info.num_workers)
        epoch = self.epoch
        lanes = self._order.lanes or consumers
        plan = self.plan(lanes, epoch)
        mine = [LaneStart(lane, plan.lane(lane)) for lane in range(index, lanes, consumers)]
        share = self.pipeline.sharing(consumers)
        if info is None:
            return self._until_the_end(self.local_pass(share, mine, epoch, turn=0))
        return map(_crossing, self.local_pass(share, mine, epoch, turn=0))

    @staticmethod
    def collate(batch: Any) -> Any:
        """The ``collate_fn`` for a DataLoader of your own: leaves a finished batch as it is."""
        return batch

    def _until_the_end(self, epoch_pass: EpochPass) -> Iterator[Any]:
        yield from epoch_pass
        self.end_epoch(epoch_pass.epoch)

    # --- for loaders

    @property
    def lanes(self) -> int:
        """Number of lanes: as given, or one for each consumer."""
        return self._order.lanes or self.consumers

    @property
    def lanes_given(self) -> bool:
        """Whether the number of lanes was chosen by the user."""
        return self._order.lanes is not None

    @property
    def fingerprint(self) -> Fingerprint:
        """What a state of this data set refers to."""
        return Fingerprint.of(
            self._found.files,
            self._found.roots,
            filters=self._found.reader.filter,
            order=self._order.describe(),
            batch_size=self._order.batch_size,
            seed=self._order.shuffle_seed,
        )

    @property
    def fork_safe(self) -> bool:
        """Whether workers may be forked off a process that has used the store."""
        return self._found.reader.store.fork_safe

    def feed(self, board: Board, parcel_batches: int, workers: int) -> Feed:
        """What worker processes run."""
        return Feed(self.pipeline, self._found.files, board, self._finish, parcel_batches, workers)

    def plan(self, lanes: int, epoch: int) -> LanePlan:
        """The lanes of an epoch; the last plan is kept."""
        if self._planned is None or self._planned[0] != (lanes, epoch):
            made = plan_lanes(self._order.strategy, self._found.files, lanes=lanes, epoch=epoch)
            self._planned = (lanes, epoch), made
        return self._planned[1]

    def local_pass(
        self, pipeline: Pipeline, starts: Sequence[LaneStart], epoch: int, *, turn: int
    ) -> EpochPass:
        """A pass over lanes that are read in this process."""
        opened = pipeline.open(self._found.files, starts, epoch, self.counters)
        feeds = [
            LaneFeed(start.cursor, partial(self._next_run, opened.runs(start.lane)))
            for start in starts
        ]
        return EpochPass(epoch, feeds, turn=turn, stats=self.counters, close=opened.close)

    def end_epoch(self, epoch: int) -> None:
        """Go on to the next epoch, unless another was chosen in the meantime."""
        if self.epoch == epoch:
            self._shared_epoch[0] = epoch + 1

    def is_over(self, position: Position) -> bool | None:
        """Whether no batch is left behind a position; None where only reading would tell."""
        if not self.pipeline.counted:
            return None
        plan = self.plan(len(position.cursors), position.epoch)
        least = self._order.batch_size if self._order.drop_last else 1
        return all(
            rows_left(plan.lane(lane), self._order.mix, cursor) < least
            for lane, cursor in enumerate(position.cursors)
        )

    def check_position(self, position: Position) -> None:
        """Raise a StateMismatchError if a lane does not reach as far as its cursor."""
        plan, mix = self.plan(len(position.cursors), position.epoch), self._order.mix
        for lane, cursor in enumerate(position.cursors):
            chunks = plan.lane(lane)
            beyond = cursor[0] * mix > len(chunks)
            if beyond or (self.pipeline.counted and rows_left(chunks, mix, cursor) < 0):
                raise StateMismatchError(
                    f"the state is damaged: lane {lane} is at {cursor}, which is beyond its end"
                )

    def _next_run(self, runs: Iterator[Any]) -> LocalRun | None:
        run = next(runs, None)
        return None if run is None else LocalRun(run, self._finish)

    def _provide_for_small_chunks(self) -> None:
        """Chunks that are parts of row groups: keep decoded groups, and say what it costs.

        Half of the memory for reading ahead goes to the groups that are kept.
        """
        factor = decode_factor(self._found.files, self.plan(1, 0).chunks)
        if factor < _WASTEFUL:
            return
        half = self.pipeline.prefetch_bytes // 2
        reader = replace(self.pipeline.reader, cache_bytes=half)
        self.pipeline = replace(self.pipeline, reader=reader, prefetch_bytes=half)
        if self._order.shuffle and self._found.files.groups.size_bytes.sum() > half:
            logger.warning(
                "chunks are much smaller than row groups, which are decoded whole: up to %.0f "
                "times the work; larger split_rows, or files with smaller row groups, avoid it",
                factor,
            )

    def __getstate__(self) -> dict[str, Any]:
        # A plan of many chunks is cheaper to make than to send; counters are of this process.
        return {**self.__dict__, "_planned": None, "counters": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, counters=Stats())
        if not is_shared(self._shared_epoch):  # copied, and not sent to a worker
            self._shared_epoch = shared_integers(1).copy_(self._shared_epoch)


def _crossing(batch: Any) -> Any:
    """A batch fit to leave a worker: a dict of many tensors goes in one piece."""
    return Batch(batch) if type(batch) is dict else batch
