"""What a choice of chunks costs: most formats decode whole row groups for however few rows."""

from __future__ import annotations

import numpy as np

from headrace.model import FileList
from headrace.plan.chunks import ROWS, Chunks

__all__ = ["decode_factor"]


def decode_factor(files: FileList, chunks: Chunks) -> float:
    """How many rows are decoded for each row that is wanted, if nothing is kept in between."""
    rows = chunks[chunks.kind == ROWS]
    grouped = np.maximum(files.group_bounds[:, 1], 0)
    if not len(rows) or not grouped.sum() or len(files.groups) != grouped.sum():
        return 1.0
    owner = np.repeat(np.arange(len(files)), grouped)
    # Every file gets a range of positions of its own, wide enough for its last row.
    ends = files.groups.start + files.groups.rows
    spans = np.zeros(len(files), np.int64)
    np.maximum.at(spans, owner, ends)
    base = np.cumsum(spans + 1) - (spans + 1)
    starts = base[owner] + files.groups.start
    total = np.concatenate([[0], np.cumsum(files.groups.rows)])
    begin = base[rows.file] + rows.offset
    first = np.searchsorted(starts, begin, side="right") - 1
    last = np.searchsorted(starts, begin + rows.length, side="left")
    return float((total[last] - total[np.maximum(first, 0)]).sum() / max(rows.length.sum(), 1))
