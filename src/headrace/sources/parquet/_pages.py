"""Rows of large Parquet row groups by index, from the pages that hold them.

Pages are found by the page index of a file, or in local files by walking over their headers. The
pages with wanted rows are put into a small Parquet file in memory, which pyarrow decodes. For this,
the library itself reads and writes only metadata in the compact protocol of Thrift.
"""

from __future__ import annotations

import base64
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.model import Int64Array
from headrace.sources.files._cache import BoundedCache
from headrace.sources.parquet._format import footer_alone
from headrace.sources.taking import pick
from headrace.storage import will_read

TRUE, FALSE, I8, I16, I32, I64, DOUBLE, BINARY, LIST, _SET, _MAP, STRUCT = range(1, 13)

Struct = dict[int, tuple[int, Any]]
"""Fields of a Thrift struct by number, each with its kind and value.

Integers are ints, binaries are bytes, doubles are their eight bytes, structs are such dicts, and a
list is (kind, values). Parquet has no sets and no maps.
"""


def parse_struct(data: bytes | memoryview, start: int = 0) -> tuple[Struct, int]:
    """Return the struct that begins at ``start``, and where it ends.

    Raises:
        ValueError: There is no struct.
    """
    reader = _Reader(data, start)
    try:
        return reader.struct(), reader.at
    except IndexError:
        raise ValueError("a Thrift struct is cut short") from None


def write_struct(fields: Struct) -> bytes:
    """Return the bytes of a struct."""
    out = bytearray()
    _write_fields(out, fields)
    return bytes(out)


class _Reader:
    __slots__ = ("at", "data")

    def __init__(self, data: bytes | memoryview, start: int) -> None:
        self.data = data
        self.at = start

    def struct(self) -> Struct:
        fields: Struct = {}
        number = 0
        while True:
            head = self.data[self.at]
            self.at += 1
            if head == 0:
                return fields
            number = number + (head >> 4) if head >> 4 else self._integer()
            kind = head & 15
            value = kind == TRUE if kind <= FALSE else self._value(kind)
            fields[number] = kind, value

    def _value(self, kind: int) -> Any:
        if I16 <= kind <= I64:
            return self._integer()
        if kind == BINARY:
            return self._raw(self._varint())
        if kind == STRUCT:
            return self.struct()
        if kind == LIST:
            return self._list()
        if kind == DOUBLE:
            return self._raw(8)
        if kind <= I8:  # also a flag inside a list, where it takes a byte
            return self._raw(1)[0]
        raise ValueError(f"Thrift has no kind {kind}")

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            if byte < 0x80:
                return value | byte << shift
            value |= (byte & 0x7F) << shift
            shift += 7

    def _integer(self) -> int:
        zigzag = self._varint()
        return (zigzag >> 1) ^ -(zigzag & 1)

    def _raw(self, length: int) -> bytes:
        start = self.at
        self.at += length  # if that is beyond the end, so is the next value, which must exist
        return bytes(self.data[start : self.at])

    def _list(self) -> tuple[int, list[Any]]:
        head = self._raw(1)[0]
        kind, size = head & 15, head >> 4
        if size == 15:
            size = self._varint()
        return kind, [self._value(kind) for _ in range(size)]


def _write_fields(out: bytearray, fields: Struct) -> None:
    last = 0
    for number, (kind, value) in sorted(fields.items()):
        if 0 < number - last < 16:
            out.append((number - last) << 4 | kind)
        else:
            out.append(kind)
            _write_integer(out, number)
        last = number
        if kind > FALSE:
            _write_value(out, kind, value)
    out.append(0)


def _write_value(out: bytearray, kind: int, value: Any) -> None:
    if I16 <= kind <= I64:
        _write_integer(out, value)
    elif kind == BINARY:
        _write_varint(out, len(value))
        out += value
    elif kind == STRUCT:
        _write_fields(out, value)
    elif kind == LIST:
        inside, values = value
        out.append(min(len(values), 15) << 4 | inside)
        if len(values) >= 15:
            _write_varint(out, len(values))
        for one in values:
            _write_value(out, inside, one)
    elif kind == DOUBLE:
        out += value
    else:
        out.append(value)


def _write_integer(out: bytearray, value: int) -> None:
    _write_varint(out, value << 1 if value >= 0 else (-value << 1) - 1)


def _write_varint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


_REPEATED = 2
_BRANCHES_BYTES = 16 << 20
_KEPT = (1, 2, 3, 4)
"""Fields of a column chunk's metadata that its pages lack: type, encodings, path and codec."""


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """A column, or a field of its structs at any depth, that is stored by itself."""

    column: str
    path: tuple[int, ...]
    """Indices of the field: within the column, then within that field, and so on."""
    field: pa.Field
    """The column, with only this field inside its structs."""
    elements: Sequence[Struct]
    """Schema elements of Parquet for ``field``."""
    leaves: range
    """Leaves of the file; several only for maps and for lists of structs."""

    @property
    def repeated(self) -> bool:
        """True if a row may have any number of values."""
        return any(element.get(3, (I32, 0))[1] == _REPEATED for element in self.elements)


@dataclass(frozen=True, slots=True, eq=False)
class StoredChunk:
    """The place of one leaf in one row group."""

    metadata: Struct
    start: int
    size: int
    decoded_size: int
    values: int
    index: tuple[int, int] | None
    """First byte of its offset index, and the byte after the last; None if it has none."""


@dataclass(frozen=True, slots=True, eq=False)
class ChunkPages:
    """The data pages of a column chunk."""

    offsets: Int64Array
    sizes: Int64Array
    """Size of each page in bytes, with its header."""
    first_rows: Int64Array
    """First row of each page, within the row group."""


@dataclass(frozen=True, slots=True, eq=False)
class PageLayout:
    """The layout of a file by its footer; without branches if pages cannot be read by themselves.

    Attributes:
        footer: The footer without its schema and row groups.
        root: The description of the schema.
        branches: The parts of columns that are stored apart.
        group_rows: The rows of each row group.
        chunks: The chunks of each row group, by leaf; None for a chunk that is encrypted or in
            another file.
    """

    footer: Struct
    root: Struct
    branches: Sequence[Branch]
    group_rows: Sequence[int]
    chunks: Sequence[Sequence[StoredChunk | None]]

    @property
    def nbytes(self) -> int:
        """Approximate memory that it takes, without objects that it shares with others."""
        return 2000 + sum(100 + 300 * len(group) for group in self.chunks)


def parse_layout(footer: bytes, schema: pa.Schema) -> PageLayout:
    """Return the layout of a file; ``schema`` has the columns as pyarrow reads them.

    Raises:
        ValueError: The bytes are not a footer.
    """
    fields, _ = parse_struct(footer)
    groups: list[Struct] = fields[4][1][1]
    kinds: dict[bytes, Struct] = {}
    return PageLayout(
        footer={number: fields[number] for number in (1, 6) if number in fields},
        root=fields[2][1][1][0],
        branches=_shared_branches(fields[2], schema),
        group_rows=[group[3][1] for group in groups],
        chunks=[[_stored_chunk(chunk, kinds) for chunk in group[1][1][1]] for group in groups],
    )


def parse_pages(index: bytes) -> ChunkPages:
    """Return the pages of an offset index.

    Raises:
        ValueError: The bytes are not a valid offset index.
    """
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


def _stored_chunk(chunk: Struct, kinds: dict[bytes, Struct]) -> StoredChunk | None:
    """Return a column chunk; chunks of one kind share one object for their metadata."""
    if 3 not in chunk or chunk.keys() & {1, 8, 9}:
        return None
    metadata: Struct = chunk[3][1]
    start = metadata[9][1]
    if 11 in metadata and 0 < metadata[11][1] < start:  # the dictionary
        start = metadata[11][1]
    index = None
    if {4, 5} <= chunk.keys() and chunk[5][1]:
        index = chunk[4][1], chunk[4][1] + chunk[5][1]
    kept = {number: metadata[number] for number in _KEPT}
    kind = kinds.setdefault(write_struct(kept), kept)
    return StoredChunk(kind, start, metadata[7][1], metadata[6][1], metadata[5][1], index)


def _shared_branches(described: tuple[int, Any], schema: pa.Schema) -> Sequence[Branch]:
    """Return the branches of a schema; files with the same schema share the same objects."""
    key = write_struct({2: described}), schema.serialize().to_pybytes()
    return _known_branches.get_or_make(
        key, lambda: list(_branches(described[1][1], schema)), limit_bytes=_BRANCHES_BYTES
    )


def _branches(elements: Sequence[Struct], schema: pa.Schema) -> Iterator[Branch]:
    at, leaf = 1, 0
    for column in schema:
        for branch in _apart(column, elements, at, leaf):
            yield branch
            leaf = branch.leaves.stop
        at = _end(elements, at)


def _apart(field: pa.Field, elements: Sequence[Struct], at: int, leaf: int) -> Iterator[Branch]:
    """Yield the parts of a field that are stored by themselves, each with the structs around it."""
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
    """Return the position after an element and everything inside it."""
    inside: tuple[int, Any] = elements[at].get(5, (I32, 0))
    at += 1
    for _ in range(inside[1]):
        at = _end(elements, at)
    return at


_known_branches: BoundedCache[list[Branch]] = BoundedCache(lambda branches: 4000 * len(branches))


_HEADER_BYTES = 256
_LONGEST_HEADER = 1 << 20
_DATA, _DATA_V2 = 0, 3


def walk_pages(source: pa.NativeFile, chunk: StoredChunk, *, repeated: bool) -> ChunkPages:
    """Return the data pages of a chunk.

    If values are ``repeated``, as those of lists, only newer pages store how many rows they hold;
    older ones are treated together as one page.
    """
    pages = list(_headers(source, chunk))
    counts = [_row_count(header, repeated) for _, _, header in pages]
    offsets = [start for start, _, _ in pages]
    stop = pages[-1][1]
    rows = [count for count in counts if count is not None]
    if len(rows) < len(pages):
        return _columns([offsets[0]], [stop - offsets[0]], [0])
    sizes = [stop - start for start, stop, _ in pages]
    return _columns(offsets, sizes, (np.cumsum(rows) - rows).tolist())


def _headers(source: pa.NativeFile, chunk: StoredChunk) -> Iterator[tuple[int, int, Struct]]:
    """Yield the begin, the end and the header of each data page, until all values were found."""
    at, left = chunk.start, chunk.values
    while left > 0:
        header, length = _header(source, at)
        if not {1, 3} <= header.keys():
            raise ValueError("what should be a page is none")
        stop = at + length + header[3][1]
        if header[1][1] in (_DATA, _DATA_V2):
            left -= _about(header)[1][1]
            yield at, stop, header
        if stop <= at:
            raise ValueError("a page ends before it begins")
        at = stop


def _header(source: pa.NativeFile, at: int) -> tuple[Struct, int]:
    size = _HEADER_BYTES
    while True:
        data = source.read_at(size, at)
        try:
            return parse_struct(data)
        except ValueError:
            if len(data) < size or size >= _LONGEST_HEADER:
                raise
            size *= 16


def _about(header: Struct) -> Struct:
    about: tuple[int, Struct] | None = header.get(5) or header.get(8)
    if about is None or 1 not in about[1]:
        raise ValueError("a data page does not say how many values it has")
    return about[1]


def _row_count(header: Struct, repeated: bool) -> int | None:
    about = _about(header)
    if not repeated:
        return int(about[1][1])
    return int(about[3][1]) if header[1][1] == _DATA_V2 else None


def _columns(*columns: list[int]) -> ChunkPages:
    return ChunkPages(*(np.array(column, np.int64) for column in columns))


MAGIC = b"PAR1"


class PageMismatch(ValueError):
    """Pages are not as their index describes them; the row group may still be readable."""


def values_in_page(page: memoryview) -> int:
    """Return the number of values in a data page.

    Raises:
        PageMismatch: The bytes are not a data page.
    """
    try:
        return int(_about(parse_struct(page)[0])[1][1])
    except ValueError:
        raise PageMismatch("what should be a data page is none") from None


def excerpt_chunk(stored: StoredChunk, values: int, begins: int, pages: int, ends: int) -> Struct:
    """Return metadata of consecutive pages of a column chunk, after a dictionary."""
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
    layout: PageLayout, branch: Branch, row_count: int, columns: Sequence[Struct]
) -> pq.FileMetaData:
    """Return the footer of a file with nothing but some column chunks of one branch."""
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
    """Return the schema for pyarrow, which holds types that Parquet cannot express."""
    return base64.b64encode(pa.schema([branch.field]).serialize())


def joined(branches: Sequence[tuple[tuple[int, ...], pa.Array]]) -> pa.Array:
    """Return a column from all its branches with their paths; their null structs are the same."""
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


_CACHE_BYTES = 64 << 20
_LARGEST_FOOTER_BYTES = 1 << 20
"""Largest footer parsed here, in Python, which takes half a second."""


@dataclass(frozen=True, slots=True, eq=False)
class BranchPages:
    """The pages of a branch that hold some rows."""

    branch: Branch
    pages: Sequence[tuple[StoredChunk, ChunkPages, Int64Array]]
    """Chunk of each leaf, its pages, and the numbers of the pages that hold the rows."""
    rows: int
    """Number of rows in these pages."""
    places: Int64Array
    """Indices of the wanted rows among them."""

    @property
    def ranges(self) -> Iterator[tuple[int, int]]:
        """Byte ranges to read."""
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
        """Number of bytes to read."""
        return sum(stop - start for part in self.parts for start, stop in part.ranges)

    @property
    def chunk_bytes(self) -> int:
        """Number of bytes to read of the same columns for the whole row group."""
        return sum(chunk.size for part in self.parts for chunk, _, _ in part.pages)

    @property
    def decoded_bytes(self) -> int:
        """Approximate decoded size of the same columns of the row group."""
        return sum(chunk.decoded_size for part in self.parts for chunk, _, _ in part.pages)

    @property
    def pages(self) -> int:
        """Number of pages."""
        return sum(len(chosen) for part in self.parts for _, _, chosen in part.pages)


@dataclass(frozen=True, slots=True, eq=False)
class PageReader:
    """Reads pages of one file; the metadata that it reads is kept for later readers."""

    source: pa.NativeFile
    key: tuple[Hashable, ...]
    """Identity of the file."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of pyarrow's ParquetFile."""
    walks: bool = False
    """True to look for pages without an index, with one small read after the other."""

    def select(self, wanted: Mapping[int, Int64Array], columns: Sequence[str]) -> list[Selection]:
        """Return the pages that hold some rows, for the groups in which they can be found.

        Args:
            wanted: The rows of each group, ascending.
            columns: The columns.

        Raises:
            PageMismatch: A page index is damaged.
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
        """Yield the rows of each selection.

        Raises:
            PageMismatch: Pages are not as their index describes them.
        """
        layout = self._layout()
        will_read(self.source, [r for s in selections for part in s.parts for r in part.ranges])
        for selection in selections:
            columns: dict[str, list[tuple[tuple[int, ...], pa.Array]]] = {}
            for part in selection.parts:
                branches = columns.setdefault(part.branch.column, [])
                branches.append((part.branch.path, self._decoded(layout, part)))
            yield pa.table({name: joined(branches) for name, branches in columns.items()})

    # --- what there is

    def _layout(self) -> PageLayout:
        return _layouts.get_or_make(self.key, self._parsed, limit_bytes=_CACHE_BYTES)

    def _parsed(self) -> PageLayout:
        footer = footer_alone(self.source)
        size = footer.size()
        if size > _LARGEST_FOOTER_BYTES or footer.read_at(4, size - 4) != MAGIC:
            return PageLayout({}, {}, [], [], [])
        schema = pq.ParquetFile(footer, **self.options).schema_arrow
        return parse_layout(footer.read_at(size - 8, 0), schema)

    def _can_find(self, layout: PageLayout, group: int, leaves: Sequence[int]) -> bool:
        chunks = [layout.chunks[group][leaf] for leaf in leaves]
        return all(chunk and (self.walks or chunk.index is not None) for chunk in chunks)

    def _announce_indices(
        self, layout: PageLayout, groups: Sequence[int], leaves: Sequence[int]
    ) -> None:
        chunks = [
            layout.chunks[group][leaf]
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
        self, layout: PageLayout, branch: Branch, group: int, rows: Int64Array
    ) -> BranchPages:
        """Return pages with some rows, in spans that begin and end with pages of all leaves."""
        chunks = [chunk for i in branch.leaves if (chunk := layout.chunks[group][i]) is not None]
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

    def _decoded(self, layout: PageLayout, part: BranchPages) -> pa.Array:
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
        """Return pages one after the other, and the description of the chunks that they make."""
        size = sum(stop - start for start, stop in part.ranges)
        buffer = pa.allocate_buffer(len(MAGIC) + size)  # no page may be at byte 0
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
            values = chunk.values
            if len(index.offsets) > 1:
                values = sum(values_in_page(view[a:b]) for a, b in pairwise(pages))
            columns.append(excerpt_chunk(chunk, values, begins, pages[0], at))
        return buffer, columns

    def _read_into(self, view: memoryview, at: int, start: int, stop: int) -> int:
        """Read bytes of the file to ``at``, and return the place after them."""
        self.source.seek(start)
        if self.source.readinto(view[at : at + stop - start]) < stop - start:
            raise PageMismatch(f"the file ends before byte {stop}")
        return at + stop - start


def _pages_of(index: ChunkPages, begins: Int64Array, ends: Int64Array) -> Int64Array:
    """Return the numbers of the pages between rows at which pages begin and end.

    Pages without rows, which pyarrow itself may write, are left out: if such a page is first,
    pyarrow takes it for the end.
    """
    first = np.searchsorted(index.first_rows, begins)
    last = np.searchsorted(index.first_rows, ends)
    pages = np.concatenate([np.arange(a, b) for a, b in zip(first, last, strict=True)])
    holds_rows = np.append(np.diff(index.first_rows) > 0, True)
    chosen: Int64Array = pages[holds_rows[pages]]
    return chosen


def _dictionary(chunk: StoredChunk, index: ChunkPages) -> Iterator[tuple[int, int]]:
    """Yield the span of the dictionary of a chunk, before its other pages, if it has one."""
    if chunk.start < index.offsets[0]:
        yield chunk.start, int(index.offsets[0])


def _places(index: ChunkPages, chosen: Int64Array) -> Iterator[tuple[int, int]]:
    starts = index.offsets[chosen]
    return zip(starts.tolist(), (starts + index.sizes[chosen]).tolist(), strict=True)


_layouts: BoundedCache[PageLayout] = BoundedCache(lambda layout: layout.nbytes)
_indices: BoundedCache[ChunkPages] = BoundedCache(lambda pages: 400 + 24 * len(pages.offsets))
