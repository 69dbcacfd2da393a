"""Batches between processes: many in one shared buffer, whatever their number of columns."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from penstock.convert import Block, Converter
from penstock.loader.shared import shared_bytes
from penstock.stream import Cursor

__all__ = ["Batch", "Parcel", "ParcelRun", "pack", "pack_blocks", "pack_dicts", "unpack"]

_ALIGNMENT = 64


@dataclass(slots=True)
class Parcel:
    """Consecutive batches of one lane on their way to another process."""

    lane: int
    cursors: list[Cursor]
    """the place in the lane after each batch"""
    rows: int
    buffer: torch.Tensor
    """shared memory that holds the values"""
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
        buffer = self._parcel.buffer.pin_memory() if self._pin else self._parcel.buffer
        content = unpack(buffer, self._parcel.layout)
        if self._parcel.whole:
            return self._converter.block(content).batches(self._batch_size)
        return iter(content)

    def cursor(self, delivered: int) -> Cursor:
        return self._parcel.cursors[max(delivered - 1, 0)]


class Batch(dict[str, Any]):
    """A batch that crosses to another process in one shared buffer, and arrives as a dict."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return unpack, pack(dict(self))

    def __copy__(self) -> Batch:
        return Batch(self)


def pack_blocks(blocks: Sequence[Block]) -> tuple[torch.Tensor, bytes] | None:
    """The rows of consecutive blocks as one set of columns; None if some are not arrays."""
    parts = [block.arrays() for block in blocks]
    if not parts or any(not part for part in parts):
        return None
    first = parts[0] or []
    rows = sum(block.num_rows for block in blocks)
    offsets, size = _places([array.nbytes // len(array) * rows for array in first])
    buffer = shared_bytes(size)
    memory = buffer.numpy()
    layout = []
    for place, array in enumerate(first):
        shape = (rows, *array.shape[1:])
        target = np.ndarray(shape, array.dtype, memory, offsets[place])
        np.concatenate([part[place] for part in parts if part], out=target)
        layout.append((offsets[place], array.dtype.str, shape))
    return buffer, pickle.dumps((_arrays, layout))


def _arrays(buffer: torch.Tensor, layout: list[tuple[int, str, tuple[int, ...]]]) -> Any:
    memory = buffer.numpy()
    return [np.ndarray(shape, dtype, memory, offset) for offset, dtype, shape in layout]


def pack_dicts(batches: Sequence[Any]) -> tuple[torch.Tensor, bytes] | None:
    """Dicts of tensors that are alike but for their rows, column by column; None for all else."""
    first = batches[0]
    if not all(type(batch) is dict and batch.keys() == first.keys() for batch in batches):
        return None
    columns = [[batch[key] for batch in batches] for key in first]
    if not columns or not all(map(_alike, columns)):
        return None
    arrays = [[part.numpy() for part in column] for column in columns]
    rows = [[len(part) for part in column] for column in arrays]
    offsets, size = _places([sum(part.nbytes for part in column) for column in arrays])
    buffer = shared_bytes(size)
    memory = buffer.numpy()
    layout = []
    for offset, parts, lengths in zip(offsets, arrays, rows, strict=True):
        shape, dtype = (sum(lengths), *parts[0].shape[1:]), parts[0].dtype
        np.concatenate(parts, out=np.ndarray(shape, dtype, memory, offset))
        layout.append((offset, dtype.str, shape))
    return buffer, pickle.dumps((_dicts, (list(first), layout, rows)))


def _alike(column: Sequence[Any]) -> bool:
    """Whether these are tensors that numpy can lay end to end."""
    first = column[0]
    if type(first) is not torch.Tensor or first.dim() == 0 or first.dtype == torch.bfloat16:
        return False
    return all(
        type(part) is torch.Tensor
        and _plain(part)
        and part.dtype == first.dtype
        and part.shape[1:] == first.shape[1:]
        for part in column
    )


def _dicts(
    buffer: torch.Tensor,
    layout: tuple[list[Any], list[tuple[int, str, tuple[int, ...]]], list[list[int]]],
) -> Any:
    keys, places, rows = layout
    columns = [torch.from_numpy(array) for array in _arrays(buffer, places)]
    parts = [
        torch.split_with_sizes(column, lengths)
        for column, lengths in zip(columns, rows, strict=True)
    ]
    return [dict(zip(keys, leaves, strict=True)) for leaves in zip(*parts, strict=True)]


def pack(value: Any) -> tuple[torch.Tensor, bytes]:
    """Any picklable value, with all arrays and tensors in it moved to one shared buffer."""
    found: list[pickle.PickleBuffer] = []
    stream = BytesIO()
    _Pickler(stream, protocol=5, buffer_callback=found.append).dump(value)
    views = [buffer.raw() for buffer in found]
    offsets, size = _places([view.nbytes for view in views])
    shared = shared_bytes(size)
    memory = shared.numpy()
    for offset, view in zip(offsets, views, strict=True):
        if view.nbytes:
            memory[offset : offset + view.nbytes] = np.frombuffer(view, np.uint8)
    places = [(offset, view.nbytes) for offset, view in zip(offsets, views, strict=True)]
    return shared, pickle.dumps((_values, (places, stream.getvalue())))


def _values(buffer: torch.Tensor, layout: tuple[list[tuple[int, int]], bytes]) -> Any:
    places, pickled = layout
    values: Any = buffer.numpy()
    memory = memoryview(values)
    return pickle.loads(pickled, buffers=[memory[o : o + n] for o, n in places])


def unpack(buffer: torch.Tensor, layout: bytes) -> Any:
    """What was packed; arrays and tensors are views of the buffer."""
    make, how = pickle.loads(layout)
    return make(buffer, how)


def _places(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Aligned offsets for values of these sizes, and the size of all."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    return offsets, end


class _Pickler(pickle.Pickler):
    """Pickles tensors as arrays, which go out of band, and Arrow slices without their surplus."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is torch.Tensor and _plain(value):
            flat = value.contiguous().reshape(-1).view(torch.uint8).numpy()
            return _tensor, (flat, value.dtype, tuple(value.shape))
        if isinstance(value, pa.RecordBatch):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, value.schema) as writer:
                writer.write_batch(value)
            return _record_batch, (np.frombuffer(sink.getvalue(), np.uint8),)
        return NotImplemented


def _plain(value: torch.Tensor) -> bool:
    return (
        value.layout == torch.strided
        and value.device.type == "cpu"
        and not (value.is_quantized or value.requires_grad or value.is_conj() or value.is_neg())
    )


def _tensor(array: npt.NDArray[Any], dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(array).view(dtype).reshape(shape)


def _record_batch(stream: npt.NDArray[np.uint8]) -> pa.RecordBatch:
    with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
        return reader.read_next_batch()
