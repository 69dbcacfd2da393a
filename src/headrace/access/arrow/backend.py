"""``ArrowBackend``: rows by index of Arrow IPC files and streams, or of a table in memory."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from headrace.access.arrow.opening import MOST_OPEN, OpenShards, ShardOpener
from headrace.access.arrow.rows import OpenRows, Taken
from headrace.access.arrow.shards import Shard, ShardIndex, check_index, cut, read_index
from headrace.access.backend import Backend
from headrace.convert.decoded import Kinds
from headrace.errors import OptionError, ReadError, SchemaError
from headrace.formats.arrow_ipc import ArrowFormat
from headrace.formats.blocks import rows_only
from headrace.formats.failures import may_be_skipped
from headrace.model import DataFileInfo, FileSplit, Int64Array, RowGroups, RowRange
from headrace.options import checked_keywords
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
_TABLE_NAME = "table"


@checked_keywords
class ArrowBackend(Backend):
    """Rows of Arrow IPC files and streams, or of a table in memory.

    Files of this machine are mapped when rows of them are wanted, and rows are copied out of the
    maps with one pass a column, whatever the number of record batches and shards they are in.
    Compressed batches are decompressed one by one, and those used last are kept, as are batches of
    files elsewhere.
    """

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
        with the backend. ``access`` says more of stores than ``storage_options`` do. With
        ``on_error="skip"`` files that cannot be looked into are left out, and named in ``broken``.
        """
        if (shard_paths is None) == (table is None):
            raise OptionError("give either shard_paths or table")
        self._table = table
        self._kinds: Kinds = {}
        self._store: Store = LocalStore()
        self._files: list[DataFileInfo] = []
        self._indices: dict[int, ShardIndex] = {}
        self._process: OpenRows | None = None
        self.broken: list[str] = []
        if table is not None:
            if not all(one is None for one in (shard_row_counts, schema, storage_options, access)):
                raise OptionError("beside table nothing else is given: it says all of itself")
            self._schema = table.schema
            self._rows = np.array([table.num_rows])
        else:
            assert shard_paths is not None
            if access is None:
                access = Access(storage_options=storage_options or {})
            self._store, found = _found(shard_paths, access)
            self._files = _with_counts(found, shard_row_counts)
            self._describe(schema, skips=on_error == "skip")
        self.fork_safe = self._store.fork_safe
        if len(set(self._schema.names)) < len(self._schema):
            raise SchemaError(
                f"several columns have the same name: {', '.join(self._schema.names)}; rows by "
                "index need names that tell columns apart"
            )

    @classmethod
    def of_decoded(cls, table: pa.Table, kinds: Kinds) -> ArrowBackend:
        """Return a backend over rows in memory that another backend has decoded.

        Args:
            table: The rows.
            kinds: What the columns hold, as that backend says.
        """
        made = cls(table=table)
        made._kinds = dict(kinds)
        return made

    # --- what there is

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
        """All rows: of files of this machine as a view, page by page read when it is used."""
        return self._table if self._table is not None else super().table

    def _describe(self, schema: pa.Schema | None, *, skips: bool) -> None:
        """Look into the files for what was not said of them."""
        if any(file.record_count is None for file in self._files):
            look = partial(_index_or_error if skips else read_index, self._store)
            threads = 1 if self._store.local else _COUNTING_THREADS
            read = list(side_by_side(look, self._files, threads=threads))
            self.broken = [str(one) for one in read if isinstance(one, ReadError)]
            if len(self.broken) == len(read):
                raise ReadError(f"no shard can be read; the first: {self.broken[0]}")
            whole = [
                (file, index)
                for file, index in zip(self._files, read, strict=True)
                if not isinstance(index, ReadError)
            ]
            self._files = [file for file, _ in whole]
            self._indices = dict(enumerate(index for _, index in whole))
        elif schema is None:
            self._indices = {0: read_index(self._store, self._files[0])}
        self._schema = self._indices[0].schema if schema is None else schema
        for number, index in self._indices.items():
            check_index(index, self._files[number], self._schema)
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
        """What ``take`` gives, for one who checked rows and schema; of some columns as cells.

        Rows are at least one, and so are columns.
        """
        return self._opened().taker(schema).columns(rows, as_cells=as_cells)

    def _slice(self, start: int, length: int, schema: pa.Schema) -> pa.Table:
        if not len(schema):
            return rows_only(length)
        batches: list[pa.RecordBatch] = []
        for number, rows in self._shards_of(start, length):
            shard = self._shard(number)
            if not shard.stays:  # what was decoded is kept, for the next rows of it
                return self._take(np.arange(start, start + length), schema)
            batches += cut(shard, rows, schema)
        return pa.Table.from_batches(batches, schema)

    def _batches(self, shard: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        held = self._shard(shard)
        for start, length in self._blocks(shard):
            rows = RowRange(start - int(self.shard_starts[shard]), length)
            if len(schema):
                yield from cut(held, rows, schema)
            else:
                yield from rows_only(length).to_batches()

    def _blocks(self, shard: int) -> list[tuple[int, int]]:
        """Record batches."""
        starts = self._shard(shard).starts
        first = int(self.shard_starts[shard])
        rows = np.diff(starts).tolist()
        return [(first + a, n) for a, n in zip(starts[:-1].tolist(), rows, strict=True) if n]

    def stream(
        self, start: int, length: int, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        """Views of what is mapped, and copies of what is in memory, which a user might write to.

        All else is read like any file of the format.
        """
        if self._table is not None:
            for view in super().stream(start, length, schema, block_bytes):
                yield self._take(np.arange(start, start + view.num_rows), schema)
                start += view.num_rows
            return
        for number, rows in self._shards_of(start, length):
            shard = self._shard(number)
            if shard.stays or not len(schema):
                first = int(self.shard_starts[number]) + rows.offset
                yield from super().stream(first, rows.length, schema, block_bytes)
                continue
            counts = np.diff(shard.starts)
            groups = RowGroups.of(counts, np.zeros_like(counts))
            chunk = FileSplit(replace(self._files[number], row_groups=groups), rows)
            for table in ArrowFormat().read(self._store, chunk, schema, block_bytes):
                yield pa.Table.from_arrays(table.select(schema.names).columns, schema=schema)

    def _shards_of(self, start: int, length: int) -> Iterator[tuple[int, RowRange]]:
        """The shards that hold some rows, and which of their rows these are."""
        ends = np.array([start, start + length - 1])
        first, last = self._opened().shards.find(ends).tolist()
        for number in range(first, last + 1):
            offset, held = int(self.shard_starts[number]), int(self._rows[number])
            begin, end = max(start - offset, 0), min(start + length - offset, held)
            if begin < end:
                yield number, RowRange(begin, end - begin)

    # --- what is open

    def _shard(self, number: int) -> Shard:
        shards = self._opened().shards
        with shards.lock:
            return shards.one(number)

    def _opened(self) -> OpenRows:
        """What this process has open; what a parent had is left to the parent."""
        if self._process is None or self._process.pid != os.getpid():
            opener = ShardOpener(self._store, self._files, self._schema, self._indices, self._table)
            identities = [(self._store.identity, f.path, f.file_size, f.etag) for f in self._files]
            shards = OpenShards(opener, self.shard_starts, self.shard_names, identities, MOST_OPEN)
            self._process = OpenRows(os.getpid(), shards)
        return self._process

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


def _index_or_error(store: Store, file: DataFileInfo) -> ShardIndex | ReadError:
    try:
        return read_index(store, file)
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
