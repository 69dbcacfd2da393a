"""Choose the order of a dataset: from its options, its files, and the memory of the machine.

With ``shuffle=True`` and nothing else, the sizes of chunks and windows follow from the files and
from the memory for reading ahead. Each lane that a process reads has one window in memory, and
another one that is being made: so a window W may take half of the budget divided by these lanes.
Unless the user gives the budget, a window is not larger than needed to permute the rows of many
row groups together: fresh memory costs more than all other work, and the first batch waits for a
whole window.

    data of a lane <= W            all of it is one window
    row groups of W / 4 or less    windows of up to 32 chunks; a chunk is a row group, or several
    row groups of W or less        windows of half row groups, decoded twice unless kept
    larger row groups              windows of one row group
"""

from __future__ import annotations

import logging
import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from headrace.convert.kinds import Kind
from headrace.errors import OptionError
from headrace.loader._pipeline import row_cost
from headrace.model import FileList, Int64Array
from headrace.options import DatasetOptions, parse_bytes
from headrace.plan import DEFAULT_SPLIT_BYTES, Grouping, Order
from headrace.sources.source import Discovered

logger = logging.getLogger(__name__)

_BUDGET_BYTES = 256 << 20
"""Bytes to read ahead in order; when shuffling, the least."""
_SHUFFLE_BUDGET_BYTES = 2 << 30
"""Bytes to read ahead when shuffling, at most: half of them, by lanes, is the largest window."""
_DEVICE_BYTES = 1 << 30
"""Bytes to read ahead on a device."""
_WINDOW_BYTES = 96 << 20
"""Size of a window where the budget is not given, unless its row groups are large."""
_GROUPS_MIXED = 12
"""Number of large row groups for which a window has room, if the budget allows it."""
_MOST_MIXED = 32
"""Largest number of chunks in a window that is chosen automatically."""
_CHUNKS_OF_LANE = 16
"""Least number of chunks of a lane in one window, so that threads and lanes share them evenly."""
_ALL_CHUNKS = 1 << 30
_DECODED_FACTOR = 8
"""Bytes in memory for each byte of an encoded image or sound, roughly."""
_CHUNKS_IN_BUFFER = 8
"""Number of chunks whose rows fill a shuffle buffer, unless row groups are larger."""


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
    sizes = options["split_bytes"], options["split_rows"], options["mix"]
    chosen = sizes != (None, None, None) or options["interleave"] > 1
    if not options["shuffle"] or chosen or order.split_strategy is not None:
        return order
    most = max(budget_bytes(options) // 2 // lanes_each, 1)
    is_given = options["prefetch_bytes"] is not None or options["device"] is not None
    wanted = most if is_given else min(most, _WINDOW_BYTES)
    return _shuffled(replace(order, automatic=True), found, wanted, most, lanes)


def budget_bytes(options: DatasetOptions) -> int:
    """Return the number of bytes that a process may read ahead."""
    if options["device"] is not None:
        return parse_bytes("device_bytes", options["device_bytes"] or _DEVICE_BYTES)
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
    """Return the memory of the machine, or the limit of the container if that is less."""
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
    """Return the approximate size of chunks, unless ``split_rows`` gives it."""
    size = parse_bytes("split_bytes", options["split_bytes"] or DEFAULT_SPLIT_BYTES)
    if options["split_bytes"] is None:
        # Where mix or interleave is given, the default is the size of all chunks of a window.
        size = max(size // max(options["mix"] or 1, options["interleave"]), 1)
    return size


def _shuffled(order: Order, found: Discovered, wanted: int, most: int, lanes: int) -> Order:
    """Choose chunks and windows.

    Args:
        order: The order without them.
        found: The files.
        wanted: Size of a window in bytes; it is larger where row groups are.
        most: The largest size of a window.
        lanes: Number of lanes of all ranks.
    """
    stored, held = _sizes(found)
    total, whole = int(held.sum()), max(int(stored.sum()), 1)
    factor = max(total / whole, 1e-9)  # bytes in memory for each byte that is stored
    if not total:
        return order
    large = float(np.quantile(held, 0.9)) if len(found.files.groups) else 0.0
    window_bytes = min(max(wanted, math.ceil(_GROUPS_MIXED * large)), most)
    if total <= window_bytes * lanes:
        # One window holds a whole lane. With small chunks, threads share the reading evenly, and
        # each of several lanes gets rows from everywhere.
        counts, parts = found.files.counts, _CHUNKS_OF_LANE * lanes
        if lanes > 1 and (counts >= 0).all():
            order = replace(order, split_rows=max(-(-int(counts.sum()) // parts), 1))
        else:
            order = replace(order, split_bytes=max(whole // parts, 1))
        return replace(order, grouping=Grouping(_ALL_CHUNKS))
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
    chunks = order.plan(files, lanes=1, epoch=0, batch_size=order.batch_size).chunks
    mean = float(chunks.length.mean()) if len(chunks) else 1.0
    return replace(order, grouping=Grouping(max(math.ceil(rows / mean), 2)))


def describe_order(order: Order, files: FileList, lanes: int) -> str:
    """Return an order in a few words that say what is permuted together."""
    mix, interleave = order.grouping.mix, order.grouping.interleave
    if order.split_strategy is not None:
        by = f"dealt by {type(order.split_strategy).__name__}"
        return f"{by}, {mix} chunks mixed" if mix > 1 else by
    if interleave > 1:
        chunks = "shuffled chunks" if order.shuffle else "in order"
        return f"{chunks}, rows of {interleave} files in turn"
    if not order.shuffle:
        return "in order"
    if mix >= _ALL_CHUNKS:
        return f"shuffled: all rows{' of a lane' * (lanes > 1)} together"
    if mix > 1:
        return f"shuffled: windows of {mix:,} chunks of {_chunk_size(order, files)}"
    if order.grouping.permuted:
        return "shuffled: the rows of one row group at a time"
    return f"shuffled: chunks of {_chunk_size(order, files)}, whose rows stay in order"


def _chunk_size(order: Order, files: FileList) -> str:
    """Return the approximate size of a chunk, in rows if rows are counted."""
    rows, counts, groups = order.split_rows, files.counts, files.groups
    if rows is None and len(counts) and (counts >= 0).all():
        sizes = groups.size_bytes if len(groups) else files.sizes
        per_byte = counts.sum() / max(np.maximum(sizes, 0).sum(), 1)
        # Chunks are whole row groups, and do not cross the borders of files.
        least = groups.rows.mean() if len(groups) else 1
        rows = round(min(max(order.split_bytes * per_byte, least), counts.mean()))
    if rows is not None:
        return f"~{rows:,} rows"
    size = order.split_bytes / 2**10
    return f"~{size:,.0f} KiB" if size < 2**10 else f"~{size / 2**10:,.0f} MiB"
