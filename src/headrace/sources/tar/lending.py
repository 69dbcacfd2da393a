"""Payloads of tars of this machine that batches copy from where they are mapped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized

import numpy as np
import pyarrow as pa

from headrace.convert.lent import Lender, enlisted, lent_array
from headrace.errors import ReadError
from headrace.model import DataFileInfo, Int64Array
from headrace.sources.tar.collection import TarCollection
from headrace.sources.tar.mapped_tars import MappedTar, MappedTars

__all__ = ["TarLenders"]

_DENSE = 0.5
"""of a run of bytes, from which on it is fetched as a whole"""


class TarLender:
    """One tar. It is mapped when bytes are asked for, and looked at again each time."""

    def __init__(self, file: DataFileInfo, shard: int, tars: MappedTars) -> None:
        self._file, self._shard, self._tars = file, shard, tars

    @property
    def key(self) -> object:
        return self._file.path, self._file.file_size, self._file.etag

    @property
    def tar(self) -> MappedTar:
        return self._tars.get(self._shard)

    def read(self, offsets: list[int], sizes: list[int]) -> list[bytes]:
        found = self.tar.read(offsets, sizes)
        self._check(found, offsets, sizes)
        return found

    def views(self, offsets: list[int], sizes: list[int]) -> list[memoryview]:
        found = self.tar.views(offsets, sizes)
        self._check(found, offsets, sizes)
        return found

    def _check(self, found: Sequence[Sized], offsets: list[int], sizes: list[int]) -> None:
        if [len(part) for part in found] == sizes:
            return
        short = next(i for i, part in enumerate(found) if len(part) != sizes[i])
        raise ReadError(
            f"{self._file.path}: of {sizes[short]:,} bytes at {offsets[short]:,} only "
            f"{len(found[short]):,} can be read; the tar breaks off or its index is not its own"
        )


class TarLenders:
    """The tars of a collection, as far as they lend."""

    def __init__(self, collection: TarCollection) -> None:
        self._collection = collection
        self._tars = MappedTars(collection.files)
        self._made: dict[int, tuple[int, Lender]] = {}

    def lent(
        self, shards: Int64Array, columns: Mapping[str, tuple[Int64Array, Int64Array]]
    ) -> dict[str, pa.Array]:
        """Members of tars by their offsets and sizes; the system is told that they will be read."""
        if not columns:
            return {}
        numbers = np.empty(len(shards), np.int64)
        for shard in np.unique(shards).tolist():
            here = shards == shard
            numbers[here] = self._enlisted(shard)
            offsets, sizes = (
                np.concatenate([part[here] for part in parts])
                for parts in zip(*columns.values(), strict=True)
            )
            _announce(self._tars.get(shard), offsets[sizes > 0], sizes[sizes > 0])
        return {name: lent_array(numbers, *places) for name, places in columns.items()}

    def _enlisted(self, shard: int) -> int:
        found = self._made.get(shard)
        if found is None:
            made = TarLender(self._collection.files[shard], shard, self._tars)
            found = self._made.setdefault(shard, enlisted(made))
        return found[0]

    def __reduce__(self) -> tuple[type[TarLenders], tuple[TarCollection]]:
        return TarLenders, (self._collection,)


def _announce(tar: MappedTar, offsets: Int64Array, sizes: Int64Array) -> None:
    if not len(offsets):
        return
    start, stop = int(offsets.min()), int((offsets + sizes).max())
    if int(sizes.sum()) > _DENSE * (stop - start):
        tar.will_read(start, stop - start)
        return
    for offset, size in zip(offsets.tolist(), sizes.tolist(), strict=True):
        tar.will_read(offset, size)
