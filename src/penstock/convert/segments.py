"""Shared memory on its way to another process, used again when nobody there sees it any more.

Fresh shared memory is dear: every page of it is cleared, and found missing once in each process. So
a worker keeps a few segments. The first bytes of a segment say whose it is, and nobody else may
write to it:

======= =================================================================== ==============
state   whose it is                                                         becomes
======= =================================================================== ==============
FREE    the sender's, to be filled, sent or given up                        SENT, RETIRED
SENT    the receiver's, who has not looked yet                              LENT
LENT    the receiver's, for as long as there is any view of it              FREE, RETIRED
RETIRED nobody's: both sides forget it, and the last view ends it
======= =================================================================== ==============

What arrives is an array over a lease. Whatever is made of it (slices, tensors, Arrow buffers,
views of memory) keeps the array, and so the lease, whose end is the end of them all: nothing but
that gives a segment back. What a fork has copied views of is never given back.
"""

from __future__ import annotations

import os
import threading
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import get_worker_info

from penstock.convert.shared import shared_bytes
from penstock.errors import WorkerError

__all__ = ["Bytes", "Outgoing", "contents", "forget_dead_senders", "mapped_segments", "outgoing"]

Bytes = npt.NDArray[np.uint8]

_FREE, _SENT, _LENT, _RETIRED = range(4)
_STATE, _TIMES_SENT = range(2)
_HEADER_BYTES = 64

_LEAST_BYTES = 1 << 16
_MOST_SEGMENTS = 16
_MOST_BYTES = 256 << 20
"""of the segments that a process keeps"""
_LARGER_AT_MOST = 4
"""times than what is put into a segment that is there already"""
_UNUSED_AT_MOST = 64
"""times that others were taken before a segment is given up"""

# --- the side that sends


class Outgoing:
    """Memory to be filled here and sent to one other process, where it arrives as an array."""

    __slots__ = ("_fresh", "_segment", "memory")

    def __init__(self, size: int, segment: _Segment | None) -> None:
        self._segment = segment
        self._fresh = None if segment is not None else shared_bytes(size)
        whole = self._fresh if segment is None else segment.tensor[_HEADER_BYTES:]
        self.memory: Bytes = whole.numpy()[:size]  # type: ignore[union-attr]

    def __reduce__(self) -> tuple[Any, ...]:
        """Copied, or pickled to wherever: its bytes. To another process see ``_sent``."""
        return np.copy, (self.memory,)

    def __del__(self) -> None:
        if self._segment is not None:
            self._segment.taken = False  # it was not sent

    def handed_over(self) -> tuple[Any, ...]:
        """Arguments of ``_arrived`` in the other process. It must not be used any more."""
        segment, size = self._segment, len(self.memory)
        if segment is None or segment.pid != os.getpid():
            fresh = self._fresh
            if fresh is None:
                fresh = shared_bytes(size)
                fresh.numpy()[:] = self.memory
            return size, fresh, None
        self.memory, self._segment = np.empty(0, np.uint8), None
        return size, *segment.sent()


def outgoing(size: int) -> Outgoing:
    """So many bytes, not initialised; in a worker memory that was there before, if there is any."""
    if get_worker_info() is None or not hasattr(os, "fork"):
        return Outgoing(size, None)
    return Outgoing(size, _here.pool.taken(size))


class _Segment:
    """Shared memory that this process fills again and again."""

    __slots__ = ("_header", "_is_known", "_name", "capacity", "pid", "taken", "tensor", "used")

    def __init__(self, capacity: int) -> None:
        self.tensor = shared_bytes(_HEADER_BYTES + capacity)
        self._header = _header(self.tensor)
        self._header[_STATE] = _FREE
        self._header[_TIMES_SENT] = 0
        self._name = os.urandom(16)
        self._is_known = False
        self.capacity = capacity
        self.pid = os.getpid()
        self.taken = False
        """whether it is being filled: known to this process alone"""
        self.used = 0

    @property
    def state(self) -> int:
        return self._header[_STATE]

    @property
    def is_free(self) -> bool:
        return not self.taken and self._header[_STATE] == _FREE

    def fits(self, size: int) -> bool:
        return size <= self.capacity <= _LARGER_AT_MOST * max(size, _LEAST_BYTES)

    def sent(self) -> tuple[Any, ...]:
        """What the receiver has to know of it: the memory only once, for it keeps that."""
        memory = None if self._is_known else self.tensor
        self._is_known = True
        self._header[_TIMES_SENT] += 1
        self._header[_STATE] = _SENT
        self.taken = False
        return memory, (self._name, self._header[_TIMES_SENT], self.pid)

    def retire(self) -> None:
        self._header[_STATE] = _RETIRED


class _Pool:
    """The segments of a process, those taken last at the end. Any thread may take one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._segments: list[_Segment] = []
        self._takes = 0

    def taken(self, size: int) -> _Segment | None:
        """A segment to be filled; None if all that may be kept are in use."""
        with self._lock:
            self._takes += 1
            self._segments = [one for one in self._segments if not self._is_over(one)]
            # The one that was used last is the one most likely to be in the processor's cache.
            last_first = reversed(self._segments)
            found = next((one for one in last_first if one.fits(size) and one.is_free), None)
            if found is not None:
                self._segments.remove(found)
            elif self._has_room(capacity := _capacity(size)):
                found = _Segment(capacity)
            else:
                return None
            self._segments.append(found)
            found.taken, found.used = True, self._takes
            return found

    def _is_over(self, segment: _Segment) -> bool:
        if segment.is_free and self._takes - segment.used > _UNUSED_AT_MOST:
            segment.retire()
        return segment.state == _RETIRED

    def _has_room(self, capacity: int) -> bool:
        """Whether one more may be kept; others that are not in use are given up for it."""
        kept = self._segments
        while kept and (
            len(kept) >= _MOST_SEGMENTS
            or sum(one.capacity for one in kept) + capacity > _MOST_BYTES
        ):
            unused = next((one for one in kept if one.is_free), None)
            if unused is None:
                return False
            unused.retire()
            kept.remove(unused)
        return capacity <= _MOST_BYTES


def _capacity(size: int) -> int:
    """Few different ones, and an eighth larger at most than what is needed."""
    step = max(_LEAST_BYTES, 1 << max(size.bit_length() - 4, 0))
    return max(-(-size // step), 1) * step


def _sent(buffer: Outgoing) -> tuple[Any, ...]:
    return _arrived, buffer.handed_over()


ForkingPickler.register(Outgoing, _sent)

# --- the side that receives


class _Mapped:
    """A segment of another process. It is lent to one array, and what is made of it, at a time."""

    __slots__ = ("_header", "_name", "_process", "is_lent", "memory", "sender", "was_forked")

    def __init__(self, name: bytes, memory: torch.Tensor, sender: int) -> None:
        self.memory = memory
        self.sender = sender
        self._name = name
        self._header = _header(memory)
        self._process = os.getpid()
        self.is_lent = False
        self.was_forked = False
        """whether a child may see what this process sees"""

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come in it."""
        return self._header[_STATE] == _RETIRED or not _lives(self.sender)

    def lend(self, size: int, times_sent: int) -> Bytes:
        header = self._header
        if (header[_STATE], header[_TIMES_SENT]) != (_SENT, times_sent):
            raise WorkerError("a batch that a worker sent was unpickled more than once")
        header[_STATE] = _LENT
        self.is_lent = True  # before the question whether there is a fork, which asks for this
        if _here.forks:
            self.was_forked = True
        return np.asarray(_Lease(self, size))

    def let_go(self) -> None:
        """There is no view of it any more."""
        if self._process != os.getpid():  # a child's: what its parent sees is not to be given back
            return
        self.is_lent = False
        if self.was_forked or _here.forks:
            self._header[_STATE] = _RETIRED
            _here.mapped.pop(self._name, None)
        else:
            self._header[_STATE] = _FREE
        if not _lives(self.sender):
            forget_dead_senders()


class _Lease:
    """What all arrays of a segment have as their base, directly or not."""

    __slots__ = ("__array_interface__", "_mapped")

    def __init__(self, mapped: _Mapped, size: int) -> None:
        self._mapped = mapped
        self.__array_interface__ = {
            "version": 3,
            "shape": (size,),
            "typestr": "|u1",
            "data": (mapped.memory.data_ptr() + _HEADER_BYTES, False),
        }

    def __del__(self) -> None:
        self._mapped.let_go()


def contents(buffer: Outgoing | Bytes) -> Bytes:
    """The bytes of what has arrived, or of what has not been sent."""
    return buffer.memory if isinstance(buffer, Outgoing) else buffer


def _arrived(
    size: int, memory: torch.Tensor | None, segment: tuple[bytes, int, int] | None
) -> Bytes:
    if segment is None:
        assert memory is not None
        fresh: Bytes = memory.numpy()[:size]
        return fresh
    name, times_sent, sender = segment
    if memory is not None:
        forget_dead_senders()
        _here.mapped[name] = _Mapped(name, memory, sender)
    mapped = _here.mapped.get(name)
    if mapped is None:
        raise WorkerError(
            f"a batch of worker process {sender} arrived in another process than those before it; "
            "batches of a worker can go to one process only, which may send copies to others"
        )
    return mapped.lend(size, times_sent)


def forget_dead_senders() -> None:
    """Let go of segments in which nothing more will come. Views of them stay as they are."""
    for name, mapped in list(_here.mapped.items()):
        if mapped.is_over:
            _here.mapped.pop(name, None)


def mapped_segments() -> int:
    """How many segments of other processes this one holds."""
    return len(_here.mapped)


# --- both sides


class _Here:
    """What this process has. A child that was forked off it begins with nothing."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.pool = _Pool()
        self.mapped: dict[bytes, _Mapped] = {}
        self.forks = 0
        """that are under way"""

    def before_fork(self) -> None:
        self.forks += 1
        self._keep_what_is_lent()

    def after_fork(self) -> None:
        self._keep_what_is_lent()  # other threads went on in between
        self.forks -= 1

    def _keep_what_is_lent(self) -> None:
        for mapped in list(self.mapped.values()):
            mapped.was_forked = mapped.was_forked or mapped.is_lent


_here = _Here()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_here.before_fork, after_in_parent=_here.after_fork, after_in_child=_here.begin
    )


def _header(memory: torch.Tensor) -> memoryview[int]:
    first: Any = memory[:_HEADER_BYTES].numpy()  # numpy 1 does not say that it is a buffer
    return memoryview(first).cast("q")


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
