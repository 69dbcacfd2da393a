"""Pack any picklable value into one shared buffer, to send it to another process.

Arrays, tensors and bytes go out of band. In a worker of the library the rest is pickled by
cloudpickle: functions and classes of a script or a notebook travel by value, except for classes
that came from the trainer, which arrive there as themselves.
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

from headrace.convert.shared import ByteArray, SharedBuffer
from headrace.errors import WorkerError

_ALIGNMENT = 64

BufferLayout = list[tuple[int, int]]
"""Start and size of each piece in a buffer; the first piece is the pickle."""
Packed = tuple[SharedBuffer, BufferLayout]


class Batch(dict[str, Any]):
    """A batch that travels to another process in one shared buffer, and arrives as a dict."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return unpack, pack(dict(self))

    def __copy__(self) -> Batch:
        return Batch(self)


@dataclass(frozen=True, slots=True)
class Call:
    """An object that arrives in another process as the result of a function."""

    function: Any
    arguments: tuple[Any, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, self.arguments


def dumps(value: Any) -> bytes:
    """Pickle a value for ``pickle.loads`` in the trainer."""
    stream = BytesIO()
    _Pickler(stream, protocol=5).dump(value)
    return stream.getvalue()


def pack(value: Any) -> Packed:
    """Put any picklable value into one shared buffer, with the memory of its arrays and tensors.

    The pickle itself lies there, too, because strings would take far longer through a pipe.
    """
    stream, beside = BytesIO(), list[pickle.PickleBuffer]()
    # It keeps shared buffers inside of the value alive, whose memory might else be taken below.
    pickler = _Pickler(stream, protocol=5, buffer_callback=beside.append)
    pickler.dump(value)
    pieces = [stream.getbuffer(), *(buffer.raw() for buffer in beside)]
    layout, end = [], 0
    for piece in pieces:
        layout.append((end, piece.nbytes))
        end += -(-piece.nbytes // _ALIGNMENT) * _ALIGNMENT
    buffer = SharedBuffer(end)
    for piece, (start, size) in zip(pieces, layout, strict=True):
        buffer.memory[start : start + size] = np.frombuffer(piece, np.uint8)
    return buffer, layout


def unpack(buffer: SharedBuffer | ByteArray, layout: BufferLayout) -> Any:
    """Return the value that was packed; arrays and tensors are views of the buffer."""
    memory = memoryview(buffer.memory if isinstance(buffer, SharedBuffer) else buffer)  # type: ignore[arg-type]
    pickled, *beside = [memory[start : start + size] for start, size in layout]
    return pickle.loads(pickled, buffers=beside)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles tensors as arrays, and Arrow slices without the rest of their memory."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is torch.Tensor and is_plain(value):
            if not value.numel():  # torch does not view tensors without strides
                return _empty, (value.dtype, tuple(value.shape))
            flat = value.contiguous().reshape(-1).view(torch.uint8).numpy()
            return _tensor, (flat, value.dtype, tuple(value.shape))
        if isinstance(value, pa.LargeBinaryArray | pa.LargeStringArray):
            # pyarrow would pickle all of the memory of which this is a slice.
            return pa.concat_arrays([value, value[:0]]).__reduce__()
        if isinstance(value, pa.RecordBatch):
            return _record_batch, (_stream(value.schema, [value]),)
        if isinstance(value, pa.Table):
            # For a batch without rows, pyarrow would write all of the memory of which it is a
            # slice.
            batches = [batch for batch in value.to_batches() if batch.num_rows]
            return _table, (_stream(value.schema, batches),)
        if _classes_of_trainer is None:  # a worker of another loader, which may be forked
            return NotImplemented
        if isinstance(value, type) and value in _classes_of_trainer:
            return _class_here, (_classes_of_trainer[value], value.__qualname__)
        if _saves_slots(type(value)):
            return _with_slots(value)
        return super().reducer_override(value)


def _saves_slots(kind: type) -> bool:
    """Return True for a class with slots whose objects are pickled by Python's own rule."""
    methods = ("__getstate__", "__reduce__", "__reduce_ex__")
    return hasattr(kind, "__slots__") and all(
        getattr(kind, name, None) is getattr(object, name, None) for name in methods
    )


def _with_slots(value: Any) -> tuple[Any, ...] | str:
    """Return how to make an object whose attributes are set one by one where it arrives.

    A class that cloudpickle sends by value has no slots there: its objects keep in their dict what
    is in slots here, or the other way round.
    """
    reduced = value.__reduce_ex__(5)
    if len(reduced) > 2 and isinstance(reduced[2], tuple):
        function, arguments, (attributes, slots), *rest = reduced
        return function, arguments, (None, {**(attributes or {}), **(slots or {})}), *rest
    return tuple(reduced)


_classes_of_trainer: dict[type, str] | None = None
"""In a worker of the library: the classes that were sent to it by value, with the ids by which
cloudpickle knows them in both processes."""


def know_classes_of_trainer() -> None:
    """Let values travel by cloudpickle from now on, and the classes known now by their ids.

    By value, such a class would arrive as the class of the trainer, but with all of its attributes
    set to those of the worker.
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
    """Return True if a tensor is plain numbers in memory."""
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
