"""ORC: a file is stripes, each of which decodes as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import orc

from headrace.formats.blocks import cut_rows, in_blocks, rows_only
from headrace.formats.failures import naming
from headrace.formats.orc_footer import MALFORMED, Tail, read_tail
from headrace.formats.orc_pruning import matching_stripes
from headrace.formats.orc_streams import announce_stripes
from headrace.formats.protocol import FileFacts
from headrace.model import DataFileInfo, FileSplit, RowGroups, RowRange
from headrace.storage import Store

__all__ = ["OrcFormat"]


class OrcFormat:
    """ORC files, with their stripes as row groups.

    A group's ``size_bytes`` is its rows times the average row of the file when decoded, as the
    file's statistics tell it; without statistics it is the stripe's length in the file.
    """

    name = "orc"
    extensions: tuple[str, ...] = (".orc",)

    def inspect(
        self, store: Store, file: DataFileInfo, keep: ds.Expression | None = None
    ) -> FileFacts:
        with naming(file.path, *MALFORMED), store.open(file) as source:
            tail = read_tail(source)
            schema = orc.ORCFile(source).schema.remove_metadata()
            groups = RowGroups.of((stripe.rows for stripe in tail.stripes), _sizes(tail))
            if keep is not None:
                groups = groups.keep(matching_stripes(tail, schema, keep))
            return FileFacts(schema, tail.rows, groups)

    def read(
        self, store: Store, chunk: FileSplit, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        with naming(chunk, *MALFORMED), store.open(chunk.file) as source:
            yield from in_blocks(_stripes(source, chunk.row_range, schema.names), block_bytes)


def _sizes(tail: Tail) -> list[int]:
    if tail.row_bytes:
        return [max(1, round(stripe.rows * tail.row_bytes)) for stripe in tail.stripes]
    return [stripe.index_length + stripe.data_length for stripe in tail.stripes]


def _stripes(
    source: pa.NativeFile, row_range: RowRange | None, wanted: list[str]
) -> Iterator[pa.Table]:
    """The rows of each stripe that fall into the range."""
    tail = read_tail(source)
    rows = row_range or RowRange(0, tail.rows)
    if rows.stop > tail.rows:
        raise ValueError(f"the file has {tail.rows} rows only")
    file = orc.ORCFile(source)
    columns = [field for field in file.schema if field.name in set(wanted)]
    shares = list(_shares(tail, rows))
    if columns:
        stripes = [tail.stripes[index] for index, _, _ in shares]
        announce_stripes(source, tail, stripes, [column.name for column in columns])
    for index, first, last in shares:
        if not columns:
            yield rows_only(last - first)
            continue
        yield cut_rows(_read_columns(file, index, columns), first, last)


def _shares(tail: Tail, rows: RowRange) -> Iterator[tuple[int, int, int]]:
    """The stripes that hold some rows, each with the first and last of them in it."""
    stops = accumulate(stripe.rows for stripe in tail.stripes)
    for index, (stripe, stop) in enumerate(zip(tail.stripes, stops, strict=True)):
        first = max(rows.offset - (stop - stripe.rows), 0)
        last = min(rows.stop - (stop - stripe.rows), stripe.rows)
        if first < last:
            yield index, first, last


def _read_columns(file: orc.ORCFile, stripe: int, columns: list[pa.Field]) -> pa.Table:
    """pyarrow takes ``a.b`` for the field b of a struct a if there is one: then read all."""
    names = [field.name for field in columns]
    batch = file.read_stripe(stripe, columns=names)
    if list(batch.schema) != columns:
        batch = file.read_stripe(stripe).select(names)
    return pa.Table.from_batches([batch])
