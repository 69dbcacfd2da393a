"""Parquet files in order: row groups, excluded by their statistics, decoded by pyarrow."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from headrace.errors import OptionError, naming
from headrace.matrices import width_of
from headrace.model import (
    DataFileInfo,
    FileSplit,
    Int64Array,
    RowGroups,
    RowRange,
)
from headrace.process import BoundedCache
from headrace.sources.files.filters import (
    Constant,
    FilterCall,
    FilterColumn,
    Node,
    NotTakenApart,
    once_for_like_files,
    take_apart,
    with_exact_integers,
)
from headrace.sources.files.protocol import FileFacts
from headrace.sources.files.schemas import plain_schema
from headrace.storage import Store, will_read

_FALSE_OF_NAN = {"equal", "less", "less_equal", "greater", "greater_equal"}
_JOINED = {"and", "and_kleene", "or", "or_kleene"}


@once_for_like_files
def bounds_exclude_nan(keep: ds.Expression, schema: pa.Schema) -> bool:
    """Return True if no row with NaN passes a filter when the bounds of its columns exclude it.

    Comparisons with a number that are false for NaN are safe, joined by ``&`` and ``|``. All else
    over columns of floats may be true for NaN.
    """
    floats = {column.name for column in schema if _holds_floats(column.type)}
    if not floats:
        return True
    try:
        root = take_apart(keep)
    except NotTakenApart:
        return False
    return _safe(root, floats)


def _holds_floats(type_: pa.DataType) -> bool:
    inside = (type_.field(i).type for i in range(type_.num_fields))
    return bool(pa.types.is_floating(type_)) or any(map(_holds_floats, inside))


def _safe(node: Node, floats: Collection[str]) -> bool:
    """Return True if NaN in a column does not make a part of the filter true."""
    if not _uses(node, floats):
        return True
    if not isinstance(node, FilterCall):
        return False
    if node.function in _JOINED:
        return all(_safe(part, floats) for part in node.arguments)
    return node.function in _FALSE_OF_NAN and _compares_with_a_number(node)


def _uses(node: Node, columns: Collection[str]) -> bool:
    if isinstance(node, FilterColumn):
        return node.path[0] in columns
    return isinstance(node, FilterCall) and any(_uses(part, columns) for part in node.arguments)


def _compares_with_a_number(node: FilterCall) -> bool:
    kinds = {type(part) for part in node.arguments}
    if len(node.arguments) != 2 or kinds != {FilterColumn, Constant}:
        return False
    (constant,) = (part.value for part in node.arguments if isinstance(part, Constant))
    if not constant.is_valid:
        return False
    return not pa.types.is_floating(constant.type) or not math.isnan(constant.as_py())


_WORTH_THREADS_BYTES = 1 << 20
"""Size below which decoding columns in several threads costs more than it saves."""
_FEW_CORES = 4
"""Number of cores above which decoding several row groups at a time keeps them busy."""
_SAMPLE_ROWS = 1024
_STREAM_BUFFER_BYTES = 1 << 18
_FOOTER_IN_MEMORY = 11
"""Number of bytes that a parsed footer takes for each byte of it in the file, as measured."""


class Footer:
    """The footer of a file, and the values computed from it that every reading needs.

    Attributes:
        metadata: The footer, as pyarrow parses it.
        size_bytes: Bytes that it takes in memory.
        groups: All row groups of the file.
        sampled: Bytes that some leaves take in a decoded row, measured on the first rows.
        index_places: Byte range of the page index of each leaf in each group, if it is known.
    """

    def __init__(self, metadata: pq.FileMetaData) -> None:
        self.metadata = metadata
        self.size_bytes = _FOOTER_IN_MEMORY * int(metadata.serialized_size)
        rows, sizes = [], []
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            rows.append(group.num_rows)
            sizes.append(group.total_byte_size)
        self.groups = RowGroups.of(rows, sizes)
        self.sampled: dict[tuple[int, ...], float] = {}
        self.index_places: Sequence[Sequence[tuple[int, int] | None]] | None = None
        self._found: tuple[pa.Schema, Mapping[int, int | None]] | None = None

    def leaves(self, wanted: pa.Schema) -> Mapping[int, int | None]:
        """Return the widths of the leaves of wanted columns, by the indices of the leaves.

        The last result is kept, because most readers ask for the same columns.
        """
        found = self._found
        if found is None or found[0] != wanted:
            stored = self.metadata.schema.to_arrow_schema()
            self._found = found = wanted, dict(_leaf_columns(stored, wanted))
        return found[1]


def footer_alone(source: pa.NativeFile) -> pa.BufferReader:
    """Return the end of a file as a file without rows, so that only the footer is read."""
    size = source.size()
    end = source.read_at(8, max(size - 8, 0))
    if len(end) < 8 or end[4:] not in (b"PAR1", b"PARE"):
        raise pa.ArrowInvalid("Parquet magic bytes not found in footer; it may be cut short")
    length = min(int.from_bytes(end[:4], "little") + 8, size)
    return pa.BufferReader(source.read_at(length, size - length))


@dataclass(frozen=True, slots=True)
class _OpenFile:
    """An open file.

    Attributes:
        source: The bytes of the file.
        is_local: True if they need not be announced before they are read.
        footer: Its footer.
        open: Opens the file over the same source, with arguments of ParquetFile: when it opens a
            file, pyarrow decides if column chunks are read whole or page by page.
    """

    source: pa.NativeFile
    is_local: bool
    footer: Footer
    open: Callable[..., pq.ParquetFile]

    def tables(
        self, wanted: pa.Schema, rows: RowRange | None, block_bytes: int
    ) -> Iterator[pa.Table]:
        """Yield exactly these rows (None for all), in tables of about ``block_bytes``."""
        groups, leaves = self.footer.groups, self.footer.leaves(wanted)
        columns = list(leaves)
        rows = rows or RowRange(0, self.footer.metadata.num_rows)
        overlapping: list[int] = groups.overlapping(rows).tolist()
        if not self.is_local:
            will_read(self.source, self._byte_ranges(overlapping, columns))
        row_bytes = self._row_bytes(leaves, rows)
        reader = self.open().reader
        for first, last in _runs_of_groups(groups, overlapping, rows, row_bytes, block_bytes // 8):
            run = RowRange(int(groups.start[first]), int(groups.rows[first:last].sum()))
            start = max(rows.offset, run.offset) - run.offset
            length = min(rows.stop, run.stop) - run.offset - start
            size = row_bytes * run.length
            if length < run.length or size > 2 * block_bytes:
                batch_rows = int(block_bytes / row_bytes) if row_bytes else run.length
                yield from self._streamed(first, columns, start, length, max(batch_rows, 1))
            else:
                yield reader.read_row_groups(
                    list(range(first, last)),
                    column_indices=columns,
                    use_threads=size > _WORTH_THREADS_BYTES and pa.cpu_count() <= _FEW_CORES,
                )

    def _byte_ranges(self, groups: list[int], columns: list[int]) -> Iterator[tuple[int, int]]:
        """Yield the spans of the column chunks that will be read."""
        for group in groups:
            stored = self.footer.metadata.row_group(group)
            for column in columns:
                yield chunk_span(stored.column(column))

    def _row_bytes(self, leaves: Mapping[int, int | None], rows: RowRange) -> float:
        """Return the bytes of a decoded row; strings in dictionaries are far smaller on disk."""
        if None not in leaves.values():
            return float(sum(leaves.values()))  # type: ignore[arg-type]
        fixed = sum(width for width in leaves.values() if width is not None)
        variable = [leaf for leaf, width in leaves.items() if width is None]
        groups, sampled = self.footer.groups, self.footer.sampled
        if rows.length <= _SAMPLE_ROWS:  # too few rows for a sample
            return fixed + float(groups.size_bytes.sum()) / max(int(groups.rows.sum()), 1)
        if tuple(variable) not in sampled:
            group = int(np.searchsorted(groups.start, rows.offset, side="right")) - 1
            sampled[tuple(variable)] = self._sample(variable, group)
        return fixed + sampled[tuple(variable)]

    def _sample(self, columns: list[int], group: int) -> float:
        """Return the bytes of a row in some leaves, measured on the first rows of a group."""
        batches = self._page_by_page().reader.iter_batches(
            _SAMPLE_ROWS, row_groups=[group], column_indices=columns, use_threads=False
        )
        first = next(batches, None)
        return 0.0 if first is None or not first.num_rows else first.nbytes / first.num_rows

    def _streamed(
        self, group: int, columns: list[int], start: int, length: int, batch_rows: int
    ) -> Iterator[pa.Table]:
        """Yield some rows of one group, piece by piece: a group may be larger than memory."""
        at = 0
        for batch in self._page_by_page().reader.iter_batches(
            batch_rows, row_groups=[group], column_indices=columns, use_threads=True
        ):
            low, high = max(start - at, 0), min(start + length - at, batch.num_rows)
            at += batch.num_rows
            if low < high:
                yield pa.Table.from_batches([batch.slice(low, high - low)])
            if at >= start + length:
                return

    def _page_by_page(self) -> pq.ParquetFile:
        """Open the file again over the same source, so that announced bytes are fetched once."""
        return self.open(buffer_size=_STREAM_BUFFER_BYTES)


def _runs_of_groups(
    groups: RowGroups,
    overlapping: Sequence[int],
    wanted: RowRange,
    row_bytes: float,
    limit_bytes: int,
) -> Iterator[tuple[int, int]]:
    """Yield runs of row groups to decode together: groups wanted as a whole, if small.

    Groups that are decoded together have to be copied together afterwards.
    """
    stop: Int64Array = groups.start + groups.rows
    whole = (groups.start >= wanted.offset) & (stop <= wanted.stop)
    first: int | None = None
    size = 0.0
    for group in overlapping:
        own = row_bytes * int(groups.rows[group])
        if first is not None and (not whole[group] or size + own > limit_bytes):
            yield first, group
            first, size = None, 0.0
        if not whole[group]:
            yield group, group + 1
        else:
            first = group if first is None else first
            size += own
    if first is not None:
        yield first, overlapping[-1] + 1


def chunk_span(column: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Return the span of a column chunk, which begins with its dictionary, if it has one."""
    start = column.data_page_offset
    if column.has_dictionary_page and 0 < column.dictionary_page_offset < start:
        start = column.dictionary_page_offset
    return start, start + column.total_compressed_size


def _leaf_columns(
    stored: Iterable[pa.Field], wanted: Iterable[pa.Field], place: int = 0
) -> Iterator[tuple[int, int | None]]:
    """Yield the index and width of the leaves of wanted columns, and of fields within structs.

    Leaves are read by index, because a name may contain dots.
    """
    types: dict[str, pa.DataType] = {}
    for column in wanted:
        types[column.name] = column.type
    for column in stored:
        leaves = list(leaf_widths(column.type))
        if column.name in types:
            inside = types[column.name]
            if pa.types.is_struct(inside) and _is_narrower(inside, column.type):
                yield from _leaf_columns(column.type, inside, place)
            else:
                yield from enumerate(leaves, start=place)
        place += len(leaves)


def _is_narrower(wanted: pa.DataType, stored: pa.DataType) -> bool:
    """Return True if a struct has only some of the fields of another one."""
    if not pa.types.is_struct(stored):
        return False
    names = {field.name for field in wanted}
    return bool(names) and names <= {field.name for field in stored}


def leaf_widths(type_: pa.DataType, times: int | None = 1) -> Iterator[int | None]:
    """Yield the bytes of a row in each leaf of a type; None where that depends on the row."""
    if isinstance(type_, pa.BaseExtensionType):
        yield from leaf_widths(type_.storage_type, times)
    elif pa.types.is_fixed_size_list(type_):
        inside = None if times is None else times * type_.list_size
        yield from leaf_widths(type_.value_type, inside)
    elif type_.num_fields and not pa.types.is_dictionary(type_):
        inside = times if pa.types.is_struct(type_) else None
        for i in range(type_.num_fields):
            yield from leaf_widths(type_.field(i).type, inside)
    else:
        width = width_of(type_)
        yield None if times is None or width is None else times * width


_LIMITS = ("thrift_container_size_limit", "thrift_string_size_limit")
_OPTIONS = ("coerce_int96_timestamp_unit", "page_checksum_verification", *_LIMITS)
_FOOTER_CACHE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class ParquetFormat:
    """Apache Parquet."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of pyarrow's ParquetFile that change how a file is read."""

    name = "parquet"
    extensions = (".parquet", ".pq", ".parq")

    def __post_init__(self) -> None:
        unknown = sorted(set(self.options) - set(_OPTIONS))
        if unknown:
            raise OptionError(
                f"format_options for parquet has {', '.join(map(repr, unknown))}; "
                f"known are {', '.join(_OPTIONS)}"
            )

    @property
    def _limits(self) -> dict[str, int]:
        """Limits on the size of a footer that is parsed."""
        return {name: self.options[name] for name in _LIMITS if name in self.options}

    def inspect(
        self, store: Store, file: DataFileInfo, keep: ds.Expression | None = None
    ) -> FileFacts:
        with naming(f"{file.path}: not readable as Parquet"), store.open(file) as opened:
            source = opened if store.local else footer_alone(opened)
            fragment = None if keep is None else self._fragment(source)
            if fragment is None or self.options:
                parquet = pq.ParquetFile(source, **self.options)
                footer, schema = Footer(parquet.metadata), parquet.schema_arrow
            else:  # the fragment has read the footer
                footer = Footer(fragment.metadata)
                schema = footer.metadata.schema.to_arrow_schema()
            matching = None
            if fragment is not None and keep is not None:
                keep = with_exact_integers(keep, fragment.physical_schema)
                matching = footer.groups.keep(_surviving(fragment, keep))
        _footers.add((store.identity, *file.identity), footer, limit_bytes=_FOOTER_CACHE_BYTES)
        plain = plain_schema(schema).remove_metadata()
        return FileFacts(plain, footer.metadata.num_rows, footer.groups, matching)

    def footer(self, store: Store, file: DataFileInfo, source: pa.NativeFile) -> Footer:
        """Return the footer of an open file, which is kept for later reads."""

        def parse() -> Footer:
            return Footer(pq.ParquetFile(footer_alone(source), **self._limits).metadata)

        key = store.identity, *file.identity
        return _footers.get_or_make(key, parse, limit_bytes=_FOOTER_CACHE_BYTES)

    def _fragment(self, source: pa.NativeFile) -> ds.ParquetFileFragment:
        """Return a file as pyarrow compares its statistics with filters."""
        how = ds.ParquetFragmentScanOptions(**self._limits)
        return ds.ParquetFileFormat(default_fragment_scan_options=how).make_fragment(source)

    def read(
        self, store: Store, chunk: FileSplit, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        with naming(f"{chunk}: not readable as Parquet"), store.open(chunk.file) as source:
            footer = self.footer(store, chunk.file, source)
            # The bytes are local or announced, so that pyarrow need not read ahead.
            how = {"metadata": footer.metadata, "pre_buffer": False, **self.options}
            file = _OpenFile(source, store.local, footer, partial(pq.ParquetFile, source, **how))
            yield from file.tables(schema, chunk.row_range, block_bytes)


def _surviving(fragment: ds.ParquetFileFragment, keep: ds.Expression) -> list[int]:
    """Return the row groups that may hold a row for ``keep``; all of them if in doubt.

    The filter may name columns that this file lacks or has in another type. Its statistics then
    prove nothing, and rows are filtered after reading.
    """
    if not bounds_exclude_nan(keep, fragment.physical_schema):
        return [group.id for group in fragment.row_groups]
    try:
        left = fragment.subset(keep, schema=fragment.physical_schema).row_groups
    except pa.ArrowException:
        left = fragment.row_groups
    return [group.id for group in left]


_footers: BoundedCache[Footer] = BoundedCache(attrgetter("size_bytes"))
