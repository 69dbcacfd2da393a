"""Rows of several datasets, one after the other, as one backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.access.rows._dataset import RowDataset
from headrace.convert.kinds import Kinds
from headrace.errors import OptionError, SchemaError
from headrace.model import Int64Array
from headrace.sources.backend import Backend
from headrace.sources.files.protocol import rows_only
from headrace.sources.taking import in_order


def concatenate(datasets: Sequence[RowDataset]) -> RowDataset:
    """Return the rows of several datasets, one after the other.

    The datasets may be views, and their sources of different kinds. All must have the same columns,
    of the same types, in any order. The result has the format, the transform and all other options
    of the first dataset. Nothing is copied.

    Raises:
        SchemaError: A dataset has other columns than the first one.

    Examples:
        >>> import pyarrow as pa
        >>> from headrace.access import ArrowBackend
        >>> rows = RowDataset(ArrowBackend(table=pa.table({"x": range(4)})))
        >>> concatenate([rows[2:], rows.take(1)])["x"]
        tensor([2, 3, 0])
    """
    parts = list(datasets)
    if not parts:
        raise OptionError("concatenate needs at least one dataset")
    return parts[0].over(ConcatenatedBackend(parts))


class ConcatenatedBackend(Backend):
    """The rows of several datasets, as they are stored.

    It has the shards of all datasets; a view of only some rows of a backend is one shard.

    Args:
        parts: The datasets.
    """

    def __init__(self, parts: Sequence[RowDataset]) -> None:
        schema, kinds = parts[0].schema, parts[0].kinds
        self._parts = [_aligned(part, schema, kinds, n) for n, part in enumerate(parts)]
        self._starts = np.cumsum([0, *map(len, self._parts)], dtype=np.int64)
        self._rows = np.concatenate([_shards(part)[0] for part in self._parts])
        self._names = [
            f"part {number}: {name}"
            for number, part in enumerate(self._parts)
            for name in _shards(part)[1]
        ]
        self.fork_safe = all(getattr(part.backend, "fork_safe", True) for part in self._parts)

    @property
    def given(self) -> Mapping[str, Any]:
        return {
            name: function
            for part in self._parts
            for name, function in getattr(part.backend, "given", {}).items()
        }

    @property
    def kinds(self) -> Kinds:
        return self._parts[0].kinds

    @property
    def schema(self) -> pa.Schema:
        return self._parts[0].schema

    @property
    def shard_rows(self) -> Int64Array:
        return self._rows

    @property
    def shard_names(self) -> Sequence[str]:
        return self._names

    @property
    def locations(self) -> Sequence[str]:
        return [place for part in self._parts for place in getattr(part.backend, "locations", ())]

    def _take(self, rows: Int64Array, schema: pa.Schema) -> pa.Table:
        if not len(schema):
            return rows_only(len(rows))
        of_row = np.searchsorted(self._starts, rows, side="right") - 1
        order = np.argsort(of_row, kind="stable")
        tables = []
        for number in np.unique(of_row).tolist():
            within = rows[order][of_row[order] == number] - self._starts[number]
            tables.append(self._parts[number].select_columns(schema.names).table(within))
        taken = pa.concat_tables(tables)
        return in_order(pa.Table.from_arrays(taken.columns, schema=schema), order)


def _aligned(part: RowDataset, schema: pa.Schema, kinds: Kinds, number: int) -> RowDataset:
    """Return a dataset with its columns in the order of a schema, without its transform."""
    here = {field.name: field.type for field in part.schema}
    there = {field.name: field.type for field in schema}
    if here != there or part.kinds != kinds:
        names = [*here, *(name for name in there if name not in here)]
        name = next((n for n in names if here.get(n) != there.get(n)), names[0])
        raise SchemaError(
            f"dataset {number} cannot follow dataset 0: its column {name!r} is "
            f"{here.get(name, 'missing')}, and there {there.get(name, 'missing')}; use "
            "select_columns, rename_columns or map first"
        )
    return part.with_transform(None).select_columns(schema.names)


def _shards(part: RowDataset) -> tuple[Int64Array, Sequence[str]]:
    """Return the rows and names of the shards of a dataset."""
    backend = part.backend
    if isinstance(backend, Backend) and part.is_whole:
        return backend.shard_rows, backend.shard_names
    return np.array([len(part)]), [f"{len(part)} rows of {backend!r}"]
