"""Blocks on a device: moved there in one piece, and permuted and cut there.

Threads make blocks on a stream of their own, beside the stream of the trainer:

    columns ─► one pinned buffer ─► one copy to the device ─► rows permuted ─► batches as views
              (threads)             (side stream)            (side stream)    (trainer's stream)

The trainer's stream waits for a block before its first batch. The memory of a block is used again
only when the kernels that read its batches have ended, because `_hold_for` tells torch of each
stream that reads it. The same code runs for the CPU, without streams.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headrace.convert.columns import (
    Block,
    Column,
    NumberColumn,
    RaggedColumn,
    RowNumbers,
    StructColumn,
    TensorColumn,
)
from headrace.convert.decoded import DecodedColumn
from headrace.convert.memory import Layout
from headrace.errors import DeviceMemoryError, OptionError
from headrace.process import PerProcess

logger = logging.getLogger(__name__)


def parse_device(device: object) -> torch.device:
    """Return the device of an option, with its number.

    Raises:
        OptionError: The value is not a device, or torch cannot use it here.
    """
    try:
        found = torch.device(device)  # type: ignore[call-overload]
    except (TypeError, RuntimeError) as error:
        raise OptionError(f'device must be "cuda", "cuda:1" or "cpu", not {device!r}') from error
    if found.type == "cpu":
        return torch.device("cpu")
    if found.type != "cuda":
        raise OptionError(f'device must be "cuda" or "cpu", not {device!r}')
    if not torch.cuda.is_available():
        raise OptionError(
            f"device={device!r}: torch finds no CUDA device here; leave device out, or install a "
            "torch that has CUDA and check the driver with nvidia-smi"
        )
    count = torch.cuda.device_count()
    index = torch.cuda.current_device() if found.index is None else found.index
    if index >= count:
        raise OptionError(f"device={device!r}: this machine has {count} CUDA devices, from 0 on")
    return torch.device("cuda", index)


@dataclass(frozen=True, slots=True, eq=False)
class _DeviceBlock(StructColumn):
    """A block whose columns are on a device.

    Attributes:
        ready: The event after which the columns may be read; None on the CPU.
    """

    ready: Any = None


class Device:
    """Moves blocks to a device and permutes them there. Threads may use it at the same time.

    Args:
        device: A CUDA device, or the CPU.
        device_bytes: The number of bytes that the error names if the device has no room.
    """

    def __init__(self, device: torch.device, device_bytes: int) -> None:
        self._device = device
        self._device_bytes = device_bytes
        self._is_cuda = device.type == "cuda"
        self._side = None
        if self._is_cuda:
            streams = _side_streams.get()
            if device not in streams:
                streams.setdefault(device, torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
            self._side = streams[device]
        self._received_on: Any = None
        self._lock = threading.Lock()

    # --- for threads that make blocks

    def move(self, blocks: Sequence[StructColumn]) -> StructColumn:
        """Return the rows of blocks with their numbers on the device; objects stay on the host."""
        first = blocks[0]
        if not all(isinstance(column, NumberColumn) for column in first.columns):
            blocks = [first := StructColumn.concat(blocks)]
        parts = zip(*[_numbers(block) for block in blocks], strict=True)
        columns = [[column.array for column in same] for same in parts]
        layout = Layout.of(columns)
        # torch keeps pinned memory for later use, and waits until it has been copied.
        staged = torch.empty(layout.size, dtype=torch.uint8, pin_memory=self._is_cuda)
        layout.fill(staged.numpy(), columns)
        with self._beside_trainer():
            arrived = torch.empty(layout.size, dtype=torch.uint8, device=self._device)
            arrived.copy_(staged, non_blocking=True)
            moved = _rebuilt(first, map(TensorColumn, layout.tensors(arrived)))
            return replace(moved, num_rows=sum([block.num_rows for block in blocks]))

    def sort(self, blocks: Sequence[StructColumn], keys: npt.NDArray[np.uint32]) -> Block:
        """Return the rows of blocks in the order of their keys; equal keys keep their order."""
        with self._beside_trainer():
            words = torch.from_numpy(keys.view(np.int32))
            if self._is_cuda:
                words = words.pin_memory()
            # torch cannot sort uint32: the mask undoes the sign of the 32 bits in 64.
            numbers = words.to(self._device, non_blocking=True).to(torch.int64) & 0xFFFFFFFF
            rows = torch.sort(numbers, stable=True).indices
            host_rows = cache(lambda: rows.cpu().numpy())
            columns = []
            for same in zip(*[block.columns for block in blocks], strict=True):
                joined = same[0] if len(same) == 1 else type(same[0]).concat(same)
                columns.append(_in_order(joined, rows, host_rows))
            return StructColumn(blocks[0].names, tuple(columns), len(keys))

    def copy(self, block: Block) -> Block:
        """Return a block with its numbers in memory of its own, which the user may change."""
        assert isinstance(block, StructColumn)
        with self._beside_trainer():
            moved = iter([TensorColumn(_tensor(leaf).clone()) for leaf in _numbers(block)])
            return _rebuilt(block, moved)

    def mark_ready(self, block: Block) -> Block:
        """Return a finished block with an event for which the trainer can wait."""
        assert isinstance(block, StructColumn)
        ready = None
        if self._side is not None:
            ready = self._side.record_event()
        return _DeviceBlock(block.names, block.columns, block.num_rows, ready)

    @contextmanager
    def _beside_trainer(self) -> Iterator[None]:
        on_side = nullcontext() if self._side is None else torch.cuda.stream(self._side)
        try:
            with self._lock, on_side:  # concurrent calls of CUDA only wait for each other
                yield
        except torch.OutOfMemoryError as error:
            raise DeviceMemoryError(
                f"{self._device} has no room for the rows that are read ahead "
                f"(device_bytes={self._device_bytes:,}): choose a smaller device_bytes, or "
                f"smaller windows (mix, split_rows). torch says: {error}"
            ) from error

    # --- for the thread of the trainer

    def receive(self, block: Any) -> None:
        """Let the trainer's stream wait until a block is finished; it may be cut from then on."""
        if self._side is not None:
            self._received_on = torch.cuda.current_stream(self._device)
            self._received_on.wait_event(block.ready)
            _hold_for(block, self._received_on)

    def move_values(self, value: Any) -> Any:
        """Return a batch, or any value of dicts, lists and tuples, with its tensors moved."""
        if isinstance(value, torch.Tensor):
            return value.to(self._device)
        if isinstance(value, Mapping):
            return {key: self.move_values(each) for key, each in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*[self.move_values(each) for each in value])
        if isinstance(value, list | tuple):
            return type(value)([self.move_values(each) for each in value])
        return value

    def batches(self, block: Block, batch_size: int) -> Iterator[Any]:
        """Yield the batches of a received block, for the stream that is current at that time."""
        assert isinstance(block, StructColumn)
        if any(isinstance(column, DecodedColumn) for column in block.columns):
            # Images and arrays are decoded as batches are cut.
            made: Iterator[Any] = map(self.move_values, self._decoding(block).batches(batch_size))
        else:
            made = block.batches(batch_size)
        if self._side is None:
            yield from made
            return
        used_on = self._received_on
        for batch in made:
            # The number of the stream is at hand; asking for the stream itself takes longer than
            # the batch.
            if torch._C._cuda_getCurrentRawStream(self._device.index) != used_on.cuda_stream:
                current = torch.cuda.current_stream(self._device)
                current.wait_stream(used_on)
                _hold_for(block, current)
                used_on = current
            yield batch

    def _decoding(self, block: StructColumn) -> StructColumn:
        """Return a block whose images are decoded on the device."""
        if not self._is_cuda:
            return block
        columns = [
            replace(column, device=self._device) if isinstance(column, DecodedColumn) else column
            for column in block.columns
        ]
        return replace(block, columns=tuple(columns))


def _hold_for(block: StructColumn, stream: Any) -> None:
    """Keep the memory of a block from being used again before the work on this stream has ended."""
    pieces = {}  # columns that were moved together share one
    for leaf in _numbers(block):
        tensor = _tensor(leaf)
        pieces[tensor.untyped_storage().data_ptr()] = tensor
    for tensor in pieces.values():
        tensor.record_stream(stream)


_side_streams: PerProcess[dict[torch.device, Any]] = PerProcess(dict)
"""One side stream for each device, because torch keeps freed memory by stream."""


def _in_order(column: Column, rows: torch.Tensor, host_rows: Callable[[], RowNumbers]) -> Column:
    """Return the rows of a column by their numbers, which objects need on the host."""
    if isinstance(column, TensorColumn):
        return column.select(rows)
    if isinstance(column, StructColumn):
        columns = [_in_order(each, rows, host_rows) for each in column.columns]
        return replace(column, columns=tuple(columns))
    return column.take(host_rows())


def _numbers(column: Column) -> Iterator[NumberColumn]:
    """Yield the columns of numbers in a column, in a fixed order."""
    if isinstance(column, NumberColumn):
        yield column
    elif isinstance(column, RaggedColumn):
        yield column.values
    elif isinstance(column, StructColumn):
        for each in column.columns:
            yield from _numbers(each)


def _rebuilt(block: StructColumn, moved: Iterator[TensorColumn]) -> StructColumn:
    """Return a block with other columns of numbers in it, in the order of ``_numbers``."""
    columns: list[Column] = []
    for column in block.columns:
        if isinstance(column, NumberColumn):
            columns.append(next(moved))
        elif isinstance(column, RaggedColumn):
            columns.append(replace(column, values=next(moved)))
        elif isinstance(column, StructColumn):
            columns.append(_rebuilt(column, moved))
        else:
            columns.append(column)
    return StructColumn(block.names, tuple(columns), block.num_rows)


def _tensor(column: NumberColumn) -> torch.Tensor:
    assert isinstance(column.values, torch.Tensor)
    return column.values


@dataclass(slots=True)
class DeviceCache:
    """The blocks of chunks that stay on a device for later epochs.

    Attributes:
        most_bytes: Number of bytes that it may hold; other chunks are read in every epoch.
    """

    most_bytes: int
    _blocks: dict[Any, list[StructColumn]] = field(default_factory=dict)
    _held: int = 0
    _has_warned: bool = False
    _lock: Any = field(default_factory=threading.Lock)

    def __reduce__(self) -> tuple[Any, ...]:
        return DeviceCache, (self.most_bytes,)  # what is on a device stays in its process

    def get(self, key: Any) -> list[StructColumn] | None:
        """Return the blocks of a chunk; None if it has to be read."""
        return self._blocks.get(key)

    def put(self, key: Any, blocks: list[StructColumn]) -> None:
        """Keep the blocks of a chunk, if there is room for them."""
        size = sum([block.nbytes for block in blocks])
        with self._lock:
            if self._held + size <= self.most_bytes:
                if key not in self._blocks:
                    self._held += size
                    self._blocks[key] = blocks
            elif not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "device_cache=True: the data needs more than device_bytes=%s; chunks beyond "
                    "that are read again in every epoch",
                    f"{self.most_bytes:,}",
                )
