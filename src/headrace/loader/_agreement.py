"""Compare what ranks read, and agree on numbers and on steps while they run.

Rows are shared correctly only if all ranks see the same files. Each rank lists files and plans by
itself. If one of them sees other files, because a network file system shows an old listing or a
copy is not complete, ranks take different numbers of steps, and rows are lost or read twice. So
each rank puts a digest of what it found into the store of torch.distributed when its loader is
made (``RankComparison``). The last one to do so compares them all, and every rank looks at the
result before its first batch.

Where the number of batches is not known before they are read, ranks agree on the next steps while
they run (``Agreement``, ``InStep``).
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from datetime import timedelta
from itertools import zip_longest
from typing import Any, NoReturn

import numpy as np
import torch
from torch import distributed as dist

from headrace.errors import OptionError, PlanError, RankMismatchError, WorkerError
from headrace.loader._epoch import EpochPass
from headrace.loader._fingerprint import paths_below
from headrace.loader.ranks import Ranks, is_initialised
from headrace.model import FileList
from headrace.process import PerProcess

logger = logging.getLogger(__name__)

_SILENT_S = 10.0
"""Seconds after which the log says for which ranks this one waits."""
_LONGEST_PAUSE_S = 0.25
_NAMING_S = 20.0
"""Seconds to wait for the files of another rank, to name the first one that differs."""
_LAST_WORDS_S = 10.0
"""Seconds to wait for the others before an error may end this process, and the store with it."""
_LARGEST_VALUE = 8 << 20
"""Number of bytes that a value of a store may have."""
_STEPS_AT_ONCE = 8
"""Number of batches that a rank holds ahead, and on which all ranks agree at once."""


def _own_store(name: str, ranks: Ranks) -> Any:
    """Return a part of torch's store that nothing else uses, under one name on all ranks.

    The n-th call with a name returns the same part on every rank.

    ``new_group`` would name a group by how many groups the process has at that moment, which ranks
    need not have in common, and would find addresses of a group that was closed.
    """
    store = dist.distributed_c10d._get_default_store()
    who = hashlib.sha256(f"{name} {ranks.members}".encode()).hexdigest()[:16]
    nth = store.add(f"headrace/agreements/{who}/{ranks.rank}", 1)
    return dist.distributed_c10d.PrefixStore(f"headrace/agreement/{who}/{nth}", store)


# --- the same data


@dataclass(frozen=True, slots=True)
class ComparedFiles:
    """The files of a rank, as far as other ranks must have the same ones.

    Paths count below the roots. Local files may be copies on each machine: their times of change
    are no part of it.
    """

    files: FileList
    roots: Sequence[str]
    local: bool

    def digest(self) -> list[Any]:
        """Return the number of files, and a digest of all of them."""
        files = self.files
        made = hashlib.sha256("\0".join(paths_below(files, self.roots)).encode(errors="replace"))
        for column in (files.sizes, files.counts):
            made.update(np.ascontiguousarray(column, "<i8").data)
        if not self.local:
            made.update("\0".join(map(str, files.etags)).encode())
        return [len(files), made.hexdigest()[:16]]

    def described(self) -> list[tuple[str, str, str]]:
        """Return the path below the roots, the sizes in words, and the path of each file."""
        found = []
        for below, file in zip(paths_below(self.files, self.roots), self.files, strict=True):
            words = [] if file.file_size is None else [f"{file.file_size:,} bytes"]
            words += [] if file.record_count is None else [f"{file.record_count:,} rows"]
            words += [] if self.local or file.etag is None else [f"etag {file.etag}"]
            found.append((below, ", ".join(words), file.path))
        return found


class RankComparison:
    """Tells the other ranks what this one is about to read, and compares it with theirs.

    Every rank makes its comparisons in the same order. Making one does not wait for other ranks;
    ``check`` waits until all have made theirs. Without a process group nothing is compared.

    Args:
        ranks: This rank, and the others.
        files: The files that this rank has found.
        parts: The other values that must be the same on all ranks, as JSON, by their names in
            errors.
            A difference in "filters" is only logged: the same filter may be written in many ways.
        timeout_s: How long ``check`` waits; the default is the timeout of the process group.
    """

    def __init__(
        self,
        ranks: Ranks,
        files: ComparedFiles,
        parts: Callable[[], Mapping[str, Any]],
        *,
        timeout_s: float | None = None,
    ) -> None:
        self._ranks, self._files = ranks, files
        self._store: Any = None
        self._refusal = ""
        if ranks.size == 1 or ranks.members is None or not is_initialised():
            return
        if dist.get_backend() in ("fake", "mpi"):  # which have no store that ranks share
            return
        mine = json.dumps({"files": files.digest(), **parts()})
        try:
            store = self._store = _own_store("comparison", ranks)
            self._timeout_s = store.timeout.total_seconds() if timeout_s is None else timeout_s
            store.set(f"of/{ranks.rank}", mine)
            if store.add("made", 1) == ranks.size:
                found = [json.loads(store.get(f"of/{rank}")) for rank in range(ranks.size)]
                store.set("result", json.dumps(_differences(found)))
        except RuntimeError as error:  # all that stores raise is one
            # A rank that has no batches does not wait for others, and may have taken the store with
            # it.
            self._do_without_store(error)

    def check(self) -> None:
        """Return if all ranks are about to read the same data; compare only once.

        A rank that found no difference may read all of its rows and end before this one asks. If
        the store ends with it, there is nothing left to compare with: a rank that finds a
        difference waits until the others know it.

        Raises:
            RankMismatchError: They are about to read different data.
            WorkerError: A rank has not made its loader in time.
        """
        ranks, store = self._ranks, self._store
        if self._refusal:
            raise RankMismatchError(self._refusal)
        if store is None or not is_initialised():
            return
        try:
            result = self._wait_for("result", self._timeout_s)
            missing = "" if result else self._missing()
        except RuntimeError as error:
            self._do_without_store(error)
            return
        if result is None:
            raise WorkerError(
                f"rank {ranks.rank} of {ranks.size} waited {self._timeout_s:g} s for {missing} to "
                "make the same loader; see the log of the other ranks. A loader that not all ranks "
                "make needs rank= and world_size=, or process_group="
            )
        differences = json.loads(result)
        filters = differences.pop("filters", None)
        if filters is not None and ranks.rank == 0:
            names = " and ".join(_listed(some) for _, some in filters)
            logger.warning("the filters of %s are written in other ways, or differ", names)
        if differences:
            self._refusal = self._describe(differences)
            with suppress(RuntimeError):  # tell all: the store may end with this rank
                if store.add("know", 1) == ranks.size:
                    store.set("all know", "")
                self._wait_for("all know", _LAST_WORDS_S)
            raise RankMismatchError(self._refusal)
        self._store = None

    def _do_without_store(self, error: RuntimeError) -> None:
        """Log that the store has ended, and compare nothing from now on."""
        logger.warning(
            "rank %d of %d cannot compare its data with the others: the process that runs the "
            "store of torch.distributed has ended (%s)",
            self._ranks.rank,
            self._ranks.size,
            error,
        )
        self._store = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_store": None}  # a copy in another process compares nothing

    def _missing(self) -> str:
        others = range(self._ranks.size)
        return _listed([rank for rank in others if not self._store.check([f"of/{rank}"])])

    def _wait_for(self, key: str, timeout_s: float) -> bytes | None:
        """Return what another rank stores under a key; None if it does not come in time.

        It polls the store, because a wait inside of torch cannot be interrupted.
        """
        began, pause, silent = time.monotonic(), 0.001, key == "result"
        while not self._store.check([key]):
            waited = time.monotonic() - began
            if waited > timeout_s:
                return None
            if silent and waited > _SILENT_S:
                silent = False
                logger.warning("waiting for %s to make the same loader", self._missing())
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        found: bytes = self._store.get(key)
        return found

    def _describe(self, differences: Mapping[str, Any]) -> str:
        name, values = next(iter(differences.items()))
        groups = [ranks for _, ranks in values]
        if name != "files":
            return (
                f"ranks would lose rows and read others twice: {name} is not the same on "
                f"{' and '.join(map(_listed, groups))}; give every rank the same options, and make "
                "loaders in the same order on all of them"
            )
        (one, _), (other, _) = values[0][0], values[1][0]
        found = f"{_listed(groups[0])} found {one:,} files, and {other:,} were found on"
        with suppress(RuntimeError):
            found = self._first_difference(groups[0], groups[1]) or found
        more = " and ".join(map(_listed, groups[2:]))
        return (
            "ranks would lose rows and read others twice, for they do not see the same files: "
            f"{found} {_listed(groups[1])}{more and f', and others still on {more}'}. Wait until "
            "all machines show the same files, or save_manifest on one and give manifest= to all; "
            "loaders must be made in the same order on all ranks"
        )

    def _first_difference(self, one: Sequence[int], other: Sequence[int]) -> str | None:
        """Return a description of the first file that two groups of ranks do not have in common."""
        keys = [f"files/{one[0]}", f"files/{other[0]}"]
        mine = f"files/{self._ranks.rank}"
        if mine in keys:
            value = zlib.compress(json.dumps(self._files.described()).encode())
            self._store.set(mine, value if len(value) < _LARGEST_VALUE else b"")
        values = [self._wait_for(key, _NAMING_S) for key in keys]
        if not values[0] or not values[1]:
            return None
        here, there = (json.loads(zlib.decompress(value)) for value in values if value)
        for index, pair in enumerate(zip_longest(here, there)):
            if None in pair or pair[0][:2] != pair[1][:2]:
                shown = [f"{file[2]} ({file[1]})" if file else "no file" for file in pair]
                return f"file {index:,} is {shown[0]} on {_listed(one)}, and {shown[1]} on"
        return None


def _differences(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the parts that differ: each value, and the ranks that have it."""
    differences: dict[str, Any] = {}
    for name in found[0]:
        values: dict[str, list[int]] = {}
        for rank, parts in enumerate(found):
            values.setdefault(json.dumps(parts.get(name)), []).append(rank)
        if len(values) > 1:
            differences[name] = [(json.loads(value), ranks) for value, ranks in values.items()]
    return differences


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"


# --- the same numbers, and the same number of steps


class Agreement:
    """Finds the smallest and largest of the numbers of all ranks, over its own connections.

    Every rank makes its agreements of one ``name`` in the same order; they connect at the first
    ``agree``. ``timeout_s`` is how long a rank waits for the others; the default is torch's.
    """

    def __init__(self, ranks: Ranks, *, name: str = "", timeout_s: float = 1800.0) -> None:
        if ranks.members is None or not is_initialised():
            raise OptionError(
                "how many batches there are is not known beforehand here (filters, deletes of a "
                'table, lines of text, on_error="skip"), so ranks must agree while they run, which '
                "needs an initialised torch.distributed process group: init it before the loader "
                "is made, or even=False"
            )
        self._ranks = ranks
        self._timeout = timedelta(seconds=timeout_s)
        self._store = _own_store(name, ranks)
        self._groups: PerProcess[list[Any]] = PerProcess(list)
        weakref.finalize(self, _close, self._groups)

    def agree(self, count: int) -> tuple[int, int]:
        """Return the smallest and largest count of all ranks, when all have called it."""
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
        _close(self._groups)

    def __reduce__(self) -> NoReturn:
        raise TypeError("an agreement of ranks is bound to its process and cannot be pickled")

    def _all_reduce_max(self, numbers: torch.Tensor) -> None:
        groups = self._groups.get()
        if not groups:
            rank, size = self._ranks.rank, self._ranks.size
            groups.append(dist.ProcessGroupGloo(self._store, rank, size, self._timeout))
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)
        groups[0].allreduce([numbers], options).wait()


def _close(groups: PerProcess[list[Any]]) -> None:
    """Drop the connections of an agreement that is gone; at exit, gloo's threads would crash it.

    A forked child keeps those of its parent: to end them it would wait for threads of its parent.
    """
    groups.get().clear()


class InStep:
    """Iterates over a pass while all ranks have batches; with padding, until no rank has.

    The ranks agree on the next steps while one that they have agreed on is still to come: so after
    every batch it is known whether there is another. A rank that ends before others repeats its
    first batch; ``read_first`` returns this batch and its number of rows.

    ``whole`` says that the epoch is read from its start. If a rank has no batch at all, all others
    would leave out everything. For a whole epoch this is an error, for the rest of one a warning.
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
        """Number of batches handed out again."""
        self.padded_rows = 0
        """Number of rows handed out again."""

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._running)
        try:
            self._agree_on_more(first=True)
            while self._agreed:
                if self._agreed == 1 and not self._last_round:
                    self._agree_on_more()
                self._agreed -= 1
                if self._own:
                    self._own -= 1
                    yield next(batches)
                else:
                    batch, rows = self._first_batch() or (None, 0)
                    self.repeated += 1
                    self.padded_rows += rows
                    yield deepcopy(batch)  # a copy, because the user may change it
            left = self._running.ahead(1)
            if left:
                logger.warning(
                    "epoch %d: this rank leaves out %d batches or more, so that all ranks take the "
                    'same number of steps; even="pad" would read them',
                    self._running.epoch,
                    left,
                )
        finally:
            self._running.end()

    def _first_batch(self) -> tuple[Any, int] | None:
        if self._first is None and self._read_first is not None:
            self._first = self._read_first()
        return self._first

    def is_over(self) -> bool:
        """Return True if no batch is left."""
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
        """Report on all ranks that no step is taken because a rank has no batch."""
        message = (
            f"epoch {self._running.epoch}: a rank has no batch while another has {most} or more, "
            'so that with even="drop" no rank takes a step and all that is left of the epoch is '
            'left out; use even="pad" to read it, or fewer ranks, smaller batches, or files that '
            "can be cut into more parts"
        )
        if self._whole:
            raise OptionError(message)
        logger.warning(message)
