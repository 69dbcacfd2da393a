"""Rows to be written in their order, whatever they come from."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa

from headrace.access import Backend
from headrace.errors import OptionError
from headrace.storage import Access, Options
from headrace.write.overlap import refuse_overlap
from headrace.write.source import FileRows, SourceRows, as_rows, read_in_order
from headrace.write.work import Progress

__all__ = ["Incoming"]

_BLOCK_BYTES, _AHEAD_BYTES = 16 << 20, 64 << 20


@dataclass(frozen=True, slots=True)
class Incoming:
    """Tables of one schema, to be gone through once."""

    schema: pa.Schema
    tables: Iterator[pa.Table]
    paths: Sequence[str] = ()
    """of the files that they come from"""
    named: Sequence[str] = ()
    """what the user called them"""

    @classmethod
    def of(
        cls,
        source: Any,
        *,
        format: str | None = None,
        columns: Sequence[str] | None = None,
        storage_options: Options | None = None,
        progress: Progress | None = None,
    ) -> Incoming:
        """The rows of tables, record batches, a backend, a dataset, or of files."""
        found = _in_memory(source)
        if found is None:
            return _stored(source, format, columns, storage_options, progress)
        if format is not None or storage_options is not None:
            raise OptionError("format and storage_options are options of paths")
        schema, tables = found
        places: Sequence[str] = source.locations if isinstance(source, Backend) else ()
        if columns is None:
            return cls(schema, tables, places, places)
        wanted = list(columns)
        unknown = [name for name in wanted if name not in schema.names]
        if unknown:
            raise OptionError(f"there is no column {unknown[0]!r}: {', '.join(schema.names)}")
        chosen = pa.schema([schema.field(name) for name in wanted])
        return cls(chosen, (table.select(wanted) for table in tables), places, places)

    def refuse_within(self, target: str) -> None:
        """Raise an OptionError if writing there would destroy what is read."""
        refuse_overlap(self.paths, self.named, target)


def _in_memory(source: Any) -> tuple[pa.Schema, Iterator[pa.Table]] | None:
    """Tables that need no reading of files by their paths; None of anything else."""
    if isinstance(source, Backend):
        batches = source.iter_batches()
        return source.schema, (pa.Table.from_batches([batch]) for batch in batches)
    if isinstance(source, pa.RecordBatchReader):
        return source.schema, (pa.Table.from_batches([batch]) for batch in source)
    if isinstance(source, pa.Table | pa.RecordBatch):
        source = [source]
    if isinstance(source, str | os.PathLike) or not isinstance(source, Iterable):
        return None
    if isinstance(source, SourceRows) or hasattr(source, "pipeline"):
        return None
    following = iter(source)
    first = next(following, None)
    if isinstance(first, str | os.PathLike):
        if isinstance(source, Sequence):
            return None
        raise OptionError("paths must be a list, and not come one after the other")
    if not isinstance(first, pa.Table | pa.RecordBatch):
        raise OptionError(
            "source must be tables or record batches (at least one), a backend or dataset of this "
            f"library, or paths, not {type(source).__name__} with {type(first).__name__}"
        )
    return first.schema, map(_as_table, chain([first], following))


def _as_table(one: Any) -> pa.Table:
    return pa.Table.from_batches([one]) if isinstance(one, pa.RecordBatch) else one


def _stored(
    source: Any,
    format: str | None,
    columns: Sequence[str] | None,
    storage_options: Options | None,
    progress: Progress | None,
) -> Incoming:
    access = None if storage_options is None else Access(storage_options=storage_options)
    rows, named = as_rows(source, format=format, columns=columns, access=access)
    paths = rows.files.paths if isinstance(rows, FileRows) else ()
    return Incoming(rows.schema, _read(rows, progress), paths, named)


def _read(rows: SourceRows, progress: Progress | None) -> Iterator[pa.Table]:
    weights = rows.weights
    total, done, last = sum(weights) or 1, 0, -1
    for chunk, table in read_in_order(rows, 0, block_bytes=_BLOCK_BYTES, ahead_bytes=_AHEAD_BYTES):
        if progress is not None and chunk != last:
            done += sum(weights[last + 1 : chunk])
            last = chunk - 1
            progress("writing", min(done / total, 1.0))
        yield table
