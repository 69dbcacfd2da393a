"""Aspect buckets of shards as lists and dicts, as other tools of the format give them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from headrace.model import computed_once
from headrace.sources.tar.buckets import BucketRule, Integers, shape_runs
from headrace.sources.tar.index import TarIndex

__all__ = ["ListedBuckets", "list_file_buckets", "list_sample_buckets"]

Entry = dict[str, Any]


def list_sample_buckets(
    shards: Sequence[int],
    indexes: Callable[[int], TarIndex],
    shard_names: Sequence[str],
    rule: BucketRule,
) -> list[dict[str, Any]]:
    """Of each of these shards its samples in buckets, each by the member whose shape it has.

    Beside ``buckets`` there is ``unknown``: the names of those whose shape nobody said.
    """
    listed = []
    for shard in shards:
        index = indexes(shard)
        order, members = index.shape_order, index.shape_members
        found = ListedBuckets(index, members[order], order, rule)
        is_known = np.zeros(len(members), bool)
        is_known[order] = True
        unknown = [] if is_known.all() else _names(index, members[~is_known])
        listed.append(_listed(shard, shard_names, found) | {"unknown": unknown})
    return listed


def list_file_buckets(
    shards: Sequence[int],
    indexes: Callable[[int], TarIndex],
    shard_names: Sequence[str],
    rule: BucketRule,
) -> list[dict[str, Any]]:
    """Of each of these shards all members whose shape is known, in buckets."""
    listed = []
    for shard in shards:
        index = indexes(shard)
        members: Integers = np.empty(0, np.int32)
        if index.widths is not None and index.heights is not None:
            members = np.flatnonzero((index.widths > 0) & (index.heights > 0))
            width, height = index.widths[members], index.heights[members]
            members = members[np.lexsort((height, width, width / height))]
        found = ListedBuckets(index, members, index.grouping.samples[members], rule)
        listed.append(_listed(shard, shard_names, found))
    return listed


def _listed(shard: int, names: Sequence[str], found: ListedBuckets) -> dict[str, Any]:
    return {"shard_idx": int(shard), "shard_name": names[shard], "buckets": found}


class ListedBuckets(Mapping[str, list[Entry]]):
    """Buckets of a shard by their key, by aspect; each a list of dicts, as they lie in the tar.

    The keys are known at once. All dicts are made when the first list is asked for, for they take
    several times as long. ``dict(buckets)`` is a plain one.
    """

    def __init__(
        self, index: TarIndex, members: Integers, samples: Integers, rule: BucketRule
    ) -> None:
        """The members of one shape follow each other, and shapes stand by aspect."""
        self._index, self._rule = index, rule
        self._members, self._samples = members, samples
        self._runs = self._of_run = np.empty(0, np.int64)
        keys: list[str] = []
        if index.widths is not None and index.heights is not None:
            width, height = index.widths[members], index.heights[members]
            self._runs = shape_runs(width, height)
            shapes = rule.shapes(width[self._runs], height[self._runs])
            keys, self._of_run = rule.buckets(*shapes)
        self._keys = {key: number for number, key in enumerate(keys)}

    def __getitem__(self, key: str) -> list[Entry]:
        return self._lists[self._keys[key]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    @computed_once
    def _lists(self) -> list[list[Entry]]:
        lengths = np.diff(self._runs, append=len(self._members))
        of_member = np.repeat(self._of_run, lengths)
        order = np.lexsort((self._members, of_member))
        entries = _entries(self._index, self._members[order], self._samples[order], self._rule)
        edges = np.searchsorted(of_member[order], np.arange(len(self._keys) + 1))
        return [entries[start:stop] for start, stop in pairwise(edges.tolist())]

    def __repr__(self) -> str:
        return repr(dict(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def _names(index: TarIndex, members: Integers) -> list[str]:
    names: list[str] = index.names.take(members).to_numpy(zero_copy_only=False).tolist()
    return names


def _entries(
    index: TarIndex, members: Integers, samples: Integers, rule: BucketRule
) -> list[Entry]:
    """What is said of each of these members, all of which have a shape."""
    if index.widths is None or index.heights is None:
        return []
    width, height = index.widths[members], index.heights[members]
    to_width, to_height = rule.shapes(width, height)
    columns = (
        _names(index, members),
        index.offsets[members].tolist(),
        index.sizes[members].tolist(),
        samples.tolist(),
        width.tolist(),
        height.tolist(),
        (width / height).tolist(),
        ((to_width != width) | (to_height != height)).tolist(),
    )
    return [
        {
            "filename": name,
            "offset": offset,
            "size": size,
            "sample_idx": sample,
            "width": wide,
            "height": high,
            "aspect": aspect,
            "original_size": [wide, high] if is_scaled else None,
        }
        for name, offset, size, sample, wide, high, aspect, is_scaled in zip(*columns, strict=True)
    ]
