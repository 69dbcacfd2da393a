"""Memory that another process has filled, for as long as anything sees it."""

from __future__ import annotations

import os

import numpy as np
import torch

from headrace.convert.segments import (
    FREE,
    HEADER_BYTES,
    LENT,
    RETIRED,
    SENT,
    STATE,
    TIMES_SENT,
    Bytes,
    header_of,
)
from headrace.errors import WorkerError

__all__ = ["arrived", "forget_dead_senders", "mapped_segments"]

_ARRIVALS_BETWEEN = 256
"""two looks for segments in which nothing more will come"""


class _Mapped:
    """A segment of another process. It is lent to one array, and what is made of it, at a time."""

    __slots__ = ("_header", "_name", "_process", "is_lent", "memory", "sender", "was_forked")

    def __init__(self, name: bytes, memory: torch.Tensor, sender: int) -> None:
        self.memory = memory
        self.sender = sender
        self._name = name
        self._header = header_of(memory)
        self._process = os.getpid()
        self.is_lent = False
        self.was_forked = False
        """whether a child may see what this process sees"""

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come in it."""
        return self._header[STATE] == RETIRED or not _lives(self.sender)

    def lend(self, size: int, times_sent: int) -> Bytes:
        header = self._header
        if (header[STATE], header[TIMES_SENT]) != (SENT, times_sent):
            raise WorkerError("a batch that a worker sent was unpickled more than once")
        header[STATE] = LENT
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
            self._header[STATE] = RETIRED
            _here.mapped.pop(self._name, None)
        else:
            self._header[STATE] = FREE
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
            "data": (mapped.memory.data_ptr() + HEADER_BYTES, False),
        }

    def __del__(self) -> None:
        self._mapped.let_go()


def arrived(
    size: int, memory: torch.Tensor | Bytes | None, segment: tuple[bytes, int, int] | None
) -> Bytes:
    """What was sent: in ``memory`` alone, or in a segment, whose memory comes the first time only.

    A segment is named by itself, by how many times it was sent, and by the process that did so.
    An array is what could not be shared.
    """
    if isinstance(memory, np.ndarray):
        return memory
    if segment is None:
        assert memory is not None
        fresh: Bytes = memory.numpy()[:size]
        return fresh
    name, times_sent, sender = segment
    _here.arrivals += 1
    if memory is not None or _here.arrivals % _ARRIVALS_BETWEEN == 0:
        forget_dead_senders()
    if memory is not None:
        _here.mapped[name] = _Mapped(name, memory, sender)
    mapped = _here.mapped.get(name)
    if mapped is None:
        raise WorkerError(
            f"a batch of worker process {sender} cannot be opened: the worker has died, or those "
            "before it went to another process; all batches of a worker must go to one process, "
            "which may send copies to others"
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


class _Here:
    """What has arrived in this process. A child that was forked off it begins with nothing."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.arrivals = 0
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
            if mapped.is_lent:
                mapped.was_forked = True


_here = _Here()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_here.before_fork, after_in_parent=_here.after_fork, after_in_child=_here.begin
    )


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it has changed its user
        return True
    return True
