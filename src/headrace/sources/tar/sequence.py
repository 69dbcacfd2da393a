"""Samples one after the other: read in blocks, and ahead where that takes time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from headrace.errors import ReadError
from headrace.model import Int64Array
from headrace.options import parse_bytes
from headrace.sources.tar.grouping import Int32Array
from headrace.sources.tar.index import TarIndex
from headrace.sources.tar.payloads import Ints, Payloads
from headrace.sources.tar.sample import TarSample

__all__ = ["check_sizes", "samples_of"]

_BLOCK_BYTES_HERE, _BLOCK_BYTES_ELSEWHERE = 1 << 20, 8 << 20


@dataclass(frozen=True, slots=True)
class _Block:
    """Samples of a tar that are read as one."""

    shard: int
    path: str
    index: TarIndex
    first: int
    edges: list[int]
    """where the members of each sample begin, and the last end"""
    members: list[int]

    def samples(self, payloads: list[bytes]) -> Iterator[TarSample]:
        shard, path, index, members, number = (
            self.shard,
            self.path,
            self.index,
            self.members,
            self.first,
        )
        for start, stop in pairwise(self.edges):
            yield TarSample(index, shard, path, number, members[start:stop], payloads[start:stop])
            number += 1


def samples_of(
    payloads: Payloads, shards: Sequence[int], max_file_size: int | str | None
) -> Iterator[TarSample]:
    """All samples of some tars, in order."""
    if payloads.collection.store.local:
        for block in _blocks(payloads, shards, _BLOCK_BYTES_HERE, max_file_size):
            yield from block.samples(payloads.of_index(block.shard, block.index, block.members))
        return
    asked: deque[_Block] = deque()

    def ask() -> Iterator[tuple[Ints, Ints]]:
        for block in _blocks(payloads, shards, _BLOCK_BYTES_ELSEWHERE, max_file_size):
            asked.append(block)
            yield np.full(len(block.members), block.shard), block.members

    for found in payloads.ahead(ask()):
        yield from asked.popleft().samples(found)


def check_sizes(
    path: str, index: TarIndex, members: Sequence[int], max_file_size: int | str | None
) -> None:
    """Refuse members that are larger than they may be, before anything of them is read."""
    if max_file_size is None:
        return
    limit = parse_bytes("max_file_size", max_file_size)
    for member in members:
        if index.sizes[member] > limit:
            raise ReadError(
                f"{path}: member {index.name(member)!r} has {index.sizes[member]:,} bytes, more "
                f"than max_file_size={limit:,}"
            )


def _blocks(
    payloads: Payloads, shards: Sequence[int], block_bytes: int, max_file_size: int | str | None
) -> Iterator[_Block]:
    collection = payloads.collection
    for shard in shards:
        index, path = collection.index(shard), collection.files.paths[shard]
        starts, members = index.sample_members
        for first, stop in pairwise(_cuts(index, starts, members, block_bytes)):
            mine = members[starts[first] : starts[stop]].tolist()
            check_sizes(path, index, mine, max_file_size)
            edges = (starts[first : stop + 1] - starts[first]).tolist()
            yield _Block(shard, path, index, first, edges, mine)


def _cuts(index: TarIndex, starts: Int64Array, members: Int32Array, block_bytes: int) -> list[int]:
    """The samples at which blocks begin, and the number of all."""
    if not index.num_samples:
        return []
    ends = np.cumsum(index.sizes[members])[starts[1:] - 1]
    begins = np.flatnonzero(np.diff(ends // block_bytes)) + 1
    return [0, *begins.tolist(), index.num_samples]
