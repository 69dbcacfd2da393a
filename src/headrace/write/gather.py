"""The second pass: all rows in the order of their keys, range by range."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from headrace.matrices import rows_at
from headrace.model import Int64Array
from headrace.write.ranges import KeyRange, fitting_ranges
from headrace.write.runs import Run, joined_columns, open_run

__all__ = ["Place", "ShuffledRows"]

_OPEN_RUNS = 256


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the shuffled rows: ``skip`` rows behind the first one with a key from ``key``."""

    key: int = 0
    skip: int = 0


@dataclass(slots=True)
class _Loaded:
    keys: KeyRange
    table: pa.Table
    order: Int64Array
    taken: int = 0


class ShuffledRows:
    """All rows of the runs, in their final order. While some are taken, the next are loaded."""

    def __init__(
        self, paths: Sequence[Path], schema: pa.Schema, *, range_bytes: int, start: Place
    ) -> None:
        self._runs = _Runs(paths)
        self._schema = schema
        sizes = [run.size_bytes for run in self._runs.all]
        self._ranges = fitting_ranges(sizes, range_bytes, start.key)
        self._empty = _no_rows(self._runs)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="headrace-range")
        self._start = start
        self._skip = start.skip
        self._current: _Loaded | None = None
        self._next = self._begin_next()

    def __enter__(self) -> ShuffledRows:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    @property
    def place(self) -> Place:
        """Where the next row is that will be taken."""
        current = self._current
        return self._start if current is None else Place(current.keys.first, current.taken)

    def take(self, count: int) -> pa.Table:
        """The next rows, in one piece a column; fewer than asked for at the end only."""
        pieces: list[pa.Table] = []
        while count and (current := self._loaded()) is not None:
            rows = current.order[current.taken : current.taken + count]
            pieces.append(rows_at(current.table, rows))
            current.taken += len(rows)
            count -= len(rows)
        if len(pieces) == 1:
            return _as(pieces[0], self._schema)
        if not pieces:
            return self._schema.empty_table()
        return _as(pa.concat_tables(pieces).combine_chunks(), self._schema)

    def _loaded(self) -> _Loaded | None:
        """The range that the next row is in."""
        while self._current is None or self._current.taken == len(self._current.order):
            if self._next is None:
                return None
            self._current = None  # it is freed before there is another
            self._current = self._next.result()
            self._next = self._begin_next()
            skipped = min(self._skip, len(self._current.order))
            self._current.taken = skipped
            self._skip -= skipped
        return self._current

    def _begin_next(self) -> Future[_Loaded] | None:
        keys = next(self._ranges, None)
        return None if keys is None else self._pool.submit(self._load, keys)

    def _load(self, keys: KeyRange) -> _Loaded:
        # First comes what has no rows, but all values of dictionaries: ranges share them so.
        tables = [self._empty] if self._empty is not None else []
        for run, reader in self._runs:
            tables += run.read(reader, keys.first, keys.last)
        if not tables:
            return _Loaded(keys, self._schema.empty_table(), np.empty(0, np.int64))
        columns = list(joined_columns(tables))
        order = np.argsort(columns.pop().to_numpy(), kind="stable")
        table = pa.Table.from_arrays(columns, names=self._schema.names)
        return _Loaded(keys, table, order)


class _Runs:
    """The runs, of which not too many are open at a time. For one thread at a time."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._open: OrderedDict[int, ipc.RecordBatchFileReader] = OrderedDict()
        self.all: list[Run] = []
        for number, path in enumerate(paths):
            run, reader = open_run(path)
            self.all.append(run)
            self._keep(number, reader)

    def __iter__(self) -> Iterator[tuple[Run, ipc.RecordBatchFileReader]]:
        for number, run in enumerate(self.all):
            reader = self._open.get(number)
            if reader is None:
                _, reader = open_run(run.path)
                self._keep(number, reader)
            yield run, reader

    def _keep(self, number: int, reader: ipc.RecordBatchFileReader) -> None:
        if len(self._open) < _OPEN_RUNS:  # going round and round, the first are as good as any
            self._open[number] = reader


def _no_rows(runs: _Runs) -> pa.Table | None:
    """No rows of any run, with the values that dictionaries have in all of them, if there are."""
    none: list[pa.Table] = []
    for run, reader in runs:
        if not any(map(_has_dictionary, reader.schema.types)):
            return None
        part = int(np.argmax(run.rows > 0))
        none.append(pa.Table.from_batches([reader.get_batch(part)]).slice(0, 0))
    if not none:
        return None
    names = none[0].schema.names
    return pa.Table.from_arrays(list(joined_columns(none)), names=names)


def _has_dictionary(type_: pa.DataType) -> bool:
    """
    >>> _has_dictionary(pa.struct({"a": pa.list_(pa.dictionary(pa.int8(), pa.string()))}))
    True
    """
    if isinstance(type_, pa.BaseExtensionType):
        return _has_dictionary(type_.storage_type)
    inside = [type_.field(place).type for place in range(type_.num_fields)]
    return pa.types.is_dictionary(type_) or any(map(_has_dictionary, inside))


def _as(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """With the names and the metadata of a schema."""
    return pa.Table.from_arrays(table.columns, schema=schema)
