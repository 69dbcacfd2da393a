"""The rows of a window, brought into the order of their keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.convert import Block, gather
from headrace.plan import stable_order

__all__ = ["RowKeys", "Window"]

RowKeys = npt.NDArray[np.uint32]
Sort = Callable[[Sequence[Any], RowKeys], Block]

_MAX_PARTS = 256


class Window:
    """Sorts the rows of many blocks by their keys, and hands them out in parts.

    A processor's cache holds few of the rows of a large window, and to take them at random from all
    of it takes several times as long. So the rows come out in parts: when a block arrives, its rows
    are grouped by the upper bits of their keys, and a part is made of one run of rows of each
    block. Both steps move rows within the cache, and threads can do them for several blocks or
    parts at a time. Rows with equal keys keep their order.

    >>> import pyarrow as pa
    >>> from headrace.convert import Converter
    >>> converter = Converter(pa.schema([("x", pa.int64())]), "numpy")
    >>> window = Window(parts=2, key_bits=2)
    >>> window.put(0, converter.convert(pa.table({"x": [10, 11, 12]})), np.array([3, 0, 2], "u4"))
    >>> window.put(3, converter.convert(pa.table({"x": [13]})), np.array([1], "u4"))
    >>> [next(window.part(index).batches(9))["x"].tolist() for index in range(window.parts)]
    [[11, 13], [12, 10]]
    """

    def __init__(self, parts: int, key_bits: int, sort: Sort | None = None) -> None:
        """Prepare for blocks.

        Args:
            parts: Number of parts; it is rounded up to a power of two.
            key_bits: Number of bits of the largest key.
            sort: Returns the rows of blocks, laid end to end, in the order of their keys; None
                for blocks in the memory of the host.
        """
        self._sort = _sort if sort is None else sort
        part_bits = (min(parts, _MAX_PARTS) - 1).bit_length()
        self.parts = 1 << part_bits
        self._shift = np.uint32(max(key_bits - part_bits, 0))
        self._grouped: dict[int, tuple[Block, RowKeys, list[int]]] = {}

    def put(self, first_row: int, block: Block, keys: RowKeys) -> None:
        """Add a block. Threads may call it at the same time.

        Args:
            first_row: Number of rows of all blocks before this one.
            block: A block of the same converter as all others.
            keys: The keys of its rows.
        """
        edges = [0, len(keys)]
        if self.parts > 1:
            part = (keys >> self._shift).astype(np.uint8)
            rows = np.argsort(part, kind="stable")
            block, keys = block.take(rows), keys[rows]
            edges = [0, *np.cumsum(np.bincount(part, minlength=self.parts)).tolist()]
        self._grouped[first_row] = block, keys, edges

    def part(self, index: int) -> Block | None:
        """Return the rows of a part in order, once all blocks are there; None if it has no rows."""
        blocks, keys = [], []
        for first_row in sorted(self._grouped):
            block, its_keys, edges = self._grouped[first_row]
            start, stop = edges[index], edges[index + 1]
            if start < stop:
                blocks.append(block if self.parts == 1 else block.slice(start, stop - start))
                keys.append(its_keys[start:stop])
        return self._sort(blocks, np.concatenate(keys)) if blocks else None


def _sort(blocks: Sequence[Block], keys: RowKeys) -> Block:
    return gather(blocks, stable_order(keys))
