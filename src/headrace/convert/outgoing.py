"""Memory that a process fills and sends; in a worker the same memory again and again."""

from __future__ import annotations

import logging
import os
import threading
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from headrace.convert.arrivals import arrived
from headrace.convert.segments import (
    FREE,
    HEADER_BYTES,
    RETIRED,
    SENT,
    STATE,
    TIMES_SENT,
    Bytes,
    header_of,
)
from headrace.convert.shared import is_shared, shared_bytes
from headrace.errors import WorkerError

__all__ = ["Outgoing", "contents", "outgoing"]

logger = logging.getLogger(__name__)

_LEAST_BYTES = 1 << 16
_MOST_SEGMENTS = 16
_MOST_OF_ALL_WORKERS = 256
"""for their receiver has a descriptor open for each segment"""
_MOST_BYTES = 256 << 20
"""of the segments that a process keeps"""
_LARGER_AT_MOST = 4
"""times than what is put into a segment that is there already"""
_UNUSED_AT_MOST = 64
"""times that others were taken before a segment is given up"""


class Outgoing:
    """Memory to be filled here and sent to one other process, where it arrives as an array."""

    __slots__ = ("_segment", "_tensor", "memory")

    def __init__(self, tensor: torch.Tensor, size: int, segment: _Segment | None = None) -> None:
        self.memory: Bytes = tensor.numpy()[:size]
        self._tensor: torch.Tensor | None = tensor
        self._segment = segment

    def __reduce__(self) -> tuple[Any, ...]:
        """Copied, or pickled to wherever: its bytes. To another process see ``_sent``."""
        return np.copy, (self.memory,)

    def __del__(self) -> None:
        if self._segment is not None:
            self._segment.taken = False  # it was not sent

    def handed_over(self) -> tuple[Any, ...]:
        """Arguments of ``arrived`` in the other process. It must not be used any more."""
        segment, tensor, size = self._segment, self._tensor, len(self.memory)
        if tensor is None:
            raise WorkerError("a batch that was sent to another process cannot be sent once more")
        if segment is None:
            return size, tensor if is_shared(tensor) else self.memory, None
        if segment.pid != os.getpid():  # it was inherited, and is still the parent's
            fresh = shared_bytes(size)
            fresh.numpy()[:size] = self.memory
            return size, fresh, None
        self.memory, self._segment, self._tensor = np.empty(0, np.uint8), None, None
        return size, *segment.sent()


def outgoing(size: int) -> Outgoing:
    """So many bytes, not initialised; in a worker memory that was there before, if there is any.

    Where there is no room for more shared memory, what is put into it crosses by a pipe.
    """
    try:
        segment = _taken(size)
        if segment is None:
            return Outgoing(shared_bytes(size), size)
        return Outgoing(segment.tensor[HEADER_BYTES:], size, segment)
    except (OSError, RuntimeError) as error:
        _pool.warn_of_pipe(error)
        return Outgoing(torch.empty(size, dtype=torch.uint8), size)


def _taken(size: int) -> _Segment | None:
    worker = get_worker_info() if hasattr(os, "fork") else None
    if worker is None:
        return None
    share = _MOST_OF_ALL_WORKERS // max(worker.num_workers, 1)
    return _pool.taken(size, min(_MOST_SEGMENTS, share))


class _Segment:
    """Shared memory that this process fills again and again."""

    __slots__ = ("_header", "_is_known", "_name", "capacity", "pid", "taken", "tensor", "used")

    def __init__(self, capacity: int) -> None:
        self.tensor = shared_bytes(HEADER_BYTES + capacity)
        self._header = header_of(self.tensor)
        self._header[STATE] = FREE
        self._header[TIMES_SENT] = 0
        self._name = os.urandom(16)
        self._is_known = False
        self.capacity = capacity
        self.pid = os.getpid()
        self.taken = False
        """whether it is being filled: known to this process alone"""
        self.used = 0

    @property
    def state(self) -> int:
        return self._header[STATE]

    @property
    def is_free(self) -> bool:
        return not self.taken and self._header[STATE] == FREE

    def fits(self, size: int) -> bool:
        return size <= self.capacity <= _LARGER_AT_MOST * max(size, _LEAST_BYTES)

    def sent(self) -> tuple[Any, ...]:
        """What the receiver has to know of it: the memory only once, for it keeps that."""
        memory = None if self._is_known else self.tensor
        self._is_known = True
        self._header[TIMES_SENT] += 1
        self._header[STATE] = SENT
        self.taken = False
        return memory, (self._name, self._header[TIMES_SENT], self.pid)

    def retire(self) -> None:
        self._header[STATE] = RETIRED


class _Pool:
    """The segments of a process, those taken last at the end. Any thread may take one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._segments: list[_Segment] = []
        self._takes = 0
        self._has_warned = False

    def taken(self, size: int, most: int) -> _Segment | None:
        """A segment to be filled; None if all that may be kept, ``most`` of them, are in use."""
        with self._lock:
            self._takes += 1
            self._segments = [one for one in self._segments if not self._is_over(one)]
            # The one that was used last is the one most likely to be in the processor's cache.
            last_first = reversed(self._segments)
            found = next((one for one in last_first if one.fits(size) and one.is_free), None)
            if found is not None:
                self._segments.remove(found)
            elif self._has_room(capacity := _capacity(size), most):
                found = _Segment(capacity)
            else:
                return None
            self._segments.append(found)
            found.taken, found.used = True, self._takes
            return found

    def _is_over(self, segment: _Segment) -> bool:
        if segment.is_free and self._takes - segment.used > _UNUSED_AT_MOST:
            segment.retire()
        return segment.state == RETIRED

    def _has_room(self, capacity: int, most: int) -> bool:
        """Whether one more may be kept; others that are not in use are given up for it."""
        kept = self._segments
        while kept and (
            len(kept) >= most or sum(one.capacity for one in kept) + capacity > _MOST_BYTES
        ):
            unused = next((one for one in kept if one.is_free), None)
            if unused is None:
                return False
            unused.retire()
            kept.remove(unused)
        return most > 0 and capacity <= _MOST_BYTES

    def warn_of_pipe(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "no shared memory can be had (%s): batches cross to the other process by a pipe, "
                "which is slower; give more of it, or let fewer batches be under way "
                "(num_workers, prefetch_factor, batch_size)",
                error,
            )


def _capacity(size: int) -> int:
    """Few different ones, and an eighth larger at most than what is needed."""
    step = max(_LEAST_BYTES, 1 << max(size.bit_length() - 4, 0))
    return max(-(-size // step), 1) * step


def contents(buffer: Outgoing | Bytes) -> Bytes:
    """The bytes of what has arrived, or of what has not been sent."""
    return buffer.memory if isinstance(buffer, Outgoing) else buffer


def _sent(buffer: Outgoing) -> tuple[Any, ...]:
    return arrived, buffer.handed_over()


ForkingPickler.register(Outgoing, _sent)


_pool = _Pool()


def _begin() -> None:
    """In a child: segments that were inherited are its parent's."""
    global _pool
    _pool = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin)
