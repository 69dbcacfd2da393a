"""Records that follow each other, as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.access.broken_records import BrokenRecords
from headrace.archives.array_record import read_at_once, read_run
from headrace.archives.record_codecs import RecordCodec
from headrace.archives.record_files import RecordFiles, Shard
from headrace.errors import ReadError

__all__ = ["RecordStream"]

_JOINED_BYTES = 4 << 20
"""of records that are joined, at most: the memory of more would be fresh each time"""
_FIRST_BYTES = 1 << 14
"""of a record at least, before the first is read: files say how long they are compressed"""

_Found = tuple[Sequence[int], list[bytes]]
"""records, and the number of each"""


@dataclass(slots=True)
class RecordStream:
    """Reads runs of records. Those that cannot be read or decoded are left out if they may be."""

    files: RecordFiles
    codec: RecordCodec
    schema: pa.Schema
    block_bytes: int
    at_once: bool
    """whether a run is read by one call, into one table"""
    may_skip: Callable[[ReadError], bool]
    broken: BrokenRecords = field(default_factory=BrokenRecords)

    def tables(self, shard: Shard, first: int, count: int) -> Iterator[pa.Table]:
        """The records of a shard from the number ``first`` on."""
        for numbers, records in self._read(shard, first, count):
            table = self._decoded(shard, numbers, records)
            if table is not None:
                yield table

    def _read(self, shard: Shard, first: int, count: int) -> Iterator[_Found]:
        """All by one reader: any other would have to decode the group that this one is in."""
        stop, size = first + count, max(_FIRST_BYTES, (shard.size_bytes or 0) // shard.rows)
        most_bytes = min(self.block_bytes, _JOINED_BYTES)
        reader = None
        while first < stop:
            rows = min(max(1, most_bytes // size), stop - first)
            if self.at_once:
                rows = stop - first
            reader = reader or self.files.taken(shard.file)
            found = self._run(reader, shard, range(first, first + rows))
            if found is None:
                reader = None  # it fails ever after
                found = self._one_by_one(shard, range(first, first + rows))
            records = found[1]
            if records:
                yield found
                size = max(1, sum(map(len, records)) // len(records))
            first += rows
        if reader is not None:
            self.files.readers.give_back(shard.file.path, reader)

    def _run(self, reader: Any, shard: Shard, numbers: range) -> _Found | None:
        """All of them; None if they cannot be read, and that may be."""
        read = read_at_once if self.at_once else read_run
        try:
            return numbers, read(reader, numbers.start, len(numbers), shard.file.path)
        except ReadError as error:
            if not self.may_skip(error):
                raise
        return None

    def _one_by_one(self, shard: Shard, numbers: range) -> _Found:
        """Those that can be read."""
        found = self.broken.all_but(numbers, lambda number: self.files.record(shard.file, number))
        return [numbers[place] for place, _ in found], [record for _, record in found]

    def _decoded(self, shard: Shard, numbers: Sequence[int], records: list[bytes]) -> Any:
        """A table of those that can be decoded; None if none can."""

        def table_of(some: list[bytes], first: int = 0) -> pa.Table:
            def where(at: int) -> str:
                return shard.named(numbers[first + at])

            return self.codec.table(some, self.schema, where)

        try:
            return table_of(records)
        except ReadError as error:
            if not self.may_skip(error):
                raise
        places = range(len(records))
        found = self.broken.all_but(places, lambda place: table_of([records[place]], place))
        return table_of([records[place] for place, _ in found]) if found else None
