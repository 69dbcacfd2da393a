"""Where in an ORC file the bytes of some columns are: a stripe is streams, several to a column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from headrace.formats.orc_footer import Stripe, Tail
from headrace.formats.orc_wire import decompress, number_in, parse_message
from headrace.storage import will_read

__all__ = ["announce_stripes"]

_INDEX_KINDS = {6, 7, 8}
"""row indices and Bloom filters, which nobody reads"""


def announce_stripes(
    source: pa.NativeFile, tail: Tail, stripes: Sequence[Stripe], columns: Sequence[str]
) -> None:
    """Have the columns of some stripes fetched; of all columns, the stripes as they are."""
    if len(columns) == len(tail.column_ids):
        will_read(source, [(s.offset + s.index_length, s.stop) for s in stripes])
        return
    footers = [(s.stop - s.footer_length, s.stop) for s in stripes]
    will_read(source, footers)
    wanted = {number for name in columns for number in tail.ids_of(name)} | {0}
    spans = [
        span
        for stripe, (start, stop) in zip(stripes, footers, strict=True)
        for span in _streams(stripe, source.read_at(stop - start, start), tail, wanted)
    ]
    will_read(source, [*spans, *footers])


def _streams(
    stripe: Stripe, footer: bytes, tail: Tail, wanted: set[int]
) -> Iterator[tuple[int, int]]:
    """Extents of the wanted columns' streams, which lie one after the other."""
    start = stripe.offset
    for raw in parse_message(decompress(footer, tail.compression)).get(1, []):
        stream = parse_message(raw)
        stop = start + number_in(stream, 3)
        if number_in(stream, 2) in wanted and number_in(stream, 1) not in _INDEX_KINDS:
            yield start, stop
        start = stop
