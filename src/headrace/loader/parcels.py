"""Batches between processes: many in one shared buffer, whatever their number of columns."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils.pin_memory import pin_memory

from headrace.convert import Block, Converter
from headrace.convert.packing import Packed, is_plain, pack, places, unpack
from headrace.convert.shared import Bytes, SharedBuffer
from headrace.stream import Cursor

__all__ = ["Parcel", "ParcelRun", "pack_blocks", "pack_dicts"]


@dataclass(slots=True)
class Parcel:
    """Consecutive batches of one lane on their way to another process."""

    lane: int
    cursors: list[Cursor]
    """the place in the lane after each batch"""
    rows: int
    buffer: SharedBuffer | Bytes
    """what holds the values: before it is sent, and when it has arrived"""
    layout: bytes
    """how to make batches of it"""
    whole: bool
    """whether it holds columns, still to be cut, and not batches"""
    stats: dict[str, Any]
    """what reading them took"""


class ParcelRun:
    """The batches of a parcel that has arrived."""

    __slots__ = ("_batch_size", "_converter", "_parcel", "_pin", "count")

    def __init__(self, parcel: Parcel, converter: Converter, batch_size: int, pin: bool) -> None:
        self._parcel = parcel
        self._converter = converter
        self._batch_size = batch_size
        self._pin = pin
        self.count = len(parcel.cursors)

    def rows(self, delivered: int) -> int:
        return min(delivered * self._batch_size, self._parcel.rows)

    def batches(self) -> Iterator[Any]:
        """Pinned are tensors, not the buffer: torch keeps pinned memory until it has been copied to
        a device only for tensors that it has pinned itself, and views of those.
        """
        content = unpack(self._parcel.buffer, self._parcel.layout)
        if not self._parcel.whole:
            return map(pin_memory, content) if self._pin else iter(content)
        blocks = content if isinstance(content[0], Block) else [self._converter.block(content)]
        if self._pin:
            blocks = [block.pin() for block in blocks]
        return chain.from_iterable(block.batches(self._batch_size) for block in blocks)

    def cursor(self, delivered: int) -> Cursor:
        return self._parcel.cursors[max(delivered - 1, 0)]


def pack_blocks(blocks: Sequence[Block]) -> Packed | None:
    """The rows of consecutive blocks, as one set of columns if all are arrays.

    None if batches had better be cut before they are sent.
    """
    parts = [block.arrays() for block in blocks]
    if not parts or any(not part for part in parts):
        whole = [block.to_send() for block in blocks]
        return pack(whole) if all(block is not None for block in whole) else None
    first = parts[0] or []
    rows = sum(block.num_rows for block in blocks)
    offsets, size = places([array.nbytes // len(array) * rows for array in first])
    buffer = SharedBuffer(size)
    memory = buffer.memory
    layout = []
    for place, array in enumerate(first):
        shape = (rows, *array.shape[1:])
        target = np.ndarray(shape, array.dtype, memory, offsets[place])
        np.concatenate([part[place] for part in parts if part], out=target)
        layout.append((offsets[place], array.dtype.str, shape))
    return buffer, pickle.dumps((_arrays, layout))


def _arrays(buffer: Bytes, layout: list[tuple[int, str, tuple[int, ...]]]) -> Any:
    return [np.ndarray(shape, dtype, buffer, offset) for offset, dtype, shape in layout]


def pack_dicts(batches: Sequence[Any]) -> Packed | None:
    """Dicts of tensors that are alike but for their rows, column by column; None for all else."""
    first = batches[0]
    if not all(type(batch) is dict and batch.keys() == first.keys() for batch in batches):
        return None
    columns = [[batch[key] for batch in batches] for key in first]
    if not columns or not all(map(_alike, columns)):
        return None
    try:
        arrays = [[part.numpy() for part in column] for column in columns]
    except TypeError:  # numpy has no type for these, such as bfloat16
        return None
    rows = [[len(part) for part in column] for column in arrays]
    offsets, size = places([sum(part.nbytes for part in column) for column in arrays])
    buffer = SharedBuffer(size)
    memory = buffer.memory
    layout = []
    for offset, parts, lengths in zip(offsets, arrays, rows, strict=True):
        shape, dtype = (sum(lengths), *parts[0].shape[1:]), parts[0].dtype
        np.concatenate(parts, out=np.ndarray(shape, dtype, memory, offset))
        layout.append((offset, dtype.str, shape))
    return buffer, pickle.dumps((_dicts, (list(first), layout, rows)))


def _alike(column: Sequence[Any]) -> bool:
    """Whether these are tensors that numpy can lay end to end."""
    first = column[0]
    if type(first) is not torch.Tensor or first.dim() == 0:
        return False
    return all(
        type(part) is torch.Tensor
        and is_plain(part)
        and part.dtype == first.dtype
        and part.shape[1:] == first.shape[1:]
        for part in column
    )


def _dicts(
    buffer: Bytes,
    layout: tuple[list[Any], list[tuple[int, str, tuple[int, ...]]], list[list[int]]],
) -> Any:
    keys, places, rows = layout
    columns = [torch.from_numpy(array) for array in _arrays(buffer, places)]
    parts = [
        torch.split_with_sizes(column, lengths)
        for column, lengths in zip(columns, rows, strict=True)
    ]
    return [dict(zip(keys, leaves, strict=True)) for leaves in zip(*parts, strict=True)]
