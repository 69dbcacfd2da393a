"""How often, how long and after which pauses a request is tried again."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from headrace.errors import OptionError
from headrace.storage.fetching import Patience

__all__ = ["Attempts", "RetryPolicy"]

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 20.0
_POLL_S = 0.25


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """What a user is willing to wait for."""

    retries: int = 10
    """times that a request is tried again"""
    timeout_s: float = 30.0
    """how long a server may be silent, at the beginning of an answer and within it; also the time
    over which the least rate of an answer is averaged"""
    max_elapsed_s: float = 300.0
    """after this long from its first attempt a request is not tried again"""

    def __post_init__(self) -> None:
        if isinstance(self.retries, bool) or not isinstance(self.retries, int) or self.retries < 0:
            raise OptionError(f"retries must be an int of at least 0, not {self.retries!r}")
        for name in ("timeout_s", "max_elapsed_s"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
                raise OptionError(f"{name} must be a number of seconds above 0, not {value!r}")


class Attempts:
    """The attempts of one request."""

    def __init__(self, policy: RetryPolicy, patience: Patience) -> None:
        self.failed = 0
        self._policy = policy
        self._patience = patience
        self._began = time.monotonic()

    def may_go_on(self, retry_after_s: float | None = None) -> bool:
        """Count a failure, and wait if there is to be another attempt.

        The pause grows exponentially and is drawn at random, so that many clients that failed
        together do not come back together. A server that says how long to wait is obeyed.
        """
        self.failed += 1
        most = min(_FIRST_PAUSE_S * 2 ** min(self.failed - 1, 30), _LONGEST_PAUSE_S)
        pause = random.uniform(most / 2, most)
        if retry_after_s is not None:
            pause = max(pause, retry_after_s)
        left = self._policy.max_elapsed_s - (time.monotonic() - self._began)
        if self.failed > self._policy.retries or pause > left:
            return False
        return self._wait(pause)

    def _wait(self, seconds: float) -> bool:
        """Sleep, but not for nobody, nor while the interpreter goes down; whether it was all."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._patience.over:
                return False
            time.sleep(min(left, _POLL_S))
        return True

    @property
    def told(self) -> str:
        """How many there were, for a message."""
        seconds = time.monotonic() - self._began
        return f"{self.failed} attempt{'s' if self.failed != 1 else ''} in {seconds:.1f} s"
