"""Ranges of keys whose rows fit into memory together; pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.model import Int64Array
from headrace.write.keys import KEY_BITS

__all__ = ["LAST_KEY", "KeyRange", "fitting_ranges", "parts_of_a_run"]

LAST_KEY = (1 << KEY_BITS) - 1
_MOST_PARTS = 4096
_SMALLEST_PART_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Keys ``first`` to ``last``, both of them included."""

    first: int
    last: int


def parts_of_a_run(run_bytes: int, expected_bytes: int, range_bytes: int) -> int:
    """In how many parts to write a run, a power of 2.

    As many as let a part of each of all the runs fit into memory, with room for an estimate that
    is too low; but parts must not become so small that reading them is all overhead.
    """
    wanted = -(-2 * expected_bytes // range_bytes)
    most = min(_MOST_PARTS, max(1, run_bytes // _SMALLEST_PART_BYTES))
    parts = 1
    while parts < wanted and 2 * parts <= most:
        parts *= 2
    return parts


def fitting_ranges(
    sizes: Sequence[Int64Array], range_bytes: int, first_key: int = 0
) -> Iterator[KeyRange]:
    """The space of keys from ``first_key`` on, halved until each piece holds few enough bytes.

    ``sizes`` are the bytes in the parts of each run. Within a part they count as spread evenly:
    keys are random, so they are, but for rows of very different size.
    """
    places, bytes_before = _distribution(sizes)

    def between(first: int, last: int) -> float:
        ends = np.interp([first / 2**KEY_BITS, (last + 1) / 2**KEY_BITS], places, bytes_before)
        return float(ends[1] - ends[0])

    pending = [KeyRange(first_key, LAST_KEY)]
    while pending:
        keys = pending.pop()
        if keys.first == keys.last or between(keys.first, keys.last) <= range_bytes:
            yield keys
            continue
        middle = (keys.first + keys.last) // 2
        pending += [KeyRange(middle + 1, keys.last), KeyRange(keys.first, middle)]


def _distribution(
    sizes: Sequence[Int64Array],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Bytes of all runs before each place in the space of keys, which goes from 0 to 1."""
    finest = max((len(parts) for parts in sizes), default=1)
    in_cells = np.zeros(finest)
    for parts in sizes:  # lengths are powers of 2
        in_cells += np.repeat(parts / (finest // len(parts)), finest // len(parts))
    return np.arange(finest + 1) / finest, np.concatenate([[0.0], np.cumsum(in_cells)])
