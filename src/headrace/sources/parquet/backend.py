"""Rows of Parquet files by index: row groups decoded whole, or the pages that hold the rows."""

from __future__ import annotations

import logging
import os
from collections.abc import Hashable, Mapping, Sequence

import pyarrow as pa

from headrace.errors import naming
from headrace.options import checked_keywords
from headrace.process import BoundedCache
from headrace.sources.files._backend import CACHE_BYTES, FileBackend, GroupReader, GroupRows
from headrace.sources.files._source import FileSource
from headrace.sources.files.discovery import discover
from headrace.sources.files.schemas import align
from headrace.sources.parquet._format import ParquetFormat
from headrace.sources.parquet._pages import PageMismatch, PageReader, Selection
from headrace.storage import Access, Options

logger = logging.getLogger(__name__)

PathLike = str | os.PathLike[str]

_SMALL_GROUP_BYTES = 1 << 20
"""Size up to which a group is decoded whole without looking at its pages."""
_COLUMN_COST_BYTES = 512 << 10
_PAGE_COST_BYTES = 16 << 10
"""Number of bytes decoded in the time that a page costs beside its bytes. A column costs about 250
microseconds, and each page of it 10."""


class PageGroupReader(GroupReader):
    """Takes rows from row groups, or from single pages of large groups.

    Pages are read unless they cost as much as the group, or earlier reads of pages of the same
    group have cost as much together. Only the last groups that would have fitted into the cache
    count, because others would not be kept anyway. So rows in random order, from more data than can
    be kept, cost only their pages, and rows that come from the same groups again and again cost
    each group twice at most.

    Pages are found by the page index; groups without one are decoded whole.
    """

    def read_parts(self, wanted: Sequence[tuple[int, GroupRows]]) -> Mapping[int, pa.Table]:
        large = {one.group: (place, one) for place, one in wanted if _has_pages_to_spare(one)}
        file, store = wanted[0][1].file, self.source.store
        key = store.identity, *file.identity
        if not large or _unusable.get(key):
            return {}
        constants = self.source.path_columns.values(file.path)
        stored = [name for name in self.schema.names if name not in constants]
        format_ = self.source.format
        assert isinstance(format_, ParquetFormat)
        try:
            with naming(file.path), store.open(file) as source:
                footer = format_.footer(store, file, source)
                reader = PageReader(source, footer, key, format_.options)
                found = reader.select({g: one.rows for g, (_, one) in large.items()}, stored)
                chosen = [s for s in found if _costs_less(s, self.key(large[s.group][1]))]
                tables = list(reader.read(chosen))
        except PageMismatch as error:
            logger.warning("%s: its row groups are read whole: %s", file.path, error)
            _unusable.add(key, True, limit_bytes=1 << 20)
            return {}
        return {
            large[s.group][0]: align(table, self.schema, constants, file.path)
            for s, table in zip(chosen, tables, strict=True)
        }


def _has_pages_to_spare(one: GroupRows) -> bool:
    return one.size_bytes > _SMALL_GROUP_BYTES and 2 * len(one.rows) < one.within.length


def _costs_less(pages: Selection, key: tuple[Hashable, ...]) -> bool:
    """Return True if pages are read rather than the group; see ``PageGroupReader``."""
    before, _ = _spent.get(key) or (0.0, 0)
    beside = _COLUMN_COST_BYTES * len(pages.parts) + _PAGE_COST_BYTES * len(pages.spans)
    spent = before + (pages.page_bytes + beside) / pages.chunk_bytes
    _spent.add(key, (spent, pages.decoded_bytes), limit_bytes=CACHE_BYTES)
    return spent < 1


_spent: BoundedCache[tuple[float, int]] = BoundedCache(lambda spent: spent[1])
"""Cost of the pages read of a group, relative to that of the group, and the group's size."""
_unusable: BoundedCache[bool] = BoundedCache(lambda unusable: 300)
"""Files whose pages are not as their index describes them."""


@checked_keywords
class ParquetBackend(FileBackend):
    """Parquet files, in order of their paths, as one table; shards are the files.

    Making it lists the files and reads their footers once. Files with other columns or types are
    converted to one schema. Each file is read as it was then: a later change is a FileChangedError.

    Row groups are decoded as a whole and the last ones kept, up to 256 MiB a process. For a large
    group of a file with a page index, only the pages that hold the wanted rows are read if that is
    cheaper. So for rows at random, files should have small pages and a page index (pyarrow:
    ``data_page_size=…, write_batch_size=…, write_page_index=True``).

    Args:
        paths: Files, directories and globs, local or in any store.
        storage_options: Options of the store.
        as_files: If True, read folders of table formats as well. They are refused by default,
            because their files hold deleted rows.
    """

    group_reader = PageGroupReader

    def __init__(
        self,
        paths: PathLike | Sequence[PathLike],
        *,
        storage_options: Options | None = None,
        as_files: bool = False,
    ) -> None:
        access = Access(storage_options=storage_options or {})
        found = discover(paths, "parquet", access=access, as_files=as_files)
        source = found.reader.source
        assert isinstance(source, FileSource)
        super().__init__(source, source.schema)
