"""Row groups of which statistics prove that a filter keeps every row."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from headrace.formats.filters import columns_of

__all__ = ["settled_groups"]


def settled_groups(
    fragment: ds.ParquetFileFragment,
    footer: pq.FileMetaData,
    groups: Sequence[int],
    keep: ds.Expression,
) -> set[int]:
    """Those of some groups in which no row can fail ``keep``.

    A group cannot hold a row for the opposite, and has no value for which neither holds: no null,
    and no NaN, which least and greatest values do not tell of.
    """
    if not groups:
        return set()
    try:
        failing = fragment.subset(~keep, schema=fragment.physical_schema).row_groups
    except pa.ArrowException:
        return set()
    candidates = set(groups) - {group.id for group in failing}
    if not candidates:
        return set()
    leaves = _leaves(footer, fragment.physical_schema, keep)
    return {group for group in candidates if leaves and _without_nulls(footer, group, leaves)}


def _leaves(footer: pq.FileMetaData, schema: pa.Schema, keep: ds.Expression) -> list[int]:
    """The filter's columns in the file; none of them if one is nested or may hold NaN."""
    wanted = columns_of(keep, schema)
    paths = [footer.schema.column(leaf).path for leaf in range(footer.num_columns)]
    leaves = [paths.index(name) for name in wanted if paths.count(name) == 1]
    types = [schema.field(name).type for name in wanted]
    flat = len(leaves) == len(wanted) and not any(map(pa.types.is_nested, types))
    return leaves if flat and not any(map(pa.types.is_floating, types)) else []


def _without_nulls(footer: pq.FileMetaData, group: int, leaves: Sequence[int]) -> bool:
    for leaf in leaves:
        statistics = footer.row_group(group).column(leaf).statistics
        if statistics is None or not statistics.has_null_count or statistics.null_count:
            return False
    return True
