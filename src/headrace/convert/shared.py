"""Memory that processes share, and buffers to send bytes from one to another.

Fresh shared memory is expensive: the system clears every page, and each process has a page fault
for every page. With two workers this was measured to take most of the time of plain columns and
half of that of tars. So a worker keeps a few segments and fills them again. The first bytes of a
segment say if its contents are still to be copied. The receiver copies them into memory of its own
as soon as they arrive, and then returns the segment. So the memory that a user holds is never
memory that a worker writes to.

Shared memory has no name, so that a crash leaves nothing behind.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import get_worker_info

from headrace.convert.memory import block_memory
from headrace.errors import WorkerError
from headrace.process import PerProcess

ByteArray = npt.NDArray[np.uint8]

# torch declares no types for what is used of these
_UntypedStorage: Any = torch.UntypedStorage
_multiprocessing: Any = torch.multiprocessing

_HEADER_BYTES = 64
_IS_SENT, _TIMES_SENT = range(2)
"""Indices of the values in the header of a segment."""
_STEP_BYTES = 1 << 16
_MOST_SEGMENTS = 8
"""Largest number of segments of a worker, which may be ahead by a few buffers."""
_MOST_OF_ALL_WORKERS = 256
"""Largest number of segments of all workers: the receiver has an open descriptor for each."""
_MOST_BYTES = 256 << 20
"""Largest size of all segments that a worker keeps."""
_NOT_KEPT = -1
"""Place of a segment that is filled once only."""


def shared_bytes(size: int) -> torch.Tensor:
    """Return a shared tensor of ``size`` bytes, not initialised.

    Raises:
        OSError, RuntimeError: There is not enough shared memory.
    """
    room = max(size, 1)
    if hasattr(os, "memfd_create") and _multiprocessing.get_sharing_strategy() == "file_descriptor":
        # Outside of /dev/shm, which is small in containers, and where torch leaves names if it is
        # full.
        descriptor = os.memfd_create("headrace")
        try:
            os.posix_fallocate(descriptor, 0, room)
            storage = _UntypedStorage._new_shared_fd_cpu(descriptor, room)
        finally:
            os.close(descriptor)
    else:
        storage = _UntypedStorage._new_shared(room)
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def is_shared(tensor: torch.Tensor) -> bool:
    """Return True if other processes may see this memory."""
    return bool(tensor.untyped_storage().is_shared())


def shared_integers(count: int) -> torch.Tensor:
    """Return a shared tensor of ``count`` zeros."""
    return shared_bytes(8 * count).view(torch.int64).zero_()


class SharedBuffer:
    """Bytes that one process fills, and that arrive in another process as an array of its own.

    It is sent through the queues of multiprocessing, and must not be used afterwards. Its bytes are
    copied if it is pickled in any other way, or made outside of a worker.

    Args:
        size: Number of bytes; they are not initialised.
    """

    __slots__ = ("_segment", "memory")

    def __init__(self, size: int) -> None:
        # Here and not at module level: importing this module must have no effects.
        ForkingPickler.register(SharedBuffer, _sent)
        self._segment = _segments.get().take(size)
        if self._segment is None:
            self.memory: ByteArray = np.empty(size, np.uint8)
        else:
            self.memory = self._segment.contents(size)

    def __reduce__(self) -> tuple[Any, ...]:
        return np.copy, (self.memory,)

    def __del__(self) -> None:
        if self._segment is not None:
            self._segment.is_taken = False  # it was not sent

    def send(self) -> tuple[Any, ...]:
        """Return the arguments of ``_received`` in the other process."""
        segment, size = self._segment, len(self.memory)
        if segment is None:
            return size, self.memory, None
        if segment.pid != os.getpid():  # a forked child: the segment is its parent's
            return size, self.memory.copy(), None
        self.memory, self._segment = np.empty(0, np.uint8), None
        return size, *segment.send()


def _sent(buffer: SharedBuffer) -> tuple[Any, ...]:
    return _received, buffer.send()


class _Segment:
    """Shared memory that this process fills again and again.

    Args:
        capacity: Number of bytes.
        place: Its place among the others, by which the receiver knows it.
        times_sent: How often segments in this place were sent before.
    """

    __slots__ = ("_is_known", "_tensor", "header", "is_taken", "pid", "place")

    def __init__(self, capacity: int, place: int, times_sent: int = 0) -> None:
        self._tensor = shared_bytes(_HEADER_BYTES + capacity)
        self._is_known = False
        self.header = _header_of(self._tensor)
        self.header[_IS_SENT], self.header[_TIMES_SENT] = 0, times_sent
        self.is_taken = False
        self.place = place
        self.pid = os.getpid()

    @property
    def capacity(self) -> int:
        return len(self._tensor) - _HEADER_BYTES

    def contents(self, size: int) -> ByteArray:
        memory: ByteArray = self._tensor.numpy()
        return memory[_HEADER_BYTES : _HEADER_BYTES + size]

    def send(self) -> tuple[Any, ...]:
        """Return the process and place for the receiver, and on the first call the memory, too."""
        memory = None if self._is_known else self._tensor
        self._is_known = True
        self.header[_TIMES_SENT] += 1
        self.header[_IS_SENT] = 1
        self.is_taken = False
        return memory, (self.pid, self.place, self.header[_TIMES_SENT])


class _Segments:
    """The segments of a process. Any thread may take one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[_Segment] = []

    def take(self, size: int) -> _Segment | None:
        """Return a segment to be filled; None outside of workers."""
        worker = get_worker_info()
        if worker is None:
            return None
        with self._lock:
            free = [one for one in self._kept if not (one.is_taken or one.header[_IS_SENT])]
            fitting = [one for one in free if one.capacity >= size]
            found = min(fitting, key=lambda one: one.capacity, default=None)
            if found is None:
                most = min(_MOST_SEGMENTS, _MOST_OF_ALL_WORKERS // max(worker.num_workers, 1))
                found = self._make(size, free, most)
            found.is_taken = True
            return found

    def _make(self, size: int, free: Sequence[_Segment], most: int) -> _Segment:
        """Return a new segment: in place of a free one, which is too small, or in a new place."""
        capacity = max(-(-size // _STEP_BYTES), 1) * _STEP_BYTES
        place, times_sent = len(self._kept), 0
        room = _MOST_BYTES - sum(one.capacity for one in self._kept)
        if free:
            place, times_sent = free[0].place, free[0].header[_TIMES_SENT]
            room += free[0].capacity
        if place >= most or capacity > room:
            return _Segment(capacity, _NOT_KEPT)
        made = _Segment(capacity, place, times_sent)
        self._kept[place : place + 1] = [made]
        return made


def _header_of(memory: torch.Tensor) -> memoryview[int]:
    first: Any = memory[:_HEADER_BYTES].numpy()  # numpy 1 does not say that it is a buffer
    return memoryview(first).cast("q")


# --- the receiver's side


def _received(
    size: int, memory: torch.Tensor | ByteArray | None, segment: tuple[int, int, int] | None
) -> ByteArray:
    """Return a copy of the bytes sent: in ``memory``, or in a segment that arrived before."""
    if segment is None:
        assert isinstance(memory, np.ndarray)
        return memory
    sender, place, times_sent = segment
    mapped = _mapped.get()
    if isinstance(memory, torch.Tensor):
        forget_dead_senders()
        found: torch.Tensor | None = memory
        if place != _NOT_KEPT:
            mapped[sender, place] = memory
    else:
        found = mapped.get((sender, place))
    if found is None:
        raise WorkerError(
            f"a batch of worker process {sender} cannot be opened: the worker has died, or those "
            "before it went to another process; all batches of a worker must go to one process, "
            "which may send copies to others"
        )
    header = _header_of(found)
    # A segment that was given back may hold another batch by now: that has another number.
    if (header[_IS_SENT], header[_TIMES_SENT]) != (1, times_sent):
        raise WorkerError("a batch that a worker sent was unpickled more than once")
    contents: ByteArray = found.numpy()[_HEADER_BYTES : _HEADER_BYTES + size]
    copied = block_memory.get().empty(contents.shape, contents.dtype)
    copied[:] = contents
    header[_IS_SENT] = 0  # gives the segment back to the worker
    return copied


def forget_dead_senders() -> None:
    """Drop the segments of processes that have ended."""
    mapped = _mapped.get()
    for sender, place in list(mapped):
        if not _lives(sender):
            mapped.pop((sender, place), None)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it runs as another user now
        return True
    return True


_segments = PerProcess(_Segments)
_mapped: PerProcess[dict[tuple[int, int], torch.Tensor]] = PerProcess(dict)
"""Segments of other processes, by process and place."""
