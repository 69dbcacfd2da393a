"""``ArrowBackend``: rows by index of Arrow IPC files and streams, or of a table in memory."""

from __future__ import annotations

import operator
import os
from collections.abc import Container, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from headrace.convert.decoded import Kinds
from headrace.errors import OptionError, ReadError, SchemaError
from headrace.model import DataFileInfo, FileSplit, Int64Array, RowGroups, RowRange
from headrace.options import checked_keywords
from headrace.sources.arrow.format import ArrowFormat, BatchIndex
from headrace.sources.arrow.gather import Region
from headrace.sources.arrow.rows import (
    MappedShard,
    NotMappedError,
    OpenShards,
    Shard,
    StoredShard,
    TableShard,
    Taken,
    check_schema,
    index_of,
    may_be_mapped,
)
from headrace.sources.backend import Backend, checked_indices
from headrace.sources.files.failures import may_be_skipped
from headrace.sources.files.plain_types import plain_schema, plain_table
from headrace.sources.files.source import FileSource
from headrace.storage import (
    Access,
    FileStatus,
    LocalStore,
    Options,
    Store,
    find_files,
    side_by_side,
)

__all__ = ["ArrowBackend"]

PathLike = str | os.PathLike[str]

_COUNTING_THREADS = 16
_MOST_MAPPED = 16_384
"""files up to which all are mapped: a process may have some sixty thousand maps"""
_TABLE_NAME = "table"


@checked_keywords
class ArrowBackend(Backend):
    """Rows of Arrow IPC files and streams, or of a table in memory.

    Local files are mapped side by side when rows of them are wanted, and rows are copied out of
    the maps with one pass a column, whatever the number of record batches and shards they are in.
    Compressed batches and those of remote files are read one by one, and those used last are kept.
    What is handed out is always a copy. A file that is rewritten while the backend is open is a
    `FileChangedError`.
    """

    _table: pa.Table | None
    _store: Store
    _files: list[DataFileInfo]

    def __init__(
        self,
        shard_paths: PathLike | Sequence[PathLike] | None = None,
        *,
        table: pa.Table | None = None,
        shard_row_counts: Sequence[int] | None = None,
        schema: pa.Schema | None = None,
        storage_options: Options | None = None,
        access: Access | None = None,
        on_error: str = "raise",
    ) -> None:
        """``shard_paths``: files, directories or globs; a list of files keeps its order.

        With ``shard_row_counts`` and ``schema`` no file is opened before rows of it are read, and
        what they say is checked then. A ``table`` has no other place than memory: it is pickled
        with the backend, and cast to ``schema`` if one is given. ``access`` says more of stores
        than ``storage_options`` do. With ``on_error="skip"`` files that cannot be looked into are
        left out, and named in ``broken``.
        """
        if (shard_paths is None) == (table is None):
            raise OptionError("give either shard_paths or table")
        self._begin()
        self._table = table
        if table is not None:
            if not all(one is None for one in (shard_row_counts, storage_options, access)):
                raise OptionError("beside table only schema can be given")
            _check_names(table.schema)
            self._table = table = _brought_to(plain_table(table), schema)
            self._schema = table.schema
            self._rows = np.array([table.num_rows])
        else:
            assert shard_paths is not None
            if access is None:
                access = Access(storage_options=storage_options or {})
            self._store, found = _found(shard_paths, access)
            self._files = _with_counts(found, shard_row_counts)
            self._describe(schema, skips=on_error == "skip")
        self._finish()

    def _begin(self) -> None:
        self._table, self._store, self._files = None, LocalStore(), []
        self._kinds: Kinds = {}
        self._indices: dict[int, BatchIndex] = {}
        self._process: OpenShards | None = None
        self._broken: list[str] = []

    def _finish(self) -> None:
        self.fork_safe = self._store.fork_safe
        _check_names(self._schema)

    @classmethod
    def of(cls, source: FileSource, wanted: pa.Schema) -> ArrowBackend:
        """Return the rows of files that were already found, in the types that are stored.

        All files are looked into, for their types must agree.
        """
        backend = cls.__new__(cls)
        backend._begin()
        backend._store = source.store
        backend._files = [replace(file, record_count=None) for file in source.files]
        backend._describe(None, skips=False)
        backend._finish()
        stored = {field.name: field.type for field in backend.schema}
        for field in wanted:
            if stored.get(field.name) != field.type:
                raise OptionError(
                    f"column {field.name!r} is {field.type} in the data set and "
                    f"{stored.get(field.name, 'not there')} in its files: rows by index of Arrow "
                    "files have the columns and types that are stored; leave out schema=, or "
                    "write the files alike"
                )
        return backend

    def decoded_as(self, kinds: Kinds) -> ArrowBackend:
        """Return the same rows, of which another backend has decoded some columns.

        Args:
            kinds: What the columns hold, as that backend says.
        """
        made = copy(self)
        made._kinds = dict(kinds)
        return made

    # --- what there is

    @property
    def name(self) -> str:
        return "arrow"

    @property
    def broken(self) -> Sequence[str]:
        return self._broken

    @property
    def kinds(self) -> Kinds:
        return self._kinds

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def shard_rows(self) -> Int64Array:
        return self._rows

    @property
    def shard_names(self) -> Sequence[str]:
        return [_TABLE_NAME] if self._table is not None else [file.path for file in self._files]

    @property
    def shard_bytes(self) -> Sequence[int | None]:
        if self._table is not None:
            return [self._table.nbytes]
        return [file.file_size for file in self._files]

    @property
    def shard_etags(self) -> Sequence[str | None]:
        return [None] if self._table is not None else [file.etag for file in self._files]

    @property
    def table(self) -> pa.Table:
        """All rows, read into memory."""
        return self._table if self._table is not None else super().table

    def _describe(self, schema: pa.Schema | None, *, skips: bool) -> None:
        """Look into the files for counts and columns that were not given."""
        if any(file.record_count is None for file in self._files):
            look = partial(_index_or_error if skips else index_of, self._store)
            threads = 1 if self._store.local else _COUNTING_THREADS
            read = list(side_by_side(look, self._files, threads=threads))
            self._broken = [str(one) for one in read if isinstance(one, ReadError)]
            if len(self._broken) == len(read):
                raise ReadError(f"no shard can be read; the first: {self._broken[0]}")
            whole = [
                (file, index)
                for file, index in zip(self._files, read, strict=True)
                if not isinstance(index, ReadError)
            ]
            self._files = [file for file, _ in whole]
            self._indices = dict(enumerate(index for _, index in whole))
        elif schema is None:
            self._indices = {0: index_of(self._store, self._files[0])}
        self._schema = self._indices[0].plain if schema is None else plain_schema(schema)
        for number, index in self._indices.items():
            check_schema(index.plain, self._schema, self._files[number].path)
        self._files = [
            replace(file, record_count=self._indices[n].num_rows) if n in self._indices else file
            for n, file in enumerate(self._files)
        ]
        self._rows = np.array([file.record_count for file in self._files], np.int64)

    # --- rows

    def _take(self, rows: Int64Array, schema: pa.Schema) -> pa.Table:
        return self._opened().taker(schema).take(rows)

    def take_columns(
        self, rows: Int64Array, schema: pa.Schema, *, as_cells: Container[int]
    ) -> list[Taken]:
        """Return the columns of ``take``, some as cells; rows and schema were checked before.

        Rows are at least one, and so are columns.
        """
        return self._opened().taker(schema).columns(rows, as_cells=as_cells)

    def row_cells(self, row: int, names: tuple[str, ...]) -> list[memoryview] | None:
        """Return views of the bytes of a row, a column each, to be copied at once.

        None if not all columns of it consist of bytes alone, or none was taken before.
        """
        taker = self._opened().known_taker(names)
        return None if taker is None else taker.cells(row)

    def get_row(self, idx: int, *, columns: Sequence[str] | None = None) -> dict[str, Any]:
        """Return one row as Python values."""
        row = operator.index(idx)
        if not 0 <= row < self.num_rows:
            (row,) = checked_indices([idx], self.num_rows).tolist()
        shards = self._opened()
        batch = shards.batch(row)
        number = int(shards.batch_shards[batch])
        shard = shards.shard(number)
        shard.check()
        try:
            found = shard.columns(int(shards.batch_places[batch]))
        except NotMappedError:
            shards.not_mapped(number)
            found = None
        if found is None:
            return super().get_row(row, columns=columns)
        names = found if columns is None else self.projected(columns).names
        within = row - int(shards.batch_starts[batch])
        return {name: found[name][within].as_py() for name in names}

    def _slice(self, start: int, length: int, schema: pa.Schema) -> pa.Table:
        return self._take(np.arange(start, start + length), schema)

    def _batches(self, shard: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for table in self._tables(shard, RowRange(0, int(self._rows[shard])), schema, 1):
            yield from table.to_batches()

    def _blocks(self, shard: int) -> list[tuple[int, int]]:
        """Return the record batches."""
        starts = self._opened().shard(shard).starts
        first = int(self.shard_starts[shard])
        rows = np.diff(starts).tolist()
        return [(first + a, n) for a, n in zip(starts[:-1].tolist(), rows, strict=True) if n]

    def stream(
        self, start: int, length: int, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        """Yield rows that follow each other, read like any file of the format."""
        if self._table is not None:
            yield from super().stream(start, length, schema, block_bytes)
            return
        ends = self._opened().find(np.array([start, start + length - 1]))
        for number in range(int(ends[0]), int(ends[1]) + 1):
            offset, held = int(self.shard_starts[number]), int(self._rows[number])
            begin, end = max(start - offset, 0), min(start + length - offset, held)
            if begin < end:
                yield from self._tables(number, RowRange(begin, end - begin), schema, block_bytes)

    def _tables(
        self, number: int, rows: RowRange, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        """Yield rows of a shard in order."""
        if self._table is not None:
            yield self._table.slice(rows.offset, rows.length).select(schema.names)
            return
        counts = np.diff(self._opened().shard(number).starts)
        groups = RowGroups.of(counts, np.zeros_like(counts))
        chunk = FileSplit(replace(self._files[number], row_groups=groups), rows)
        for table in ArrowFormat().read(self._store, chunk, schema, block_bytes):
            if len(schema):
                table = pa.Table.from_arrays(table.select(schema.names).columns, schema=schema)
            yield table

    # --- what is open

    def _opened(self) -> OpenShards:
        """Return what this process has open; what a parent had is left to the parent."""
        if self._process is None or self._process.pid != os.getpid():
            identities = [(self._store.identity, f.path, f.file_size, f.etag) for f in self._files]
            region = self._region()
            open_one = partial(self._open, region)
            self._process = OpenShards(
                open_one, self.shard_starts, self.shard_names, identities, region
            )
        return self._process

    def _region(self) -> Region | None:
        """Reserve addresses for all files; None if they are not local, or not to be had."""
        if self._table is not None or not self._store.local or len(self._files) > _MOST_MAPPED:
            return None
        try:
            return Region([file.file_size or 0 for file in self._files])
        except OSError:
            return None

    def _open(self, region: Region | None, number: int, may_map: bool) -> Shard:
        if self._table is not None:
            return TableShard.of(self._table)
        file, index = self._files[number], self._indices.get(number)
        if index is None:
            index = self._indices[number] = index_of(self._store, file, self._schema)
        if region is not None and may_map and may_be_mapped(index):
            return MappedShard(self._store, file, index, region, number)
        return StoredShard(self._store, file, index)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_process": None, "_indices": {}, "_table": _packed(self._table)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        packed = state["_table"]
        table = None if packed is None else ipc.open_stream(packed).read_all()
        self.__dict__.update(state, _table=table)


def _packed(table: pa.Table | None) -> pa.Buffer | None:
    """As a stream: of a slice pyarrow would pickle all that it is a slice of."""
    if table is None:
        return None
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _brought_to(table: pa.Table, schema: pa.Schema | None) -> pa.Table:
    """Return the columns of a schema, in its order and types."""
    if schema is None:
        return table
    schema = plain_schema(schema)
    missing = [name for name in schema.names if name not in table.schema.names]
    if missing:
        raise SchemaError(
            f"schema names a column {missing[0]!r}; the table has {', '.join(table.schema.names)}"
        )
    try:
        return table.select(schema.names).cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaError(f"the table cannot be brought to schema: {error}") from error


def _check_names(schema: pa.Schema) -> None:
    if len(set(schema.names)) < len(schema):
        raise SchemaError(
            f"several columns have the same name: {', '.join(schema.names)}; rows by "
            "index need names that tell columns apart"
        )


def _index_or_error(store: Store, file: DataFileInfo) -> BatchIndex | ReadError:
    try:
        return index_of(store, file)
    except ReadError as error:
        if not may_be_skipped(error):
            raise
        return error


def _found(paths: PathLike | Sequence[PathLike], access: Access) -> tuple[Store, list[FileStatus]]:
    """The files that are meant: in the order in which they are named, if all of them are."""
    listing = find_files(paths, access)
    named = {listing.store.resolved(one): turn for turn, one in enumerate(listing.locations)}
    files = list(listing.files)
    if all(file.path in named for file in files):
        files.sort(key=lambda file: named[file.path])
    return listing.store, files


def _with_counts(files: Sequence[FileStatus], counts: Sequence[int] | None) -> list[DataFileInfo]:
    given: Sequence[int | None] = [None] * len(files) if counts is None else list(counts)
    if len(given) != len(files):
        raise OptionError(
            f"shard_row_counts has {len(given)} counts for {len(files)} shards; give one for each, "
            "or none to have rows counted"
        )
    for count in given:
        if count is not None and (not isinstance(count, int | np.integer) or count < 0):
            raise OptionError(f"shard_row_counts must be numbers of rows, not {count!r}")
    return [
        DataFileInfo(
            file.path,
            file_size=file.size if file.size >= 0 else None,
            record_count=None if count is None else int(count),
            etag=file.etag,
        )
        for file, count in zip(files, given, strict=True)
    ]
