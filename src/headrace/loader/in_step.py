"""Ranks that take the same number of steps although nobody knows beforehand how many."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

from headrace.errors import OptionError, PlanError
from headrace.loader.epoch import EpochPass

__all__ = ["InStep"]

logger = logging.getLogger(__name__)

_STEPS_AT_ONCE = 8
"""batches that a rank holds ahead, and on which all ranks agree at once"""


class InStep:
    """Iterates over a pass for as long as all ranks can, or, padding, until the last has ended.

    The ranks agree on the next steps while one that they have agreed on is still to come: so
    after every batch it is known whether there is another. A rank that has ended before others
    repeats its first batch, which ``read_first`` gives with its number of rows.

    ``whole`` says that the epoch is read from its start. If a rank has no batch at all, all others
    would leave out everything: of a whole epoch that is an error, of the rest of one a warning.
    """

    def __init__(
        self,
        running: EpochPass,
        agree: Callable[[int], tuple[int, int]],
        *,
        read_first: Callable[[], tuple[Any, int] | None] | None = None,
        whole: bool = False,
    ) -> None:
        self._running = running
        self._agree = agree
        self._read_first = read_first
        self._whole = whole
        self._first: tuple[Any, int] | None = None
        self._agreed = 0
        self._own = 0
        self._last_round = False
        self.repeated = 0
        """batches handed out once more"""
        self.padded_rows = 0
        """rows handed out once more"""

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._running)
        try:
            self._agree_on_more(first=True)
            yield from self._agreed_batches(batches)
            self._tell_what_is_left_out()
        finally:
            self._running.end()

    def _agreed_batches(self, batches: Iterator[Any]) -> Iterator[Any]:
        while self._agreed:
            if self._agreed == 1 and not self._last_round:
                self._agree_on_more()
            self._agreed -= 1
            if self._own:
                self._own -= 1
                yield next(batches)
            else:
                yield self._repeat()

    def _repeat(self) -> Any:
        batch, rows = self._first_batch() or (None, 0)
        self.repeated += 1
        self.padded_rows += rows
        return deepcopy(batch)  # for the user may change it

    def _first_batch(self) -> tuple[Any, int] | None:
        if self._first is None and self._read_first is not None:
            self._first = self._read_first()
        return self._first

    def is_over(self) -> bool:
        """Whether no batch is left."""
        return self._last_round and self._agreed == 0

    def _agree_on_more(self, *, first: bool = False) -> None:
        pad = self._read_first is not None
        certain = self._running.ahead(self._own + _STEPS_AT_ONCE) - self._own
        least, most = self._agree(min(certain, _STEPS_AT_ONCE))
        if first and least == 0 < most:
            if pad:
                self._check_padding(certain)
            else:
                self._report_no_steps(most)
        more = most if pad else least
        self._last_round = more < _STEPS_AT_ONCE
        self._agreed += more
        self._own += min(certain, more)

    def _check_padding(self, certain: int) -> None:
        """Raise a PlanError on all ranks if one of them has no batch to repeat."""
        can_repeat = certain > 0 or self._first_batch() is not None
        if self._agree(int(can_repeat))[0] == 0:
            raise PlanError(
                'a rank has no batch, and found none that even="pad" could repeat; use '
                'even="drop", or fewer ranks'
            )

    def _report_no_steps(self, most: int) -> None:
        """Say on all ranks that no step will be taken because a rank has no batch."""
        message = (
            f"epoch {self._running.epoch}: a rank has no batch while another has {most} or more, "
            'so that with even="drop" no rank takes a step and all that is left of the epoch is '
            'left out; use even="pad" to read it, or fewer ranks, smaller batches, or files that '
            "can be cut into more parts"
        )
        if self._whole:
            raise OptionError(message)
        logger.warning(message)

    def _tell_what_is_left_out(self) -> None:
        left = self._running.ahead(1)
        if left:
            logger.warning(
                "epoch %d: this rank leaves out %d batches or more, so that all ranks take the "
                'same number of steps; even="pad" would read them',
                self._running.epoch,
                left,
            )
