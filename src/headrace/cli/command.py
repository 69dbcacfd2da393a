"""The parts of a command: its arguments, what it does, and the progress that it shows."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

__all__ = ["Bar", "Command", "counted", "progress_bar"]

_WIDTH = 30
_SECONDS_BETWEEN = {True: 0.1, False: 10.0}
"""between two updates, on a terminal or not"""


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand. A HeadraceError out of ``run`` becomes one line and exit code 2.

    Attributes:
        name: What a person types.
        summary: One line for ``headrace --help``.
        add_arguments: Adds arguments to a parser.
        run: Does the work, prints to stdout, returns the exit code.
        add_more: Adds arguments that depend on what was given.
    """

    name: str
    summary: str
    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]
    add_more: Callable[[ArgumentParser, Sequence[str]], None] | None = None


class Bar:
    """Shows how far the work is: one line that changes on a terminal, else a line now and then."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._terminal = out.isatty()
        self._stage = ""
        self._last = float("-inf")
        self._length = 0

    def __call__(self, stage: str, share: float) -> None:
        now = time.monotonic()
        fresh = stage != self._stage
        if not (fresh or share >= 1 or now - self._last >= _SECONDS_BETWEEN[self._terminal]):
            return
        speed = _speed(share)
        if self._terminal:
            if fresh and self._stage:
                self._out.write("\n")
            filled = round(_WIDTH * share)
            line = f"{stage} [{'#' * filled}{'-' * (_WIDTH - filled)}] {share:4.0%}{speed}"
            self._out.write(f"\r{line.ljust(0 if fresh else self._length)}")
            self._length = len(line)
        else:
            self._out.write(f"{stage} {share:.0%}{speed}\n")
        self._out.flush()
        self._stage, self._last = stage, now

    def close(self) -> None:
        """Leave the line."""
        if self._terminal and self._stage:
            self._out.write("\n")


def _speed(share: float) -> str:
    """Return the speed of the work and how long it takes, where that is known."""
    rate = getattr(share, "bytes_per_s", None)
    remaining = getattr(share, "remaining_s", None)
    if rate is None or remaining is None:
        return ""
    minutes, seconds = divmod(round(remaining), 60)
    hours, minutes = divmod(minutes, 60)
    return f", {rate / 1e6:,.1f} MB/s, {hours}:{minutes:02d}:{seconds:02d} left"


@contextmanager
def progress_bar() -> Iterator[Bar]:
    """Yield a bar on stderr."""
    bar = Bar(sys.stderr)
    try:
        yield bar
    finally:
        bar.close()


def counted(number: int, one: str, many: str | None = None) -> str:
    """
    >>> counted(1, "tar"), counted(2_000, "tar")
    ('1 tar', '2,000 tars')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"
