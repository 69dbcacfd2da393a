"""Where the record batches of open shards are in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.access.arrow.shards import Shard
from headrace.access.arrow.strides import Strides
from headrace.model import Int64Array

__all__ = ["Directory"]

_UNSEEN, _UNEVEN = -1, 0
"""widths of columns of which no batch is known, or whose rows do not lie evenly"""


@dataclass(slots=True, eq=False)
class Directory:
    """The batches of all shards that are open, as columns; it keeps what they refer to alive."""

    shards: dict[int, Shard]
    covered: npt.NDArray[np.bool_]
    """which shards those are"""
    whole: bool
    """whether they are all that there are"""
    starts: Int64Array
    """the first row of each batch, of all rows"""
    even: int
    """the rows of all batches, if these are as many (of the last at most), or 0"""
    shard: Int64Array
    """in which a batch is"""
    number: Int64Array
    """that it has there"""
    stays: npt.NDArray[np.bool_]
    """whether it is in memory that stays, and its places can be kept"""
    known: npt.NDArray[np.bool_]
    """whether they are, or there are no rows"""
    places: Int64Array
    """a column for each batch"""
    strides: Strides
    """the columns of the data whose rows have one width in all known batches"""
    bases: Int64Array
    """where the first of all rows would be, if all lay as those of the batch: columns as above"""
    complete: bool = False
    """whether all batches are known"""

    @classmethod
    def of(
        cls, shards: dict[int, Shard], first_rows: Int64Array, *, columns: int, places: int
    ) -> Directory:
        """A directory in which no batch has been looked at."""
        numbers = sorted(shards)
        sizes = [len(shards[number].starts) - 1 for number in numbers]
        covered = np.zeros(len(first_rows) - 1, bool)
        covered[numbers] = True
        starts = np.concatenate([shards[n].starts[:-1] + first_rows[n] for n in numbers])
        step = int(starts[1]) if len(starts) > 1 else 0
        past = int(first_rows[numbers[-1] + 1])
        even = past <= step * len(starts) and np.array_equal(starts, step * np.arange(len(starts)))
        return cls(
            shards,
            covered,
            bool(covered.all()),
            starts,
            step if even else 0,
            np.repeat(numbers, sizes),
            np.concatenate([np.arange(size) for size in sizes]),
            np.repeat([shards[number].stays for number in numbers], sizes),
            np.concatenate([np.diff(shards[number].starts) == 0 for number in numbers]),
            np.zeros((places, sum(sizes)), np.int64),
            Strides.of(np.full(columns, _UNSEEN)),
            np.zeros((columns, sum(sizes)), np.int64),
        )

    def learn(self, before: Directory) -> None:
        """Take over what another directory knows of shards that are still open."""
        for number, shard in self.shards.items():
            if before.shards.get(number) is shard:
                here, there = self._batches_of(number), before._batches_of(number)
                self.known[here] = before.known[there]
                self.places[:, here] = before.places[:, there]
                self.bases[:, here] = before.bases[:, there]
        self.strides = before.strides
        self.complete = bool(self.known.all())

    def note(
        self, number: int, places: Int64Array, strides: Sequence[tuple[int, int] | None]
    ) -> None:
        """Keep where the rows of a batch are, in each column."""
        self.places[:, number] = places
        found = np.array([stride or (0, _UNEVEN) for stride in strides], np.int64)
        widths, before = found[:, 1], self.strides.widths[:, 0]
        widths = np.where((before == widths) | (before == _UNSEEN), widths, _UNEVEN)
        self.bases[:, number] = found[:, 0] - self.starts[number] * widths
        if not np.array_equal(widths, before):
            self.strides = Strides.of(widths)
        self.known[number] = True
        self.complete = bool(self.known.all())

    def find(self, rows: Int64Array) -> Int64Array:
        """The batches in which some rows are."""
        if self.even:
            return rows // self.even
        found: Int64Array = self.starts.searchsorted(rows, "right") - 1
        return found

    def batch(self, number: int, names: Sequence[str]) -> pa.RecordBatch:
        """A batch of a shard whose batches are views."""
        shard = self.shards[int(self.shard[number])]
        return shard.batches([int(self.number[number])], names)[0]

    def _batches_of(self, shard: int) -> slice:
        return slice(*np.searchsorted(self.shard, [shard, shard + 1]).tolist())
