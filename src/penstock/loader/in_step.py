"""Ranks that take the same number of steps although nobody knows beforehand how many."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

from penstock.errors import PlanError
from penstock.loader.epoch import EpochPass

__all__ = ["InStep"]

logger = logging.getLogger(__name__)

_STEPS_AT_ONCE = 8
"""batches that a rank holds ahead, and on which all ranks agree at once"""


class InStep:
    """Iterates over a pass for as long as all ranks can, or, padding, until the last has ended.

    The ranks agree on the next steps while one that they have agreed on is still to come: so
    after every batch it is known whether there is another.
    """

    def __init__(
        self, running: EpochPass, agree: Callable[[int], tuple[int, int]], *, pad: bool
    ) -> None:
        self._running = running
        self._agree = agree
        self._pad = pad
        self._agreed = 0
        self._own = 0
        self._last_round = False
        self.padded_rows = 0
        """rows handed out once more"""
        self.repeating = False
        """whether the last batch that was handed out is one that came before"""

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._running)
        try:
            self._agree_on_more(first=True)
            yield from self._agreed_batches(batches)
            self._tell_what_is_left_out()
        finally:
            self._running.end()

    def _agreed_batches(self, batches: Iterator[Any]) -> Iterator[Any]:
        spare: Any = None
        spare_rows = 0
        while self._agreed:
            if self._agreed == 1 and not self._last_round:
                self._agree_on_more()
            self._agreed -= 1
            if self._own == 0:
                self.padded_rows += spare_rows
                self.repeating = True
                yield deepcopy(spare) if self._agreed else spare
                continue
            self._own -= 1
            rows = self._running.handed_over["rows"] if self._pad else 0
            batch = next(batches)
            if self._pad and self._own == 0 and self._agreed:
                spare = deepcopy(batch)  # before the user can change it
                spare_rows = self._running.handed_over["rows"] - rows
            yield batch

    def is_over(self) -> bool:
        """Whether no batch is left."""
        return self._last_round and self._agreed == 0

    def _agree_on_more(self, *, first: bool = False) -> None:
        certain = self._running.ahead(self._own + _STEPS_AT_ONCE) - self._own
        least, most = self._agree(min(certain, _STEPS_AT_ONCE))
        if first and self._pad and least == 0 < most:
            raise PlanError(
                'a rank has no rows, and so none that even="pad" could repeat; use even="drop", or '
                "fewer ranks"
            )
        more = most if self._pad else least
        self._last_round = more < _STEPS_AT_ONCE
        self._agreed += more
        self._own += min(certain, more)

    def _tell_what_is_left_out(self) -> None:
        left = self._running.ahead(1)
        if left:
            logger.warning(
                "epoch %d: this rank leaves out %d batches or more, so that all ranks take the "
                "same number of steps",
                self._running.epoch,
                left,
            )
