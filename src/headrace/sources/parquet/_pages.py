"""Rows of large Parquet row groups by index, from the pages that hold them.

pyarrow reads a column chunk from its first byte until its values or its bytes end. So it is given a
file in which the dictionary and the pages with wanted rows lie where the chunk begins, with nothing
behind them. The places of pages come from the page index, which pyarrow does not show: it and the
footer are parsed here, from the compact protocol of Thrift.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.model import Int64Array
from headrace.process import BoundedCache
from headrace.sources.files.schemas import plain_table
from headrace.sources.parquet._format import Footer, chunk_span, footer_alone, leaf_widths
from headrace.sources.taking import pick
from headrace.storage import will_read

_TRUE, _FALSE, _BYTE, _SHORT, _LONG, _DOUBLE, _BINARY, _LIST, _STRUCT = 1, 2, 3, 4, 6, 7, 8, 9, 12

Struct: TypeAlias = dict[int, Any]
"""Values of the fields of a Thrift struct, by their numbers. Parquet has no sets and no maps."""


def parse_struct(data: bytes) -> Struct:
    """Return the struct at the beginning of ``data``.

    Raises:
        ValueError: There is no struct.
    """
    try:
        return _ThriftReader(data).struct()
    except IndexError:
        raise ValueError("a Thrift struct is cut short") from None


class _ThriftReader:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def struct(self) -> Struct:
        fields: Struct = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._integer()
            kind = head & 15
            fields[number] = kind == _TRUE if kind <= _FALSE else self._value(kind)
        return fields

    def _value(self, kind: int) -> Any:
        if _SHORT <= kind <= _LONG:
            return self._integer()
        if kind == _BINARY:
            return self._raw(self._varint())
        if kind == _STRUCT:
            return self.struct()
        if kind == _LIST:
            head = self._byte()
            size = head >> 4 if head >> 4 < 15 else self._varint()
            return [self._value(head & 15) for _ in range(size)]
        if kind == _DOUBLE:
            return self._raw(8)
        if kind <= _BYTE:  # also a flag inside a list, where it takes a byte
            return self._byte()
        raise ValueError(f"Thrift has no kind {kind}")

    def _integer(self) -> int:
        zigzag = self._varint()
        return (zigzag >> 1) ^ -(zigzag & 1)

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._byte()) >= 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
        return value | byte << shift

    def _byte(self) -> int:
        byte = self._data[self._at]
        self._at += 1
        return byte

    def _raw(self, length: int) -> bytes:
        start = self._at
        self._at += length  # if that is beyond the end, so is the next value, which must exist
        return self._data[start : self._at]


class PageMismatch(ValueError):
    """Pages are not as their index describes them; the row group may still be readable."""


@dataclass(frozen=True, slots=True, eq=False)
class ChunkPages:
    """The data pages of a column chunk."""

    offsets: Int64Array
    sizes: Int64Array
    """Size of each page in bytes, with its header."""
    first_rows: Int64Array
    """First row of each page, within the row group."""


def parse_pages(index: bytes) -> ChunkPages:
    """Return the pages of an offset index.

    Raises:
        PageMismatch: The bytes are not a valid offset index.
    """
    try:
        pages: list[Struct] = parse_struct(index)[1]
        columns = np.array([[page[number] for page in pages] for number in (1, 2, 3)], np.int64)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise PageMismatch(f"its page index is damaged: {error}") from None
    found = ChunkPages(*columns)
    if not pages or found.first_rows[0] != 0 or (np.diff(found.first_rows) < 0).any():
        raise PageMismatch("its pages do not follow each other")
    if (found.offsets <= 0).any() or (found.sizes <= 0).any():
        raise PageMismatch("a page has no place, or no size")
    return found


# --- which pages


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """A column, or a field of its structs at any depth, whose pages are chosen for itself.

    Attributes:
        path: Number of the column, of the field within it, and so on.
        leaves: Its leaves in the file; several only for maps and for lists of structs.
    """

    path: tuple[int, ...]
    leaves: range


def _branches(
    fields: Iterable[pa.Field], leaf: int = 0, path: tuple[int, ...] = ()
) -> Iterator[Branch]:
    for place, one in enumerate(fields):
        stop = leaf + len(list(leaf_widths(one.type)))
        if pa.types.is_struct(one.type):
            yield from _branches(one.type, leaf, (*path, place))
        else:
            yield Branch((*path, place), range(leaf, stop))
        leaf = stop


@dataclass(frozen=True, slots=True, eq=False)
class BranchPages:
    """The pages of a branch that hold some rows.

    Attributes:
        branch: The branch.
        spans: Byte ranges of each leaf: its dictionary, if it has one, and its pages.
        rows: Number of rows in these pages.
        places: Indices of the wanted rows among them.
    """

    branch: Branch
    spans: Sequence[Sequence[tuple[int, int]]]
    rows: int
    places: Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The pages that hold some rows of a row group.

    Attributes:
        group: Index of the row group.
        parts: Pages of each branch.
        chunk_bytes: Number of bytes of the same columns of the whole row group.
        decoded_bytes: Their approximate decoded size.
    """

    group: int
    parts: Sequence[BranchPages]
    chunk_bytes: int
    decoded_bytes: int

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Byte ranges to read, one for each page or dictionary."""
        return [span for part in self.parts for leaf in part.spans for span in leaf]

    @property
    def page_bytes(self) -> int:
        """Number of bytes to read."""
        return sum(stop - start for start, stop in self.spans)


_CACHE_BYTES = 64 << 20
_LARGEST_FOOTER_BYTES = 1 << 20
"""Largest footer parsed here, in Python, which takes half a second."""
_BUFFER_BYTES = 1 << 20

_indices: BoundedCache[ChunkPages] = BoundedCache(lambda pages: 400 + 24 * len(pages.offsets))


@dataclass(frozen=True, slots=True, eq=False)
class PageReader:
    """Reads pages of one file; the page indexes that it reads are kept for later readers.

    Attributes:
        source: The file.
        footer: Its footer.
        key: Identity of the file.
        options: Options of pyarrow's ParquetFile.
    """

    source: pa.NativeFile
    footer: Footer
    key: tuple[Hashable, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    def select(self, wanted: Mapping[int, Int64Array], columns: Sequence[str]) -> list[Selection]:
        """Return the pages that hold some rows, for the groups that have a page index.

        Args:
            wanted: The rows of each group, ascending.
            columns: The columns.

        Raises:
            PageMismatch: A page index is damaged.
        """
        stored = self.footer.metadata.schema.to_arrow_schema()
        branches = [one for one in _branches(stored) if stored.names[one.path[0]] in columns]
        leaves = [leaf for branch in branches for leaf in branch.leaves]
        places = self._index_places()
        groups = [g for g in wanted if leaves and all(places[g][leaf] for leaf in leaves)]
        missing = [
            places[group][leaf]
            for group in groups
            for leaf in leaves
            if _indices.get((*self.key, group, leaf)) is None
        ]
        will_read(self.source, [span for span in missing if span])
        return [self._selection(group, branches, wanted[group]) for group in groups]

    def read(self, selections: Sequence[Selection]) -> Iterator[pa.Table]:
        """Yield the rows of each selection.

        Raises:
            PageMismatch: Pages are not as their index describes them.
        """
        names = self.footer.metadata.schema.to_arrow_schema().names
        will_read(self.source, [span for one in selections for span in one.spans])
        for selection in selections:
            columns: dict[str, list[tuple[tuple[int, ...], pa.Array]]] = {}
            for part in selection.parts:
                column, *within = part.branch.path
                branches = columns.setdefault(names[column], [])
                branches.append((tuple(within), self._decoded(selection.group, part)))
            yield pa.table({name: _joined_branches(branches) for name, branches in columns.items()})

    def _index_places(self) -> Sequence[Sequence[tuple[int, int] | None]]:
        """Return the byte range of the offset index of each leaf in each row group."""
        footer = self.footer
        if footer.index_places is None:
            end = footer_alone(self.source)
            if end.size() > _LARGEST_FOOTER_BYTES:
                leaves = footer.metadata.num_columns
                footer.index_places = [[None] * leaves] * footer.metadata.num_row_groups
            else:
                groups = parse_struct(end.read()).get(4, [])
                footer.index_places = [[_index_place(chunk) for chunk in g[1]] for g in groups]
        return footer.index_places

    def _pages(self, group: int, leaf: int) -> ChunkPages:
        def find() -> ChunkPages:
            place = self._index_places()[group][leaf]
            assert place is not None
            return parse_pages(self.source.read_at(place[1] - place[0], place[0]))

        return _indices.get_or_make((*self.key, group, leaf), find, limit_bytes=_CACHE_BYTES)

    def _selection(self, group: int, branches: Sequence[Branch], rows: Int64Array) -> Selection:
        """Return the pages of a group that hold some rows, with the size of the whole group."""
        stored = self.footer.metadata.row_group(group)
        chunks = [stored.column(leaf) for branch in branches for leaf in branch.leaves]
        return Selection(
            group,
            [self._branch_pages(branch, group, rows) for branch in branches],
            sum(chunk.total_compressed_size for chunk in chunks),
            sum(chunk.total_uncompressed_size for chunk in chunks),
        )

    def _branch_pages(self, branch: Branch, group: int, rows: Int64Array) -> BranchPages:
        """Return pages with some rows, in runs that begin and end with pages of all leaves."""
        stored = self.footer.metadata.row_group(group)
        indices = [self._pages(group, leaf) for leaf in branch.leaves]
        begins = reduce(np.intersect1d, [index.first_rows for index in indices])
        ends = np.append(begins[1:], stored.num_rows)
        runs, run_of_row = np.unique(
            np.searchsorted(begins, rows, side="right") - 1, return_inverse=True
        )
        lengths = ends[runs] - begins[runs]
        places = rows - begins[runs][run_of_row] + (np.cumsum(lengths) - lengths)[run_of_row]
        spans = [
            _page_spans(chunk_span(stored.column(leaf))[0], index, begins[runs], ends[runs])
            for leaf, index in zip(branch.leaves, indices, strict=True)
        ]
        return BranchPages(branch, spans, int(lengths.sum()), places)

    def _decoded(self, group: int, part: BranchPages) -> pa.Array:
        """Decode the pages of a branch, and return the wanted rows."""
        stored, leaves = self.footer.metadata.row_group(group), part.branch.leaves
        chunks = {
            chunk_span(stored.column(leaf))[0]: self._fetched(spans)
            for leaf, spans in zip(leaves, part.spans, strict=True)
        }
        excerpt = pa.PythonFile(_Excerpt(chunks, self.source.size()), "r")
        try:
            file = pq.ParquetFile(
                excerpt,
                metadata=self.footer.metadata,
                buffer_size=_BUFFER_BYTES,
                pre_buffer=False,
                **self.options,
            )
            table = file.reader.read_row_groups([group], column_indices=leaves, use_threads=False)
        except MemoryError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise PageMismatch(str(error)) from error
        if table.num_rows != part.rows:
            found = table.num_rows
            raise PageMismatch(f"{part.rows} rows should be in these pages, and {found} are")
        return pick(plain_table(table).column(0), part.places)

    def _fetched(self, spans: Sequence[tuple[int, int]]) -> memoryview:
        """Return byte ranges of the file, one behind the other."""
        found = memoryview(bytearray(sum(stop - start for start, stop in spans)))
        at = 0
        for start, stop in spans:
            self.source.seek(start)
            if self.source.readinto(found[at : at + stop - start]) < stop - start:
                raise PageMismatch(f"the file ends before byte {stop}")
            at += stop - start
        return found


class _Excerpt(io.RawIOBase):
    """A file that has some bytes at the beginning of column chunks, and nothing behind them.

    Args:
        chunks: The bytes that are there, by the place of the first.
        size: Size of the whole file.
    """

    def __init__(self, chunks: Mapping[int, memoryview], size: int) -> None:
        self._starts = sorted(chunks)
        self._chunks, self._size, self._at = chunks, size, 0

    def read(self, nbytes: int = -1) -> memoryview:
        start = self._starts[bisect_right(self._starts, self._at) - 1]
        first = self._at - start
        found = self._chunks[start][first : first + nbytes]
        self._at += len(found)
        return found

    def seek(self, position: int, whence: int = 0) -> int:
        self._at = position + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True


def _index_place(chunk: Struct) -> tuple[int, int] | None:
    """Return the byte range of the offset index of a column chunk, if it has one."""
    start, length = chunk.get(4), chunk.get(5)
    return (start, start + length) if start and length else None


def _page_spans(
    start: int, index: ChunkPages, begins: Int64Array, ends: Int64Array
) -> list[tuple[int, int]]:
    """Return the places of the dictionary of a chunk and of the pages between some rows.

    Pages without rows, which pyarrow itself may write, are left out: if such a page is first,
    pyarrow takes it for the end.

    Args:
        start: First byte of the chunk, which is that of a dictionary if no page begins there.
        index: The pages of the chunk.
        begins: Rows at which pages begin.
        ends: The row behind the last for each of them, at which pages end.
    """
    first = np.searchsorted(index.first_rows, begins)
    last = np.searchsorted(index.first_rows, ends)
    pages = np.concatenate([np.arange(a, b) for a, b in zip(first, last, strict=True)])
    holds_rows = np.append(np.diff(index.first_rows) > 0, True)
    chosen = pages[holds_rows[pages]]
    offsets = index.offsets[chosen]
    found = zip(offsets.tolist(), (offsets + index.sizes[chosen]).tolist(), strict=True)
    dictionary = [(start, int(index.offsets[0]))] if start < index.offsets[0] else []
    return dictionary + list(found)


def _joined_branches(branches: Sequence[tuple[tuple[int, ...], pa.Array]]) -> pa.Array:
    """Return a column from all its branches with their paths; their null structs are the same."""
    path, first = branches[0]
    if not path:
        return first
    children: list[pa.Array] = []
    fields: list[pa.Field] = []
    for _, within in groupby(branches, lambda branch: branch[0][0]):
        inside = list(within)
        children.append(_joined_branches([(path[1:], array.field(0)) for path, array in inside]))
        fields.append(inside[0][1].type.field(0).with_type(children[-1].type))
    nulls = first.is_null() if first.null_count else None
    return pa.StructArray.from_arrays(children, fields=fields, mask=nulls)
