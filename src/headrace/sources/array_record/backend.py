"""``ArrayRecordBackend``: the records of ArrayRecord files as rows, by number and as a stream."""

from __future__ import annotations

import logging
import operator
import os
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterator, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.convert.arrays import object_array
from headrace.convert.kinds import Kinds
from headrace.errors import ReadError, may_be_skipped
from headrace.model import Int64Array, computed_once
from headrace.options import checked_keywords
from headrace.sources.array_record.codecs import RawRecords, RecordDecode, codec_for
from headrace.sources.array_record.files import (
    ReaderOptions,
    RecordPaths,
    RecordShard,
    find_shards,
    wanted_parts,
)
from headrace.sources.backend import Backend, ColumnValues, ValueMaker
from headrace.sources.files.protocol import rows_only
from headrace.sources.source import BrokenRecords
from headrace.sources.tar._locate import access_of
from headrace.storage import Access, Options

logger = logging.getLogger(__name__)

_BATCH_ROWS = 1024
_UNIT_BYTES = 1 << 18
_BLOCK_BYTES = 4 << 20
"""Largest number of bytes of records that are joined; larger buffers would not be reused."""
_FIRST_BYTES = 1 << 14
"""Least size assumed for a record before one is read; files store only compressed sizes."""


@checked_keywords
class ArrayRecordBackend(Backend):
    """The records of ArrayRecord files as rows.

    Records are read one by one in the calling thread. The array-record package does not survive a
    fork: the user's own workers need ``multiprocessing_context="forkserver"``.

    Args:
        paths: Files, directories, globs or URLs; ``path[start:stop]`` is a part of a file, and so
            is an object with ``filename``, ``skip`` and ``take``, such as ``FileInstruction`` of
            TFDS. A remote file is copied as a whole into ``cache_dir`` when it is first read.
        decode: The contents of records: ``"columns"``, ``"label-payload"``, ``"raw"``, a function
            of bytes that returns a dict or a tuple, or such a function and a schema. None: the
            columns that this library wrote, else one column ``record``.
        reader_options: Options of the package's reader.
        high_memory: True to let streams read a range at once, which takes as much memory as the
            range.
        storage_options: Credentials and options of the store.
        cache_dir: A folder for copies of remote files.
        cache_bytes: Largest number of bytes of the copies.
        access: All options of stores and the cache; replaces the three options before.
        on_error: With ``"skip"``, files that cannot be opened are left out and named in
            ``broken``; streams leave out records that cannot be read, and warn at their end.
    """

    fork_safe = False

    def __init__(
        self,
        paths: RecordPaths,
        *,
        decode: RecordDecode | None = None,
        reader_options: ReaderOptions | None = None,
        high_memory: bool = False,
        storage_options: Options | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | str | None = None,
        access: Access | None = None,
        on_error: str = "raise",
    ) -> None:
        if access is None:
            access = access_of(storage_options, cache_dir, cache_bytes)
        self._high_memory = high_memory
        self._skips_broken = on_error == "skip"
        self._files, self._shards, self._broken = find_shards(
            wanted_parts(paths), access, reader_options, self._may_skip
        )
        first = partial(self._files.first_record, self._shards, self._may_skip)
        self._codec = codec_for(decode, first)
        self._schema = self._codec.schema

    @property
    def name(self) -> str:
        return "array_record"

    @property
    def broken(self) -> Sequence[str]:
        return self._broken

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def kinds(self) -> Kinds:
        return self._codec.kinds

    @computed_once
    def shard_rows(self) -> Int64Array:
        return np.array([shard.rows for shard in self._shards], np.int64)

    @property
    def shard_names(self) -> Sequence[str]:
        return [shard.name for shard in self._shards]

    @property
    def locations(self) -> Sequence[str]:
        return [*self._files.locations, *(shard.file.path for shard in self._shards)]

    @property
    def shard_bytes(self) -> Sequence[int | None]:
        return [shard.size_bytes for shard in self._shards]

    @property
    def shard_etags(self) -> Sequence[str | None]:
        return [shard.file.etag for shard in self._shards]

    def unit_rows(self, shard: int) -> int | None:
        """Return the number of rows of a unit: whole groups, because a group is decoded at once."""
        group = self._shards[shard].group_size
        size = max(1, (self._shards[shard].size_bytes or 0) // max(1, self._shards[shard].rows))
        return group * max(1, _UNIT_BYTES // (size * group))

    def get_row(self, idx: int, *, columns: Sequence[str] | None = None) -> dict[str, Any]:
        """Return one row as Python values."""
        schema = self.projected(columns)
        row, count = operator.index(idx), self._starts[-1]
        if not -count <= row < count:
            raise IndexError(f"there is no row {row}: there are {count}")
        shard, number = self._place(row % count)
        record = self._record(shard, number)
        return self._codec.row(record, schema, lambda _: shard.record_name(number))

    def made_row(self, makers: Sequence[ValueMaker], row: int) -> dict[str, Any] | None:
        """Return a row whose values are made from their bytes; None if records are not raw."""
        if not isinstance(self._codec, RawRecords):
            return None
        record = self._record(*self._place(row))
        return {name: make(record) for name, _, make in makers}

    def _record(self, shard: RecordShard, number: int) -> bytes:
        _warn_of_groups(shard.file.path, shard.group_size)
        (record,) = self._files.read(shard.file, (number,))
        return record

    def _take(self, rows: Int64Array, schema: pa.Schema) -> pa.Table:
        if not len(schema):
            return rows_only(len(rows))
        return self._table(self._records(rows), rows, schema)

    def take_columns(
        self, rows: Int64Array, schema: pa.Schema, *, as_cells: Container[int]
    ) -> list[ColumnValues]:
        """Return the columns of ``take``, for a caller that has checked its arguments.

        Args:
            rows: At least one row.
            schema: At least one column.
            as_cells: Columns that may come as arrays of Python objects.
        """
        records = self._records(rows)
        if isinstance(self._codec, RawRecords) and 0 in as_cells:
            return [object_array(records)]
        columns: list[ColumnValues] = self._table(records, rows, schema).columns
        return columns

    def _table(self, records: list[bytes], rows: Int64Array, schema: pa.Schema) -> pa.Table:
        def name(place: int) -> str:
            shard, number = self._place(int(rows[place]))
            return shard.record_name(number)

        return self._codec.table(records, schema, name)

    def _records(self, rows: Int64Array) -> list[bytes]:
        """Return records in order, reading each once in the order of its file."""
        order = rows.argsort(kind="stable")
        ascending = rows[order].tolist()
        found: list[bytes] = []
        while len(found) < len(ascending):
            row = ascending[len(found)]
            shard, number = self._place(row)
            end = bisect_left(ascending, row + shard.stop - number, len(found))
            numbers = [number + other - row for other in ascending[len(found) : end]]
            if len(numbers) == 1 or numbers[-1] - number >= len(numbers):
                _warn_of_groups(shard.file.path, shard.group_size)
            found += self._files.read(shard.file, numbers)
        records = [b""] * len(rows)
        for place, record in zip(order.tolist(), found, strict=True):
            records[place] = record
        return records

    def _blocks(self, shard: int) -> list[tuple[int, int]]:
        """Return runs that end at the end of a group, unless groups are too long."""
        found = self._shards[shard]
        first, group = int(self.shard_starts[shard]) - found.start, found.group_size
        step = max(1, _BATCH_ROWS // group) * group if group <= _BATCH_ROWS else _BATCH_ROWS
        cuts = [found.start, *range((found.start // step + 1) * step, found.stop, step), found.stop]
        return [(first + begin, end - begin) for begin, end in pairwise(cuts) if end > begin]

    def stream(
        self, start: int, length: int, schema: pa.Schema, block_bytes: int
    ) -> Iterator[pa.Table]:
        """Return consecutive rows, read by one reader that decodes each group once."""
        if not len(schema):
            yield rows_only(length)
            return
        broken = BrokenRecords()
        for shard, numbers in self._runs(start, length):
            yield from self._streamed_run(shard, numbers, schema, block_bytes, broken)
        broken.tell()

    def _runs(self, start: int, length: int) -> Iterator[tuple[RecordShard, range]]:
        """Return the shards that hold rows, each with the numbers of their records."""
        while length > 0:
            shard, first = self._place(start)
            count = min(length, shard.stop - first)
            yield shard, range(first, first + count)
            start, length = start + count, length - count

    def _streamed_run(
        self,
        shard: RecordShard,
        wanted: range,
        schema: pa.Schema,
        block_bytes: int,
        broken: BrokenRecords,
    ) -> Iterator[pa.Table]:
        """Yield records that follow each other in a file, block by block.

        One reader reads all of them: another one would decode the current group again.
        """

        def table_of(numbers: Sequence[int], records: list[bytes]) -> pa.Table:
            return self._codec.table(records, schema, lambda at: shard.record_name(numbers[at]))

        file, at_once = shard.file, self._high_memory
        size = max(_FIRST_BYTES, (shard.size_bytes or 0) // shard.rows)
        reader = None
        while wanted:
            rows = len(wanted) if at_once else max(1, min(block_bytes, _BLOCK_BYTES) // size)
            numbers, wanted = wanted[:rows], wanted[rows:]
            reader = reader or self._files.borrow(file)
            try:
                records = reader.read(numbers, at_once=at_once)
                table = table_of(numbers, records)
                size = max(1, sum(map(len, records)) // len(records))
            except ReadError as error:
                if not self._may_skip(error):
                    raise
                reader = None  # a reader may fail in all its reads after an error
                kept = broken.all_but(
                    numbers, lambda number: table_of([number], self._files.read(file, [number]))
                )
                if not kept:
                    continue
                table = pa.concat_tables([one for _, one in kept]).combine_chunks()
            yield table
        if reader is not None:
            self._files.give_back(reader)

    def _may_skip(self, error: ReadError) -> bool:
        return self._skips_broken and may_be_skipped(error)

    @computed_once
    def _starts(self) -> list[int]:
        """First row of each shard, and the number of rows, as a list for bisect."""
        starts: list[int] = self.shard_starts.tolist()
        return starts

    def _place(self, row: int) -> tuple[RecordShard, int]:
        """Return the shard of a row, and the number of its record in the file."""
        place = bisect_right(self._starts, row) - 1
        shard = self._shards[place]
        return shard, row - self._starts[place] + shard.start


@cache
def _warn_of_groups(path: str, group_size: int) -> None:
    """Warn, once for each file, that single records cost whole groups."""
    if group_size > 1:
        logger.warning(
            "%s was written in groups of %d records: each row that is read at random decodes up to "
            "%d of them. Stream it, or write it with group_size=1",
            path,
            group_size,
            group_size,
        )
