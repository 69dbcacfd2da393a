"""``ArrowBackend``: rows by index of Arrow IPC files and streams, or of a table in memory."""

from __future__ import annotations

import operator
import os
from collections.abc import Container, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from headrace.convert.kinds import Kinds
from headrace.errors import OptionError, ReadError, SchemaError
from headrace.model import DataFileInfo, FileList, Int64Array, computed_once
from headrace.options import checked_keywords, whole_number
from headrace.sources.arrow._format import ArrowFormat
from headrace.sources.arrow._gather import NoCellError
from headrace.sources.arrow._maps import MappedFiles, NotMappedError, check_row_count
from headrace.sources.backend import ColumnValues, ValueMaker, checked_indices
from headrace.sources.files._backend import FileBackend
from headrace.sources.files._source import FileSource
from headrace.sources.files.discovery import discover, select_files
from headrace.sources.files.protocol import rows_only
from headrace.sources.files.schemas import plain_schema, plain_table
from headrace.sources.taking import as_stream, take_from
from headrace.storage import Access, Listing, LocalStore, Options, find_files

PathLike = str | os.PathLike[str]

_MOST_MAPPED = 16_384
"""Number of files up to which all are mapped; a process may have some sixty thousand maps."""
_JOINED_BYTES = 256 << 20
"""Size up to which a table of many chunks is joined into one, so that one take reads all rows."""


@checked_keywords
class ArrowBackend(FileBackend):
    """Rows of Arrow IPC files and streams, or of a table in memory.

    Local files are mapped side by side when rows of them are wanted. Rows are copied out of the
    maps in one pass for each column, however many record batches and files hold them. Record
    batches that are compressed, remote, or of other types than the data set are decoded, and those
    used last are kept. The rows handed out are always a copy. A file that is rewritten while the
    backend is open is a `FileChangedError`.

    Args:
        shard_paths: Files, directories or globs; a list of files keeps its order. Files with other
            columns or types are converted to one schema.
        table: Rows in memory, in place of files. They are pickled with the backend.
        shard_row_counts: The number of rows of each file. With these and ``schema`` no file is
            opened before rows of it are read; the counts are checked then.
        schema: The columns and their types.
        storage_options: Options of the store.
        access: More options of the store, in place of ``storage_options``.
        on_error: With "skip", files that cannot be read are left out, and named in ``broken``.
    """

    _table: pa.Table | None
    _broken: Sequence[str]

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
        if (shard_paths is None) == (table is None):
            raise OptionError("give either shard_paths or table")
        broken: Sequence[str] = ()
        if table is not None:
            if not all(one is None for one in (shard_row_counts, storage_options, access)):
                raise OptionError("beside table only schema can be given")
            table = _brought_to(plain_table(table), schema)
            source = _source_of_table(table)
        else:
            assert shard_paths is not None
            if access is None:
                access = Access(storage_options=storage_options or {})
            if shard_row_counts is not None:
                source = _described(find_files(shard_paths, access), shard_row_counts, schema)
            else:
                source, broken = _found(shard_paths, access, schema, skips=on_error == "skip")
        super().__init__(source, source.schema)
        self._table, self._broken = table, broken
        if table is not None:
            self._may_be_mapped = False
        elif schema is None:
            self._schema = source.schema.with_metadata(dict(source.metadata) or None)

    def _use(self, source: FileSource, schema: pa.Schema) -> None:
        super()._use(source, schema)
        self._table, self._broken = None, ()
        self._kinds: Kinds = {}
        self._inspected: dict[int, DataFileInfo] = {}
        self._maps: MappedFiles | None = None
        few = len(source.files) <= _MOST_MAPPED
        all_in_files = not len(source.path_columns.schema)
        self._may_be_mapped = source.store.local and few and all_in_files

    def decoded_as(self, kinds: Kinds) -> ArrowBackend:
        """Return the same rows, some columns of which were decoded by another backend.

        Args:
            kinds: The kinds of the columns, as that backend describes them.
        """
        made = copy(self)
        made._kinds = dict(kinds)
        return made

    @property
    def broken(self) -> Sequence[str]:
        return self._broken

    @property
    def kinds(self) -> Kinds:
        return self._kinds

    @property
    def table(self) -> pa.Table:
        """All rows, read into memory."""
        return self._table if self._table is not None else super().table

    def _file(self, shard: int) -> DataFileInfo:
        """Return a file with its record batches, looking into the file if necessary."""
        file = self._files[shard]
        if file.splittable and file.row_groups is None and shard not in self._inspected:
            facts = self._source.format.inspect(self.store, file)
            check_row_count(file, facts.record_count)
            missing = [name for name in self._schema.names if name not in facts.schema.names]
            if missing:
                raise SchemaError(f"{file.path} has no column {missing[0]!r}, which schema= names")
            self._inspected[shard] = facts.added_to(file)
        return self._inspected.get(shard, file)

    # --- rows

    def _take(self, rows: Int64Array, schema: pa.Schema) -> pa.Table:
        if not len(schema):
            return rows_only(len(rows))
        try:
            columns = self.take_columns(rows, schema, as_cells=())
        except OverflowError:
            half = len(rows) // 2
            parts = [self._take(rows[:half], schema), self._take(rows[half:], schema)]
            return pa.concat_tables(parts)
        return pa.Table.from_arrays(columns, schema=schema)

    def take_columns(
        self, rows: Int64Array, schema: pa.Schema, *, as_cells: Container[int]
    ) -> list[ColumnValues]:
        """Return the columns of ``take``, some as cells; the caller has checked rows and schema.

        There must be at least one row and one column.

        Raises:
            OverflowError: The rows have too many bytes for one array.
        """
        if self._table is not None:
            return self._from_table(rows, schema)
        maps = self._opened()
        if maps is not None:
            try:
                numbers = [self._numbers[name] for name in schema.names]
                return maps.columns(rows, numbers, as_cells=as_cells)
            except NotMappedError:
                pass
        columns: list[ColumnValues] = super()._take(rows, schema).columns
        return columns

    def made_row(self, makers: Sequence[ValueMaker], row: int) -> dict[str, Any] | None:
        """Return a row whose values are made from their bytes; None if bytes do not suffice."""
        maps = self._opened()
        try:
            return None if maps is None else maps.made_row(makers, row)
        except (NotMappedError, NoCellError, UnicodeDecodeError):
            return None

    def get_row(self, idx: int, *, columns: Sequence[str] | None = None) -> dict[str, Any]:
        """Return one row as Python values."""
        if columns is not None and self.narrowed(columns) is not self:
            return super().get_row(idx, columns=columns)
        row = operator.index(idx)
        if not 0 <= row < self.num_rows:
            (row,) = checked_indices([idx], self.num_rows).tolist()
        if self._table is not None:
            starts, batches = self._held
            number = int(starts.searchsorted(row, "right")) - 1
            found: Mapping[str, pa.Array] | pa.RecordBatch = batches[number]
            within = row - int(starts[number])
        else:
            maps = self._opened()
            try:
                if maps is None:
                    raise NotMappedError
                found, within = maps.row(row)
            except NotMappedError:
                return super().get_row(row, columns=columns)
        names = self._numbers if columns is None else self.projected(columns).names
        return {name: found[name][within].as_py() for name in names}

    @computed_once
    def _numbers(self) -> dict[str, int]:
        """Numbers of the columns, by name."""
        return {name: number for number, name in enumerate(self._schema.names)}

    def _opened(self) -> MappedFiles | None:
        """Return the maps of this process; a forked child does not use those of its parent."""
        maps = self._maps
        if self._may_be_mapped and (maps is None or maps.pid != os.getpid()):
            maps = MappedFiles(self.store, self._files, self.shard_starts, self._schema)
            self._maps = maps
        return maps

    def _from_table(self, rows: Int64Array, schema: pa.Schema) -> list[ColumnValues]:
        starts, batches = self._held
        numbers = np.searchsorted(starts, rows, side="right") - 1
        within = rows - starts[numbers]
        return [
            take_from({n: batches[n].column(name) for n in range(len(batches))}, numbers, within)
            for name in schema.names
        ]

    @computed_once
    def _held(self) -> tuple[Int64Array, list[pa.RecordBatch]]:
        """First row of each batch of a table in memory, and the batches."""
        table = self._table
        assert table is not None
        if table.num_columns and table.column(0).num_chunks > 1 and table.nbytes <= _JOINED_BYTES:
            table = table.combine_chunks()
        batches = [batch for batch in table.to_batches() if batch.num_rows]
        counts = [batch.num_rows for batch in batches]
        return np.cumsum([0, *counts[:-1]], dtype=np.int64), batches

    def __getstate__(self) -> dict[str, Any]:
        # As a stream, because pyarrow would pickle all of the table of which this is a slice.
        table = None if self._table is None else as_stream(self._table)
        state = {**super().__getstate__(), "_maps": None, "_table": table}
        state.pop("_held", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        packed = state["_table"]
        table = None if packed is None else ipc.open_stream(packed).read_all()
        self.__dict__.update(state, _table=table)


# --- which rows there are


def _source_of_table(table: pa.Table) -> FileSource:
    """Return a table as the only file of a source, which is never read."""
    file = DataFileInfo("table", table.nbytes, table.num_rows, splittable=False)
    return FileSource(LocalStore(), table.schema, FileList([file]), ArrowFormat())


def _found(
    paths: PathLike | Sequence[PathLike], access: Access, schema: pa.Schema | None, *, skips: bool
) -> tuple[FileSource, Sequence[str]]:
    """Return files after looking into all of them, and the reasons why some were left out."""
    found = discover(paths, "arrow", schema=schema, access=access, skip_broken=skips)
    source = found.reader.source
    assert isinstance(source, FileSource)
    assert found.listing is not None
    if not len(source.files):
        raise ReadError(f"no shard can be read; the first: {found.broken[0]}")
    for file in source.files:
        if not file.splittable and not source.store.local:
            raise OptionError(
                f"{file.path} is an Arrow IPC stream, of which only the next record batch can be "
                "found; StructuredDataset reads it in order, for rows by index download it or "
                "write it as an IPC file"
            )
    files = FileList(_in_named_order(found.listing, source.files))
    return replace(source, files=files), found.broken


def _described(listing: Listing, counts: Sequence[int], schema: pa.Schema | None) -> FileSource:
    """Return files whose numbers of rows the user has given, without looking into them."""
    _, listed = select_files(listing, "arrow", check=True)
    if len(counts) != len(listed):
        raise OptionError(
            f"shard_row_counts has {len(counts)} counts for {len(listed)} shards; give one for "
            "each, or none to have rows counted"
        )
    files = [
        replace(file, record_count=whole_number("a count of shard_row_counts", count, 0))
        for file, count in zip(_in_named_order(listing, listed), counts, strict=True)
    ]
    if schema is None:
        facts = ArrowFormat().inspect(listing.store, files[0])
        check_row_count(files[0], facts.record_count)
        schema = facts.schema
    return FileSource(listing.store, plain_schema(schema), FileList(files), ArrowFormat())


def _in_named_order(listing: Listing, files: Iterable[DataFileInfo]) -> list[DataFileInfo]:
    """Return files in the order in which they are named, if each of them is named."""
    named = {listing.store.resolved(one): turn for turn, one in enumerate(listing.locations)}
    found = list(files)
    if all(file.path in named for file in found):
        found.sort(key=lambda file: named[file.path])
    return found


def _brought_to(table: pa.Table, schema: pa.Schema | None) -> pa.Table:
    """Return the columns of a schema, in its order and types."""
    names = table.schema.names
    if len(set(names)) < len(names):
        raise SchemaError(
            f"several columns have the same name: {', '.join(names)}; rows by index need names "
            "that tell columns apart"
        )
    if schema is None:
        return table
    schema = plain_schema(schema)
    missing = [name for name in schema.names if name not in names]
    if missing:
        raise SchemaError(f"schema names a column {missing[0]!r}; the table has {', '.join(names)}")
    try:
        return table.select(schema.names).cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaError(f"the table cannot be brought to schema: {error}") from error
