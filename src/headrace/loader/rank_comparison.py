"""Compares what ranks are about to read: rows are shared out right only if all see the same.

Each rank lists files and plans by itself. If one of them sees other files, because a network file
system shows an old listing or a copy is not complete, ranks take different numbers of steps, and
rows are lost and read twice. So each rank puts a digest of what it found into the store of
torch.distributed when its loader is made. The last one to do so compares them all, and every rank
looks at the result before its first batch.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from torch import distributed as dist

from headrace.errors import RankMismatchError, WorkerError
from headrace.loader.agreement import own_store
from headrace.loader.fingerprint import paths_below
from headrace.loader.ranks import Ranks, is_initialised
from headrace.model import FileList

__all__ = ["ComparedFiles", "RankComparison"]

logger = logging.getLogger(__name__)

Values = Sequence[tuple[Any, Sequence[int]]]
"""the values of one thing that differs between ranks, and the ranks that have each"""

_FILES, _FILTERS = "files", "filters"
_SILENT_S = 10.0
"""seconds after which the log says for which ranks this one waits"""
_LONGEST_PAUSE_S = 0.25
_NAMING_S = 20.0
"""seconds to wait for the name of the first file that differs"""
_LAST_WORDS_S = 10.0
"""seconds to wait for the others before an error may end this process, and the store with it"""
_MOST_DIGESTS = 500_000
"""files whose digests fit into one value of a store, which takes 8 MiB"""


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
        made = hashlib.sha256(
            "\0".join(paths_below(self.files, self.roots)).encode(errors="replace")
        )
        for column in (files.sizes, files.counts):
            made.update(np.ascontiguousarray(column, "<i8").data)
        if not self.local:
            made.update("\0".join(map(str, files.etags)).encode())
        return [len(files), made.hexdigest()[:16]]

    def digests(self) -> bytes:
        """Return eight bytes for each file, of as many files as fit into a store."""
        files = self.files
        etags = [None] * len(files) if self.local else files.etags
        columns = (
            paths_below(self.files, self.roots),
            files.sizes.tolist(),
            files.counts.tolist(),
            etags,
        )
        lines = ("\0".join(map(str, line)) for line in zip(*columns, strict=True))
        encoded = (line.encode(errors="replace") for line in islice(lines, _MOST_DIGESTS))
        return b"".join(hashlib.sha256(line).digest()[:8] for line in encoded)

    def describe(self, index: int) -> str:
        """Return a file in words, for an error."""
        files = self.files
        if index >= len(files):
            return "no file (there are fewer)"
        size, rows = int(files.sizes[index]), int(files.counts[index])
        counts = [f"{size:,} bytes"] * (size >= 0) + [f"{rows:,} rows"] * (rows >= 0)
        if not self.local and files.etags[index] is not None:
            counts.append(f"etag {files.etags[index]}")
        return f"{files.paths[index]} ({', '.join(counts)})"


class RankComparison:
    """Tells the other ranks what this one is about to read, and compares.

    Every rank makes its comparisons in the same order. Making one does not wait for other ranks;
    ``check`` waits until all have made theirs. Without a process group nothing is compared.

    Args:
        ranks: This rank, and the others.
        files: The files that this rank has found.
        parts: What else must be the same on all ranks, as JSON, by what to call it in an error.
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
        if not _can_compare(ranks):
            return
        self._store = self._asking(partial(own_store, "comparison", ranks))
        if timeout_s is None:
            timeout_s = self._store.timeout.total_seconds()
        self._timeout_s = timeout_s
        mine = {_FILES: files.digest(), **parts()}
        self._asking(partial(self._tell, mine))

    def check(self) -> None:
        """Return if all ranks are about to read the same; nothing is asked a second time.

        A rank that found no difference may read all of its rows and end before this one asks. If
        the store ends with it, there is nothing left to compare with: a rank that finds a
        difference waits until the others know it.

        Raises:
            RankMismatchError: They are not.
            WorkerError: A rank has not made its loader in time.
        """
        if self._store is None or not is_initialised():
            return
        try:
            differences = json.loads(self._result())
        except RuntimeError as error:  # all that stores raise is one
            if isinstance(error, WorkerError):
                raise
            logger.warning(
                "rank %d of %d cannot compare its data with the others: the process that runs the "
                "store of torch.distributed has ended (%s)",
                self._ranks.rank,
                self._ranks.size,
                error,
            )
            self._store = None
            return
        filters = differences.pop(_FILTERS, None)
        if filters is not None and self._ranks.rank == 0:
            logger.warning(
                "the filters of %s are written in other ways, or differ", _named(filters)
            )
        if differences:
            message = self._asking(partial(self._describe, differences))
            self._wait_until_all_know()
            raise RankMismatchError(message)
        self._store = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_store": None}  # a copy in another process compares nothing

    def _tell(self, mine: Mapping[str, Any]) -> None:
        self._store.set(f"of/{self._ranks.rank}", json.dumps(mine))
        if self._store.add("made", 1) == self._ranks.size:
            found = [json.loads(self._store.get(f"of/{rank}")) for rank in range(self._ranks.size)]
            self._store.set("result", json.dumps(_differences(found)))

    def _result(self) -> bytes:
        result = self._wait_for("result", self._timeout_s)
        if result is None:
            raise WorkerError(
                f"rank {self._ranks.rank} of {self._ranks.size} waited {self._timeout_s:g} s for "
                f"{self._missing()} to make the same loader; see the log of the other ranks. A "
                "loader that not all ranks make needs rank= and world_size=, or process_group="
            )
        return result

    def _missing(self) -> str:
        others = range(self._ranks.size)
        return _listed([rank for rank in others if not self._store.check([f"of/{rank}"])])

    def _wait_for(self, key: str, timeout_s: float) -> bytes | None:
        """Return what another rank stores under a key; None if it does not in time.

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

    def _wait_until_all_know(self) -> None:
        """Give the other ranks time to see what differs: the store may end with this process."""
        with suppress(RuntimeError):
            if self._store.add("know", 1) == self._ranks.size:
                self._store.set("all know", "")
            self._wait_for("all know", _LAST_WORDS_S)

    def _describe(self, differences: Mapping[str, Values]) -> str:
        if _FILES in differences:
            return self._describe_files(differences[_FILES])
        name, values = next(iter(differences.items()))
        return (
            f"ranks would lose rows and read others twice: {name} is not the same on "
            f"{_named(values)}; give every rank the same options, and make loaders in the same "
            "order on all of them"
        )

    def _describe_files(self, values: Values) -> str:
        """Name the first file that differs between the first two groups of ranks."""
        (one_count, _), one = values[0]
        (other_count, _), other = values[1]
        found = f"{_listed(one)} found {one_count:,} files, and {other_count:,} were found on"
        if self._name_first(one[0], other[0]):
            first = self._wait_for(f"first/{one[0]}", _NAMING_S)
            second = first and self._wait_for(f"first/{other[0]}", _NAMING_S)
            if first and second:
                place, name = json.loads(first)
                found = f"{place} is {name} on {_listed(one)}, and {json.loads(second)[1]} on"
        more = f", and others still on {_named(values[2:])}" if len(values) > 2 else ""
        return (
            "ranks would lose rows and read others twice, for they do not see the same files: "
            f"{found} {_listed(other)}{more}. Wait until all machines "
            "show the same files, or save_manifest on one and give manifest= to all; loaders must "
            "be made in the same order on all ranks"
        )

    def _name_first(self, *pair: int) -> bool:
        """Store the first file that two ranks do not have in common, if this is one of them.

        Returns:
            False if the other one does not answer.
        """
        rank = self._ranks.rank
        if rank not in pair:
            return True
        mine = self._files.digests()
        self._store.set(f"files/{rank}", mine)
        theirs = self._wait_for(f"files/{pair[rank == pair[0]]}", _NAMING_S)
        if theirs is None:
            return False
        common = min(len(mine), len(theirs)) // 8
        ours, others = (np.frombuffer(one, "<u8", common) for one in (mine, theirs))
        index = int(np.argmax(ours != others)) if (ours != others).any() else common
        first = [f"file {index:,}", self._files.describe(index)]
        if index == _MOST_DIGESTS:
            first = [f"one of the files from {index:,} on", "another one"]
        self._store.set(f"first/{rank}", json.dumps(first))
        return True

    def _asking(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except WorkerError:
            raise
        except RuntimeError as error:  # all that stores raise is one
            raise WorkerError(
                f"rank {self._ranks.rank} of {self._ranks.size} cannot compare its data with the "
                f"others, for the store of torch.distributed does not answer: the process that "
                f"runs it, rank 0 or a launcher, has ended or is out of reach ({error})"
            ) from error


def _can_compare(ranks: Ranks) -> bool:
    if ranks.size == 1 or ranks.members is None or not is_initialised():
        return False
    return dist.get_backend() not in ("fake", "mpi")  # which have no store that ranks share


def _differences(found: Sequence[Mapping[str, Any]]) -> dict[str, Values]:
    """Return the parts that are not the same everywhere: each value, and which ranks have it."""
    differences: dict[str, Values] = {}
    for name in found[0]:
        values: dict[str, list[int]] = {}
        for rank, parts in enumerate(found):
            values.setdefault(json.dumps(parts.get(name)), []).append(rank)
        if len(values) > 1:
            differences[name] = [(json.loads(value), ranks) for value, ranks in values.items()]
    return differences


def _named(values: Values) -> str:
    return " and ".join(_listed(ranks) for _, ranks in values)


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"
