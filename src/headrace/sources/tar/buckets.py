"""Aspect buckets: samples whose images have, or are brought to, one shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import OptionError
from headrace.model import Int64Array, computed_once
from headrace.sources.tar.index import TarIndex

__all__ = [
    "AspectBuckets",
    "BucketRule",
    "ListedBuckets",
    "aspect_buckets",
    "list_file_buckets",
    "list_sample_buckets",
]

KEYS = ("aspect", "geometry-tuple", "geometry-list")
_LARGEST = 1 << 31
_MOST_DECIMALS = 30
_EXACT_DECIMALS = 8
"""decimals up to which a single-precision number times a power of ten is exact as a double"""

Integers = npt.NDArray[np.integer]
Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class BucketRule:
    """The rule that gives an image the shape it is brought to, and the key of its bucket.

    With ``target_pixel_area`` an image is scaled to about so many pixels, its width and height
    each to the nearest multiple of ``target_resolution_multiple``; without, it stays as it is.
    Keys are text: "1.33" with ``round_to`` decimals (None: as many as it takes), "(1024, 768)" or
    "[1024, 768]".
    """

    key: str = "aspect"
    target_pixel_area: int | None = None
    target_resolution_multiple: int = 64
    round_to: int | None = 2

    def __post_init__(self) -> None:
        if self.key not in KEYS:
            raise OptionError(f"key must be one of {', '.join(KEYS)}, not {self.key!r}")
        if self.target_pixel_area is not None:
            _check("target_pixel_area", self.target_pixel_area, 1, _LARGEST**2)
        _check("target_resolution_multiple", self.target_resolution_multiple, 1, _LARGEST)
        if self.round_to is not None:
            _check("round_to", self.round_to, 0, _MOST_DECIMALS)

    def shapes(self, widths: Integers, heights: Integers) -> tuple[Int64Array, Int64Array]:
        """Return the shapes that images of these widths and heights are brought to."""
        if self.target_pixel_area is None:
            return widths.astype(np.int64), heights.astype(np.int64)
        wide, high = widths.astype(np.float64), heights.astype(np.float64)
        scale = np.sqrt(self.target_pixel_area / (wide * high))
        return self._to_multiple(wide * scale), self._to_multiple(high * scale)

    def keys(self, widths: Int64Array, heights: Int64Array) -> list[str]:
        """Return the keys of the buckets of these shapes; several shapes may have the same."""
        shapes = zip(widths.tolist(), heights.tolist(), strict=True)
        if self.key == "geometry-tuple":
            return [f"({width}, {height})" for width, height in shapes]
        if self.key == "geometry-list":
            return [f"[{width}, {height}]" for width, height in shapes]
        # In single precision, as all who write the format compute it: ties are rounded alike.
        aspects = widths.astype(np.float32) / heights.astype(np.float32)
        if self.round_to is None:
            return [np.format_float_positional(aspect, trim="-") for aspect in aspects]
        pattern = f"%.{self.round_to}f"
        return [pattern % aspect for aspect in aspects.tolist()]

    def buckets(self, widths: Int64Array, heights: Int64Array) -> tuple[list[str], Int64Array]:
        """Return every key of these shapes once, in their order, and the number of the key of each.

        Where shapes stand by aspect few texts are made that are made already.
        """
        starts = _changes(self._likeness(widths, heights))
        keys = self.keys(widths[starts], heights[starts])
        once = list(dict.fromkeys(keys))
        which = np.arange(len(keys))
        if len(once) < len(keys):
            number = {key: at for at, key in enumerate(once)}
            which = np.array([number[key] for key in keys], np.int64)
        if len(starts) == len(widths):
            return once, which
        return once, np.repeat(which, np.diff(starts, append=len(widths)))

    def _likeness(self, widths: Int64Array, heights: Int64Array) -> npt.NDArray[Any]:
        """Return numbers that are equal only where keys are."""
        if self.key != "aspect":
            return widths << 32 | heights
        aspects = widths.astype(np.float32) / heights.astype(np.float32)
        if self.round_to is None or self.round_to > _EXACT_DECIMALS:
            return aspects
        rounded: npt.NDArray[np.float64] = np.rint(aspects.astype(np.float64) * 10**self.round_to)
        return rounded

    def _to_multiple(self, lengths: npt.NDArray[np.float64]) -> Int64Array:
        multiple = self.target_resolution_multiple
        whole = lengths.astype(np.int64)
        whole += lengths - whole >= 0.5
        multiples: Int64Array = np.maximum((2 * whole + multiple) // (2 * multiple), 1)
        return multiples * multiple


def _check(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise OptionError(f"{name} must be an int, not {value!r}")
    if not least <= value <= most:
        raise OptionError(f"{name} must be from {least} to {most}, not {value}")


def shape_runs(widths: Integers, heights: Integers) -> Int64Array:
    """Return where another shape begins; equal shapes follow each other."""
    return _changes(widths.astype(np.int64) << 32 | heights)


def _changes(values: npt.NDArray[Any]) -> Int64Array:
    return np.flatnonzero(np.append(np.ones(len(values[:1]), bool), values[1:] != values[:-1]))


@dataclass(frozen=True, slots=True, eq=False)
class AspectBuckets:
    """The buckets of a data set: every sample whose shape is known is in exactly one of them.

    A bucket of ``key="aspect"`` may hold several shapes, each a run in it; any other is one.
    Samples are numbered over all shards, and stand in this order in each run.
    """

    keys: tuple[str, ...]
    """Keys of buckets, by aspect; all differ."""
    starts: Int64Array
    """Where in ``samples`` each bucket begins, and the last ends."""
    samples: Int64Array
    shape_starts: Int64Array
    """Where in ``samples`` each run of one shape begins, and the last ends."""
    widths: Int64Array
    """The width that the images of each run have, or are to be brought to."""
    heights: Int64Array
    unknown: Int64Array
    """Samples that are in no bucket, for their shape is not known."""
    shard_starts: Int64Array
    """The first sample of each shard, and the number of all samples."""

    def __len__(self) -> int:
        return len(self.keys)

    def bucket(self, number: int) -> Int64Array:
        """Return the samples of a bucket."""
        number = range(len(self.keys))[number]
        return self.samples[self.starts[number] : self.starts[number + 1]]

    def shards(self, samples: Int64Array | None = None) -> Int64Array:
        """Return the shard of each of these samples, or of all in the order of buckets."""
        wanted = self.samples if samples is None else samples
        return np.searchsorted(self.shard_starts, wanted, side="right") - 1

    def shape_keys(self) -> list[str]:
        """Return the key of the bucket of each run of one shape."""
        of_run = np.searchsorted(self.starts, self.shape_starts[:-1], side="right") - 1
        return [self.keys[number] for number in of_run.tolist()]

    def __repr__(self) -> str:
        return (
            f"<AspectBuckets: {len(self.samples):,} samples of {len(self.widths):,} shapes in "
            f"{len(self.keys):,} buckets, {len(self.unknown):,} of unknown shape>"
        )


def aspect_buckets(
    indexes: Callable[[int], TarIndex],
    sample_counts: Sequence[int] | Int64Array,
    *,
    shards: Sequence[int] | None = None,
    key: str = "aspect",
    target_pixel_area: int | None = None,
    target_resolution_multiple: int = 64,
    round_to: int | None = 2,
) -> AspectBuckets:
    """Put all samples of a data set, or of some of its shards, into buckets.

    ``indexes`` is asked once for each shard, in order; ``sample_counts`` are those of all shards.
    """
    rule = BucketRule(key, target_pixel_area, target_resolution_multiple, round_to)
    shard_starts: Int64Array = np.concatenate([[0], np.cumsum(sample_counts, dtype=np.int64)])
    wanted = range(len(shard_starts) - 1) if shards is None else sorted(set(shards))
    runs = list(_runs(indexes, wanted, rule))
    widths, heights, lengths = (
        np.concatenate([np.empty(0, np.int64), *(run[part] for run in runs)]) for part in range(3)
    )
    width, height, shape_of_run = _distinct_shapes(widths, heights)
    shapes = np.full(shard_starts[-1], -1, np.int32)
    begin = 0
    for shard, (*_, run_lengths, order) in zip(wanted, runs, strict=True):
        mine = shape_of_run[begin : begin + len(run_lengths)]
        shapes[shard_starts[shard] + order] = np.repeat(mine, run_lengths)
        begin += len(run_lengths)
    samples = _sorted_by(shapes)
    counts = np.bincount(shape_of_run, lengths, len(width)).astype(np.int64)
    without = len(samples) - int(counts.sum())
    keys, bucket_of_shape = rule.buckets(width, height)
    shape_starts = np.concatenate([[0], np.cumsum(counts)])
    return AspectBuckets(
        keys=tuple(keys),
        starts=shape_starts[np.searchsorted(bucket_of_shape, np.arange(len(keys) + 1))],
        samples=samples[without:],
        shape_starts=shape_starts,
        widths=width,
        heights=height,
        unknown=_within(samples[:without], shard_starts, wanted),
        shard_starts=shard_starts,
    )


def _runs(
    indexes: Callable[[int], TarIndex], shards: Sequence[int], rule: BucketRule
) -> Iterator[tuple[Int64Array, Int64Array, Int64Array, npt.NDArray[np.int32]]]:
    """Yield the shapes of each shard, the number of samples of each shape, and those samples."""
    for shard in shards:
        index = indexes(shard)
        order = index.shape_order
        if not len(order) or index.widths is None or index.heights is None:
            none = np.empty(0, np.int64)
            yield none, none, none, np.empty(0, np.int32)
            continue
        members = index.shape_members[order]
        width, height = index.widths[members], index.heights[members]
        starts = shape_runs(width, height)
        shapes = rule.shapes(width[starts], height[starts])
        yield *shapes, np.diff(starts, append=len(order)), order


def _distinct_shapes(
    widths: Int64Array, heights: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return all different shapes, by aspect, and the number of the shape of each image."""
    both, which = np.unique(widths << 32 | heights, return_inverse=True)
    width, height = both >> 32, both & 0xFFFFFFFF
    order = np.lexsort((height, width, width / height))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return width[order], height[order], place[which.reshape(-1)]


def _sorted_by(numbers: npt.NDArray[np.int32]) -> Int64Array:
    """Return a stable order by numbers from -1 on: by their halves, which numpy sorts by radix."""
    shifted = (numbers + 1).view(np.uint32)
    order = np.argsort((shifted & 0xFFFF).astype(np.uint16), kind="stable")
    if len(shifted) and int(shifted.max()) > 0xFFFF:
        order = order[np.argsort((shifted >> 16).astype(np.uint16)[order], kind="stable")]
    return order.astype(np.int64, copy=False)


def _within(samples: Int64Array, shard_starts: Int64Array, shards: Sequence[int]) -> Int64Array:
    """Return those of the samples that are in these shards."""
    if len(shards) == len(shard_starts) - 1:
        return samples
    return samples[np.isin(np.searchsorted(shard_starts, samples, side="right") - 1, shards)]


# --- buckets of shards as lists and dicts, as other tools of the format give them


def list_sample_buckets(
    shards: Sequence[int],
    indexes: Callable[[int], TarIndex],
    shard_names: Sequence[str],
    rule: BucketRule,
) -> list[dict[str, Any]]:
    """Return the samples of each of these shards in buckets, by the member whose shape they have.

    Beside ``buckets`` there is ``unknown``: the names of those of unknown shape.
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
    """Return all members of known shape of each of these shards, in buckets."""
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
        """Members of one shape follow each other, and shapes stand by aspect."""
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
    """Return the entries of these members, all of which have a shape."""
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
