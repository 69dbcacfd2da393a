"""Limits for answers that never fall silent and yet hardly come.

A time-out for silence does not end an answer of which one byte comes now and then. Where bytes can
be seen while they come, they must come at a least rate (`Pace`). Where a client returns only whole
answers, an answer must be there after a time that depends on its size (`longest_wait`).
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from typing import Any

__all__ = ["Pace", "PacedResponse", "TooSlowError", "longest_wait"]

_LEAST_BYTES_PER_S = 1 << 10
_LEAST_BYTES_PER_S_UNSEEN = 8 << 10
"""for whole answers: with less, one of several MiB would hang for hours before it is given up"""


class TooSlowError(TimeoutError):
    """An answer comes too slowly."""

    @classmethod
    def after(cls, seconds: float) -> TooSlowError:
        """Return the error for an answer that was not complete in time."""
        return cls(f"time-out: the answer is too slow, not all of it came in {seconds:.1f} s")


class Pace:
    """Checks that bytes keep coming.

    Time is divided into windows, the first of which begins with the first bytes. In each window
    at least 1 KiB a second must come, so an answer of n bytes takes ``window_s + n / 1024`` seconds
    at most, counted from its first byte.

    Args:
        window_s: Length of a window in seconds. None means that there is no limit.
    """

    def __init__(self, window_s: float | None) -> None:
        self._window_s = window_s
        self._began: float | None = None
        self._bytes = 0

    def add(self, count: int) -> None:
        """Count bytes that have come.

        Raises:
            TooSlowError: A window is over, and too few bytes came in it.
        """
        now = time.monotonic()
        if self._began is None:
            self._began = now
        self._bytes += count
        elapsed = now - self._began
        if self._window_s is None or elapsed < self._window_s:
            return
        if self._bytes < _LEAST_BYTES_PER_S * elapsed:
            raise TooSlowError(
                f"time-out: the answer is too slow, {self._bytes} bytes came in {elapsed:.1f} s, "
                f"and {_LEAST_BYTES_PER_S} bytes a second are the least"
            )
        self._began, self._bytes = now, 0


class PacedResponse(http.client.HTTPResponse):
    """A response whose head and body must keep coming, by the time-out of its socket."""

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(_PacedSocket(sock), *args, **options)  # type: ignore[arg-type]


class _PacedSocket:
    """The one method of a socket that a response calls."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_PacedReads(self._socket))


class _PacedReads(io.RawIOBase):
    def __init__(self, sock: socket.socket) -> None:
        self._reads: Any = sock.makefile("rb", buffering=0)
        self._pace = Pace(sock.gettimeout())

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        count: int | None = self._reads.readinto(buffer)
        if count:
            self._pace.add(count)
        return count

    def close(self) -> None:
        self._reads.close()
        super().close()


def longest_wait(timeout_s: float, size: int = 0) -> float:
    """Return the seconds after which an answer of ``size`` bytes is given up.

    This is for clients that return an answer when all of it has come.
    """
    return timeout_s + size / _LEAST_BYTES_PER_S_UNSEEN
