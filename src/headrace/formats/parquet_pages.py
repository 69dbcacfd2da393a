"""Some rows of a large row group, from the pages that hold them and no others.

pyarrow reads column chunks as a whole. So the pages that are wanted are put into a small Parquet
file in memory, as they are, and it decodes that: whatever it can read is read the same way here.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.formats.cache import BoundedCache
from headrace.formats.parquet_excerpt import (
    MAGIC,
    PageMismatch,
    excerpt_chunk,
    excerpt_footer,
    joined,
    pick,
    values_in_page,
)
from headrace.formats.parquet_layout import (
    Branch,
    ChunkPages,
    Layout,
    StoredChunk,
    parse_layout,
    parse_pages,
)
from headrace.formats.parquet_rows import footer_alone
from headrace.formats.parquet_walk import walk_pages
from headrace.formats.thrift import Struct
from headrace.model import Int64Array
from headrace.storage import will_read

__all__ = ["PageReader", "Selection"]

_CACHE_BYTES = 64 << 20
_LARGEST_FOOTER_BYTES = 1 << 20
"""to be parsed here, in Python, which takes half a second"""


@dataclass(frozen=True, slots=True, eq=False)
class BranchPages:
    """The pages of a branch that hold some rows."""

    branch: Branch
    pages: Sequence[tuple[StoredChunk, ChunkPages, Int64Array]]
    """of each leaf, with the numbers of its pages"""
    rows: int
    """that these pages hold"""
    places: Int64Array
    """of the wanted rows among them"""

    @property
    def ranges(self) -> Iterator[tuple[int, int]]:
        """Bytes to read."""
        for chunk, index, chosen in self.pages:
            yield from _dictionary(chunk, index)
            yield from _places(index, chosen)


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The pages that hold some rows of a row group."""

    group: int
    parts: Sequence[BranchPages]

    @property
    def page_bytes(self) -> int:
        """To be read."""
        return sum(stop - start for part in self.parts for start, stop in part.ranges)

    @property
    def chunk_bytes(self) -> int:
        """To be read of the same columns if the row group were read whole."""
        return sum(chunk.size for part in self.parts for chunk, _, _ in part.pages)

    @property
    def decoded_bytes(self) -> int:
        """Of the same columns of the row group, about."""
        return sum(chunk.decoded_size for part in self.parts for chunk, _, _ in part.pages)

    @property
    def pages(self) -> int:
        """How many they are."""
        return sum(len(chosen) for part in self.parts for _, _, chosen in part.pages)


@dataclass(frozen=True, slots=True, eq=False)
class PageReader:
    """Reads pages of one file. What it learns of the file is kept for the next one."""

    source: pa.NativeFile
    key: tuple[Hashable, ...]
    """identity of the file"""
    options: Mapping[str, Any] = field(default_factory=dict)
    """of pyarrow's ParquetFile"""
    walks: bool = False
    """whether pages that no index lists are looked for: a small read each, one after the other"""

    def select(self, wanted: Mapping[int, Int64Array], columns: Sequence[str]) -> list[Selection]:
        """Pages for some rows, ascending, of some groups; none where they cannot be found.

        PageMismatch if an index is none.
        """
        layout = self._layout()
        branches = [branch for branch in layout.branches if branch.column in columns]
        leaves = [leaf for branch in branches for leaf in branch.leaves]
        groups = [g for g in wanted if leaves and self._can_find(layout, g, leaves)]
        self._announce_indices(layout, groups, leaves)
        return [
            Selection(
                group,
                [self._branch_pages(layout, branch, group, wanted[group]) for branch in branches],
            )
            for group in groups
        ]

    def read(self, selections: Sequence[Selection]) -> Iterator[pa.Table]:
        """The rows that each selection is for. PageMismatch if pages are not as they should be."""
        layout = self._layout()
        will_read(self.source, [r for s in selections for part in s.parts for r in part.ranges])
        for selection in selections:
            columns: dict[str, list[tuple[tuple[int, ...], pa.Array]]] = {}
            for part in selection.parts:
                branches = columns.setdefault(part.branch.column, [])
                branches.append((part.branch.path, self._decoded(layout, part)))
            yield pa.table({name: joined(branches) for name, branches in columns.items()})

    # --- what there is

    def _layout(self) -> Layout:
        return _layouts.get_or_make(self.key, self._parsed, limit_bytes=_CACHE_BYTES)

    def _parsed(self) -> Layout:
        footer = footer_alone(self.source)
        size = footer.size()
        if size > _LARGEST_FOOTER_BYTES or footer.read_at(4, size - 4) != MAGIC:
            return Layout({}, {}, [], [], np.empty((0, 0, 0), np.int64), [])
        schema = pq.ParquetFile(footer, **self.options).schema_arrow
        return parse_layout(footer.read_at(size - 8, 0), schema)

    def _can_find(self, layout: Layout, group: int, leaves: Sequence[int]) -> bool:
        chunks = [layout.chunk(group, leaf) for leaf in leaves]
        return all(chunk and (self.walks or chunk.index is not None) for chunk in chunks)

    def _announce_indices(
        self, layout: Layout, groups: Sequence[int], leaves: Sequence[int]
    ) -> None:
        chunks = [
            layout.chunk(group, leaf)
            for group in groups
            for leaf in leaves
            if _indices.get((*self.key, group, leaf)) is None
        ]
        will_read(self.source, [chunk.index for chunk in chunks if chunk and chunk.index])

    def _pages(self, chunk: StoredChunk, group: int, leaf: int, repeated: bool) -> ChunkPages:
        def find() -> ChunkPages:
            if chunk.index is None:
                return walk_pages(self.source, chunk, repeated=repeated)
            start, stop = chunk.index
            return parse_pages(self.source.read_at(stop - start, start))

        try:
            return _indices.get_or_make((*self.key, group, leaf), find, limit_bytes=_CACHE_BYTES)
        except ValueError as error:
            raise PageMismatch(str(error)) from None

    def _branch_pages(
        self, layout: Layout, branch: Branch, group: int, rows: Int64Array
    ) -> BranchPages:
        """Spans of rows that begin and end with pages of all leaves, and hold these rows."""
        chunks = [chunk for i in branch.leaves if (chunk := layout.chunk(group, i)) is not None]
        indices = [
            self._pages(chunk, group, leaf, branch.repeated)
            for chunk, leaf in zip(chunks, branch.leaves, strict=True)
        ]
        begins = reduce(np.intersect1d, [index.first_rows for index in indices])
        ends = np.append(begins[1:], layout.group_rows[group])
        spans, span_of_row = np.unique(
            np.searchsorted(begins, rows, side="right") - 1, return_inverse=True
        )
        lengths = ends[spans] - begins[spans]
        places = rows - begins[spans][span_of_row] + (np.cumsum(lengths) - lengths)[span_of_row]
        pages = [
            (chunk, index, _pages_of(index, begins[spans], ends[spans]))
            for chunk, index in zip(chunks, indices, strict=True)
        ]
        return BranchPages(branch, pages, int(lengths.sum()), places)

    # --- what is in it

    def _decoded(self, layout: Layout, part: BranchPages) -> pa.Array:
        pages, columns = self._fetched(part)
        footer = excerpt_footer(layout, part.branch, part.rows, columns)
        excerpt = pq.ParquetFile(
            pa.BufferReader(pages), metadata=footer, pre_buffer=False, **self.options
        )
        column = excerpt.reader.read_row_groups([0], use_threads=False).column(0)
        if len(column) != part.rows:
            raise PageMismatch(f"{part.rows} rows should be in these pages, and {len(column)} are")
        return pick(column, part.places)

    def _fetched(self, part: BranchPages) -> tuple[pa.Buffer, list[Struct]]:
        """The pages one after the other, and how a footer describes the column chunks they make."""
        size = sum(stop - start for start, stop in part.ranges)
        buffer = pa.allocate_buffer(len(MAGIC) + size)  # nothing may be at byte 0
        view = memoryview(buffer).cast("B")
        at = len(MAGIC)
        columns: list[Struct] = []
        for chunk, index, chosen in part.pages:
            begins = at
            for start, stop in _dictionary(chunk, index):
                at = self._read_into(view, at, start, stop)
            pages = [at]
            for start, stop in _places(index, chosen):
                at = self._read_into(view, at, start, stop)
                pages.append(at)
            if index.values is None:
                values = sum(values_in_page(view[a:b]) for a, b in pairwise(pages))
            else:
                values = int(index.values[chosen].sum())
            columns.append(excerpt_chunk(chunk, values, begins, pages[0], at))
        return buffer, columns

    def _read_into(self, view: memoryview, at: int, start: int, stop: int) -> int:
        """Bytes of the file to ``at``, and the place behind them."""
        self.source.seek(start)
        if self.source.readinto(view[at : at + stop - start]) < stop - start:
            raise PageMismatch(f"the file ends before byte {stop}")
        return at + stop - start


def _pages_of(index: ChunkPages, begins: Int64Array, ends: Int64Array) -> Int64Array:
    """The numbers of the pages between rows at which pages begin and end.

    Pages without rows, which pyarrow itself may write, are left out: if such a page comes first, it
    takes it for the end.
    """
    first = np.searchsorted(index.first_rows, begins)
    last = np.searchsorted(index.first_rows, ends)
    pages = np.concatenate([np.arange(a, b) for a, b in zip(first, last, strict=True)])
    holds_rows = np.append(np.diff(index.first_rows) > 0, True)
    chosen: Int64Array = pages[holds_rows[pages]]
    return chosen


def _dictionary(chunk: StoredChunk, index: ChunkPages) -> Iterator[tuple[int, int]]:
    """Where the dictionary of a chunk is, before all of its other pages, if it has one."""
    if chunk.start < index.offsets[0]:
        yield chunk.start, int(index.offsets[0])


def _places(index: ChunkPages, chosen: Int64Array) -> Iterator[tuple[int, int]]:
    starts = index.offsets[chosen]
    return zip(starts.tolist(), (starts + index.sizes[chosen]).tolist(), strict=True)


_layouts: BoundedCache[Layout] = BoundedCache(lambda layout: layout.nbytes)
_indices: BoundedCache[ChunkPages] = BoundedCache(lambda pages: 400 + 24 * len(pages.offsets))
