"""What decides which rows come in which order and in which batches."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from headrace.errors import OptionError
from headrace.model import FileList, SplitStrategy
from headrace.options import DatasetOptions, parse_bytes
from headrace.plan import (
    EvenBatchesSplitStrategy,
    Grouping,
    describe_strategy,
    plan_lanes,
    same_in_every_epoch,
)

__all__ = ["Order", "chunk_bytes", "order_of"]

DEFAULT_SPLIT_BYTES = "128MiB"
_CHUNKS_IN_BUFFER = 8
"""Number of chunks whose rows fill a shuffle buffer, unless row groups are larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The order of an epoch, as a function of files, seed and epoch.

    Attributes:
        batch_size: Number of rows in a batch.
        drop_last: Whether the short batch at the end is left out.
        shuffle: Whether chunks are permuted.
        seed: The seed of all permutations.
        split_bytes: Size of a chunk in bytes, where ``split_rows`` is not given.
        split_rows: Number of rows in a chunk.
        split_strategy: The user's own way to deal chunks to lanes.
        grouping: How the chunks of a lane form windows.
        lanes: Number of lanes, if the user has chosen it.
    """

    batch_size: int
    drop_last: bool
    shuffle: bool
    seed: int
    split_bytes: int
    split_rows: int | None
    split_strategy: SplitStrategy | None
    grouping: Grouping
    lanes: int | None

    @property
    def strategy(self) -> SplitStrategy:
        """The user's strategy, or the default one with these sizes."""
        return self.strategy_for(self.batch_size)

    def strategy_for(self, batch_size: int) -> SplitStrategy:
        """Return the strategy for batches of another size, as it was when a state was taken."""
        if self.split_strategy is not None:
            return self.split_strategy
        return EvenBatchesSplitStrategy(
            batch_size, self.split_bytes, self.split_rows, self.shuffle, self.seed
        )

    @property
    def same_in_every_epoch(self) -> bool:
        """Whether chunks and lanes are the same in every epoch."""
        strategy = self.split_strategy
        return not self.shuffle if strategy is None else same_in_every_epoch(strategy)

    def describe(self) -> str:
        """Return all that changes the order beside files, filters and seed, for fingerprints.

        A strategy of the user's own is only named: see ``has_own_strategy``.
        """
        grouping, strategy = self.grouping, self.split_strategy
        way = f" mix {grouping.mix}" if grouping.mix > 1 else ""
        if grouping.interleave > 1:
            way = f" interleave {grouping.interleave}"
        if strategy is not None:
            return f"{describe_strategy(strategy) or type(strategy).__name__}{way}"
        cut = f"{self.split_rows}r" if self.split_rows else f"{self.split_bytes}b"
        return f"{'shuffled' if self.shuffle else 'in order'} {cut}{way}"

    @property
    def has_own_strategy(self) -> bool:
        """Whether only the plan of ``split_strategy`` tells what order it makes."""
        strategy = self.split_strategy
        return strategy is not None and describe_strategy(strategy) is None


def order_of(options: DatasetOptions, files: FileList) -> Order:
    """Return the order that options ask for; the size of windows may follow from the files."""
    order = Order(
        batch_size=options["batch_size"],
        drop_last=options["drop_last"],
        shuffle=options["shuffle"],
        seed=options["shuffle_seed"],
        split_bytes=chunk_bytes(options),
        split_rows=options["split_rows"],
        split_strategy=options["split_strategy"],
        grouping=Grouping(options["mix"], options["interleave"]),
        lanes=options["lanes"],
    )
    rows = options["shuffle_buffer_rows"]
    if rows is None:
        return order
    sizes_are_free = options["split_bytes"] is None and options["split_rows"] is None
    return _with_buffer(order, files, rows, sizes_are_free)


def chunk_bytes(options: DatasetOptions) -> int:
    """Return about how large chunks are, unless ``split_rows`` says so."""
    size = parse_bytes("split_bytes", options["split_bytes"] or DEFAULT_SPLIT_BYTES)
    if options["split_bytes"] is None:
        # The default is the size of a window, which holds several chunks.
        size = max(size // max(options["mix"], options["interleave"]), 1)
    return size


def _with_buffer(order: Order, files: FileList, rows: int, sizes_are_free: bool) -> Order:
    """Return the order with windows of at least ``rows`` rows, of two chunks or more."""
    if (files.counts < 0).any():
        raise OptionError(
            "shuffle_buffer_rows needs files whose rows are counted; here use mix, and "
            "split_bytes for the size of what is mixed"
        )
    if order.split_strategy is None and sizes_are_free:
        whole = max(int(files.groups.size_bytes.sum()), int(np.maximum(files.sizes, 0).sum()))
        share = whole * rows / max(int(files.counts.sum()), 1) / _CHUNKS_IN_BUFFER
        order = replace(order, split_bytes=max(int(share), 1))
    chunks = plan_lanes(order.strategy, files, lanes=1, epoch=0).chunks
    mean = float(chunks.length.mean()) if len(chunks) else 1.0
    return replace(order, grouping=Grouping(max(math.ceil(rows / mean), 2)))
