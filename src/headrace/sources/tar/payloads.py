"""Bytes of members: by slices of maps here, by coalesced requests elsewhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import ReadError, StaleIndexError
from headrace.sources.tar.checks import check_headers, header_starts, unchecked
from headrace.sources.tar.collection import TarCollection
from headrace.sources.tar.headers import BLOCK
from headrace.sources.tar.index import TarIndex
from headrace.sources.tar.mapped_tars import MappedTars
from headrace.storage import Meter, Patience, will_read

__all__ = ["Ints", "Payloads"]

Ints = Sequence[int] | npt.NDArray[np.integer[Any]]
"""numbers of shards or members"""

_BATCHES_AHEAD = 3
_NEAR_BYTES = 1 << 14
"""between members, which to fetch costs less than another request"""


@dataclass(frozen=True, slots=True)
class _Part:
    """What is wanted of one tar, in the order in which it lies there."""

    shard: int
    index: TarIndex
    places: list[int]
    """among all that was asked for"""
    members: list[int]
    offsets: list[int]
    sizes: list[int]


class _Files(list[Any]):
    """Files that are open until they have been read from, or nobody wants to."""

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for file in self:
            file.close()


@dataclass(frozen=True, slots=True)
class _Begun:
    """What was asked for and is on its way."""

    parts: Sequence[_Part]
    files: _Files
    count: int
    """of the payloads of all parts"""


class Payloads:
    """Reads members of a collection, by any number of threads.

    A read that fails, or gives too little, is an error that names the tar and the member.
    """

    def __init__(self, collection: TarCollection) -> None:
        self.collection = collection
        self._store = collection.store
        self._tars = MappedTars(collection.files)

    def during(self, meter: Meter, patience: Patience) -> Payloads:
        """The same for somebody else, who counts requests and may give up waiting."""
        other = Payloads(self.collection)
        other._store, other._tars = self._store.during(meter, patience), self._tars
        return other

    def read(self, shard: int, members: Ints) -> list[bytes]:
        """Members of one tar, in the order asked for."""
        if not self._store.local or len(members) > 1:
            return self.read_many(np.full(len(members), shard), members)
        index = self.collection.index(shard)
        wanted = [int(member) for member in members]
        return self.of_index(shard, index, wanted)

    def of_index(self, shard: int, index: TarIndex, members: list[int]) -> list[bytes]:
        """A few members of one tar whose index is at hand, by as few calls as can be."""
        if not self._store.local:
            return self.read_many(np.full(len(members), shard), members)
        offsets, sizes = index.offsets.item, index.sizes.item
        wanted = [sizes(member) for member in members]
        places = [offsets(member) for member in members]
        found = self._read(shard, index, members, places, wanted)
        if [len(data) for data in found] != wanted:
            self._refuse(shard, index, members, found)
        return found

    def read_many(self, shards: Ints, members: Ints) -> list[bytes]:
        """Members of any tars, in the order asked for: ``members[i]`` of tar ``shards[i]``."""
        parts = self._parts(shards, members)
        if self._store.local:
            return self._copied(parts, len(members))
        return self._waited_for(_Begun(parts, self._asked_for(parts), len(members)))

    @contextmanager
    def views(self, shards: Ints, members: Ints) -> Iterator[list[memoryview]]:
        """The same without a copy, to be copied within and not to be worked on.

        A tar of this machine that is changed meanwhile is an error at the end.
        """
        parts = self._parts(shards, members)
        found: list[memoryview] = [memoryview(b"")] * len(members)
        if not self._store.local:
            with self._asked_for(parts) as files:
                for part, file in zip(parts, files, strict=True):
                    self._put(part, [memoryview(data) for data in self._fetched(part, file)], found)
            yield found
            return
        tars = [self._tars.get(part.shard) for part in parts]
        for part, tar in zip(parts, tars, strict=True):
            self._put(part, tar.views(part.offsets, part.sizes), found)
            self.check(part.shard, part.index, part.members)
        yield found
        for tar in tars:
            tar.check()

    def check(self, shard: int, index: TarIndex, members: list[int]) -> None:
        """Refuse an index if members of a tar of this machine do not lie where it says.

        For payloads that somebody else reads.
        """
        left = unchecked(index, members)
        if left:
            tar = self._tars.get(shard)
            self._check(shard, index, left, tar.read(_starts(index, left), [BLOCK] * len(left)))

    def ahead(self, batches: Iterable[tuple[Ints, Ints]]) -> Iterator[list[bytes]]:
        """What ``read_many`` gives for each, while what comes next is already being fetched."""
        if self._store.local:
            yield from (self.read_many(*batch) for batch in batches)
            return
        begun: deque[_Begun] = deque()
        try:
            for shards, members in batches:
                parts = self._parts(shards, members)
                begun.append(_Begun(parts, self._asked_for(parts), len(members)))
                if len(begun) > _BATCHES_AHEAD:
                    yield self._waited_for(begun.popleft())
            while begun:
                yield self._waited_for(begun.popleft())
        finally:
            for later in begun:
                later.files.close()

    # --- how

    def _waited_for(self, begun: _Begun) -> list[bytes]:
        found = [b""] * begun.count
        with begun.files as files:
            for part, file in zip(begun.parts, files, strict=True):
                self._put(part, [data.to_pybytes() for data in self._fetched(part, file)], found)
        return found

    def _parts(self, shards: Ints, members: Ints) -> list[_Part]:
        which, wanted = np.asarray(shards), np.asarray(members)
        if len(which) != len(wanted):
            raise ValueError(f"{len(which)} shards for {len(wanted)} members")
        order = np.argsort(which, kind="stable")
        held, begins = np.unique(which[order], return_index=True)
        if not len(held):
            return []
        cuts = np.split(order, begins[1:])
        return [
            self._part(shard, places, wanted[places])
            for shard, places in zip(held.tolist(), cuts, strict=True)
        ]

    def _part(self, shard: int, places: npt.NDArray[Any], members: npt.NDArray[Any]) -> _Part:
        index = self.collection.index(shard)
        offsets = index.offsets[members]
        order = np.argsort(offsets, kind="stable")
        members = members[order]
        columns = places[order], members, offsets[order], index.sizes[members]
        return _Part(shard, index, *(column.tolist() for column in columns))

    def _copied(self, parts: Sequence[_Part], count: int) -> list[bytes]:
        found = [b""] * count
        for part in parts:
            payloads = self._read(part.shard, part.index, part.members, part.offsets, part.sizes)
            self._put(part, payloads, found)
        return found

    def _read(
        self, shard: int, index: TarIndex, members: list[int], offsets: list[int], sizes: list[int]
    ) -> list[bytes]:
        """Payloads of a tar of this machine, with the headers that were not looked at before."""
        tar = self._tars.get(shard)
        left = unchecked(index, members)
        if not left:
            return tar.read(offsets, sizes)
        found = tar.read(offsets + _starts(index, left), sizes + [BLOCK] * len(left))
        self._check(shard, index, left, found[len(sizes) :])
        return found[: len(sizes)]

    def _check(self, shard: int, index: TarIndex, members: list[int], blocks: list[bytes]) -> None:
        """Compare members of a tar of this machine with their headers."""
        tar = self._tars.get(shard)

        def read(start: int, stop: int) -> bytes:
            return tar.read([start], [stop - start])[0]

        check_headers(self.collection.files.paths[shard], index, members, blocks, read)

    def _asked_for(self, parts: Sequence[_Part]) -> _Files:
        """Ask for all that is wanted of all tars, with headers, side by side."""
        files = _Files()
        for part in parts:
            file = self._store.open(self.collection.files[part.shard])
            files.append(file)
            will_read(file, _spans(part))
        return files

    def _fetched(self, part: _Part, file: pa.NativeFile) -> Iterator[pa.Buffer]:
        """Yield payloads as they come, each after its header was compared with the index."""
        path, index = self.collection.files.paths[part.shard], part.index

        def read(start: int, stop: int) -> bytes:
            file.seek(start)
            data: bytes = file.read(stop - start)
            return data

        for member, offset, size in zip(part.members, part.offsets, part.sizes, strict=True):
            try:
                file.seek(offset - BLOCK)
                data = file.read_buffer(BLOCK + size)
                check_headers(path, index, [member], [data[:BLOCK].to_pybytes()], read)
                yield data[BLOCK:]
            except StaleIndexError:
                raise
            except ReadError as error:
                name = part.index.name(member)
                raise type(error)(f"member {name!r} cannot be read: {error}") from None

    def _put(self, part: _Part, found: Sequence[Any], into: list[Any]) -> None:
        if [len(data) for data in found] != part.sizes:
            self._refuse(part.shard, part.index, part.members, found)
        for place, data in zip(part.places, found, strict=True):
            into[place] = data

    def _refuse(
        self, shard: int, index: TarIndex, members: Sequence[int], found: Sequence[Any]
    ) -> None:
        """Name the first member of which there is too little."""
        for member, data in zip(members, found, strict=True):
            if len(data) != index.sizes[member]:
                raise ReadError(
                    f"{self.collection.files[shard].path}: member {index.name(member)!r} has "
                    f"{index.sizes[member]:,} bytes, of which {len(data):,} can be read; the tar "
                    "breaks off or its index is not its own"
                )

    def __reduce__(self) -> tuple[type[Payloads], tuple[TarCollection]]:
        return Payloads, (self.collection,)


def _starts(index: TarIndex, members: list[int]) -> list[int]:
    """Return where the headers of members lie."""
    return [index.offsets.item(member) - BLOCK for member in members]


def _spans(part: _Part) -> list[tuple[int, int]]:
    """Return the bytes of members with their headers; of near ones, those between too."""
    starts = header_starts(part.index, np.array(part.members))
    stops = np.array(part.offsets, np.int64) + np.array(part.sizes, np.int64)
    reached = np.maximum.accumulate(stops)
    begins = np.flatnonzero(np.append(True, starts[1:] - reached[:-1] > _NEAR_BYTES))
    ends = reached[np.append(begins[1:], len(starts)) - 1]
    return list(zip(starts[begins].tolist(), ends.tolist(), strict=True))
