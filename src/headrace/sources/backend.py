"""Sources with random access: their protocol, and the base class of backends."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as ds

from headrace.convert.kinds import Kinds
from headrace.errors import SchemaError
from headrace.model import (
    DataFileInfo,
    FileList,
    FileSplit,
    Int64Array,
    RowGroups,
    computed_once,
)
from headrace.plan import ROW_ORDER, permutation
from headrace.sources.files.schemas import project
from headrace.sources.source import Discovered, StoredSource
from headrace.storage import LocalStore, Store

Indices: TypeAlias = Sequence[int] | Sequence[bool] | npt.NDArray[Any]
"""Numbers of rows, or a mask with a value for each row; also as Arrow arrays."""

ColumnValues: TypeAlias = pa.Array | pa.ChunkedArray | npt.NDArray[Any]
"""Rows of a column. A numpy array holds cells: the bytes of each row, none of which is null, all of
one length or as objects."""
ValueMaker: TypeAlias = tuple[str, int, Callable[[bytes | memoryview], Any]]
"""Name of a value in a row, number of its column, and the function that makes it from its bytes,
which it must copy if they are a view."""

_BATCH_ROWS = 1024
"""Number of rows of a batch of ``iter_batches``, if the data has no batches of its own."""
_FIRST_ROWS = 64
"""Number of rows by which the size of the rows of a stream is estimated."""
_UNIT_BYTES = 1 << 18
_UNIT_ROWS = 1024
"""Number of rows of a unit of which chunks are made, if the size of rows is not known."""


@runtime_checkable
class StorageBackend(Protocol):
    """Read access to rows by index, with Arrow types in its interface.

    ``columns`` limits the columns that are read; None means all. Backends pickle small, and open
    their data lazily in the process that reads.
    """

    @property
    def schema(self) -> pa.Schema: ...
    @property
    def num_rows(self) -> int: ...
    @property
    def num_shards(self) -> int: ...
    @property
    def table(self) -> pa.Table:
        """All rows, in memory."""
        ...

    def get_row(self, idx: int, *, columns: Sequence[str] | None = None) -> dict[str, Any]: ...
    def take(self, indices: Indices, *, columns: Sequence[str] | None = None) -> pa.Table:
        """Return rows in the order of their indices; an index may be repeated."""
        ...

    def slice(
        self, start: int, length: int, *, columns: Sequence[str] | None = None
    ) -> pa.Table: ...
    def iter_batches(
        self,
        shard_indices: Sequence[int] | None = None,
        shuffle: bool = False,
        seed: int | None = None,
        *,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.RecordBatch]: ...


class Backend(StoredSource):
    """Base class of sources whose rows can be taken by index.

    A backend has ``schema``, ``shard_rows``, ``shard_names`` and ``_take``; ``_slice``, too, if it
    reads a run of rows faster. This class checks and derives everything else. Its shards are the
    files of a `Source`.
    """

    fork_safe = True
    """True if a forked child may read from a backend that its parent has used."""

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def store(self) -> Store:
        return LocalStore(fork_safe=self.fork_safe)

    def by_index(self, schema: pa.Schema) -> Backend:
        return self

    # --- what a backend knows

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """All columns."""

    @property
    @abstractmethod
    def shard_rows(self) -> Int64Array:
        """Number of rows of each shard, in order."""

    @property
    @abstractmethod
    def shard_names(self) -> Sequence[str]:
        """Names of shards in messages and plans, all of them different."""

    @property
    def shard_bytes(self) -> Sequence[int | None]:
        """Approximate size of each shard, None where it is not known without reading the shard."""
        return [None] * self.num_shards

    @property
    def shard_etags(self) -> Sequence[str | None]:
        """Tag of the version of each shard."""
        return [None] * self.num_shards

    @property
    def broken(self) -> Sequence[str]:
        """Reasons why shards were left out under ``on_error="skip"``, one line each."""
        return ()

    def unit_rows(self, shard: int) -> int | None:
        """Return the number of rows of a shard that are best read as one; None for any number."""
        return None

    @abstractmethod
    def _take(self, rows: Int64Array, schema: pa.Schema) -> pa.Table:
        """Return rows (at least one, all existing) in exactly the columns of ``schema``."""

    def _slice(self, start: int, length: int, schema: pa.Schema) -> pa.Table:
        """Return a run of rows (at least one, all existing) in the columns of ``schema``."""
        return self._take(np.arange(start, start + length), schema)

    def _batches(self, shard: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield all rows of a shard, in order."""
        for start, length in self._blocks(shard):
            yield from self._slice(start, length, schema).to_batches()

    def _streamed(
        self, shard: int, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield all rows of a shard as the loader reads them."""
        start, rows = int(self.shard_starts[shard]), int(self.shard_rows[shard])
        for table in self.stream(start, rows, schema, block_bytes):
            yield from table.to_batches()

    def _blocks(self, shard: int) -> list[tuple[int, int]]:
        """Return the runs of a shard (first row, number of rows) that are best read as one."""
        first, rows = int(self.shard_starts[shard]), int(self.shard_rows[shard])
        starts = range(0, rows, _BATCH_ROWS)
        return [(first + start, min(_BATCH_ROWS, rows - start)) for start in starts]

    def stream(
        self, start: int, length: int, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        """Yield a run of rows, for the loader, in tables of about ``block_bytes``."""
        stop, rows = start + length, _FIRST_ROWS
        while start < stop:
            table = self._slice(start, min(rows, stop - start), schema)
            yield table
            start += table.num_rows
            rows = max(1, block_bytes * table.num_rows // max(table.nbytes, 1))

    # --- what follows from it

    @property
    def files(self) -> Sequence[DataFileInfo]:
        """Shards as files, with the units of which chunks are made as their row groups."""
        shards = zip(
            self.shard_names,
            self.shard_bytes,
            np.asarray(self.shard_rows).tolist(),
            self.shard_etags,
            strict=True,
        )
        return FileList(
            DataFileInfo(
                path,
                file_size=size,
                record_count=rows,
                row_groups=_units(rows, size, self.unit_rows(shard)),
                etag=etag,
            )
            for shard, (path, size, rows, etag) in enumerate(shards)
        )

    @computed_once
    def _first_rows(self) -> Mapping[str, int]:
        """Index of the first row of each shard, by its name."""
        return dict(zip(self.shard_names, self.shard_starts.tolist(), strict=False))

    def read(self, chunk: FileSplit, schema: pa.Schema, block_bytes: int) -> Iterator[pa.Table]:
        start, rows = self._first_rows[chunk.file.path], chunk.file.record_count or 0
        if chunk.row_range is not None:
            start, rows = start + chunk.row_range.offset, chunk.row_range.length
        tables = self.stream(start, rows, self._whole(schema), block_bytes)
        return (_narrowed(table, schema) for table in tables)

    def found(
        self,
        *,
        columns: Sequence[str] | None = None,
        filters: ds.Expression | Sequence[Any] | None = None,
        split_rows: int | None = None,
        version: tuple[int, int] | None = None,
    ) -> Discovered:
        """Return everything that a loader needs to stream the rows.

        Args:
            columns: The columns that come out; None for all.
            filters: The rows that are kept.
            split_rows: Number of rows of a chunk; if given, chunks need not be made of units.
            version: For a table, the ids of its snapshot and schema.
        """
        files = self.files
        if split_rows is not None:
            files = [replace(file, row_groups=None) for file in files]
        found = Discovered.of(
            self, self.projected(columns), files=files, filters=filters, version=version
        )
        return replace(found, broken=self.broken)

    @property
    def num_rows(self) -> int:
        """Number of rows of all shards."""
        return int(self.shard_starts[-1])

    @property
    def num_shards(self) -> int:
        """Number of files, fragments or other parts that hold the rows."""
        return len(self.shard_rows)

    @computed_once
    def shard_starts(self) -> Int64Array:
        """Index of the first row of each shard, and the number of all rows."""
        starts: Int64Array = np.concatenate([[0], np.cumsum(self.shard_rows, dtype=np.int64)])
        return starts

    def get_row(self, idx: int, *, columns: Sequence[str] | None = None) -> dict[str, Any]:
        """Return one row as Python values."""
        row: dict[str, Any] = self.take([idx], columns=columns).to_pylist()[0]
        return row

    def take(self, indices: Indices, *, columns: Sequence[str] | None = None) -> pa.Table:
        """Return rows in the order of their indices; an index may be repeated.

        Args:
            indices: Numbers of rows, where negative ones count from the end, or a mask.
            columns: The columns that are read; None for all.

        Raises:
            IndexError: A row does not exist.
            SchemaError: A column does not exist.
        """
        schema = self.projected(columns)
        rows = checked_indices(indices, self.num_rows)
        if not len(rows):
            return pa.Table.from_batches([], schema)
        return _narrowed(self._take(rows, self._whole(schema)), schema)

    def slice(self, start: int, length: int, *, columns: Sequence[str] | None = None) -> pa.Table:
        """Return ``length`` rows from ``start`` on, which may count from the end.

        Raises:
            IndexError: Not all of these rows exist.
        """
        schema = self.projected(columns)
        start, length = operator.index(start), operator.index(length)
        first = start + self.num_rows if start < 0 else start
        if length < 0 or first < 0 or first + length > self.num_rows:
            raise IndexError(f"rows {start} to {start + length} of {self.num_rows}")
        if not length:
            return pa.Table.from_batches([], schema)
        return _narrowed(self._slice(first, length, self._whole(schema)), schema)

    def iter_batches(
        self,
        shard_indices: Sequence[int] | None = None,
        shuffle: bool = False,
        seed: int | None = None,
        *,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield all rows of some shards once, batch by batch.

        Args:
            shard_indices: The shards, in this order; None for all.
            shuffle: True to shuffle shards, the batches in them and the rows of each batch.
            seed: The seed of their order; None for another order every time.
            columns: The columns that are read; None for all.
        """
        schema, narrowed = self.projected(columns), self.narrowed(columns)
        if narrowed is not self:
            return narrowed.iter_batches(shard_indices, shuffle, seed)
        wanted = range(self.num_shards) if shard_indices is None else shard_indices
        shards = checked_indices(wanted, self.num_shards, "shard").tolist()
        if not shuffle:
            return (batch for shard in shards for batch in self._batches(shard, schema))
        chosen = int(np.random.SeedSequence().entropy) if seed is None else seed  # type: ignore[arg-type]
        return self._shuffled(shards, schema, chosen)

    @property
    def table(self) -> pa.Table:
        """All rows, in memory."""
        return pa.Table.from_batches(self.iter_batches(), self.schema)

    @property
    def selectable(self) -> pa.Schema:
        """Columns that may be named: those of ``schema``, and others that must be asked for."""
        return self.schema

    def projected(self, columns: Sequence[str] | None) -> pa.Schema:
        """Return the schema of some columns, in the order in which they are named.

        A name such as ``s.a`` means the column s with only the field a of its struct.
        """
        if columns is None:
            return self.schema
        if isinstance(columns, str):
            raise TypeError(f"columns must be a list of names, not {columns!r}")
        columns = list(columns)
        if len(set(columns)) < len(columns):
            raise SchemaError(f"a column is named twice: {', '.join(columns)}")
        chosen = project(self.selectable, columns) if columns else pa.schema([])
        return chosen.with_metadata(self.schema.metadata)

    def narrowed(self, columns: Sequence[str] | None) -> Backend:
        """Return a backend with the columns of ``projected``, if structs in them lack fields."""
        schema = self.projected(columns)
        return self if schema.equals(self._whole(schema)) else NarrowedBackend(self, schema)

    def _whole(self, schema: pa.Schema) -> pa.Schema:
        """Return a schema whose structs have all of their fields."""
        fields = [self.selectable.field(name) for name in schema.names]
        return pa.schema(fields, metadata=schema.metadata)

    def located(self, rows: Int64Array) -> Iterator[tuple[int, Int64Array, Int64Array]]:
        """Yield the shards that hold rows: number, places among ``rows``, rows within the shard."""
        shards = np.searchsorted(self.shard_starts, rows, side="right") - 1
        order = np.argsort(shards, kind="stable")
        held, begins = np.unique(shards[order], return_index=True)
        for shard, places in zip(held.tolist(), np.split(order, begins[1:]), strict=True):
            yield shard, places, rows[places] - self.shard_starts[shard]

    def _shuffled(
        self, shards: Sequence[int], schema: pa.Schema, seed: int
    ) -> Iterator[pa.RecordBatch]:
        for turn in permutation(len(shards), seed=seed, epoch=0, purpose=ROW_ORDER).tolist():
            shard = shards[turn]
            blocks = self._blocks(shard)
            order = permutation(
                len(blocks), seed=seed, epoch=0, purpose=ROW_ORDER, lane=1 + shard
            ).tolist()
            for block in order:
                start, length = blocks[block]
                rows = permutation(
                    length, seed=seed, epoch=0, purpose=ROW_ORDER, lane=1 + shard, window=1 + block
                )
                yield from self._take(start + rows, schema).to_batches()

    def __len__(self) -> int:
        return self.num_rows

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.num_rows:,} rows in {self.num_shards} shards>"


class NarrowedBackend(Backend):
    """A backend with some columns of another, whose structs may have some of their fields.

    Args:
        backend: The other backend.
        schema: The columns.
    """

    def __init__(self, backend: Backend, schema: pa.Schema) -> None:
        self._backend, self._schema = backend, schema
        self.fork_safe = backend.fork_safe

    @property
    def name(self) -> str:
        return self._backend.name

    @property
    def store(self) -> Store:
        return self._backend.store

    @property
    def kinds(self) -> Kinds:
        return self._backend.kinds

    @property
    def broken(self) -> Sequence[str]:
        return self._backend.broken

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def shard_rows(self) -> Int64Array:
        return self._backend.shard_rows

    @property
    def shard_names(self) -> Sequence[str]:
        return self._backend.shard_names

    @property
    def shard_etags(self) -> Sequence[str | None]:
        return self._backend.shard_etags

    def _take(self, rows: Int64Array, schema: pa.Schema) -> pa.Table:
        return _narrowed(self._backend._take(rows, self._backend._whole(schema)), schema)

    def _slice(self, start: int, length: int, schema: pa.Schema) -> pa.Table:
        return _narrowed(self._backend._slice(start, length, self._backend._whole(schema)), schema)


def _narrowed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table whose structs have the fields of ``schema``."""
    return table if table.schema.equals(schema) else table.cast(schema)


def _units(rows: int, size_bytes: int | None, unit_rows: int | None) -> RowGroups:
    """Return the runs of rows of which chunks are made."""
    length = unit_rows or _UNIT_ROWS
    if size_bytes and not unit_rows:
        length = max(1, rows * _UNIT_BYTES // size_bytes)
    counts = [min(length, rows - start) for start in range(0, rows, length)]
    return RowGroups.of(counts, [(size_bytes or rows) * count // rows for count in counts])


def checked_indices(indices: Indices | range, count: int, what: str = "row") -> Int64Array:
    """Return indices of ``count`` things, with negative ones counted from the end.

    Args:
        indices: Numbers, where negative ones count from the end, or a mask of all things.
        count: Number of things.
        what: The name of one thing in messages.

    Raises:
        IndexError: A thing does not exist, or a mask has another length.
        TypeError: The indices are not integers.
    """
    given = np.asarray(indices)
    if given.ndim != 1:
        raise TypeError(f"indices must be a list or one-dimensional, not of shape {given.shape}")
    if given.dtype == np.bool_ and len(given):
        if len(given) != count:
            raise IndexError(f"the mask has {len(given)} values for {count} {what}s")
        return np.flatnonzero(given)
    if not len(given):
        return np.empty(0, np.int64)
    if given.dtype == np.int64 and int(np.maximum.reduce(given.view(np.uint64))) < count:
        return given  # those from the end would be huge as unsigned numbers
    if given.dtype.kind in "Of" and all(isinstance(one, int | np.integer) for one in indices):
        far = [one for one in indices if not -count <= one < count]
        if far:  # maybe beyond 64 bits
            raise IndexError(f"there is no {what} {far[0]}: there are {count}")
        given = given.astype(np.int64)
    if given.dtype.kind not in "iu":
        raise TypeError(f"indices must be integers, not {given.dtype}")
    rows = given.astype(np.int64, copy=False)
    low, high = int(rows.min()), int(rows.max())
    if high >= count or low < -count or (given.dtype.kind == "u" and int(given.max()) >= count):
        wrong = int(given.max()) if high >= count or low >= -count else low
        raise IndexError(f"there is no {what} {wrong}: there are {count}")
    return np.where(rows < 0, rows + count, rows) if low < 0 else rows
