"""Fork servers of multiprocessing that need not import torch again.

A fork server is a new interpreter, and what it preloads takes two seconds of a core to import. A
process that has imported it already, and has no threads yet, can be forked instead: `fork_spare`
does that, and the copy waits. It becomes the next fork server that multiprocessing starts, with
the command, the descriptors and the environment that were meant for that. It is a child of the
process that uses it, and ends with it, as every fork server does.

Tests of the start itself use a `ColdProcess`.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import signal
import socket
import sys
from collections.abc import Sequence
from multiprocessing import util
from typing import NamedTuple

MAX_ORDER_BYTES = 1 << 17
MAX_DESCRIPTORS = 16
COMMAND = "from multiprocessing.forkserver import main"

start_process = util.spawnv_passfds


class Order(NamedTuple):
    """What a spare process needs to become a fork server.

    Attributes:
        code: The program, as after ``python -c``.
        descriptors: The numbers under which the program finds the descriptors that it is given.
        environment: The environment variables.
        folder: The working directory.
    """

    code: str
    descriptors: list[int]
    environment: dict[str, str]
    folder: str


class SpareProcess:
    """A copy of a process, seen from that process."""

    def __init__(self, pid: int, channel: int) -> None:
        self._owner = os.getpid()
        self._pid: int | None = pid
        self._channel = channel
        self._start_another = util.spawnv_passfds

    def start(self, path: bytes, arguments: Sequence[str], descriptors: Sequence[int]) -> int:
        """Start a process, like ``multiprocessing.util.spawnv_passfds``, and return its number.

        The first fork server becomes the copy. Everything else is started as before, and so is
        what a forked child of this process starts: the copy is not a child of that child.
        """
        pid, code = self._pid, arguments[-1]
        if pid is None or os.getpid() != self._owner or not code.startswith(COMMAND):
            return self._start_another(path, arguments, descriptors)
        self._pid = None
        order = Order(code, list(descriptors), dict(os.environ), os.getcwd())
        with socket.socket(fileno=self._channel) as channel:
            socket.send_fds(channel, [pickle.dumps(order)], order.descriptors)
        return pid


def fork_spare() -> str | None:
    """Fork this process, and let multiprocessing use the copy as its next fork server.

    Returns:
        In this process None, at once. In the copy the program of the fork server, as soon as one
        is needed. The copy ends if this process does.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid:
        theirs.close()
        util.spawnv_passfds = SpareProcess(pid, ours.detach()).start
        return None
    util.spawnv_passfds = start_process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    code = _wait_for_order(theirs)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return code


def _wait_for_order(channel: socket.socket) -> str:
    """Close all descriptors of the process that was forked, wait, and take over what is sent."""
    os.closerange(3, channel.fileno())
    os.closerange(channel.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    with channel:
        message, received, _, _ = socket.recv_fds(channel, MAX_ORDER_BYTES, MAX_DESCRIPTORS)
    if not message:
        os._exit(0)
    order: Order = pickle.loads(message)
    _renumber(received, order.descriptors)
    os.environ.clear()
    os.environ.update(order.environment)
    os.chdir(order.folder)
    sys.argv = ["-c"]
    return order.code


def _renumber(descriptors: Sequence[int], numbers: Sequence[int]) -> None:
    free = max(*descriptors, *numbers) + 1
    moved = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, free) for one in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for descriptor, number in zip(moved, numbers, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
