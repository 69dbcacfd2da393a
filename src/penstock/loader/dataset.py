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

from penstock.convert import Block, Converter
from penstock.errors import OptionError, StateMismatchError
from penstock.formats.discovery import Discovered
from penstock.loader.board import Board
from penstock.loader.epoch import EpochPass, LaneFeed, LocalRun, SkippedDataWarning
from penstock.loader.feed import Feed
from penstock.loader.itinerary import Crew, Route, resumed
from penstock.loader.options import Finish, OrderOptions, check_count
from penstock.loader.parcels import Batch
from penstock.loader.pipeline import LaneStart, Pipeline
from penstock.loader.ranks import Ranks
from penstock.loader.shared import is_shared, shared_integers
from penstock.loader.state import END, Fingerprint, Place, Position
from penstock.loader.stats import Stats
from penstock.model import DataFileInfo, Split
from penstock.plan import (
    EvenBatchesSplitStrategy,
    EvenPlan,
    LanePlan,
    batches_in,
    decode_factor,
    even_out,
    plan_lanes,
    plan_the_rest,
)
from penstock.stream import Cursor, Run

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
        ranks: Ranks,
        even: str | bool | None,
    ) -> None:
        super().__init__()
        self._found = found
        self._order = order
        self.ranks = ranks
        self.even = _checked_even(even, ranks)
        if order.lanes is not None and order.lanes % ranks.size:
            raise OptionError(
                f"lanes={order.lanes} cannot be shared evenly by {ranks.size} ranks; "
                "choose a multiple of their number"
            )
        self._finish = finish
        self.pipeline = Pipeline(
            found.reader,
            Converter(found.reader.schema, output_format, nulls=nulls, ragged=ragged),
            batch_size=order.batch_size,
            drop_last=order.drop_last,
            seed=order.shuffle_seed,
            grouping=order.grouping,
            counted=found.counted and not skip_broken,
            skip_broken=skip_broken,
            prefetch_bytes=prefetch_bytes,
        )
        self.counters = Stats()
        self.workers = 1
        self._planned: tuple[Place, LanePlan] | None = None
        self._evened: tuple[Place, EvenPlan] | None = None
        # In shared memory, so that workers that are already running see a new epoch.
        self._shared_epoch = shared_integers(1)
        if self.num_rows is not None and self.num_rows < ranks.size > 1:
            raise OptionError(f"{self.num_rows} rows cannot be shared by {ranks.size} ranks")
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
        return list(self.plan())

    def __len__(self) -> int:
        """Batches of an epoch, of this rank; a TypeError when only reading them would tell."""
        if not self.pipeline.counted:
            raise TypeError(
                "the number of batches is not known before they are read: rows are filtered, "
                'not counted in this format, or may be skipped (on_error="skip")'
            )
        place = self.crew.start(self.epoch).place
        plan = self.evened(place).plan
        own = range(self.ranks.rank, len(plan), self.ranks.size)
        return sum(self._batches(plan.lane(lane).rows_left()) for lane in own)

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
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        position = replace(self.crew, workers=workers).start(self.epoch)
        plan = self.evened(position.place).plan
        lanes = position.own_lanes[worker::workers]
        starts = [LaneStart(plan.lane(lane)) for lane in lanes]
        passing = self.local_pass(self.pipeline.sharing(workers), starts, self.epoch, turn=0)
        return self._until_the_end(passing) if info is None else map(_crossing, passing)

    @staticmethod
    def collate(batch: Any) -> Any:
        """The ``collate_fn`` for a DataLoader of your own: leaves a finished batch as it is."""
        return batch

    def _until_the_end(self, epoch_pass: EpochPass) -> Iterator[Any]:
        yield from epoch_pass
        self.end_epoch(epoch_pass.epoch)

    # --- for loaders

    @property
    def crew(self) -> Crew:
        """Who reads."""
        return Crew(
            self.ranks.rank,
            self.ranks.size,
            self.workers,
            self._order.batch_size,
            self._order.lanes,
            in_step=self.even is not False,
        )

    @property
    def fingerprint(self) -> Fingerprint:
        """What a state of this data set refers to."""
        return Fingerprint.of(
            self._found.files,
            self._found.roots,
            filters=self._found.reader.filter,
            order=self._order.describe(),
            seed=self._order.shuffle_seed,
        )

    @property
    def fork_safe(self) -> bool:
        """Whether workers may be forked off a process that has used the store."""
        return self._found.reader.store.fork_safe

    def feed(self, board: Board, parcel_batches: int, workers: int) -> Feed:
        """What worker processes run."""
        return Feed(self.pipeline, self._found.files, board, self._finish, parcel_batches, workers)

    def plan(self, lanes: int | None = None, epoch: int | None = None) -> LanePlan:
        """Who reads what: the lanes of an epoch from its start, for all ranks."""
        epoch = self.epoch if epoch is None else epoch
        return self.plan_at(self.crew.start(epoch, lanes).place)

    def plan_at(self, place: Place) -> LanePlan:
        """The lanes of the epoch, or of what was left of it; the last plan is kept."""
        place = replace(place, ranks=1, taken=0)
        if self._planned is None or self._planned[0] != place:
            self._planned = place, self._plan_at(place)
        return self._planned[1]

    def _plan_at(self, place: Place) -> LanePlan:
        stages = place.before
        sizes = [(stage.batch_size, len(stage.cursors)) for stage in stages]
        sizes.append((place.batch_size, place.lanes))
        strategy, files = self._order.strategy_for(sizes[0][0]), self._found.files
        plan = plan_lanes(strategy, files, lanes=sizes[0][1], epoch=place.epoch)
        plan = plan.grouped(self._order.grouping)
        for stage, (batch_size, lanes) in zip(stages, sizes[1:], strict=True):
            self._check_cursors(plan, dict(enumerate(stage.cursors)))
            plan = plan_the_rest(
                plan,
                stage.cursors,
                lanes=lanes,
                batch_size=batch_size,
                grouping=self._order.grouping,
                counted=self.pipeline.counted,
            )
        return plan

    def evened(self, place: Place) -> EvenPlan:
        """The lanes from a place on with the same number of batches for every rank.

        Where rows are not counted, or ranks need not be in step, all that there is.
        """
        if self.even is False or place.ranks == 1 or not self.pipeline.counted:
            return EvenPlan(self.plan_at(place))
        if self._evened is None or self._evened[0] != place:
            self._evened = place, self._even_out(place)
        return self._evened[1]

    def _even_out(self, place: Place) -> EvenPlan:
        plan = self.plan_at(place)
        cursors: dict[int, Cursor] = {}
        turns = []
        for rank in range(place.ranks):
            start = self.route.start_of(place, rank)
            turns.append(start.turns[0])
            cursors.update({lane: start.cursor(lane) for lane in start.own_lanes})
        made = even_out(
            plan,
            [cursors[lane] for lane in range(len(plan))],
            turns,
            batch_size=place.batch_size,
            drop_last=self._order.drop_last,
            pad=self.even == "pad",
            reorders=self._order.grouping.reorders,
        )
        first = range(0, len(plan), place.ranks)
        steps = sum(self._batches(made.plan.lane(lane).rows_left()) for lane in first)
        if not steps and not place.before and self.num_rows:
            raise OptionError(
                f"{self.num_rows} rows make fewer batches of {self.batch_size} rows than there "
                f"are ranks ({place.ranks}), so that nothing would be read; choose a smaller "
                'batch_size, or even="pad" without drop_last'
            )
        if made.dropped_rows:
            logger.info(
                "epoch %d: %d rows are left out, so that %d ranks take the same number of steps",
                place.epoch,
                made.dropped_rows,
                place.ranks,
            )
        return made

    @property
    def must_agree(self) -> bool:
        """Whether ranks can be in step only if they agree while they run."""
        return self.even is not False and self.ranks.size > 1 and not self.pipeline.counted

    @property
    def route(self) -> Route:
        """What is needed to go on from a position."""
        return Route(
            self.plan_at,
            self.pipeline.counted,
            lambda place: bool(place.before) or self._dealt_evenly,
            self._order.drop_last,
            self.replay,
        )

    @property
    def _dealt_evenly(self) -> bool:
        return isinstance(self._order.strategy, EvenBatchesSplitStrategy)

    def resumed(self, position: Position, crew: Crew) -> Position:
        """Where a member of the crew goes on from a position, checked."""
        plan = self.plan_at(position.place)
        cursors = {
            lane: (plan.lane(lane).windows, 0) if cursor[0] == END else cursor
            for lane, cursor in position.cursors.items()
        }
        self._check_cursors(plan, cursors)
        return resumed(replace(position, cursors=cursors), crew, self.route)

    def replay(
        self, plan: LanePlan, lanes: Sequence[int], steps: int
    ) -> tuple[Mapping[int, Cursor], int]:
        """Read so many batches of some lanes, without their columns; see ``Replay``."""
        pipeline = replace(
            self.pipeline,
            reader=self.pipeline.reader.counting(),
            converter=Converter(pa.schema([]), "torch"),
        )
        starts = [LaneStart(plan.lane(lane)) for lane in lanes]
        passing = self.local_pass(pipeline, starts, self.epoch, turn=0, bare=True)
        batches = iter(passing)
        for _ in range(steps):
            if next(batches, None) is None:
                break
        cursors, turn = dict(zip(lanes, passing.cursors, strict=True)), passing.turn
        batches.close()  # type: ignore[attr-defined]
        return cursors, turn

    def local_pass(
        self,
        pipeline: Pipeline,
        starts: Sequence[LaneStart],
        epoch: int,
        *,
        turn: int,
        bare: bool = False,
    ) -> EpochPass:
        """A pass over lanes that are read in this process; ``bare``: without a user's functions."""
        opened = pipeline.open(self._found.files, starts, epoch, self.counters)
        finish = None if bare else self._finish
        feeds = [
            LaneFeed(start.cursor, partial(_next_run, opened.runs(start.lane.index), finish))
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
        plan = self.evened(position.place).plan
        return not any(
            self._batches(plan.lane(lane).rows_left(position.cursor(lane)))
            for lane in position.own_lanes
        )

    def _batches(self, rows: int) -> int:
        return batches_in(rows, self._order.batch_size, self._order.drop_last)

    def _check_cursors(self, plan: LanePlan, cursors: Mapping[int, Cursor]) -> None:
        """Raise a StateMismatchError if a lane does not reach as far as its cursor."""
        for index, cursor in cursors.items():
            lane = plan.lane(index)
            beyond = cursor[0] > max(lane.windows, 0) or (cursor[0] == lane.windows and cursor[1])
            if beyond or (self.pipeline.counted and lane.rows_left(cursor) < 0):
                raise StateMismatchError(
                    f"the state is damaged: lane {index} is at {cursor}, which is beyond its end"
                )

    def _provide_for_small_chunks(self) -> None:
        """Chunks that are parts of row groups: keep decoded groups, and say what it costs.

        Half of the memory for reading ahead goes to the groups that are kept.
        """
        factor = decode_factor(self._found.files, self.plan(lanes=1, epoch=0).chunks)
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
        return {**self.__dict__, "_planned": None, "_evened": None, "counters": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, counters=Stats())
        if not is_shared(self._shared_epoch):  # copied, and not sent to a worker
            self._shared_epoch = shared_integers(1).copy_(self._shared_epoch)


def _next_run(runs: Iterator[Run[Block]], finish: Finish | None) -> LocalRun | None:
    run = next(runs, None)
    return None if run is None else LocalRun(run, finish)


def _crossing(batch: Any) -> Any:
    """A batch fit to leave a worker: a dict of many tensors goes in one piece."""
    return Batch(batch) if type(batch) is dict else batch


def _checked_even(even: str | bool | None, ranks: Ranks) -> str | bool:
    if even is None:
        return "drop" if ranks.size > 1 else False
    if even is not False and even not in ("drop", "pad"):
        raise OptionError(f'even must be "drop", "pad" or False, not {even!r}')
    return even
