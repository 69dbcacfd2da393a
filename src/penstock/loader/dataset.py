"""The engine of every tabular data set: what was found, planned and turned into batches."""

from __future__ import annotations

import logging
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
from torch.utils.data import IterableDataset, get_worker_info

from penstock.convert import Block, Converter
from penstock.errors import OptionError, StateMismatchError, WorkerError
from penstock.formats.discovery import Discovered
from penstock.loader.board import Board
from penstock.loader.claims import Claims
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

_EPOCH, _READ_BY_WORKERS = 0, 1
"""places in the memory that is shared with workers"""
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
        balance: str,
    ) -> None:
        super().__init__()
        self._found = found
        self._order = order
        self.ranks = ranks
        self.even = _checked_even(even, ranks)
        if balance not in ("static", "adaptive"):
            raise OptionError(f'balance must be "static" or "adaptive", not {balance!r}')
        self._balance = balance
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
        self._resume: Position | None = None
        self._iterator: weakref.ref[DatasetIterator] | None = None
        self._planned: tuple[Place, LanePlan] | None = None
        self._evened: tuple[Place, EvenPlan] | None = None
        # In shared memory, so that workers that are already running see a new epoch.
        self._shared = shared_integers(2)
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
        if not self.steps_known:
            raise TypeError(
                "the number of batches is not known before they are read: rows are filtered, "
                'not counted in this format, or may be skipped (on_error="skip"), or workers take '
                'them as they can (balance="adaptive")'
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
        return int(self._shared[_EPOCH])

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; running workers see it too."""
        check_count("epoch", epoch, least=0)
        self._shared[_EPOCH] = epoch
        if self._resume is not None and self._resume.place.epoch != epoch:
            self._resume = None

    # --- iterating by hand

    def __iter__(self) -> DatasetIterator:
        if self.must_agree:
            raise OptionError(
                "the ranks of a loader of your own cannot agree on their steps, and how many there "
                "are is not known beforehand: use create_dataloader, or even=False"
            )
        info = get_worker_info()
        if info is not None:
            self._shared[_READ_BY_WORKERS] = 1
        made = DatasetIterator(self, _crew_member(self, info), in_worker=info is not None)
        position, self._resume = self._resume, None
        made.begin(position)
        self._iterator = weakref.ref(made)
        return made

    def state_dict(self) -> dict[str, Any]:
        """Where the last iteration is; for workers see their iterators.

        The parent of a loader of your own with workers cannot know what was handed out: there it
        is an error, and ``StatefulDataLoader`` or ``create_dataloader`` the cure.
        """
        running = self._iterator() if self._iterator is not None else None
        if running is not None:
            return running.state_dict()
        if get_worker_info() is None and self._shared[_READ_BY_WORKERS]:
            raise WorkerError(
                "worker processes read this dataset, and what of it was handed out is not known "
                "here: use torchdata's StatefulDataLoader, or the loader of create_dataloader"
            )
        position = self._resume or _crew_member(self, get_worker_info()).start(self.epoch)
        return position.as_state(self.fingerprint)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration go on from a state, in this process or in workers."""
        self._resume = Position.from_state(state, self.fingerprint)
        self._iterator = None
        self.set_epoch(self._resume.place.epoch)

    @staticmethod
    def collate(batch: Any) -> Any:
        """The ``collate_fn`` for a DataLoader of your own: leaves a finished batch as it is."""
        return batch

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
            adaptive=self.adaptive,
        )

    @property
    def adaptive(self) -> bool:
        """Whether workers take windows of each other: there must be two of them at least."""
        return self._balance == "adaptive" and self.workers > 1

    @property
    def steps_known(self) -> bool:
        """Whether the number of batches is known before they are read."""
        return self.pipeline.counted and not self.adaptive

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

    def feed(self, board: Board, parcel_batches: int, workers: int, claims: Claims | None) -> Feed:
        """What worker processes run."""
        files = self._found.files
        return Feed(self.pipeline, files, board, self._finish, parcel_batches, workers, claims)

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
                loose=stage.loose,
            )
        return plan

    def evened(self, place: Place) -> EvenPlan:
        """The lanes from a place on with the same number of batches for every rank.

        Where rows are not counted, or ranks need not be in step, all that there is.
        """
        if self.even is False or self.ranks.size == 1 or not self.steps_known:
            return EvenPlan(self.plan_at(place))
        if self._evened is None or self._evened[0] != place:
            self._evened = place, self._even_out(place)
        return self._evened[1]

    def _even_out(self, place: Place) -> EvenPlan:
        plan = self.plan_at(place)
        cursors: dict[int, Cursor] = {}
        turns = [0] * self.ranks.size
        for rank in range(place.ranks):
            start = self.route.start_of(place, rank)
            cursors.update({lane: start.cursor(lane) for lane in start.own_lanes})
            if place.ranks == self.ranks.size:
                turns[rank] = start.turns[0]
        made = even_out(
            plan,
            [cursors[lane] for lane in range(len(plan))],
            turns,
            batch_size=place.batch_size,
            drop_last=self._order.drop_last,
            pad=self.even == "pad",
            reorders=self._order.grouping.reorders,
        )
        first = range(0, len(plan), self.ranks.size)
        steps = sum(self._batches(made.plan.lane(lane).rows_left()) for lane in first)
        if not steps and not place.before and self.num_rows:
            raise OptionError(
                f"{self.num_rows} rows make fewer batches of {self.batch_size} rows than there "
                f"are ranks ({self.ranks.size}), so that nothing would be read; choose a smaller "
                'batch_size, or even="pad" without drop_last'
            )
        if made.dropped_rows:
            logger.info(
                "epoch %d: %d rows are left out, so that %d ranks take the same number of steps",
                place.epoch,
                made.dropped_rows,
                self.ranks.size,
            )
        return made

    @property
    def must_agree(self) -> bool:
        """Whether ranks can be in step only if they agree while they run."""
        return self.even is not False and self.ranks.size > 1 and not self.steps_known

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
        passing = self._counting_pass([LaneStart(plan.lane(lane)) for lane in lanes])
        with closing(iter(passing)) as batches:
            for _ in range(steps):
                if next(batches, None) is None:
                    break
            return dict(zip(lanes, passing.cursors, strict=True)), passing.turn

    def _counting_pass(self, starts: Sequence[LaneStart]) -> EpochPass:
        """A pass that only counts: no columns but those the filter needs, no user's functions."""
        pipeline = replace(
            self.pipeline,
            reader=self.pipeline.reader.counting(),
            converter=Converter(pa.schema([]), "torch"),
        )
        return self.local_pass(pipeline, starts, self.epoch, turn=0, bare=True, stats=Stats())

    def local_pass(
        self,
        pipeline: Pipeline,
        starts: Sequence[LaneStart],
        epoch: int,
        *,
        turn: int,
        bare: bool = False,
        stats: Stats | None = None,
    ) -> EpochPass:
        """A pass over lanes that are read in this process; ``bare``: without a user's functions.

        It counts as handed out unless it has ``stats`` of its own.
        """
        stats = self.counters if stats is None else stats
        opened = pipeline.open(self._found.files, starts, epoch, stats)
        finish = None if bare else self._finish
        feeds = [
            LaneFeed(start.cursor, partial(_next_run, opened.runs(start.lane.index), finish))
            for start in starts
        ]
        return EpochPass(epoch, feeds, turn=turn, stats=stats, close=opened.close)

    def first_batch(self, place: Place) -> tuple[Any, int] | None:
        """The first batch of this rank from a place on, and how many rows it has."""
        plan, start = self.plan_at(place), Position(place, self.ranks.rank)
        starts = [LaneStart(plan.lane(lane)) for lane in start.own_lanes]
        passing = self.local_pass(self.pipeline, starts, place.epoch, turn=0, stats=Stats())
        batches = iter(passing)
        for batch in batches:
            rows = passing.handed_over["rows"]
            batches.close()
            return batch, rows
        return None

    def end_epoch(self, epoch: int) -> None:
        """Go on to the next epoch, unless another was chosen in the meantime."""
        if self.epoch == epoch:
            self._shared[_EPOCH] = epoch + 1

    def has_ended(self, position: Position, running: EpochPass) -> bool:
        """Whether no batch is left, which may have to be read on for."""
        known = self.is_over(position)
        if known is None and running.ended and not running.finished and not self.adaptive:
            return not self._anything_behind(position)
        return running.is_over() if known is None else known

    def _anything_behind(self, position: Position) -> bool:
        """Whether a batch is left where a pass was broken off and cannot be asked any more."""
        plan = self.evened(position.place).plan
        starts = [LaneStart(plan.lane(lane), position.cursor(lane)) for lane in position.own_lanes]
        with closing(iter(self._counting_pass(starts))) as batches:
            return next(batches, None) is not None

    def is_over(self, position: Position) -> bool | None:
        """Whether no batch is left behind a position; None where only reading would tell."""
        left = self.batches_left(position)
        return None if left is None else left == 0

    def batches_left(self, position: Position) -> int | None:
        """Batches behind a position; None where only reading would tell."""
        if not self.steps_known:
            return None
        plan = self.evened(position.place).plan
        return sum(
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
        of_this_process = ("_planned", "_evened", "_iterator", "counters")
        return {**self.__dict__, **dict.fromkeys(of_this_process)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, counters=Stats())
        if not is_shared(self._shared):  # copied, and not sent to a worker
            self._shared = shared_integers(2).copy_(self._shared)


class DatasetIterator:
    """One consumer's batches of a dataset; its state is that of the batches handed out."""

    def __init__(self, dataset: TabularDataset, crew: Crew, *, in_worker: bool) -> None:
        self._dataset = dataset
        self._crew = crew
        self._in_worker = in_worker

    def begin(self, position: Position | None) -> None:
        """Read from a position on; None: from the start of the epoch."""
        dataset, crew = self._dataset, self._crew
        if position is None or position.place.epoch != dataset.epoch:
            start = crew.start(dataset.epoch)
        else:
            start = dataset.resumed(position, crew)
        plan, epoch = dataset.evened(start.place).plan, start.place.epoch
        starts = [LaneStart(plan.lane(lane), start.cursor(lane)) for lane in start.own_lanes]
        share = dataset.pipeline.sharing(max(crew.ranks // dataset.ranks.size, 1))
        self._began = start
        self._running = dataset.local_pass(share, starts, epoch, turn=start.turns[0])
        self._batches = iter(self._running)

    def __iter__(self) -> DatasetIterator:
        return self

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            if not self._in_worker:  # workers see the epochs that their parent sets
                self._dataset.end_epoch(self._running.epoch)
            raise
        return _crossing(batch) if self._in_worker else batch

    def state_dict(self) -> dict[str, Any]:
        """Where this consumer is."""
        now = self._began.after(self._running)
        if not self._in_worker and self._dataset.has_ended(now, self._running):
            now = self._crew.start(now.place.epoch + 1)
        return now.as_state(self._dataset.fingerprint)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state in place of where it is."""
        self._running.end()
        position = Position.from_state(state, self._dataset.fingerprint)
        self._dataset.set_epoch(position.place.epoch)
        self.begin(position)

    def close(self) -> None:
        """Stop reading."""
        self._running.end()

    def __del__(self) -> None:
        if hasattr(self, "_batches"):
            self._running.end()


def _crew_member(dataset: TabularDataset, info: Any) -> Crew:
    """A worker of a loader of the user's own, or this process: a rank among ranks x workers."""
    worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
    ranks = dataset.ranks
    return replace(
        dataset.crew,
        rank=worker * ranks.size + ranks.rank,
        ranks=workers * ranks.size,
        workers=1,
        in_step=False,
        adaptive=False,
    )


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
