"""Backends as sources of the loader: shards are its files, and chunks are runs of their rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from headrace.convert.decoded import Kinds
from headrace.model import DataFileInfo, FileSplit, RowGroups
from headrace.sources.backend import Backend
from headrace.sources.files.discovery import Discovered
from headrace.sources.files.reader import RowSource
from headrace.storage import LocalStore, Store

__all__ = ["BackendRows", "discovered"]

_UNIT_BYTES = 1 << 18
_UNIT_ROWS = 1024
"""of which chunks are made, where it is not known how large rows are"""


@dataclass(frozen=True, slots=True)
class BackendRows(RowSource):
    """The rows of a backend, by the shard that they are in."""

    backend: Backend
    name: str
    first_rows: Mapping[str, int] = field(repr=False)
    """the index of the first row of each shard, by its name"""

    identity = ""

    @property
    def column_kinds(self) -> Kinds:
        return self.backend.kinds

    @property
    def user_code(self) -> Mapping[str, Any]:
        return self.backend.given

    def read(
        self, store: Store, chunk: FileSplit, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        start, rows = self.first_rows[chunk.file.path], chunk.file.record_count or 0
        if chunk.row_range is not None:
            start, rows = start + chunk.row_range.offset, chunk.row_range.length
        return self.backend.through(store).stream(start, rows, schema, block_bytes)


def discovered(
    backend: Backend,
    name: str,
    *,
    columns: Sequence[str] | None = None,
    filters: ds.Expression | Sequence[Any] | None = None,
    split_rows: int | None = None,
    version: tuple[int, int] | None = None,
) -> Discovered:
    """What the loader needs to stream the rows of a backend, of which only rows are filtered.

    ``split_rows``: given where chunks have so many rows, and need not be made of units.
    """
    files = [
        DataFileInfo(
            path,
            file_size=size,
            record_count=rows,
            row_groups=_units(rows, size, backend.unit_rows(shard)) if split_rows is None else None,
            etag=etag,
        )
        for shard, (path, size, rows, etag) in enumerate(
            zip(
                backend.shard_names,
                backend.shard_bytes,
                np.asarray(backend.shard_rows).tolist(),
                backend.shard_etags,
                strict=True,
            )
        )
    ]
    first_rows = dict(zip(backend.shard_names, backend.shard_starts.tolist(), strict=False))
    return Discovered.of(
        BackendRows(backend, name, first_rows),
        files,
        store=backend.store or LocalStore(fork_safe=backend.fork_safe),
        whole=backend.schema,
        output=backend.projected(columns),
        filters=filters,
        version=version,
    )


def _units(rows: int, size_bytes: int | None, unit_rows: int | None) -> RowGroups:
    """Runs of rows of which chunks are made."""
    length = unit_rows or _UNIT_ROWS
    if size_bytes and not unit_rows:
        length = max(1, rows * _UNIT_BYTES // size_bytes)
    counts = [min(length, rows - start) for start in range(0, rows, length)]
    return RowGroups.of(counts, [(size_bytes or rows) * count // rows for count in counts])
