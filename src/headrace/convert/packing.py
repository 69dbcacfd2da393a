"""Values on their way to another process: whatever they hold, in one shared buffer.

Arrays and tensors go out of band. In a worker of the library the rest goes by cloudpickle:
functions and classes of a script or a notebook cross by value, except for the classes that came
from the trainer, which arrive there as themselves.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import cloudpickle
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from cloudpickle import cloudpickle as tracking

from headrace.convert.shared import Bytes, SharedBuffer
from headrace.errors import WorkerError

__all__ = [
    "Batch",
    "EndToEnd",
    "Packed",
    "dumps",
    "is_plain",
    "know_classes_of_trainer",
    "pack",
    "places",
    "unpack",
]

_ALIGNMENT = 64

Packed = tuple[SharedBuffer, bytes]
"""the values, and how to make them of the buffer"""


class Batch(dict[str, Any]):
    """A batch that crosses to another process in one shared buffer, and arrives as a dict."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return unpack, pack(dict(self))

    def __copy__(self) -> Batch:
        return Batch(self)


def dumps(value: Any) -> bytes:
    """Pickle a value for ``pickle.loads`` in the trainer."""
    stream = BytesIO()
    _Pickler(stream, out_of_band=False).dump(value)
    return stream.getvalue()


def pack(value: Any) -> Packed:
    """Put any picklable value into one shared buffer, the memory of arrays and tensors included.

    What is pickled beside them lies there, too: strings and bytes would take far longer through
    a pipe.
    """
    stream = BytesIO()
    pickler = _Pickler(stream)
    pickler.dump(value)
    pieces = [stream.getbuffer(), *pickler.beside]
    sizes = [piece.nbytes for piece in pieces]
    offsets, size = places(sizes)
    buffer = SharedBuffer(size)
    for offset, piece in zip(offsets, pieces, strict=True):
        if isinstance(piece, EndToEnd):
            piece.copy_into(buffer.memory[offset : offset + piece.nbytes])
        elif piece.nbytes:
            buffer.memory[offset : offset + piece.nbytes] = np.frombuffer(piece, np.uint8)
    return buffer, pickle.dumps((_values, list(zip(offsets, sizes, strict=True))))


def _values(buffer: Bytes, layout: list[tuple[int, int]]) -> Any:
    memory = memoryview(buffer.data)
    pickled, *arrays = [memory[offset : offset + size] for offset, size in layout]
    return pickle.loads(pickled, buffers=arrays)


def unpack(buffer: SharedBuffer | Bytes, layout: bytes) -> Any:
    """Return what was packed; arrays and tensors are views of the buffer."""
    make, how = pickle.loads(layout)
    return make(buffer.memory if isinstance(buffer, SharedBuffer) else buffer, how)


def places(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Aligned offsets for values of these sizes, and the size of all."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    return offsets, end


@dataclass(frozen=True, slots=True, eq=False)
class EndToEnd:
    """Bytes that arrive as one view of all, and are not joined before they are packed."""

    parts: Sequence[bytes | memoryview]
    nbytes: int

    def copy_into(self, memory: Bytes) -> None:
        """Lay them one behind the other."""
        target, end = memory.data, 0
        for part in self.parts:
            start, end = end, end + len(part)
            target[start:end] = part

    def __reduce__(self) -> tuple[Any, ...]:
        return memoryview, (b"".join(self.parts),)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles tensors as arrays, which go out of band, and Arrow slices without their surplus."""

    def __init__(self, stream: BytesIO, *, out_of_band: bool = True) -> None:
        put_beside = self._put_beside if out_of_band else None
        super().__init__(stream, protocol=5, buffer_callback=put_beside)
        self.beside: list[memoryview | EndToEnd] = []
        """what is not in the stream, in the order in which it is needed"""
        self._stand_ins: dict[int, tuple[pickle.PickleBuffer, EndToEnd]] = {}

    def _put_beside(self, buffer: pickle.PickleBuffer) -> None:
        _, stood_for = self._stand_ins.get(id(buffer), (buffer, None))
        self.beside.append(buffer.raw() if stood_for is None else stood_for)

    def reducer_override(self, value: Any) -> Any:
        if type(value) is EndToEnd:
            stand_in = pickle.PickleBuffer(b"")
            self._stand_ins[id(stand_in)] = stand_in, value
            return memoryview, (stand_in,)
        if type(value) is torch.Tensor and is_plain(value):
            if not value.numel():  # torch does not view what has no strides
                return _empty, (value.dtype, tuple(value.shape))
            flat = value.contiguous().reshape(-1).view(torch.uint8).numpy()
            return _tensor, (flat, value.dtype, tuple(value.shape))
        if isinstance(value, pa.LargeBinaryArray | pa.LargeStringArray):
            return _large, _large_parts(value)
        if isinstance(value, pa.RecordBatch):
            return _record_batch, (_stream(value.schema, [value]),)
        if isinstance(value, pa.Table):
            return _table, (_stream(value.schema, value.to_batches()),)
        if _classes_of_trainer is None:  # a worker of somebody else's loader, which may be forked
            return NotImplemented
        if isinstance(value, type) and value in _classes_of_trainer:
            return _class_here, (_classes_of_trainer[value], value.__qualname__)
        return super().reducer_override(value)


_classes_of_trainer: dict[type, str] | None = None
"""in a worker of the library, the classes that it was sent by value, and what cloudpickle calls
them in both processes"""


def know_classes_of_trainer() -> None:
    """Let values go by cloudpickle from now on, and the classes that are known now by their id.

    By value they would arrive as the classes that the trainer has, too, but with all of their
    attributes set to those of the worker.
    """
    global _classes_of_trainer
    _classes_of_trainer = dict(tracking._DYNAMIC_CLASS_TRACKER_BY_CLASS)


def _class_here(tracker_id: str, name: str) -> type:
    found: type | None = tracking._DYNAMIC_CLASS_TRACKER_BY_ID.get(tracker_id)
    if found is None:
        raise WorkerError(
            f"a worker sent an object of the class {name}, which is gone here: it was defined "
            "again after the worker began; start the epoch anew, with new workers"
        )
    return found


def is_plain(value: torch.Tensor) -> bool:
    """Whether a tensor is nothing but numbers in memory."""
    return (
        value.layout == torch.strided
        and value.device.type == "cpu"
        and not value.is_nested
        and not (value.is_quantized or value.requires_grad or value.is_conj() or value.is_neg())
    )


def _tensor(array: npt.NDArray[Any], dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(array).view(dtype).reshape(shape)


def _empty(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


def _large_parts(
    array: pa.Array,
) -> tuple[pa.DataType, npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any] | None]:
    """Type, lengths and values of strings or bytes, and which of them are there if not all."""
    if not len(array):
        return array.type, np.empty(0, np.int64), np.empty(0, np.uint8), None
    _, offsets, data = array.buffers()
    edges = np.frombuffer(offsets, np.int64, len(array) + 1, 8 * array.offset)
    first, size = int(edges[0]), int(edges[-1] - edges[0])
    values = np.frombuffer(data, np.uint8, size, first) if size else np.empty(0, np.uint8)
    there = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None
    return array.type, edges - first, values, there


def _large(
    type_: pa.DataType,
    edges: npt.NDArray[np.int64],
    values: npt.NDArray[np.uint8],
    there: npt.NDArray[np.bool_] | None,
) -> pa.Array:
    if not len(edges):
        return pa.array([], type_)
    valid = None if there is None else pa.array(there).buffers()[1]
    buffers = [valid, pa.py_buffer(edges), pa.py_buffer(values)]
    return pa.Array.from_buffers(type_, len(edges) - 1, buffers)


def _stream(schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> npt.NDArray[np.uint8]:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return np.frombuffer(sink.getvalue(), np.uint8)


def _table(stream: npt.NDArray[np.uint8]) -> pa.Table:
    with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
        return reader.read_all()


def _record_batch(stream: npt.NDArray[np.uint8]) -> pa.RecordBatch:
    with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
        return reader.read_next_batch()
