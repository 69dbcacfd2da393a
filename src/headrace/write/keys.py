"""The place of every row in a shuffled copy: a random word for each row of the source."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.errors import OptionError

__all__ = ["KEY_BITS", "Keys", "row_keys"]

Keys = npt.NDArray[np.uint64]

KEY_BITS = 64
_WORD = (1 << KEY_BITS) - 1
_COPY_ORDER = 3
"""purpose of these words, beside those of ``plan.order``: no two purposes share a stream"""
_WORDS_OF_A_BLOCK = 4


def row_keys(seed: int, first_row: int, count: int) -> Keys:
    """The keys of rows ``first_row`` to ``first_row + count`` of a source, whatever follows them.

    They are raw words of a counter-based generator (Philox) whose counter is the row's number.
    Rows sorted by key, ties by number, are the shuffled copy: the order depends on the seed and
    on the order of the source, and neither on memory limits nor on how the work was divided.

    >>> whole = row_keys(7, 0, 10)
    >>> bool((row_keys(7, 6, 4) == whole[6:]).all())
    True
    """
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise OptionError(f"seed must be an int, not {seed!r}")
    block, skipped = divmod(first_row, _WORDS_OF_A_BLOCK)
    key = np.array([seed & _WORD, _COPY_ORDER], np.uint64)
    counter = np.array([block, 0, 0, 0], np.uint64)
    words: Keys = np.random.Philox(key=key, counter=counter).random_raw(skipped + count)
    return words[skipped:]
