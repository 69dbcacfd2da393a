"""Some samples of some tars, in any order: which members they need, and what they are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import ReadError
from headrace.model import Int64Array
from headrace.sources.tar.collection import TarCollection
from headrace.sources.tar.index import TarIndex
from headrace.sources.tar.samples import members_of

__all__ = ["ChosenSamples"]


class ChosenSamples:
    """Some samples of some shards, in an order that need not be that of the shards."""

    def __init__(self, collection: TarCollection, shards: Int64Array, samples: Int64Array) -> None:
        self._collection, self._shards, self._samples = collection, shards, samples
        self._order = np.argsort(shards, kind="stable")
        held, begins = np.unique(shards[self._order], return_index=True)
        self._parts = [
            (collection.index(shard), places)
            for shard, places in zip(held.tolist(), np.split(self._order, begins[1:]), strict=True)
        ]

    def members(self, field: str, limit: int | None) -> Int64Array:
        """The members that are a field of the samples, -1 where there is none.

        A ReadError names one that is larger than ``limit``.
        """
        found = np.empty(len(self._shards), np.int64)
        for index, places in self._parts:
            members = members_of(index, field)[self._samples[places]]
            if limit is not None:
                self._check(index, places, members, limit)
            found[places] = members
        return found

    def _check(self, index: TarIndex, places: Int64Array, members: Any, limit: int) -> None:
        large = np.flatnonzero((members >= 0) & (index.sizes[members] > limit))
        if len(large):
            path = self._collection.files[int(self._shards[places[large[0]]])].path
            member = int(members[large[0]])
            raise ReadError(
                f"{path}, member {index.name(member)!r} has {int(index.sizes[member])} bytes, more "
                f"than max_file_size={limit}; raise that, leave its field out of columns=, or "
                'leave such samples out with on_error="skip"'
            )

    def joined(self, make: Callable[[TarIndex, Int64Array], pa.Array]) -> pa.Array:
        """What is made of the samples of each shard, in the order of all."""
        made = [make(index, self._samples[places]) for index, places in self._parts]
        if len(made) == 1:
            return made[0]
        back = np.empty(len(self._order), np.int64)
        back[self._order] = np.arange(len(back))
        return pa.concat_arrays(made).take(pa.array(back))

    def naming(self, members: Int64Array) -> Callable[[int], str]:
        """What to call the member of a sample, by its place."""

        def named(place: int) -> str:
            shard = int(self._shards[place])
            name = self._collection.index(shard).name(int(members[place]))
            return f"{self._collection.files[shard].path}, member {name!r}"

        return named
