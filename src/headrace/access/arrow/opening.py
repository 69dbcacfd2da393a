"""Shards that are open in a process: as many as there may be, those that were used last."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.access.arrow.shards import (
    MappedShard,
    Shard,
    ShardIndex,
    StoredShard,
    TableShard,
    check_index,
    read_index,
)
from headrace.model import DataFileInfo, Int64Array
from headrace.storage import Store

__all__ = ["MOST_OPEN", "OpenShards", "ShardOpener"]

MOST_OPEN = 1024
"""shards that may be mapped at a time, for a process can have some ten thousand maps; twice as many
with those whose rows are read in order"""


@dataclass(frozen=True, slots=True, eq=False)
class ShardOpener:
    """Opens a shard, once it is known to be what it should be."""

    store: Store
    files: Sequence[DataFileInfo]
    schema: pa.Schema
    indices: dict[int, ShardIndex]
    """of those that were looked at"""
    table: pa.Table | None

    def __call__(self, number: int, in_order: bool) -> Shard:
        if self.table is not None:
            return TableShard.of(self.table)
        file, index = self.files[number], self.indices.get(number)
        if index is None:
            index = read_index(self.store, file)
            check_index(index, file, self.schema)
            self.indices[number] = index
        if self.store.local:
            return MappedShard(self.store, file, index, sequential=in_order)
        return StoredShard(self.store, file, index)


class OpenShards:
    """Opens shards when they are needed. Whoever uses it holds ``lock``.

    ``derived`` is for what refers to open shards: it is dropped when one of them is closed, or a
    shard would stay open by it.
    """

    def __init__(
        self,
        opener: Callable[[int, bool], Shard],
        first_rows: Int64Array,
        names: Sequence[str],
        identities: Sequence[Hashable],
        limit: int,
    ) -> None:
        """``opener`` is given the number of a shard, and whether it is to be read in order.

        ``identities`` tell shards apart from all others that this process may read.
        """
        self._opener = opener
        self._open: OrderedDict[tuple[int, bool], Shard] = OrderedDict()
        self.first_rows = first_rows
        self.names = names
        self.identities = identities
        self.limit = limit
        self.lock = threading.RLock()
        self.derived: dict[Hashable, Any] = {}

    @property
    def count(self) -> int:
        """Of all shards."""
        return len(self.names)

    def find(self, rows: Int64Array) -> Int64Array:
        """The shards in which some rows are."""
        found: Int64Array = np.searchsorted(self.first_rows, rows, side="right") - 1
        return found

    def one(self, number: int) -> Shard:
        """A shard whose rows are read in order."""
        return self._opened(number, in_order=True)

    def some(self, numbers: Sequence[int]) -> dict[int, Shard]:
        """All shards that are open for rows that are picked, with these among them."""
        for number in numbers:
            self._opened(number, in_order=False)
        return {number: shard for (number, in_order), shard in self._open.items() if not in_order}

    def _opened(self, number: int, *, in_order: bool) -> Shard:
        key = number, in_order
        found = self._open.get(key)
        if found is None:
            found = self._opener(number, in_order)
            self._open[key] = found
            for oldest in [k for k in self._open if k[1] == in_order][: -self.limit]:
                del self._open[oldest]
                self.derived.clear()
        self._open.move_to_end(key)
        return found
