"""How ranks agree on numbers while they run."""

from __future__ import annotations

import hashlib
import os
import weakref
from datetime import timedelta
from typing import Any, NoReturn

import torch
from torch import distributed as dist

from headrace.errors import OptionError, WorkerError
from headrace.loader.ranks import Ranks, is_initialised

__all__ = ["Agreement", "own_store"]


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
