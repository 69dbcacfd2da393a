"""The options of a dataset, checked once, at the earliest moment."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headrace.errors import OptionError
from headrace.model import FileList, SplitStrategy
from headrace.plan import (
    EvenBatchesSplitStrategy,
    Grouping,
    describe_strategy,
    parse_bytes,
    plan_lanes,
    same_in_every_epoch,
)
from headrace.storage import DiskCache, Requests

__all__ = [
    "Finish",
    "OrderOptions",
    "check_callable",
    "check_count",
    "check_flag",
    "check_mapping",
    "check_seconds",
    "make_cache",
    "make_finish",
    "make_requests",
]

DEFAULT_SPLIT_BYTES = "128MiB"
_CHUNKS_IN_BUFFER = 8
"""of which the rows of a shuffle buffer come, unless row groups are larger"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderOptions:
    """What decides which rows come in which order and in which batches."""

    batch_size: int
    drop_last: bool
    shuffle: bool
    shuffle_seed: int
    split_bytes: int | str | None
    split_rows: int | None
    split_strategy: SplitStrategy | None
    mix: int = 1
    interleave: int = 1
    lanes: int | None = None

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)
        check_count("mix", self.mix)
        check_count("interleave", self.interleave)
        if self.mix > 1 and self.interleave > 1:
            raise OptionError(
                f"mix={self.mix} and interleave={self.interleave} exclude each other: a window is "
                "either mixed at random or taken in turn from its files"
            )
        check_flag("drop_last", self.drop_last)
        check_flag("shuffle", self.shuffle)
        if isinstance(self.shuffle_seed, bool) or not isinstance(self.shuffle_seed, int):
            raise OptionError(f"shuffle_seed must be an int, not {self.shuffle_seed!r}")
        if self.split_rows is not None:
            check_count("split_rows", self.split_rows)
        if self.lanes is not None:
            check_count("lanes", self.lanes)
        if self.split_bytes is not None:
            parse_bytes("split_bytes", self.split_bytes)
        if self.split_strategy is not None:
            self._check_strategy()

    def mixing(self, rows: int, files: FileList) -> OrderOptions:
        """The same with windows of at least so many rows, of two chunks or more."""
        check_count("shuffle_buffer_rows", rows)
        for name in ("mix", "interleave"):
            if getattr(self, name) > 1:
                raise OptionError(
                    f"shuffle_buffer_rows={rows} chooses mix, and {name} is given: leave one out"
                )
        if (files.counts < 0).any():
            raise OptionError(
                "shuffle_buffer_rows needs files whose rows are counted; here use mix, and "
                "split_bytes for the size of what is mixed"
            )
        order = self
        if self.split_strategy is None and self.split_bytes is None and self.split_rows is None:
            whole = max(int(files.groups.size_bytes.sum()), int(np.maximum(files.sizes, 0).sum()))
            share = whole * rows / max(int(files.counts.sum()), 1) / _CHUNKS_IN_BUFFER
            order = replace(self, split_bytes=max(int(share), 1))
        chunks = plan_lanes(order.strategy, files, lanes=1, epoch=0).chunks
        mean = float(chunks.length.mean()) if len(chunks) else 1.0
        return replace(order, mix=max(math.ceil(rows / mean), 2))

    def _check_strategy(self) -> None:
        if not isinstance(self.split_strategy, SplitStrategy):
            raise OptionError(
                "split_strategy must have a method generate(files, num_workers, epoch), which "
                f"{self.split_strategy!r} has not"
            )
        for name in ("shuffle", "split_bytes", "split_rows"):
            if getattr(self, name):
                raise OptionError(
                    f"{name}={getattr(self, name)!r} has no effect beside split_strategy, whose "
                    "splits are the order; give it to the strategy instead"
                )

    @property
    def strategy(self) -> SplitStrategy:
        """The user's strategy, or the default with these sizes."""
        return self.strategy_for(self.batch_size)

    def strategy_for(self, batch_size: int) -> SplitStrategy:
        """The same for batches of another size, as they were when a state was taken."""
        if self.split_strategy is not None:
            return self.split_strategy
        return EvenBatchesSplitStrategy(
            batch_size, self.chunk_bytes, self.split_rows, self.shuffle, self.shuffle_seed
        )

    @property
    def same_in_every_epoch(self) -> bool:
        """Whether chunks and lanes are."""
        strategy = self.split_strategy
        return not self.shuffle if strategy is None else same_in_every_epoch(strategy)

    @property
    def chunk_bytes(self) -> int:
        """About how large chunks are, unless ``split_rows`` says so."""
        size = parse_bytes("split_bytes", self.split_bytes or DEFAULT_SPLIT_BYTES)
        if self.split_bytes is None:
            together = max(self.mix, self.interleave)
            size = max(size // together, 1)  # a window of the default size, not a chunk
        return size

    def describe(self) -> str:
        """Return all that changes the order beside files, filters and seed, for fingerprints.

        A strategy of the user's own is only named: see ``has_own_strategy``.
        """
        way = f" mix {self.mix}" if self.mix > 1 else ""
        if self.interleave > 1:
            way = f" interleave {self.interleave}"
        strategy = self.split_strategy
        if strategy is not None:
            return f"{describe_strategy(strategy) or type(strategy).__name__}{way}"
        cut = f"{self.split_rows}r" if self.split_rows else f"{self.chunk_bytes}b"
        return f"{'shuffled' if self.shuffle else 'in order'} {cut}{way}"

    @property
    def has_own_strategy(self) -> bool:
        """Whether only the plan of ``split_strategy`` tells what order it makes."""
        strategy = self.split_strategy
        return strategy is not None and describe_strategy(strategy) is None

    @property
    def grouping(self) -> Grouping:
        """How chunks form windows."""
        return Grouping(self.mix, self.interleave)


@dataclass(frozen=True, slots=True)
class Finish:
    """A user's functions, applied to each batch."""

    transform: Callable[[Any], Any] | None
    collate_fn: Callable[[Any], Any] | None

    def __call__(self, batch: Any) -> Any:
        if self.transform is not None:
            batch = self.transform(batch)
        return batch if self.collate_fn is None else self.collate_fn(batch)


def make_finish(
    transform: Callable[[Any], Any] | None, collate_fn: Callable[[Any], Any] | None
) -> Finish | None:
    """Both functions as one; None when there is nothing to call."""
    check_callable("transform", transform)
    check_callable("collate_fn", collate_fn)
    return None if transform is None and collate_fn is None else Finish(transform, collate_fn)


def make_requests(max_gap_bytes: int | str | None, max_request_bytes: int | str) -> Requests:
    """How the byte ranges of a chunk become requests."""
    gap = max_gap_bytes
    if gap is not None and gap != 0:
        gap = parse_bytes("max_gap_bytes", gap)
    return Requests(gap, parse_bytes("max_request_bytes", max_request_bytes))


def make_cache(
    cache_dir: str | os.PathLike[str] | None, cache_bytes: int | str | None
) -> DiskCache | None:
    """The cache on disk, if there is to be one."""
    if cache_dir is None:
        if cache_bytes is not None:
            raise OptionError("cache_bytes has no effect without cache_dir")
        return None
    if not isinstance(cache_dir, str | os.PathLike):
        raise OptionError(f"cache_dir must be a path, not {cache_dir!r}")
    limit = None if cache_bytes is None else parse_bytes("cache_bytes", cache_bytes)
    return DiskCache.at(cache_dir, limit)


def check_count(name: str, value: object, least: int = 1) -> None:
    """Raise an OptionError unless ``value`` is an int of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(f"{name} must be an int of at least {least}, not {value!r}")


def check_seconds(name: str, value: object) -> None:
    """Raise an OptionError unless ``value`` is a number of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise OptionError(f"{name} must be a number of seconds, not {value!r}")


def check_callable(name: str, value: object) -> None:
    """Raise an OptionError unless ``value`` can be called, or is None."""
    if value is not None and not callable(value):
        raise OptionError(f"{name} must be callable, not {value!r}")


def check_mapping(name: str, value: object) -> None:
    """Raise an OptionError unless ``value`` is a mapping, or None."""
    if value is not None and not isinstance(value, Mapping):
        raise OptionError(f"{name} must be a mapping, not {value!r}")


def check_flag(name: str, value: object) -> None:
    """Raise an OptionError unless ``value`` is True or False."""
    if not isinstance(value, bool):
        raise OptionError(f"{name} must be True or False, not {value!r}")
