"""The progress bar, options that are JSON, and messages of all commands."""

from __future__ import annotations

import json
import re
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from headrace.errors import OptionError

_WIDTH = 30
_SECONDS_BETWEEN = {True: 0.1, False: 10.0}
"""Seconds between two updates, on a terminal or not."""


class Bar:
    """Shows progress: one line that changes on a terminal, otherwise a new line from time to
    time."""

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
    """Return the speed of the work and the time that is left, if known."""
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


def chosen_storage(arguments: Namespace) -> dict[str, Any] | None:
    """Return the content of ``--storage-options``."""
    return json_options("--storage-options", arguments.storage_options)


def json_options(name: str, text: str | None) -> dict[str, Any] | None:
    """Return the content of an argument of JSON; errors do not show it, since it may be secret."""
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise OptionError(f'{name} must be JSON such as {{"name": "value"}}')
    return found


def as_flags(text: str) -> str:
    """Return a message with keywords as they are called on the command line.

    >>> as_flags('give overwrite=True, or keys="number"')
    'give --overwrite, or --keys number'
    """
    text = re.sub(r"\b(\w+)=True\b", lambda found: as_flag(found[1]), text)
    text = re.sub(r'\b(\w+)="(\w+)"', lambda found: f"{as_flag(found[1])} {found[2]}", text)
    return re.sub(r"\((\w+)=\)", lambda found: f"({as_flag(found[1])})", text)


def as_flag(name: str) -> str:
    """Return a keyword as it is called on the command line."""
    return f"--{name.replace('_', '-')}"
