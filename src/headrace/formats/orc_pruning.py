"""Which stripes of an ORC file may hold rows for a filter."""

from __future__ import annotations

from functools import reduce
from operator import and_

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from headrace.formats.orc_footer import (
    ColumnStatistics,
    Tail,
    column_statistics,
    read_stripe_statistics,
)

__all__ = ["matching_stripes"]


def matching_stripes(tail: Tail, schema: pa.Schema, keep: ds.Expression) -> list[int]:
    """Indices of the stripes whose statistics do not exclude ``keep``."""
    statistics = read_stripe_statistics(tail)
    if len(statistics) != len(tail.stripes):
        return list(range(len(tail.stripes)))
    columns = [field for field in schema if _has_bounds(field.type)]
    guarantees = [
        _stripe_guarantee(columns, tail.column_ids, by_id, stripe.rows)
        for by_id, stripe in zip(statistics, tail.stripes, strict=True)
    ]
    return _possible(guarantees, schema, keep)


def _has_bounds(data_type: pa.DataType) -> bool:
    return bool(
        pa.types.is_signed_integer(data_type)
        or pa.types.is_floating(data_type)
        or pa.types.is_boolean(data_type)
        or pa.types.is_string(data_type)
        or pa.types.is_date32(data_type)
    )


def _stripe_guarantee(
    columns: list[pa.Field], column_ids: dict[str, int], statistics: list[bytes], rows: int
) -> ds.Expression:
    parts = []
    for field in columns:
        column_id = column_ids[field.name]
        if column_id < len(statistics):
            known = _column_guarantee(field, column_statistics(statistics[column_id]), rows)
            if known is not None:
                parts.append(known)
    return reduce(and_, parts, ds.scalar(True))


def _column_guarantee(
    field: pa.Field, statistics: ColumnStatistics, rows: int
) -> ds.Expression | None:
    """What holds for every row; a stripe of nulls only is known by its count alone."""
    column = ds.field(field.name)
    if statistics.values == 0 and rows:
        return column.is_null()
    if statistics.bounds is None:
        return None
    least, greatest = (pa.scalar(bound, field.type) for bound in statistics.bounds)
    if pa.types.is_boolean(field.type) and least == greatest:
        within = column == least  # pyarrow decides a bare boolean column by equality alone
    else:
        within = (column >= least) & (column <= greatest)
    return within if statistics.values == rows else within | column.is_null()


def _possible(guarantees: list[ds.Expression], schema: pa.Schema, keep: ds.Expression) -> list[int]:
    """Ask pyarrow which guarantees leave room for ``keep``.

    It answers that only for the fragments of a data set, so each stripe poses as a file; no
    file is opened for it. A filter over columns that this file lacks or has in another type
    tells nothing here: all stripes are left, and rows are filtered after reading.
    """
    file_format, filesystem = ds.IpcFileFormat(), LocalFileSystem()
    fragments = [
        file_format.make_fragment(str(index), filesystem, partition_expression=guarantee)
        for index, guarantee in enumerate(guarantees)
    ]
    dataset = ds.FileSystemDataset(fragments, schema, file_format, filesystem)
    try:
        return sorted(int(fragment.path) for fragment in dataset.get_fragments(filter=keep))
    except pa.ArrowException:
        return list(range(len(guarantees)))
