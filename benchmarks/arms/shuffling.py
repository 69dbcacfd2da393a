"""Arms that shuffle: their declaration, and measures of how thoroughly they shuffle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from data import Data

from arms.registry import Arm, Pieces, register
from arms.touch import count_rows

__all__ = ["BATCH_ROWS", "BUFFER_ROWS", "shuffle", "strength"]

BATCH_ROWS = 1024
BUFFER_ROWS = 10_000
Batches = Iterable[Mapping[str, torch.Tensor]]


def shuffle(
    name: str,
    *,
    reads: str | None = "parquet",
    prepare: Callable[[], None] | None = None,
    beforehand: Callable[[Data], None] | None = None,
    order: Callable[[Data], Batches] | None = None,
) -> Callable[[Callable[[Data], Batches]], Callable[[Data], Batches]]:
    """Declare a function that returns shuffled batches of all columns as the arm ``name``.

    ``order`` returns the same batches with the column ``row`` alone, where that is faster.
    """

    def declare(batches: Callable[[Data], Batches]) -> Callable[[Data], Batches]:
        def run(data: Data) -> Pieces:
            yield from count_rows(batches(data), columns=21)

        register(Arm(name, reads, run, prepare, beforehand, order or batches))
        return batches

    return declare


def strength(batches: Iterable[Mapping[str, Any]], data: Data) -> dict[str, float]:
    """Return how far rows move, and from how many places the rows of a batch come.

    ``displacement``: the mean distance between the place of a row in the files and its place in the
    epoch, as a share of the epoch; 1/3 for a random order of all rows. ``groups``: the mean number
    of row groups among the rows of a full batch. ``neighbours``: the share of rows that directly
    follow the row before them in the files.
    """
    rows = [np.array(batch["row"]) for batch in batches]
    order = np.concatenate(rows)
    total = data.rows("parquet")
    if not np.array_equal(np.sort(order), np.arange(total)):
        lost = total - len(np.unique(order))
        raise SystemExit(f"{lost} of {total} rows were lost, and {len(order)} were read")
    full = [part for part in rows if len(part) == BATCH_ROWS]
    return {
        "displacement": float(np.abs(order - np.arange(total)).mean() / total),
        "groups": float(np.mean([len(np.unique(part // data.rows_per_group)) for part in full])),
        "neighbours": float((np.diff(order) == 1).mean()),
    }
