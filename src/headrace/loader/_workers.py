"""Start worker processes, and sort what they send by lane."""

from __future__ import annotations

import inspect
import logging
import multiprocessing
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.util import is_exiting
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils import MP_STATUS_CHECK_INTERVAL
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from headrace.convert.device import Device
from headrace.convert.shared import forget_dead_senders
from headrace.errors import OptionError, WorkerError
from headrace.loader._claims import Claims, units_left
from headrace.loader._epoch import BatchRun, EpochPass, LaneFeed, Progress
from headrace.loader._feed import Board, Failure, Feed, LaneEnd, Parcel, begin_worker
from headrace.loader._pipeline import Pipeline, Stats, row_cost
from headrace.loader.start import WorkerContext, dumps_for_worker
from headrace.model import NOWHERE, Cursor
from headrace.options import LoaderOptions
from headrace.plan import Lane, Plan, State, WindowRow
from headrace.process import PerProcess, run_aside

if TYPE_CHECKING:
    from headrace.loader._dataset import TabularDataset

logger = logging.getLogger(__name__)

_DYING_S = 5.0
"""Seconds to wait for the end of a worker that has closed its pipe."""
_PARCEL_BYTES = 8 << 20
_PARCEL_BATCHES = 32
_PARCEL_BATCHES_AS_THEY_COME = 8
"""Number of batches of a parcel; fewer than in order, as all wait for a slow worker at the end."""


def torch_arguments(options: LoaderOptions) -> dict[str, Any]:
    """Return the arguments that a DataLoader of torch takes only if it has workers."""
    return {
        "num_workers": options["num_workers"],
        "prefetch_factor": options["prefetch_factor"],
        "persistent_workers": options["persistent_workers"],
        "timeout": options["timeout"],
    }


def worker_context(options: LoaderOptions, *, fork_safe: bool) -> BaseContext:
    """Return the user's start method, or else the library's own.

    Args:
        options: The options of a loader.
        fork_safe: True if the data can be read in a forked process.
    """
    given = options["multiprocessing_context"]
    if given is None:
        return WorkerContext()
    context = multiprocessing.get_context(given) if isinstance(given, str) else given
    if context.get_start_method() == "fork" and not fork_safe:
        raise OptionError(
            "multiprocessing_context='fork' does not go with this data: what reads it "
            "(a client of a store, Lance, ArrayRecord) has threads, which a forked process "
            "has not got, so that it would hang; leave it out (the default), or use "
            "'forkserver' or 'spawn'"
        )
    return context


def start_workers(
    dataset: Any,
    user_code: Mapping[str, Any],
    options: LoaderOptions,
    *,
    fork_safe: bool,
    **sampling: Any,
) -> Workers:
    """Return a torch loader; its processes start when it is iterated.

    Args:
        dataset: The dataset that workers run. Its values travel through torch's queue, so each must
            be packed, or a ``Failure``.
        user_code: Objects of the user that are sent with the dataset, by the name of their option.
        options: The options of the loader.
        fork_safe: True if the data can be read in a forked process.
        sampling: More arguments of ``DataLoader``.
    """
    context = worker_context(options, fork_safe=fork_safe)
    _check_sendable(user_code, forked=context.get_start_method() == "fork")
    return Workers(
        dataset,
        collate_fn=as_it_is,
        multiprocessing_context=context,
        worker_init_fn=begin_worker,
        **torch_arguments(options),
        **sampling,
    )


class Workers(DataLoader[Any]):
    """Worker processes, and the values that they send.

    Iterators of torch are held apart from the loaders that use them. Otherwise a garbage collection
    would close the queues of an iterator before ending it, and then wait for processes that were
    not told to end.

    Attributes:
        have_failed: True once a worker died, perhaps holding a lock that all workers share.
    """

    have_failed = False
    _key: object = None  # by which its iterator is found in the process that made it

    def __iter__(self) -> Any:
        """Return the values sent in an epoch; only persistent workers have a second epoch."""
        with self._deaths_reported():
            received = super().__iter__()
        self._key = self._key or object()
        _at_work.get()[self._key] = received
        return received

    def _get_iterator(self) -> Any:
        return _Received(self)

    def next_of(self, received: Iterator[Any]) -> Any:
        """Return the next value that a worker sent; raise StopIteration after the last.

        Raises:
            WorkerError: A worker died.
            Exception: The exception that was raised in a worker.
        """
        with self._deaths_reported(received):
            sent = next(received)
        if isinstance(sent, Failure):
            sent.reraise()
        return sent

    @contextmanager
    def _deaths_reported(self, received: Any = None) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, OSError, EOFError) as error:  # errors after the end of a worker
            if is_exiting() and threading.current_thread().daemon:
                # At exit Python ends the workers before daemon threads. An error would be printed
                # while the interpreter closes its streams, which may abort the process.
                threading.Event().wait()
            if not isinstance(error, RuntimeError) and received is not None:
                # Torch raises an error of its own in its signal handler for the death of a worker:
                # let it come here, and not in a clean-up.
                with suppress(RuntimeError):
                    wait([worker.sentinel for worker in received._workers], _DYING_S)
            self.have_failed = True
            self.end()
            raise WorkerError(f"{str(error) or type(error).__name__}; {self._advice()}") from error

    def end(self) -> None:
        """End the processes, if there are any; a forked child leaves those of its parent alone."""
        self._iterator = None
        _end(self._key)

    def __del__(self) -> None:
        self._iterator = None
        if self._key in _at_work.get():
            run_aside(partial(_end, self._key))

    def _advice(self) -> str:
        late = f", or gave no batch within timeout={self.timeout}" if self.timeout else ""
        advice = f"a worker process died{late}: look for its own message above, or for a lack of "
        if isinstance(self.multiprocessing_context, WorkerContext):
            return f"{advice}memory"
        return (
            f"{advice}memory; where workers are spawned a script must keep its own code under "
            '`if __name__ == "__main__":`'
        )


class _Received(_MultiProcessingDataLoaderIter):
    """The iterator of torch, but it notices the death of a worker at once, not after 5 s."""

    def _try_get_data(self, timeout: float = MP_STATUS_CHECK_INTERVAL) -> Any:
        reader = getattr(self._data_queue, "_reader", None)
        if reader is not None:  # otherwise a thread of torch receives and pins
            # Workers that have sent their last batch may end.
            working = zip(self._workers, self._workers_status, strict=True)
            sentinels = [worker.sentinel for worker, is_working in working if is_working]
            wait([reader, *sentinels], timeout)
            timeout = 0
        return super()._try_get_data(timeout)  # type: ignore[no-untyped-call]


_at_work: PerProcess[dict[object, Any]] = PerProcess(dict)
"""Iterators of torch that have processes; a forked child leaves those of its parent alone."""


def _end(key: object) -> None:
    received = _at_work.get().pop(key, None)
    if received is not None:
        # The traceback of an error may hold the iterator. If a garbage collection freed it later,
        # it would wait five seconds for each worker: its closed queues cannot tell them to end.
        received._shutdown_workers()
    forget_dead_senders()


def out_of_order(loader_class: Callable[..., Any] = DataLoader) -> dict[str, Any]:
    """Return the argument with which a loader of torch gives batches as they come."""
    if "in_order" not in inspect.signature(loader_class).parameters:
        raise OptionError(
            'balance="adaptive" with several workers needs torch 2.6 or newer: the DataLoader of '
            f'torch {torch.__version__} knows no in_order=False; use balance="static"'
        )
    return {"in_order": False}


def as_it_is(value: Any) -> Any:
    """Return a parcel as it is, where torch would collate."""
    return value


def _check_sendable(user_code: Mapping[str, Any], *, forked: bool) -> None:
    """Raise an error now if the user's code cannot be sent to workers.

    Pickling classes also makes them known to cloudpickle: when forked workers send objects of these
    classes, the objects come back with the same classes.
    """
    for name, value in user_code.items():
        try:
            dumps_for_worker(value)
        except Exception as error:  # a user's object may fail to pickle in any way
            if not forked:
                raise WorkerError(
                    f"{name} cannot be sent to a worker process ({type(error).__name__}: {error}): "
                    "make what it holds (locks, open files, clients) in the worker, in "
                    "worker_init_fn or when it is first needed, or use num_workers=0"
                ) from error


class _Inbox:
    """Receives the parcels of one epoch, and hands them out lane by lane.

    Attributes:
        open: The lanes that have not ended.
    """

    def __init__(
        self,
        source: Workers,
        batch_size: int,
        lanes: Sequence[int],
        pin: bool,
        device: Device | None,
        stats: Stats,
    ) -> None:
        self._source = source
        self._parcels: Iterator[Any] | None = None
        self._batch_size = batch_size
        self._pin = pin
        self._device = device
        self._stats = stats
        self._waiting: dict[int, deque[BatchRun]] = {lane: deque() for lane in lanes}
        self.open = set(lanes)

    def runs(self, *lanes: int) -> Iterator[BatchRun]:
        """Return the batches of a lane, or those that any of several workers sends.

        It is not a generator, because an interrupt would end a generator as if it were exhausted.
        """
        return iter(partial(self._next_run, lanes), None)

    def _next_run(self, lanes: Sequence[int]) -> BatchRun | None:
        while True:
            waiting = next((self._waiting[lane] for lane in lanes if self._waiting[lane]), None)
            if waiting is not None:
                return waiting.popleft()
            if self.open.isdisjoint(lanes):
                return None
            self._receive()

    def close(self) -> None:
        """Release the workers; they end unless they are persistent."""
        self._parcels = None
        if not self._source.persistent_workers:
            self._source.end()

    def _receive(self) -> None:
        began = time.perf_counter()
        if self._parcels is None:
            self._parcels = iter(self._source)
        try:
            sent = self._source.next_of(self._parcels)
        except StopIteration as error:
            raise WorkerError("worker processes ended before their lanes did") from error
        self._stats.spend("wait", time.perf_counter() - began)
        self._stats.add(sent.stats)
        if isinstance(sent, LaneEnd):
            self.open.discard(sent.lane)
        elif isinstance(sent, Parcel):
            self._waiting[sent.lane].append(sent.run(self._batch_size, self._pin, self._device))


@dataclass(slots=True)
class _Team:
    """Processes, and the shared memory that tells them what to read.

    Attributes:
        pipeline: The pipeline that they run.
        board: The plan of the epoch.
        claims: The windows, if workers take them one by one.
        source: The processes.
        user: The pass that was begun last.
        open: The lanes of that pass that have not ended.
    """

    pipeline: Pipeline
    board: Board
    claims: Claims | None
    source: Workers
    user: Callable[[], EpochPass | None] = lambda: None
    open: set[int] = field(default_factory=set)

    @property
    def is_idle(self) -> bool:
        user = self.user()
        return user is None or user.ended


class WorkerPool:
    """Starts workers, or uses those of the last epoch again if they are persistent."""

    def __init__(self, dataset: TabularDataset, options: LoaderOptions) -> None:
        self._dataset = dataset
        self._options = options
        self._workers = options["num_workers"] or 0
        worker_context(options, fork_safe=dataset.fork_safe)  # refuse invalid options now
        if dataset.epochs.planner.origin.adaptive:
            out_of_order()
        self._kept: _Team | None = None

    def begin(self, plan: Plan, position: State, *, pin: bool) -> EpochPass:
        """Return a pass over the lanes of a position that workers read."""
        adaptive, own = position.adaptive, position.own_lanes
        cursors = {lane: position.cursor(lane) for lane in own}
        lanes = [plan.lane(lane) for lane in own] if adaptive else []
        units = units_left(lanes, cursors, position.loose)
        epoch, stats, workers = position.epoch, self._dataset.epochs.counters, self._workers
        team = self._team(epoch, plan, cursors, units)
        streams = list(range(workers)) if adaptive else own
        pipeline = self._dataset.epochs.pipeline
        device = pipeline.open_device()
        inbox = _Inbox(team.source, pipeline.batch_size, streams, pin, device, stats)
        claims, turn = team.claims, position.turns[0]
        if claims is None:
            feeds = [LaneFeed(cursors[lane], inbox.runs(lane)) for lane in own]
            made = EpochPass(epoch, feeds, turn=turn, stats=stats, close=inbox.close)
        else:
            feed = LaneFeed(NOWHERE, inbox.runs(*streams))
            progress = partial(_claimed_progress, claims, lanes, feed, workers)
            made = EpochPass(
                epoch, [feed], turn=turn, stats=stats, close=inbox.close, progress=progress
            )
        team.user, team.open = weakref.ref(made), inbox.open
        return made

    def _team(
        self,
        epoch: int,
        plan: Plan,
        cursors: Mapping[int, Cursor],
        units: list[list[WindowRow]],
    ) -> _Team:
        """Return workers that know what to read: those of the last epoch, or new ones."""
        dataset, options, kept = self._dataset, self._options, self._kept
        count = sum(map(len, units))
        idle = kept is None or kept.is_idle
        if (
            kept is not None
            and idle
            and self._can_read(kept, count)
            and kept.board.post(epoch, plan, cursors)
        ):
            if kept.claims is not None:
                kept.claims.post(units)
            return kept
        board, claims = Board(epoch, plan, cursors), None
        if dataset.epochs.planner.origin.adaptive:
            context = worker_context(options, fork_safe=dataset.fork_safe)
            claims = Claims(self._workers, count + count // 8 + 64, context)
            claims.post(units)
        feed = Feed(
            dataset.epochs.pipeline,
            dataset.epochs.found.files,
            board,
            dataset.epochs.finish,
            options["worker_init_fn"],
            self._parcel_batches(),
            self._workers,
            claims,
        )
        order = {} if claims is None else out_of_order()
        source = start_workers(
            feed, feed.user_code, options, fork_safe=dataset.fork_safe, batch_size=None, **order
        )
        made = _Team(dataset.epochs.pipeline, board, claims, source)
        if options["persistent_workers"] and idle:
            self._kept = made
        return made

    def _can_read(self, team: _Team, units: int) -> bool:
        """Return True if workers live, run the current pipeline, and have room for the windows."""
        if team.source.have_failed or team.pipeline is not self._dataset.epochs.pipeline:
            return False
        if team.claims is None:
            return True
        # Workers go on for a while with an epoch that was left, and would take windows of the next
        # one, whose rows would be lost.
        return not team.open and team.claims.holds(units)

    def _parcel_batches(self) -> int:
        """Return the number of batches in a parcel: enough to share its cost, few to wait for.

        All parcels that workers may send ahead fit the memory for reading ahead, unless a single
        batch is too large.
        """
        rows, stored_bytes = self._dataset.stored
        pipeline, options = self._dataset.epochs.pipeline, self._options
        cost = row_cost(pipeline.reader.schema)
        size_bytes = cost.of(rows, stored_bytes)
        batch_bytes = max(size_bytes * self._dataset.batch_size // max(rows, 1), 1)
        ahead = max(self._workers * options["prefetch_factor"], 1)
        most_bytes = min(_PARCEL_BYTES, pipeline.prefetch_bytes // ahead)
        most = (
            _PARCEL_BATCHES_AS_THEY_COME
            if self._dataset.epochs.planner.origin.adaptive
            else _PARCEL_BATCHES
        )
        return max(1, min(most, most_bytes // batch_bytes))


def _claimed_progress(
    claims: Claims, lanes: Sequence[Lane], feed: LaneFeed, workers: int
) -> Progress:
    return claims.progress(lanes, feed.cursors_of(workers))
