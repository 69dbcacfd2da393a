"""How ranks agree on numbers while they run, and take the same number of steps."""

from __future__ import annotations

import hashlib
import logging
import os
import weakref
from collections.abc import Callable, Iterator
from copy import deepcopy
from datetime import timedelta
from typing import Any, NoReturn

import torch
from torch import distributed as dist

from headrace.errors import OptionError, PlanError, WorkerError
from headrace.loader.epoch import EpochPass
from headrace.loader.ranks import Ranks, is_initialised

__all__ = ["Agreement", "InStep", "own_store"]


def own_store(name: str, ranks: Ranks) -> Any:
    """Return a part of torch's store that nothing else uses, under one name on all ranks.

    The n-th call with a name returns the same part on every rank.

    ``new_group`` would name a group by how many groups the process has at that moment, which ranks
    need not have in common, and would find addresses of a group that was closed.
    """
    store = dist.distributed_c10d._get_default_store()
    who = hashlib.sha256(f"{name} {ranks.members}".encode()).hexdigest()[:16]
    nth = store.add(f"headrace/agreements/{who}/{ranks.rank}", 1)
    return dist.distributed_c10d.PrefixStore(f"headrace/agreement/{who}/{nth}", store)


class Agreement:
    """Smallest and largest of the numbers that the ranks bring, over connections of its own.

    Every rank makes its agreements of one ``name`` in the same order; they connect at the first
    ``agree``. ``timeout_s`` is how long a rank waits for the others; the default is torch's.
    """

    def __init__(self, ranks: Ranks, *, name: str = "", timeout_s: float = 1800.0) -> None:
        if ranks.members is None or not is_initialised():
            raise OptionError(
                "how many batches there are is not known beforehand here (filters, deletes of a "
                'table, lines of text, on_error="skip"), so ranks must agree while they run, which '
                "needs an initialised "
                "torch.distributed process group: init it before the loader is made, or even=False"
            )
        self._ranks = ranks
        self._timeout = timedelta(seconds=timeout_s)
        self._store = own_store(name, ranks)
        self._groups: list[Any] = []
        weakref.finalize(self, _close, os.getpid(), self._groups)

    def agree(self, count: int) -> tuple[int, int]:
        """The smallest and the largest count of all ranks; returns when all have called it."""
        if self._store is None:
            raise OptionError("this agreement of ranks was closed, or failed before")
        extremes = torch.tensor([-count, count], dtype=torch.int64)
        try:
            self._all_reduce_max(extremes)
        except RuntimeError as error:
            self.close()
            raise WorkerError(
                f"rank {self._ranks.rank} of {self._ranks.size} waited up to "
                f"{self._timeout.total_seconds():g} s for another rank, which ended, failed or "
                f"left the loop early; see the log of the other ranks ({error})"
            ) from error
        return -int(extremes[0]), int(extremes[1])

    def close(self) -> None:
        """Drop the connections; may be called again."""
        self._store = None
        self._groups.clear()

    def __reduce__(self) -> NoReturn:
        raise TypeError("an agreement of ranks is bound to its process and cannot be pickled")

    def _all_reduce_max(self, numbers: torch.Tensor) -> None:
        if not self._groups:
            rank, size = self._ranks.rank, self._ranks.size
            self._groups.append(dist.ProcessGroupGloo(self._store, rank, size, self._timeout))
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)
        self._groups[0].allreduce([numbers], options).wait()


_of_parents: list[Any] = []
"""in a forked child: their end would wait for threads that only the parent has"""


def _close(pid: int, groups: list[Any]) -> None:
    """Drop the connections of an agreement that is gone; at exit, or gloo's threads crash it."""
    if pid != os.getpid():
        _of_parents.extend(groups)
    groups.clear()


logger = logging.getLogger(__name__)


_STEPS_AT_ONCE = 8
"""batches that a rank holds ahead, and on which all ranks agree at once"""


class InStep:
    """Iterates over a pass for as long as all ranks can, or, padding, until the last has ended.

    The ranks agree on the next steps while one that they have agreed on is still to come: so
    after every batch it is known whether there is another. A rank that has ended before others
    repeats its first batch, which ``read_first`` gives with its number of rows.

    ``whole`` says that the epoch is read from its start. If a rank has no batch at all, all others
    would leave out everything: of a whole epoch that is an error, of the rest of one a warning.
    """

    def __init__(
        self,
        running: EpochPass,
        agree: Callable[[int], tuple[int, int]],
        *,
        read_first: Callable[[], tuple[Any, int] | None] | None = None,
        whole: bool = False,
    ) -> None:
        self._running = running
        self._agree = agree
        self._read_first = read_first
        self._whole = whole
        self._first: tuple[Any, int] | None = None
        self._agreed = 0
        self._own = 0
        self._last_round = False
        self.repeated = 0
        """batches handed out once more"""
        self.padded_rows = 0
        """rows handed out once more"""

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._running)
        try:
            self._agree_on_more(first=True)
            yield from self._agreed_batches(batches)
            self._tell_what_is_left_out()
        finally:
            self._running.end()

    def _agreed_batches(self, batches: Iterator[Any]) -> Iterator[Any]:
        while self._agreed:
            if self._agreed == 1 and not self._last_round:
                self._agree_on_more()
            self._agreed -= 1
            if self._own:
                self._own -= 1
                yield next(batches)
            else:
                yield self._repeat()

    def _repeat(self) -> Any:
        batch, rows = self._first_batch() or (None, 0)
        self.repeated += 1
        self.padded_rows += rows
        return deepcopy(batch)  # for the user may change it

    def _first_batch(self) -> tuple[Any, int] | None:
        if self._first is None and self._read_first is not None:
            self._first = self._read_first()
        return self._first

    def is_over(self) -> bool:
        """Whether no batch is left."""
        return self._last_round and self._agreed == 0

    def _agree_on_more(self, *, first: bool = False) -> None:
        pad = self._read_first is not None
        certain = self._running.ahead(self._own + _STEPS_AT_ONCE) - self._own
        least, most = self._agree(min(certain, _STEPS_AT_ONCE))
        if first and least == 0 < most:
            if pad:
                self._check_padding(certain)
            else:
                self._report_no_steps(most)
        more = most if pad else least
        self._last_round = more < _STEPS_AT_ONCE
        self._agreed += more
        self._own += min(certain, more)

    def _check_padding(self, certain: int) -> None:
        """Raise a PlanError on all ranks if one of them has no batch to repeat."""
        can_repeat = certain > 0 or self._first_batch() is not None
        if self._agree(int(can_repeat))[0] == 0:
            raise PlanError(
                'a rank has no batch, and found none that even="pad" could repeat; use '
                'even="drop", or fewer ranks'
            )

    def _report_no_steps(self, most: int) -> None:
        """Say on all ranks that no step will be taken because a rank has no batch."""
        message = (
            f"epoch {self._running.epoch}: a rank has no batch while another has {most} or more, "
            'so that with even="drop" no rank takes a step and all that is left of the epoch is '
            'left out; use even="pad" to read it, or fewer ranks, smaller batches, or files that '
            "can be cut into more parts"
        )
        if self._whole:
            raise OptionError(message)
        logger.warning(message)

    def _tell_what_is_left_out(self) -> None:
        left = self._running.ahead(1)
        if left:
            logger.warning(
                "epoch %d: this rank leaves out %d batches or more, so that all ranks take the "
                'same number of steps; even="pad" would read them',
                self._running.epoch,
                left,
            )
