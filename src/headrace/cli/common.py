"""Parts that several commands share: the progress bar, and options that are JSON."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from typing import Any, TextIO

from headrace.errors import OptionError

__all__ = ["Bar", "chosen_storage", "json_options"]

_WIDTH = 30
_SECONDS_BETWEEN = {True: 0.1, False: 10.0}
"""between two updates, on a terminal or not"""


class Bar:
    """Shows how far the work is: one line that changes on a terminal, else a line now and then."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._terminal = out.isatty()
        self._stage = ""
        self._last = float("-inf")

    def __call__(self, stage: str, share: float) -> None:
        now = time.monotonic()
        fresh = stage != self._stage
        if not (fresh or share >= 1 or now - self._last >= _SECONDS_BETWEEN[self._terminal]):
            return
        if self._terminal:
            if fresh and self._stage:
                self._out.write("\n")
            filled = round(_WIDTH * share)
            bar = "#" * filled + "-" * (_WIDTH - filled)
            self._out.write(f"\r{stage} [{bar}] {share:4.0%}")
        else:
            self._out.write(f"{stage} {share:.0%}\n")
        self._out.flush()
        self._stage, self._last = stage, now

    def close(self) -> None:
        """Leave the line."""
        if self._terminal and self._stage:
            self._out.write("\n")


def chosen_storage(arguments: Namespace) -> dict[str, Any] | None:
    """What stands in ``--storage-options``."""
    return json_options("--storage-options", arguments.storage_options)


def json_options(name: str, text: str | None) -> dict[str, Any] | None:
    """What stands in an argument of JSON; it is not shown, for it may be secret."""
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise OptionError(f'{name} must be JSON such as {{"endpoint_url": "https://host"}}')
    return found
