"""Records to a table, in pieces where there is more than one array holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from headrace.archives.packed_cells import Where

__all__ = ["in_pieces"]

_ROOM_BYTES = 1 << 30
"""of records, so that the offsets of their cells have no more than 32 bits"""


def in_pieces(
    records: Sequence[bytes], where: Where, make: Callable[[Sequence[bytes], Where], pa.Table]
) -> pa.Table:
    """What ``make`` makes of records, one part of them after the other."""
    if sum(map(len, records)) <= _ROOM_BYTES:
        return make(records, where)
    cuts, held = [0], 0
    for place, record in enumerate(records):
        held += len(record)
        if held > _ROOM_BYTES and place > cuts[-1]:
            cuts.append(place)
            held = len(record)
    stops = [*cuts[1:], len(records)]
    parts = [
        make(records[start:stop], _shifted(where, start))
        for start, stop in zip(cuts, stops, strict=True)
    ]
    return pa.concat_tables(parts)


def _shifted(where: Where, places: int) -> Where:
    return lambda place: where(places + place)
