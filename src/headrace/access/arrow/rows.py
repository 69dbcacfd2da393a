"""Rows of many record batches by their number, in some columns, taken as if they were of one."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.access.arrow.directory import Directory
from headrace.access.arrow.gather import DamagedRowError, gather_for
from headrace.access.arrow.opening import OpenShards
from headrace.access.arrow.strides import Strides
from headrace.access.taking import in_order, take_from
from headrace.errors import ReadError
from headrace.formats.blocks import rows_only
from headrace.formats.cache import BoundedCache
from headrace.model import Int64Array

__all__ = ["OpenRows", "RowTaker", "Taken"]

Taken: TypeAlias = pa.Array | pa.ChunkedArray | npt.NDArray[Any]
"""a column; an array is of cells: the bytes of each row, where none is null, equally many or, if
they are values of a column of bytes, as objects"""

_DECODED_BYTES = 256 << 20
"""of record batches that had to be fetched or decompressed, kept for the next rows of them"""
_MOST_DECODED = 32
"""such batches that are held at once, whatever they take"""


@dataclass(frozen=True, slots=True, eq=False)
class _Decoded:
    batch: pa.RecordBatch
    places: Int64Array


_decoded: BoundedCache[_Decoded] = BoundedCache(lambda made: made.batch.get_total_buffer_size())


class RowTaker:
    """Takes rows in some columns: gathered where they can be, else left to Arrow."""

    def __init__(self, schema: pa.Schema, shards: OpenShards) -> None:
        self._schema, self._shards = schema, shards
        self._key = tuple(schema.names)
        self._gathers = [gather_for(field.type) for field in schema]
        self._left: set[int] = {n for n, gather in enumerate(self._gathers) if gather is None}
        """columns that are left to Arrow"""

    def take(self, rows: Int64Array) -> pa.Table:
        """These rows, at least one, all of them there."""
        if not self._key:
            return rows_only(len(rows))
        return pa.Table.from_arrays(self.columns(rows), schema=self._schema)

    def columns(self, rows: Int64Array, *, as_cells: Container[int] = ()) -> list[Taken]:
        """The same in columns; of some as cells, where they can be had so."""
        with self._shards.lock:
            directory = self._covering(rows)
            if directory is None:
                return self._in_parts(rows, self._shards.find(rows), self._shards.limit)
            batches = directory.find(rows)
            passing = self._looked_at(directory, batches)
            strides = directory.strides
        if len(passing) > _MOST_DECODED:
            return self._in_parts(rows, batches, _MOST_DECODED)
        decoded = self._decode(directory, passing) if passing else {}
        try:
            found: dict[int, Taken] = {}
            if not decoded:
                bases = directory.bases.take(batches, axis=1)
                found = self._even(strides, bases, rows, as_cells)
            if len(found) < len(self._key):
                self._gather(found, directory, rows, batches, decoded)
        except DamagedRowError as error:
            raise self._damaged(int(rows[error.args[0]])) from error
        except OverflowError:
            half = len(rows) // 2
            return _columns(pa.concat_tables([self.take(rows[:half]), self.take(rows[half:])]))
        return [found[column] for column in range(len(self._key))]

    # --- where rows are

    def _covering(self, rows: Int64Array) -> Directory | None:
        """A directory of the shards of some rows; None if these are too many to be open."""
        before: Directory | None = self._shards.derived.get(self._key)
        if before is not None and before.whole:
            return before
        of_rows = self._shards.find(rows)
        if before is not None and before.covered[of_rows].all():
            return before
        wanted = np.unique(of_rows).tolist()
        if len(wanted) > self._shards.limit:
            return None
        shards = self._shards.some(wanted)
        places = sum(gather.count for gather in self._gathers if gather is not None)
        directory = Directory.of(
            shards, self._shards.first_rows, columns=len(self._key), places=places
        )
        if before is not None:
            directory.learn(before)
        self._shards.derived[self._key] = directory
        return directory

    def _looked_at(self, directory: Directory, batches: Int64Array) -> list[int]:
        """The batches whose places cannot be kept, after all others have been looked at."""
        if directory.complete or directory.known[batches].all():
            return []
        unknown = batches[~directory.known[batches] & directory.stays[batches]]
        for number in np.unique(unknown).tolist():
            batch = directory.batch(number, self._key)
            shard = int(directory.shard[number])
            if directory.shards[shard].stays:
                directory.note(number, self._places(batch), self._strides(batch))
            else:
                directory.stays[directory.shard == shard] = False
        passing: list[int] = np.unique(batches[~directory.known[batches]]).tolist()
        return passing

    def _strides(self, batch: pa.RecordBatch) -> list[tuple[int, int] | None]:
        return [
            None if gather is None or number in self._left else gather.stride(batch.column(name))
            for number, (name, gather) in enumerate(zip(self._key, self._gathers, strict=True))
        ]

    def _places(self, batch: pa.RecordBatch) -> Int64Array:
        """A column of which one batch cannot be gathered is left to Arrow from then on."""
        found: list[int] = []
        for number, gather in enumerate(self._gathers):
            if gather is not None:
                of_column = gather.places(batch.column(self._key[number]))
                if of_column is None:
                    self._left.add(number)
                found += of_column or [0] * gather.count
        return np.array(found, np.int64)

    def _decode(self, directory: Directory, numbers: list[int]) -> dict[int, _Decoded]:
        """Batches that are not in memory, from the cache or made anew."""
        made: dict[int, _Decoded] = {}
        missing: dict[int, list[int]] = {}
        for number in numbers:
            found = _decoded.get(self._cached_as(directory, number))
            if found is None:
                missing.setdefault(int(directory.shard[number]), []).append(number)
            else:
                made[number] = found
        for shard, lacking in missing.items():
            inside = directory.number[lacking].tolist()
            batches = directory.shards[shard].batches(inside, self._key)
            for number, batch in zip(lacking, batches, strict=True):
                made[number] = _Decoded(batch, self._places(batch))
                key = self._cached_as(directory, number)
                _decoded.add(key, made[number], limit_bytes=_DECODED_BYTES)
        return made

    def _cached_as(self, directory: Directory, number: int) -> tuple[Any, ...]:
        shard = int(directory.shard[number])
        return self._shards.identities[shard], int(directory.number[number]), self._key

    # --- the rows

    def _even(
        self, strides: Strides, bases: Int64Array, rows: Int64Array, as_cells: Container[int]
    ) -> dict[int, Taken]:
        """The columns of rows of one width, for which no batch has to be looked into."""
        found: dict[int, Taken] = {}
        for column, cells in strides.cells(bases, rows):
            gather = self._gathers[column]
            if gather is not None:
                found[column] = cells if column in as_cells else gather.array(cells)
        return found

    def _gather(
        self,
        found: dict[int, Taken],
        directory: Directory,
        rows: Int64Array,
        batches: Int64Array,
        decoded: dict[int, _Decoded],
    ) -> None:
        """Add the columns that are still to be found."""
        places = directory.places.take(batches, axis=1)
        for number, made in decoded.items():
            places[:, batches == number] = made.places[:, None]
        within = rows - directory.starts[batches]
        first = 0
        for column, gather in enumerate(self._gathers):
            if gather is not None:
                if column not in found and column not in self._left:
                    found[column] = gather.rows(places[first : first + gather.count], within)
                first += gather.count
        if len(found) < len(self._key):
            held = {
                number: decoded[number].batch
                if number in decoded
                else directory.batch(number, self._key)
                for number in np.unique(batches).tolist()
            }
            for column, name in enumerate(self._key):
                if column not in found:
                    arrays = {number: batch.column(name) for number, batch in held.items()}
                    found[column] = take_from(arrays, batches, within)

    def _damaged(self, row: int) -> ReadError:
        [shard] = self._shards.find(np.array([row])).tolist()
        return ReadError(
            f"{self._shards.names[shard]}, row {row - self._shards.first_rows[shard]}: its offsets "
            "point to where no data is; the file is damaged, write it again"
        )

    def _in_parts(self, rows: Int64Array, keys: Int64Array, most: int) -> list[Taken]:
        """Rows that have too many different keys to be taken at once."""
        order = np.argsort(keys, kind="stable")
        _, begins = np.unique(keys[order], return_index=True)
        parts = np.split(order, begins[most::most])
        taken = pa.concat_tables([self.take(rows[part]) for part in parts])
        return _columns(in_order(taken, order))


@dataclass(slots=True, eq=False)
class OpenRows:
    """What a process has open."""

    pid: int
    shards: OpenShards
    takers: dict[tuple[str, ...], RowTaker] = field(default_factory=dict)
    """by the columns that they take"""
    last: tuple[pa.Schema | None, RowTaker | None] = None, None

    def taker(self, schema: pa.Schema) -> RowTaker:
        """How rows are taken in these columns."""
        asked, taker = self.last
        if taker is None or asked is not schema:
            key = tuple(schema.names)
            taker = self.takers.get(key) or RowTaker(schema, self.shards)
            self.takers[key] = taker
            self.last = schema, taker
        return taker


def _columns(table: pa.Table) -> list[Taken]:
    columns: list[Taken] = table.columns
    return columns
