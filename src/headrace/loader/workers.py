"""The parent's side of worker processes: starts them, and sorts what they send by lane."""

from __future__ import annotations

import inspect
import logging
import multiprocessing
import os
import pickle
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from multiprocessing.context import BaseContext
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.utils.data import DataLoader

from headrace.access.orphans import end_with_parent
from headrace.convert.arrivals import forget_dead_senders
from headrace.errors import HeadraceError, OptionError, WorkerError
from headrace.loader.collecting import outside_collection
from headrace.loader.feed import Failure, Feed, LaneEnd
from headrace.loader.forking import starting_workers
from headrace.loader.parcels import Parcel, ParcelRun
from headrace.loader.pipeline import Pipeline
from headrace.loader.stats import Stats
from headrace.options import LoaderOptions

__all__ = [
    "Inbox",
    "WorkerOptions",
    "WorkerStart",
    "Workers",
    "check_sendable",
    "out_of_order_option",
]

logger = logging.getLogger(__name__)

_DYING_S = 5.0
"""between the end of its pipe and that of a worker"""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How worker processes are started."""

    count: int
    context: str | BaseContext | None = None
    persistent: bool = False
    prefetch_factor: int = 2
    """parcels a worker may be ahead"""
    timeout_s: float = 0
    init: Callable[[int], None] | None = None

    def __post_init__(self) -> None:
        known = multiprocessing.get_all_start_methods()
        if not (isinstance(self.context, BaseContext) or self.context in (None, *known)):
            raise OptionError(
                f"multiprocessing_context must be one of {', '.join(known)} or a context, "
                f"not {self.context!r}"
            )

    @classmethod
    def of(cls, options: LoaderOptions, count: int) -> WorkerOptions:
        """Return what the options of a loader say of its ``count`` workers."""
        return cls(
            count,
            options["multiprocessing_context"],
            options["persistent_workers"],
            options["prefetch_factor"],
            options["timeout"],
            options["worker_init_fn"],
        )

    def chosen_context(self, fork_safe: bool) -> BaseContext:
        """The user's start method; else the platform's, or forkserver where fork would hang."""
        if self.context is not None:
            given = self.context
            context = multiprocessing.get_context(given) if isinstance(given, str) else given
            if context.get_start_method() == "fork" and not fork_safe:
                raise OptionError(
                    "multiprocessing_context='fork' does not go with this data: what reads it "
                    "(a client of a store, Lance, ArrayRecord) has threads, which a forked process "
                    "has not got, so that it would hang; use 'forkserver' (the default here) or "
                    "'spawn'"
                )
            return context
        default = multiprocessing.get_start_method()
        if fork_safe or default != "fork":
            return multiprocessing.get_context(default)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["headrace"])
        return context

    def start(self, feed: Feed, fork_safe: bool, *, in_order: bool = True) -> Workers:
        """A torch loader over the feed; its processes start when it is iterated."""
        context = self.chosen_context(fork_safe)
        if context.get_start_method() != "fork":
            check_sendable({**feed.user_code, "worker_init_fn": self.init})
        out_of_order: dict[str, Any] = {} if in_order else out_of_order_option(DataLoader)
        return Workers(
            feed,
            batch_size=None,
            num_workers=self.count,
            collate_fn=as_it_is,
            multiprocessing_context=context,
            persistent_workers=self.persistent,
            prefetch_factor=self.prefetch_factor,
            timeout=self.timeout_s,
            worker_init_fn=WorkerStart(self.init),
            **out_of_order,
        )


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """What torch calls first in a worker process."""

    init: Callable[[int], None] | None
    """given by the user"""

    def __call__(self, worker_id: int) -> None:
        end_with_parent()
        if self.init is not None:
            self.init(worker_id)


class Workers(DataLoader[Any]):
    """Ends with its processes, and then nothing is left of what they sent but what is in use."""

    have_failed = False
    """whether one of them died, perhaps with a lock that all of them share"""
    _key: tuple[int, int] | None = None
    """the process that they are of, and a number there"""

    def __iter__(self) -> Any:
        """Parcels of an epoch; there is another one only if they are persistent."""
        with starting_workers():
            parcels = super().__iter__()
        self._key = self._key or (os.getpid(), next(_numbers))
        _at_work[self._key] = parcels
        return parcels

    def end(self) -> None:
        """End the processes, if there are any; in a forked child they are another's."""
        self._iterator = None
        if self._key is not None and self._key[0] == os.getpid():
            outside_collection(partial(_end, self._key))

    def __del__(self) -> None:
        self.end()


_numbers = count()
_at_work: dict[tuple[int, int], Any] = {}
"""iterators of torch, so that none is ever garbage: a collection closes the queues of one before it
ends it, and then waits for processes that have not been told"""


def _end(key: tuple[int, int]) -> None:
    _at_work.pop(key, None)
    forget_dead_senders()


def out_of_order_option(loader_class: Callable[..., Any]) -> dict[str, Any]:
    """The argument by which a loader of torch gives batches as they come."""
    if "in_order" not in inspect.signature(loader_class).parameters:
        raise OptionError(
            'balance="adaptive" with several workers needs torch 2.6 or newer: the DataLoader of '
            f'torch {torch.__version__} knows no in_order=False; use balance="static"'
        )
    return {"in_order": False}


class Inbox:
    """Parcels of one epoch as they come in, given out lane by lane."""

    def __init__(
        self,
        source: Workers,
        pipeline: Pipeline,
        lanes: Sequence[int],
        pin: bool,
        stats: Stats,
    ) -> None:
        self._source = source
        self._parcels: Iterator[Any] | None = None
        self._pipeline = pipeline
        self._pin = pin
        self._stats = stats
        self._waiting: dict[int, deque[ParcelRun]] = {lane: deque() for lane in lanes}
        self._open = set(lanes)

    def next_run(self, lane: int) -> ParcelRun | None:
        """The next batches of a lane; None after its last."""
        while not self._waiting[lane] and lane in self._open:
            self._receive()
        return self._waiting[lane].popleft() if self._waiting[lane] else None

    def next_of_any(self) -> tuple[int, ParcelRun] | None:
        """The next batches that any worker sends, and which; None after the last."""
        while True:
            for lane, waiting in self._waiting.items():
                if waiting:
                    return lane, waiting.popleft()
            if not self._open:
                return None
            self._receive()

    def close(self) -> None:
        """Let go of the workers: they end, unless they are persistent."""
        self._parcels = None
        if not self._source.persistent_workers:
            self._source.end()

    def _receive(self) -> None:
        began = time.perf_counter()
        try:
            if self._parcels is None:
                self._parcels = iter(self._source)
            sent = next(self._parcels)
        except StopIteration as error:
            raise WorkerError("worker processes ended before their lanes did") from error
        except HeadraceError:
            raise
        except (RuntimeError, OSError, EOFError) as error:  # what is raised when one is gone
            if not isinstance(error, RuntimeError):
                _await_signal(getattr(self._parcels, "_workers", ()))
            self._source.have_failed = True
            self._source.end()
            raise WorkerError(f"{error}; {_advice(self._source)}") from error
        self._stats.spend("wait", time.perf_counter() - began)
        if isinstance(sent, Failure):
            raise sent.error from WorkerError(f"in a worker process:\n{sent.trace}")
        self._stats.add(sent.stats)
        if isinstance(sent, LaneEnd):
            self._open.discard(sent.lane)
        elif isinstance(sent, Parcel):
            converter, size = self._pipeline.converter, self._pipeline.batch_size
            self._waiting[sent.lane].append(ParcelRun(sent, converter, size, self._pin))


def _await_signal(workers: Sequence[Any]) -> None:
    """Wait until a worker that closed its pipe is gone.

    Torch raises an error of its own in the handler of that signal: here, and not in a clean-up.
    """
    until = time.monotonic() + _DYING_S
    with suppress(RuntimeError):
        while time.monotonic() < until and all(worker.is_alive() for worker in workers):
            time.sleep(0.005)


def as_it_is(value: Any) -> Any:
    """What torch is to do with a parcel: nothing."""
    return value


def check_sendable(user_code: Mapping[str, Any]) -> None:
    """Find out now, and with a clear message, whether workers can be given what they run."""
    for name, value in user_code.items():
        try:
            ForkingPickler.dumps(value)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise WorkerError(
                f"{name} cannot be sent to a worker process ({error}): define it at the top "
                "level of a module and keep the script's own code under `if __name__ == "
                '"__main__":`, or use num_workers=0'
            ) from error


def _advice(source: DataLoader[Any]) -> str:
    context = source.multiprocessing_context
    method = context.get_start_method() if isinstance(context, BaseContext) else None
    late = f", or gave no batch within timeout={source.timeout}" if source.timeout else ""
    if method in (None, "fork"):
        return (
            f"a worker process died{late}: look for its own message above, or for a lack of memory"
        )
    return (
        f"a worker process started by {method} died{late}: look for its own message above; a "
        'script must keep its own code under `if __name__ == "__main__":`, and functions that '
        "workers call must stand at the top level of a module"
    )
