"""What decides which rows come in which order and in which batches.

With ``shuffle=True`` and nothing else, the sizes of chunks and windows follow from the files and
from the memory for reading ahead. All lanes that a process reads have a window in memory, and one
that is being made: a window W may have half of the budget divided by these lanes.

    data of a lane <= W            all of it is one window
    row groups of W / 4 or less    windows of up to 32 chunks; a chunk is a row group, or several
    row groups of W or less        windows of half row groups, decoded twice unless kept
    larger row groups              windows of one row group
"""

from __future__ import annotations

import logging
import math
import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from headrace.convert.decoded import Kind
from headrace.errors import OptionError
from headrace.loader.pipeline import row_cost
from headrace.model import FileList, Int64Array, SplitStrategy
from headrace.options import DatasetOptions, parse_bytes
from headrace.plan import (
    EvenBatchesSplitStrategy,
    Grouping,
    describe_strategy,
    plan_lanes,
    same_in_every_epoch,
)
from headrace.sources.reader import Discovered

__all__ = ["Order", "budget_bytes", "chunk_bytes", "order_of"]

logger = logging.getLogger(__name__)

DEFAULT_SPLIT_BYTES = "128MiB"
_BUDGET_BYTES = 256 << 20
_SHUFFLE_BUDGET_BYTES = 2 << 30
_MOST_MIXED = 32
"""Number of chunks in a window that was chosen automatically, at most."""
_CHUNKS_OF_LANE = 16
"""Number of chunks of a lane that is one window, so that lanes share small data at random."""
_ALL_CHUNKS = 1 << 30
_DECODED_FACTOR = 8
"""Bytes in memory for each byte of an encoded image or sound, roughly."""
_AUTOMATIC = "automatic"
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
        automatic: Whether chunks and windows were chosen from files and memory.
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
    automatic: bool = False

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
        if self.automatic:
            sizes = self.split_rows or 0, self.split_bytes, grouping.mix, int(grouping.permuted)
            return " ".join([_AUTOMATIC, *map(str, sizes)])
        way = f" mix {grouping.mix}" if grouping.mix > 1 else ""
        if grouping.interleave > 1:
            way = f" interleave {grouping.interleave}"
        if strategy is not None:
            return f"{describe_strategy(strategy) or type(strategy).__name__}{way}"
        cut = f"{self.split_rows}r" if self.split_rows else f"{self.split_bytes}b"
        return f"{'shuffled' if self.shuffle else 'in order'} {cut}{way}"

    def summary(self, files: FileList, lanes: int) -> str:
        """Return the order in a few words: what is permuted together."""
        if self.split_strategy is not None:
            by = f"dealt by {type(self.split_strategy).__name__}"
            return f"{by}, {self.grouping.mix} chunks mixed" if self.grouping.mix > 1 else by
        if self.grouping.interleave > 1:
            chunks = "shuffled chunks" if self.shuffle else "in order"
            return f"{chunks}, rows of {self.grouping.interleave} files in turn"
        if not self.shuffle:
            return "in order"
        mix, size = self.grouping.mix, self._size_of_chunk(files)
        if mix >= _ALL_CHUNKS:
            return f"shuffled: all rows{' of a lane' * (lanes > 1)} together"
        if mix > 1:
            return f"shuffled: windows of {mix:,} chunks of {size}"
        if self.grouping.permuted:
            return "shuffled: the rows of one row group at a time"
        return f"shuffled: chunks of {size}, whose rows stay in order"

    def _size_of_chunk(self, files: FileList) -> str:
        """Return about how large a chunk is, in rows where rows are counted."""
        rows, counts, groups = self.split_rows, files.counts, files.groups
        if rows is None and len(counts) and (counts >= 0).all():
            sizes = groups.size_bytes if len(groups) else files.sizes
            per_byte = counts.sum() / max(np.maximum(sizes, 0).sum(), 1)
            # Chunks are whole row groups, and do not cross the borders of files.
            least = groups.rows.mean() if len(groups) else 1
            rows = round(min(max(self.split_bytes * per_byte, least), counts.mean()))
        if rows is not None:
            return f"~{rows:,} rows"
        size = self.split_bytes / 2**10
        return f"~{size:,.0f} KiB" if size < 2**10 else f"~{size / 2**10:,.0f} MiB"

    def as_in(self, described: object) -> Order:
        """Return the order that a state describes, if both chose their sizes automatically.

        Another machine, or another number of workers, may have chosen other sizes.
        """
        words = described.split() if isinstance(described, str) else []
        numbers = [int(word) for word in words[1:] if word.isdigit()]
        if not self.automatic or words[:1] != [_AUTOMATIC] or len(numbers) != 4:
            return self
        rows, size, mix, permuted = numbers
        grouping = Grouping(max(mix, 1), permuted=bool(permuted))
        return replace(self, split_rows=rows or None, split_bytes=max(size, 1), grouping=grouping)

    @property
    def has_own_strategy(self) -> bool:
        """Whether only the plan of ``split_strategy`` tells what order it makes."""
        strategy = self.split_strategy
        return strategy is not None and describe_strategy(strategy) is None


def order_of(options: DatasetOptions, found: Discovered, *, lanes: int, lanes_each: int) -> Order:
    """Return the order that options ask for.

    Args:
        options: The options of the dataset.
        found: Its files.
        lanes: Number of lanes of all ranks.
        lanes_each: Number of lanes that one process reads.
    """
    order = Order(
        batch_size=options["batch_size"],
        drop_last=options["drop_last"],
        shuffle=options["shuffle"],
        seed=options["shuffle_seed"],
        split_bytes=chunk_bytes(options),
        split_rows=options["split_rows"],
        split_strategy=options["split_strategy"],
        grouping=Grouping(options["mix"] or 1, options["interleave"]),
        lanes=options["lanes"],
    )
    if options["shuffle_buffer_rows"] is not None:
        sizes_are_free = options["split_bytes"] is None and options["split_rows"] is None
        return _with_buffer(order, found.files, options["shuffle_buffer_rows"], sizes_are_free)
    chosen = ("split_bytes", "split_rows", "split_strategy", "mix")
    free = all(options.get(name) is None for name in chosen) and options["interleave"] == 1
    if not options["shuffle"] or not free:
        return order
    window_bytes = budget_bytes(options) // 2 // lanes_each
    return _shuffled(replace(order, automatic=True), found, window_bytes, lanes)


def budget_bytes(options: DatasetOptions) -> int:
    """Return how many bytes a process may read ahead."""
    given = options["prefetch_bytes"]
    if given is not None:
        return parse_bytes("prefetch_bytes", given)
    if not options["shuffle"]:
        return _BUDGET_BYTES
    beside = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)  # ranks that share the memory
    share = _memory_bytes() // 8 // beside
    # A power of two, so that machines that differ a little choose the same order.
    return max(min(1 << (share.bit_length() - 1), _SHUFFLE_BUDGET_BYTES), _BUDGET_BYTES)


def _memory_bytes() -> int:
    """Return the memory of the machine, or of the container if that is less."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limit = Path(path).read_text().strip()
        except OSError:
            continue
        if limit.isdigit():
            memory = min(memory, int(limit))
    return memory


def chunk_bytes(options: DatasetOptions) -> int:
    """Return about how large chunks are, unless ``split_rows`` says so."""
    size = parse_bytes("split_bytes", options["split_bytes"] or DEFAULT_SPLIT_BYTES)
    if options["split_bytes"] is None:
        # The default is the size of a window, which holds several chunks.
        size = max(size // max(options["mix"] or 1, options["interleave"]), 1)
    return size


def _shuffled(order: Order, found: Discovered, window_bytes: int, lanes: int) -> Order:
    """Choose chunks and windows that permute as many rows together as fit into memory."""
    stored, held = _sizes(found)
    total, whole = int(held.sum()), max(int(stored.sum()), 1)
    factor = max(total / whole, 1e-9)  # bytes in memory for each byte that is stored
    if not total:
        return order
    window_bytes = max(window_bytes, 1)
    if total <= window_bytes * lanes:
        # One window holds all of a lane; several lanes get small chunks of everywhere.
        counts, parts = found.files.counts, _CHUNKS_OF_LANE * lanes
        if lanes > 1 and (counts >= 0).all():
            order = replace(order, split_rows=max(-(-int(counts.sum()) // parts), 1))
        elif lanes > 1:
            order = replace(order, split_bytes=max(whole // parts, 1))
        return replace(order, grouping=Grouping(_ALL_CHUNKS))
    large = float(np.quantile(held, 0.9)) if len(found.files.groups) else 0.0
    if window_bytes >= 4 * large:
        size = max(window_bytes / _MOST_MIXED, large)
        mix = max(min(int(window_bytes / size), _MOST_MIXED), 2)
        return replace(order, split_bytes=max(int(size / factor), 1), grouping=Grouping(mix))
    groups = found.files.groups
    if window_bytes >= large:
        logger.warning(
            "shuffle=True: row groups of about %.0f MiB in memory are large beside the %.0f MiB of "
            "a window, so that rows of few of them are permuted together, and each is decoded "
            "twice; a larger prefetch_bytes, or files with smaller row groups, shuffle better",
            large / 2**20,
            window_bytes / 2**20,
        )
        half = max(int(np.quantile(groups.rows, 0.9)) // 2, 1)
        mix = max(2, 2 * int(window_bytes // large))
        return replace(order, split_rows=half, grouping=Grouping(mix))
    logger.warning(
        "shuffle=True: row groups of about %.0f MiB in memory are larger than the %.0f MiB of a "
        "window, so that only the rows of each one are permuted; a larger prefetch_bytes, or files "
        "with smaller row groups, shuffle better",
        large / 2**20,
        window_bytes / 2**20,
    )
    return replace(order, split_bytes=1, grouping=Grouping(permuted=True))


def _sizes(found: Discovered) -> tuple[Int64Array, Int64Array]:
    """Return the bytes of row groups, or of files without them, as stored and in memory."""
    files, cost = found.files, row_cost(found.reader.read_schema)
    if len(files.groups):
        rows, stored = files.groups.rows, files.groups.size_bytes
    else:
        rows, stored = np.maximum(files.counts, 0), np.maximum(files.sizes, 0)
    held = rows * cost.fixed_bytes
    if cost.variable or not len(files.groups):
        decoded = Kind.NPY in found.reader.source.kinds.values()
        held = held + stored * (_DECODED_FACTOR if decoded else 1)
    return stored, held


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
