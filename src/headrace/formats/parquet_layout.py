"""Where the pages of a Parquet file lie, as its footer and its offset indices tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.formats.cache import BoundedCache
from headrace.formats.thrift import I32, Struct, parse_struct, write_struct
from headrace.model import Int64Array

__all__ = ["Branch", "ChunkPages", "Layout", "StoredChunk", "parse_layout", "parse_pages"]

_REPEATED = 2
_BRANCHES_BYTES = 16 << 20
_KEPT = (1, 2, 3, 4)
"""of a column chunk's metadata: type, encodings, path and codec, which its pages do not tell"""


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """A column, or a field of its structs, however deep: what is stored by itself."""

    column: str
    path: tuple[int, ...]
    """which field of the column, which field of that, and so on"""
    field: pa.Field
    """the column, with nothing but this inside of its structs"""
    elements: Sequence[Struct]
    """how Parquet describes ``field``"""
    leaves: range
    """of the file; several only of maps and of lists of structs"""

    @property
    def repeated(self) -> bool:
        """Whether a row may have any number of values."""
        return any(element.get(3, (I32, 0))[1] == _REPEATED for element in self.elements)


@dataclass(frozen=True, slots=True, eq=False)
class StoredChunk:
    """One leaf in one row group."""

    metadata: Struct
    start: int
    size: int
    decoded_size: int
    values: int
    index: tuple[int, int] | None
    """first byte of its offset index, and the byte after the last"""


@dataclass(frozen=True, slots=True, eq=False)
class ChunkPages:
    """The data pages of a column chunk."""

    offsets: Int64Array
    sizes: Int64Array
    """in bytes, with their headers"""
    first_rows: Int64Array
    """of each page, within the row group"""
    values: Int64Array | None = None
    """in each page, where that is known"""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """What a footer says of where things are; without branches if pages cannot be read apart.

    There may be many files with many row groups: chunks are kept as numbers.
    """

    footer: Struct
    """without its schema and row groups"""
    root: Struct
    branches: Sequence[Branch]
    group_rows: Sequence[int]
    chunks: Int64Array
    """by row group and leaf, the numbers of a StoredChunk, its metadata being one of ``kinds``"""
    kinds: Sequence[Struct]

    def chunk(self, group: int, leaf: int) -> StoredChunk | None:
        """None for what is encrypted or lies in another file."""
        kind, start, size, decoded_size, values, first, stop = self.chunks[group, leaf].tolist()
        index = (first, stop) if stop else None
        if kind < 0:
            return None
        return StoredChunk(self.kinds[kind], start, size, decoded_size, values, index)

    @property
    def nbytes(self) -> int:
        """About what it takes in memory, without what it shares with others."""
        return 2000 + int(self.chunks.nbytes) + 40 * len(self.group_rows) + 1000 * len(self.kinds)


def parse_layout(footer: bytes, schema: pa.Schema) -> Layout:
    """The layout of a file, of which ``schema`` are the columns as pyarrow reads them.

    ValueError if the footer is none.
    """
    fields, _ = parse_struct(footer)
    groups: list[Struct] = fields[4][1][1]
    kinds: dict[bytes, tuple[int, Struct]] = {}
    chunks = [[_numbers(chunk, kinds) for chunk in group[1][1][1]] for group in groups]
    return Layout(
        footer={number: fields[number] for number in (1, 6) if number in fields},
        root=fields[2][1][1][0],
        branches=_shared_branches(fields[2], schema),
        group_rows=[group[3][1] for group in groups],
        chunks=np.array(chunks, np.int64),
        kinds=[kind for _, kind in kinds.values()],
    )


def parse_pages(index: bytes) -> ChunkPages:
    """An offset index. ValueError if it is none, or none that can be."""
    fields, _ = parse_struct(index)
    pages: list[Struct] = fields[1][1][1] if 1 in fields else []
    if not all({1, 2, 3} <= page.keys() for page in pages):
        raise ValueError("a page without a place")
    columns = np.array([[page[number][1] for page in pages] for number in (1, 2, 3)], np.int64)
    found = ChunkPages(*columns)
    if not pages or found.first_rows[0] != 0 or (np.diff(found.first_rows) < 0).any():
        raise ValueError("its pages do not follow each other")
    if (found.offsets <= 0).any() or (found.sizes <= 0).any():
        raise ValueError("a page that is nowhere")
    return found


def _numbers(chunk: Struct, kinds: dict[bytes, tuple[int, Struct]]) -> tuple[int, ...]:
    if 3 not in chunk or chunk.keys() & {1, 8, 9}:
        return -1, 0, 0, 0, 0, 0, 0
    metadata: Struct = chunk[3][1]
    start = metadata[9][1]
    if 11 in metadata and 0 < metadata[11][1] < start:  # the dictionary
        start = metadata[11][1]
    first, length = (chunk[4][1], chunk[5][1]) if {4, 5} <= chunk.keys() else (0, 0)
    kind = {number: metadata[number] for number in _KEPT}
    place, _ = kinds.setdefault(write_struct(kind), (len(kinds), kind))
    return place, start, metadata[7][1], metadata[6][1], metadata[5][1], first, first + length


def _shared_branches(described: tuple[int, Any], schema: pa.Schema) -> Sequence[Branch]:
    """Of many files with the same columns, the same."""
    key = write_struct({2: described}), schema.serialize().to_pybytes()
    return _known_branches.get_or_make(
        key, lambda: list(_branches(described[1][1], schema)), limit_bytes=_BRANCHES_BYTES
    )


def _branches(elements: Sequence[Struct], schema: pa.Schema) -> Iterator[Branch]:
    at, leaf = 1, 0
    for field in schema:
        for branch in _apart(field, elements, at, leaf):
            yield branch
            leaf = branch.leaves.stop
        at = _end(elements, at)


def _apart(field: pa.Field, elements: Sequence[Struct], at: int, leaf: int) -> Iterator[Branch]:
    """The parts of a field that are stored apart, each with all that it is inside of."""
    if not pa.types.is_struct(field.type):
        described = elements[at : _end(elements, at)]
        leaves = sum(1 in element for element in described)  # groups have no type
        yield Branch(field.name, (), field, described, range(leaf, leaf + leaves))
        return
    alone: Struct = {**elements[at], 5: (I32, 1)}
    at += 1
    for place, child in enumerate(field.type):
        for branch in _apart(child, elements, at, leaf):
            yield replace(
                branch,
                column=field.name,
                path=(place, *branch.path),
                field=field.with_type(pa.struct([branch.field])),
                elements=[alone, *branch.elements],
            )
            leaf = branch.leaves.stop
        at = _end(elements, at)


def _end(elements: Sequence[Struct], at: int) -> int:
    """Where the element after this one and all that is inside of it is."""
    inside: tuple[int, Any] = elements[at].get(5, (I32, 0))
    at += 1
    for _ in range(inside[1]):
        at = _end(elements, at)
    return at


_known_branches: BoundedCache[list[Branch]] = BoundedCache(lambda branches: 4000 * len(branches))
