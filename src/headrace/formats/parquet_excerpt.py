"""Pages of a Parquet file as a small file of their own, and what is decoded from it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.formats.parquet_layout import Branch, Layout, StoredChunk
from headrace.formats.thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    Struct,
    parse_struct,
    write_struct,
)
from headrace.matrices import values_at
from headrace.model import Int64Array

__all__ = [
    "MAGIC",
    "PageMismatch",
    "excerpt_chunk",
    "excerpt_footer",
    "joined",
    "pick",
    "values_in_page",
]

MAGIC = b"PAR1"


class PageMismatch(ValueError):
    """Pages are not what the index says of them; the row group may be readable all the same."""


def values_in_page(page: memoryview) -> int:
    """How many values are in a data page."""
    try:
        header, _ = parse_struct(page)
        about: Struct = header[5 if 5 in header else 8][1]
        return int(about[1][1])
    except (KeyError, ValueError):
        raise PageMismatch("what should be a data page is none") from None


def excerpt_chunk(stored: StoredChunk, values: int, begins: int, pages: int, ends: int) -> Struct:
    """Describes some pages of a column chunk that lie one after the other, after a dictionary."""
    metadata: Struct = {
        **stored.metadata,
        5: (I64, values),
        6: (I64, stored.decoded_size),  # at most
        7: (I64, ends - begins),
        9: (I64, pages),
    }
    if pages > begins:
        metadata[11] = I64, begins
    return {2: (I64, 0), 3: (STRUCT, metadata)}


def excerpt_footer(
    layout: Layout, branch: Branch, row_count: int, columns: Sequence[Struct]
) -> pq.FileMetaData:
    """The footer of a file with nothing but some column chunks of one branch."""
    rows = I64, row_count
    size = sum(column[3][1][6][1] for column in columns)
    group: Struct = {1: (LIST, (STRUCT, columns)), 2: (I64, size), 3: rows}
    schema: Struct = {1: (BINARY, b"ARROW:schema"), 2: (BINARY, _arrow_schema(branch))}
    root: Struct = {**layout.root, 5: (I32, 1)}
    fields: Struct = {
        **layout.footer,
        2: (LIST, (STRUCT, [root, *branch.elements])),
        3: rows,
        4: (LIST, (STRUCT, [group])),
        5: (LIST, (STRUCT, [schema])),
    }
    footer = write_struct(fields)
    end = b"".join([footer, len(footer).to_bytes(4, "little"), MAGIC])
    return pq.ParquetFile(pa.BufferReader(end)).metadata


def _arrow_schema(branch: Branch) -> bytes:
    """What tells pyarrow of types that Parquet has no word for."""
    return base64.b64encode(pa.schema([branch.field]).serialize())


def pick(column: pa.ChunkedArray, places: Int64Array) -> pa.Array:
    """Values at ascending places; of a chunked array pyarrow would copy all to take some."""
    if column.num_chunks == 1:
        return values_at(column.chunk(0), places)
    ends = np.cumsum([len(chunk) for chunk in column.chunks])
    cuts = np.searchsorted(places, ends)
    taken = [
        values_at(chunk, mine - (end - len(chunk)))
        for chunk, end, mine in zip(column.chunks, ends, np.split(places, cuts[:-1]), strict=True)
        if len(mine)
    ]
    return pa.concat_arrays(taken) if taken else pa.array([], column.type)


def joined(branches: Sequence[tuple[tuple[int, ...], pa.Array]]) -> pa.Array:
    """A column of all its branches, each with its path; they agree on which structs are null."""
    path, first = branches[0]
    if not path:
        return first
    children: list[pa.Array] = []
    fields: list[pa.Field] = []
    for _, within in groupby(branches, lambda branch: branch[0][0]):
        inside = list(within)
        children.append(joined([(path[1:], array.field(0)) for path, array in inside]))
        fields.append(inside[0][1].type.field(0).with_type(children[-1].type))
    nulls = first.is_null() if first.null_count else None
    return pa.StructArray.from_arrays(children, fields=fields, mask=nulls)
