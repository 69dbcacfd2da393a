"""Parquet: row groups from the footer, pruned by their statistics, decoded one or a few at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from headrace.errors import OptionError, ReadError
from headrace.formats.cache import BoundedCache
from headrace.formats.exact_integers import with_exact_integers
from headrace.formats.nan_pruning import bounds_tell_all
from headrace.formats.parquet_rows import GroupDecoder, Opened, footer_alone, row_groups
from headrace.formats.parquet_settled import settled_groups
from headrace.formats.protocol import FileFacts
from headrace.model import DataFileInfo, FileSplit
from headrace.storage import Store

__all__ = ["ParquetFormat"]

_LIMITS = ("thrift_container_size_limit", "thrift_string_size_limit")
_OPTIONS = ("coerce_int96_timestamp_unit", "page_checksum_verification", *_LIMITS)
_FOOTER_CACHE_BYTES = 64 << 20
_FOOTER_IN_MEMORY = 11
"""bytes that a parsed footer takes for each byte of it in the file, as measured"""


@dataclass(frozen=True, slots=True)
class ParquetFormat:
    """Apache Parquet."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """arguments of pyarrow's ParquetFile that change how a file is read"""

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
        """How large a footer may be that is parsed, wherever one is."""
        return {name: self.options[name] for name in _LIMITS if name in self.options}

    @property
    def _arrows(self) -> ds.ParquetFileFormat:
        how = ds.ParquetFragmentScanOptions(**self._limits)
        return ds.ParquetFileFormat(default_fragment_scan_options=how)

    def inspect(
        self, store: Store, file: DataFileInfo, keep: ds.Expression | None = None
    ) -> FileFacts:
        try:
            with store.open(file) as source:
                facts, footer = self._look(source if store.local else footer_alone(source), keep)
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(file.path, error) from error
        _footers.add(_key(store, file), footer, limit_bytes=_FOOTER_CACHE_BYTES)
        return facts

    def _look(
        self, source: pa.NativeFile, keep: ds.Expression | None
    ) -> tuple[FileFacts, pq.FileMetaData]:
        """What is in the file, from one reading of its footer unless options forbid."""
        fragment = None if keep is None else self._arrows.make_fragment(source)
        if fragment is None or self.options:
            opened = pq.ParquetFile(source, **self.options)
            footer, schema = opened.metadata, opened.schema_arrow
        else:
            footer = fragment.metadata
            schema = footer.schema.to_arrow_schema()
        groups = row_groups(footer)
        if fragment is not None and keep is not None:
            keep = with_exact_integers(keep, fragment.physical_schema)
            left = _surviving(fragment, keep)
            groups = groups.keep(left, settled_groups(fragment, footer, left, keep))
        return FileFacts(schema.remove_metadata(), footer.num_rows, groups), footer

    def read(
        self, store: Store, chunk: FileSplit, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        try:
            with self._open(store, chunk.file) as opened:
                decoder = GroupDecoder(opened, schema, _key(store, chunk.file))
                yield from decoder.tables(chunk.row_range, block_bytes)
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(str(chunk), error) from error

    @contextmanager
    def _open(self, store: Store, file: DataFileInfo) -> Iterator[Opened]:
        """What is read is either here or announced, so that pyarrow need not read ahead."""
        footer = _footers.get(_key(store, file))
        with store.open(file) as source:
            if footer is None and not store.local:
                footer = pq.ParquetFile(footer_alone(source), **self._limits).metadata
                _footers.add(_key(store, file), footer, limit_bytes=_FOOTER_CACHE_BYTES)
            how = {"pre_buffer": False, **self.options}
            opened = pq.ParquetFile(source, metadata=footer, **how)
            again = partial(pq.ParquetFile, source, metadata=opened.metadata, **how)
            yield Opened(opened, source, again)


def _surviving(fragment: ds.ParquetFileFragment, keep: ds.Expression) -> list[int]:
    """Row groups that may hold a row for ``keep``; all of them if it cannot be told.

    The filter may name columns that this file lacks or has in another type: then there is
    nothing to conclude from its statistics, and rows are filtered after reading.
    """
    if not bounds_tell_all(keep, fragment.physical_schema):
        return [group.id for group in fragment.row_groups]
    try:
        left = fragment.subset(keep, schema=fragment.physical_schema).row_groups
    except pa.ArrowException:
        left = fragment.row_groups
    return [group.id for group in left]


def _unreadable(where: str, error: BaseException) -> BaseException:
    """A ReadError, unless it already is one."""
    if isinstance(error, ReadError):
        return error
    return ReadError(
        f"{where}: not readable as Parquet: {error} (on_error='skip' leaves such files out)"
    )


def _key(store: Store, file: DataFileInfo) -> tuple[Any, ...]:
    return store.identity, file.path, file.file_size, file.etag


_footers: BoundedCache[pq.FileMetaData] = BoundedCache(
    lambda footer: _FOOTER_IN_MEMORY * int(footer.serialized_size)
)
