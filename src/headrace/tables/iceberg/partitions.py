"""Filters that the partitions of files settle, because all rows of a file have the same values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from headrace.formats.filters import columns_of, rows_where
from headrace.tables.columns import Column
from headrace.tables.iceberg.planning import PlannedFile

__all__ = ["settled_by_partition"]

_PLACE = "\0place"


def settled_by_partition(
    keep: ds.Expression | None, columns: Mapping[str, Column], files: Sequence[PlannedFile]
) -> tuple[ds.Expression | None, Sequence[PlannedFile]]:
    """What is left of a filter, and of files, once partitions have been looked at.

    Nothing is left of a filter over columns by whose plain values all files are partitioned.
    """
    if keep is None:
        return None, files
    whole = pa.schema([pa.field(name, column.type) for name, column in columns.items()])
    needed = [columns[name] for name in columns_of(keep, whole)]
    if not needed or not all(c.id in file.constants for file in files for c in needed):
        return keep, files
    schema = pa.schema([*(pa.field(c.name, c.type) for c in needed), (_PLACE, pa.int64())])
    distinct: dict[int, Mapping[int, Any]] = {id(f.constants): f.constants for f in files}
    rows = [
        {_PLACE: place, **{c.name: values[c.id] for c in needed}}
        for place, values in distinct.items()
    ]
    kept = rows_where(pa.Table.from_pylist(rows, schema=schema), keep)
    places = set(kept[_PLACE].to_pylist())
    return None, [file for file in files if id(file.constants) in places]
