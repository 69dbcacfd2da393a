"""Aspect buckets: samples whose images have, or are scaled to, one shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.errors import OptionError
from headrace.model import Int64Array, computed_once
from headrace.options import whole_number
from headrace.sources.tar.index import TarIndex

KEYS = ("aspect", "geometry-tuple", "geometry-list")

Integers = npt.NDArray[np.integer]
Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class BucketRule:
    """The rule that decides the shape to which an image is scaled, and the key of its bucket.

    With ``target_pixel_area`` an image is scaled to about that many pixels, its width and height
    each to the nearest multiple of ``target_resolution_multiple``; without, it keeps its size.
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
            whole_number("target_pixel_area", self.target_pixel_area, 1)
        whole_number("target_resolution_multiple", self.target_resolution_multiple, 1)
        if self.round_to is not None:
            whole_number("round_to", self.round_to, 0)

    def shapes(self, widths: Integers, heights: Integers) -> tuple[Int64Array, Int64Array]:
        """Return the shapes to which images of these widths and heights are scaled."""
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
        # In single precision, as other writers of the format compute it: ties are rounded alike.
        aspects = widths.astype(np.float32) / heights.astype(np.float32)
        if self.round_to is None:
            return [np.format_float_positional(aspect, trim="-") for aspect in aspects]
        pattern = f"%.{self.round_to}f"
        return [pattern % aspect for aspect in aspects.tolist()]

    def _to_multiple(self, lengths: npt.NDArray[np.float64]) -> Int64Array:
        multiple = self.target_resolution_multiple
        whole = lengths.astype(np.int64)
        whole += lengths - whole >= 0.5
        multiples: Int64Array = np.maximum((2 * whole + multiple) // (2 * multiple), 1)
        return multiples * multiple


class _Shapes(NamedTuple):
    """The shapes to which some images are scaled, by aspect.

    Attributes:
        keys: Keys of buckets, each once.
        widths: The width of each shape.
        heights: The height of each shape.
        buckets: The number of the key of each shape; it never decreases.
        of_images: The number of the shape of each image.
    """

    keys: list[str]
    widths: Int64Array
    heights: Int64Array
    buckets: Int64Array
    of_images: Int64Array


def _shapes(rule: BucketRule, widths: Integers, heights: Integers) -> _Shapes:
    wide, high = rule.shapes(widths, heights)
    both, which = np.unique(wide << 32 | high, return_inverse=True)
    wide, high = both >> 32, both & 0xFFFFFFFF
    order = np.lexsort((high, wide, wide / high))
    place = np.argsort(order)
    wide, high = wide[order], high[order]
    names = rule.keys(wide, high)
    numbers = {key: number for number, key in enumerate(dict.fromkeys(names))}
    buckets = np.array([numbers[name] for name in names], np.int64)
    return _Shapes(list(numbers), wide, high, buckets, place[which.reshape(-1)])


@dataclass(frozen=True, slots=True, eq=False)
class AspectBuckets:
    """The buckets of a data set: every sample whose shape is known is in exactly one of them.

    A bucket of ``key="aspect"`` may hold several shapes, each a run in it; any other is one.
    Samples are numbered over all shards, and each run is in this order.
    """

    keys: tuple[str, ...]
    """Keys of buckets, by aspect; all differ."""
    starts: Int64Array
    """Where in ``samples`` each bucket begins, and the last ends."""
    samples: Int64Array
    shape_starts: Int64Array
    """Where in ``samples`` each run of one shape begins, and the last ends."""
    widths: Int64Array
    """The width to which the images of each run are scaled, or that they have."""
    heights: Int64Array
    unknown: Int64Array
    """Samples without a bucket, because their shape is not known."""
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
    sides = [_sides(index, index.shape_members) for index in map(indexes, wanted)]
    numbers = [np.arange(shard_starts[shard], shard_starts[shard + 1]) for shard in wanted]
    none = np.empty(0, np.int64)
    samples = np.concatenate([none, *numbers])
    widths, heights = (np.concatenate([none, *(one[side] for one in sides)]) for side in (0, 1))
    known = (widths > 0) & (heights > 0)
    found = _shapes(rule, widths[known], heights[known])
    counts = np.bincount(found.of_images, minlength=len(found.widths))
    shape_starts = np.concatenate([[0], np.cumsum(counts)])
    return AspectBuckets(
        keys=tuple(found.keys),
        starts=shape_starts[np.searchsorted(found.buckets, np.arange(len(found.keys) + 1))],
        samples=samples[known][np.argsort(found.of_images, kind="stable")],
        shape_starts=shape_starts,
        widths=found.widths,
        heights=found.heights,
        unknown=samples[~known],
        shard_starts=shard_starts,
    )


def _sides(index: TarIndex, members: Integers) -> tuple[Integers, Integers]:
    """Return width and height of members; 0 if unknown."""
    if index.widths is None or index.heights is None:
        return np.zeros_like(members), np.zeros_like(members)
    return index.widths[members], index.heights[members]


# --- buckets of shards as lists and dicts, as other tools of the format give them


def list_buckets(
    shards: Sequence[int],
    indexes: Callable[[int], TarIndex],
    shard_names: Sequence[str],
    rule: BucketRule,
    *,
    by_sample: bool,
) -> list[dict[str, Any]]:
    """Return the images of each of these shards in buckets.

    Args:
        shards: Numbers of shards.
        indexes: Returns the index of a shard.
        shard_names: Names of all shards.
        rule: The rule for buckets.
        by_sample: True for samples, by the member whose shape they have; beside ``buckets`` there
            is ``unknown``, the names of samples of unknown shape. False for all members.
    """
    listed = []
    for shard in shards:
        index = indexes(shard)
        members: Integers = index.shape_members if by_sample else np.arange(len(index))
        samples = np.arange(len(members)) if by_sample else index.grouping.samples
        width, height = _sides(index, members)
        known = (width > 0) & (height > 0)
        found = ListedBuckets(index, members[known], samples[known], rule)
        entry = {"shard_idx": int(shard), "shard_name": shard_names[shard], "buckets": found}
        if by_sample:
            entry["unknown"] = _names(index, members[~known])
        listed.append(entry)
    return listed


class ListedBuckets(Mapping[str, list[Entry]]):
    """Buckets of a shard by their key, by aspect; each a list of dicts, in the order of the tar.

    The dicts are made when the first list is requested, because that takes most of the time.
    """

    def __init__(
        self, index: TarIndex, members: Integers, samples: Integers, rule: BucketRule
    ) -> None:
        self._index, self._rule = index, rule
        self._members, self._samples = members, samples
        found = _shapes(rule, *_sides(index, members))
        self._buckets = found.buckets[found.of_images]
        self._keys = {key: number for number, key in enumerate(found.keys)}

    def __getitem__(self, key: str) -> list[Entry]:
        return self._lists[self._keys[key]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    @computed_once
    def _lists(self) -> list[list[Entry]]:
        order = np.lexsort((self._members, self._buckets))
        entries = _entries(self._index, self._members[order], self._samples[order], self._rule)
        edges = np.searchsorted(self._buckets[order], np.arange(len(self._keys) + 1))
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
    width, height = _sides(index, members)
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
