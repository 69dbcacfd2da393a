"""Rows of many record batches by their number, in some columns, taken as if they were of one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Container, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import ipc

from headrace.access.arrow.gather import DamagedRowError, Maps, Taken, gather_for
from headrace.access.arrow.shards import MappedShard, NotMappedError, Shard, StoredShard
from headrace.access.taking import in_order, take_from
from headrace.errors import ReadError
from headrace.formats.blocks import rows_only
from headrace.formats.cache import BoundedCache
from headrace.model import Int64Array

__all__ = ["OpenShards", "RowTaker", "Taken"]

_MOST_OPEN = 1024
"""shards that are open at a time: a process may have some ten thousand maps"""
_DECODED_BYTES = 256 << 20
"""of record batches that had to be fetched or decompressed, kept for the next rows of them"""
_MOST_DECODED = 32
"""such batches that are held at once, whatever they take"""

_NOTHING: npt.NDArray[np.uint8] = np.empty(0, np.uint8)

_decoded: BoundedCache[pa.RecordBatch] = BoundedCache(lambda made: made.get_total_buffer_size())


class OpenShards:
    """The shards that a process has open. Its users hold ``lock``.

    Args:
        opener: Opens a shard, given its number and whether it may be mapped.
        first_rows: First row of each shard, and the number of all rows.
        names: What each shard is called in messages.
        identities: What tells shards apart from all others that this process may read.
    """

    def __init__(
        self,
        opener: Callable[[int, bool], Shard],
        first_rows: Int64Array,
        names: Sequence[str],
        identities: Sequence[Hashable],
    ) -> None:
        self._opener = opener
        self.first_rows, self.names, self.identities = first_rows, names, identities
        self.pid = os.getpid()
        self.lock = threading.RLock()
        self.open: dict[int, Shard] = {}
        self.version = 0
        """grows whenever other shards are open"""
        self._not_mapped: set[int] = set()
        self._takers: dict[tuple[str, ...], RowTaker] = {}

    def find(self, rows: Int64Array) -> Int64Array:
        """Return the shards in which some rows are."""
        found: Int64Array = np.searchsorted(self.first_rows, rows, side="right") - 1
        return found

    def shard(self, number: int) -> Shard:
        """Return a shard, opened if it is not."""
        found = self.open.get(number)
        if found is None:
            found = self.open[number] = self._opener(number, number not in self._not_mapped)
            self.version += 1
        return found

    def keep_only(self, numbers: Container[int]) -> None:
        """Close shards beyond the limit, but not these."""
        if len(self.open) > _MOST_OPEN:
            self.open = {n: shard for n, shard in self.open.items() if n in numbers}
            self.version += 1

    def read_in_batches(self, number: int) -> None:
        """Close a mapped shard, and open it next time as one that is read into memory."""
        self._not_mapped.add(number)
        self.open.pop(number, None)
        self.version += 1

    def taker(self, schema: pa.Schema) -> RowTaker:
        """Return what takes rows in these columns."""
        key = tuple(schema.names)
        found = self._takers.get(key)
        if found is None:
            found = self._takers[key] = RowTaker(schema, self)
        return found

    def row(self, row: int) -> tuple[pa.RecordBatch, int, Shard] | None:
        """Return a view of the batch that holds a row, the place of the row in it, and its shard.

        None if the batch has to be read.
        """
        number = int(self.first_rows.searchsorted(row, "right")) - 1
        shard = self.open.get(number)
        if shard is None:
            with self.lock:
                shard = self.shard(number)
                self.keep_only([number])
        if isinstance(shard, StoredShard):
            return None
        shard.check()
        within = row - int(self.first_rows[number])
        batch = int(shard.starts.searchsorted(within, "right")) - 1
        try:
            (found,) = shard.batches((batch,), ())
        except NotMappedError:
            with self.lock:
                self.read_in_batches(number)
            return None
        return found, within - int(shard.starts[batch]), shard


@dataclass(slots=True, eq=False)
class _Directory:
    """The batches of all open shards, as columns."""

    version: int
    shards: list[Shard]
    numbers: list[int]
    """of the shards, among all"""
    covered: npt.NDArray[np.bool_]
    """of all shards, which are open"""
    whole: bool
    """whether all are"""
    starts: Int64Array
    """first row of each batch, of all rows"""
    slot: Int64Array
    """the shard of each batch, by its place in ``shards``"""
    inside: Int64Array
    """number of each batch in its shard"""
    mapped: npt.NDArray[np.bool_]
    """whether a batch is in a map"""
    all_mapped: bool
    maps: list[npt.NDArray[np.uint8]]
    """the bytes of each shard that is mapped"""
    known: npt.NDArray[np.bool_]
    """whether the places of a batch are known"""
    places: Int64Array
    """a column for each batch"""
    complete: bool = False
    """whether all of them are known"""

    @classmethod
    def of(cls, shards: OpenShards, places: int, before: _Directory | None) -> _Directory:
        numbers = sorted(shards.open)
        held = [shards.open[number] for number in numbers]
        sizes = [len(shard.starts) - 1 for shard in held]
        first_rows = shards.first_rows
        covered = np.zeros(len(first_rows) - 1, bool)
        covered[numbers] = True
        made = cls(
            shards.version,
            held,
            numbers,
            covered,
            bool(covered.all()),
            np.concatenate(
                [shard.starts[:-1] + first_rows[n] for n, shard in zip(numbers, held, strict=True)]
            ),
            np.repeat(np.arange(len(held)), sizes),
            np.concatenate([np.arange(size) for size in sizes]),
            np.repeat([isinstance(shard, MappedShard) for shard in held], sizes),
            all(isinstance(shard, MappedShard) for shard in held),
            [shard.bytes if isinstance(shard, MappedShard) else _NOTHING for shard in held],
            np.repeat(False, sum(sizes)),
            np.zeros((places, sum(sizes)), np.int64),
        )
        for slot, number in enumerate(numbers if before is not None else []):
            assert before is not None
            if number in before.numbers:
                old = before.numbers.index(number)
                if before.shards[old] is held[slot]:
                    here, there = made._batches_of(slot), before._batches_of(old)
                    made.known[here] = before.known[there]
                    made.places[:, here] = before.places[:, there]
        made.known |= np.diff(np.append(made.starts, first_rows[-1])) <= 0
        return made

    def _batches_of(self, slot: int) -> slice:
        return slice(*np.searchsorted(self.slot, [slot, slot + 1]).tolist())


class RowTaker:
    """Takes rows in some columns: gathered out of maps where they can be, else left to Arrow."""

    def __init__(self, schema: pa.Schema, shards: OpenShards) -> None:
        self._schema, self._shards = schema, shards
        self._names = tuple(schema.names)
        self._gathers = [gather_for(field.type) for field in schema]
        self._left = {n for n, gather in enumerate(self._gathers) if gather is None}
        """columns that are left to Arrow"""
        self._uneven: set[int] = set()
        """columns whose rows have nulls or different lengths"""
        counts = [0 if gather is None else gather.count for gather in self._gathers]
        self._first = [sum(counts[:column]) for column in range(len(counts))]
        """the first place of each column"""
        self._widths: tuple[set[int], list[tuple[int, list[int], list[int]]]] | None = None
        self._directory: _Directory | None = None

    def take(self, rows: Int64Array) -> pa.Table:
        """Return these rows, at least one, all of them there."""
        if not self._names:
            return rows_only(len(rows))
        return pa.Table.from_arrays(self.columns(rows), schema=self._schema)

    def columns(self, rows: Int64Array, *, as_cells: Container[int] = ()) -> list[Taken]:
        """Return the same in columns; some of them as cells, where they can be had so."""
        if len(rows) == 1:
            cells = self._cells_of(int(rows[0]), as_cells)
            if cells is not None:
                return cells
        try:
            with self._shards.lock:
                directory = self._covering(rows)
                if directory is None:
                    return self._in_parts(rows, self._shards.find(rows), _MOST_OPEN)
                batches = directory.starts.searchsorted(rows, "right") - 1
                used, of_row = _used(directory, batches)
                for slot in used:
                    directory.shards[slot].check()
                is_mapped = directory.all_mapped or bool(directory.mapped[batches].all())
                if is_mapped and not directory.complete:
                    self._learn(directory, batches)
            if not is_mapped:
                return self._from_batches(directory, rows, batches)
            maps = Maps([directory.maps[slot] for slot in used], of_row)
            found = self._gathered(directory, rows, batches, maps, as_cells)
        except DamagedRowError as error:
            raise self._damaged(int(rows[error.args[0]])) from error
        except OverflowError:
            half = len(rows) // 2
            return _columns(pa.concat_tables([self.take(rows[:half]), self.take(rows[half:])]))
        except NotMappedError as error:
            self._shards.read_in_batches(error.args[0])
            return self.columns(rows, as_cells=as_cells)
        for slot in used:
            directory.shards[slot].check()
        return found

    def _cells_of(self, row: int, as_cells: Container[int]) -> list[Taken] | None:
        """Return one row as cells, without the arrays that pay for many rows.

        None if not all columns of it are cells, or not all batches have been looked at.
        """
        directory = self._directory
        if directory is None or not directory.complete or not directory.whole or self._left:
            return None
        batch = int(directory.starts.searchsorted(row, "right")) - 1
        slot, within = int(directory.slot[batch]), row - int(directory.starts[batch])
        shard, data = directory.shards[slot], directory.maps[slot].data
        shard.check()
        places = directory.places[:, batch].tolist()
        found: list[Taken] = []
        for column, gather in enumerate(self._gathers):
            if gather is None or column not in as_cells:
                return None
            first = self._first[column]
            cell = gather.cell(data, places[first : first + gather.count], within)
            if not cell:
                return None
            found.append(np.frombuffer(bytearray(cell), f"V{len(cell)}"))
        shard.check()
        return found

    # --- where rows are

    def _covering(self, rows: Int64Array) -> _Directory | None:
        """Return a directory of the shards of some rows; None if these are too many to be open."""
        known = self._directory
        is_current = known is not None and known.version == self._shards.version
        if known is not None and is_current and known.whole:
            return known
        of_rows = self._shards.find(rows)
        if known is not None and is_current and known.covered[of_rows].all():
            return known
        wanted = np.unique(of_rows).tolist()
        if len(wanted) > _MOST_OPEN:
            return None
        for number in wanted:
            self._shards.shard(number)
        self._shards.keep_only(wanted)
        places = sum(gather.count for gather in self._gathers if gather is not None)
        self._directory = _Directory.of(self._shards, places, known)
        return self._directory

    def _learn(self, directory: _Directory, batches: Int64Array) -> None:
        """Find the places of batches that were not looked at before."""
        if directory.known[batches].all():
            return
        for number in np.unique(batches[~directory.known[batches]]).tolist():
            slot, inside = int(directory.slot[number]), int(directory.inside[number])
            shard = directory.shards[slot]
            assert isinstance(shard, MappedShard)
            try:
                batch = shard.batch(inside)
            except NotMappedError:
                raise NotMappedError(directory.numbers[slot]) from None
            directory.places[:, number] = self._places(batch, shard.address)
            directory.known[number] = True
        directory.complete = bool(directory.known.all())

    def _places(self, batch: pa.RecordBatch, base: int) -> list[int]:
        """A column of which one batch cannot be gathered is left to Arrow from then on."""
        found: list[int] = []
        for number, gather in enumerate(self._gathers):
            if gather is not None:
                of_column = gather.places(batch.column(self._names[number]), base)
                if of_column is None:
                    self._left.add(number)
                elif not gather.width or of_column[0] >= 0:
                    self._uneven.add(number)
                found += of_column or [0] * gather.count
        return found

    # --- the rows

    def _gathered(
        self,
        directory: _Directory,
        rows: Int64Array,
        batches: Int64Array,
        maps: Maps,
        as_cells: Container[int],
    ) -> list[Taken]:
        within = rows - directory.starts[batches]
        places = directory.places.take(batches, axis=1)
        found: dict[int, Taken] = {}
        for column, gather in enumerate(self._gathers):
            if gather is None or column in self._left or column not in self._uneven:
                continue
            first = self._first[column]
            own = places[first : first + gather.count]
            found[column] = gather.rows(maps, own, within, as_cells=column in as_cells)
        for width, columns, values in self._even():
            if len(values) == 1:
                records = [maps.records(places[values[0]] + width * within, width)]
            else:
                records = list(maps.records(places[values] + width * within, width))
            for column, cells in zip(columns, records, strict=True):
                gather = self._gathers[column]
                assert gather is not None
                found[column] = cells if column in as_cells else gather.array(cells)
        if len(found) < len(self._names):
            held = self._held(directory, np.unique(batches).tolist())
            for column in range(len(self._names)):
                if column not in found:
                    found[column] = _owned(self._taken(held, column, batches, within))
        return [found[column] for column in range(len(self._names))]

    def _even(self) -> list[tuple[int, list[int], list[int]]]:
        """Return the columns whose rows have one width and no nulls, by width, and their places."""
        odd = self._left | self._uneven
        if self._widths is None or self._widths[0] != odd:
            found: dict[int, list[int]] = {}
            for column, gather in enumerate(self._gathers):
                if gather is not None and column not in odd:
                    found.setdefault(gather.width, []).append(column)
            made = [(w, cs, [self._first[c] + 1 for c in cs]) for w, cs in found.items()]
            self._widths = odd, made
        return self._widths[1]

    def _from_batches(
        self, directory: _Directory, rows: Int64Array, batches: Int64Array
    ) -> list[Taken]:
        """Take rows batch by batch, where not all of them are in maps."""
        numbers = np.unique(batches)
        if np.count_nonzero(~directory.mapped[numbers]) > _MOST_DECODED:
            return self._in_parts(rows, batches, _MOST_DECODED)
        held = self._held(directory, numbers.tolist())
        within = rows - directory.starts[batches]
        found = [self._taken(held, c, batches, within) for c in range(len(self._names))]
        return [_owned(each) for each in found] if directory.mapped[numbers].any() else found

    def _taken(
        self,
        held: dict[int, pa.RecordBatch],
        column: int,
        batches: Int64Array,
        within: Int64Array,
    ) -> pa.Array | pa.ChunkedArray:
        name = self._names[column]
        arrays = {number: batch.column(name) for number, batch in held.items()}
        return take_from(arrays, batches, within)

    def _held(self, directory: _Directory, numbers: Sequence[int]) -> dict[int, pa.RecordBatch]:
        """Return some batches: views of maps and tables, others from the cache or made anew."""
        made: dict[int, pa.RecordBatch] = {}
        missing: dict[int, list[int]] = {}
        for number in numbers:
            found = _decoded.get(self._key(directory, number))
            if found is None:
                missing.setdefault(int(directory.slot[number]), []).append(number)
            else:
                made[number] = found
        for slot, lacking in missing.items():
            inside = directory.inside[lacking].tolist()
            try:
                batches = directory.shards[slot].batches(inside, self._names)
            except NotMappedError:
                raise NotMappedError(directory.numbers[slot]) from None
            for number, batch in zip(lacking, batches, strict=True):
                made[number] = batch
                if self._shards.identities and not directory.mapped[number]:
                    _decoded.add(self._key(directory, number), batch, limit_bytes=_DECODED_BYTES)
        return made

    def _key(self, directory: _Directory, number: int) -> tuple[Any, ...]:
        shard = directory.numbers[int(directory.slot[number])]
        identity = self._shards.identities[shard] if self._shards.identities else id(self)
        return identity, int(directory.inside[number]), self._names

    def _damaged(self, row: int) -> ReadError:
        [shard] = self._shards.find(np.array([row])).tolist()
        return ReadError(
            f"{self._shards.names[shard]}, row {row - self._shards.first_rows[shard]}: its "
            "offsets or its text are damaged; write the file again"
        )

    def _in_parts(self, rows: Int64Array, keys: Int64Array, most: int) -> list[Taken]:
        """Take rows that have too many different keys to be taken at once."""
        order = np.argsort(keys, kind="stable")
        _, begins = np.unique(keys[order], return_index=True)
        parts = np.split(order, begins[most::most])
        taken = pa.concat_tables([self.take(rows[part]) for part in parts])
        return _columns(in_order(taken, order))


def _used(directory: _Directory, batches: Int64Array) -> tuple[list[int], Int64Array | None]:
    """Return the shards of some batches, and where in that list the shard of each batch is."""
    if len(directory.shards) == 1:
        return [0], None
    slots = directory.slot[batches]
    counts = np.bincount(slots)
    used = np.flatnonzero(counts)
    if len(used) == 1:
        return used.tolist(), None
    return used.tolist(), (np.cumsum(counts > 0) - 1)[slots]


def _owned(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return a copy of what ``take`` may leave in a map: dictionaries, and rows that are slices."""
    table = pa.table({"": column})
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return ipc.open_stream(sink.getvalue()).read_all().column(0)


def _columns(table: pa.Table) -> list[Taken]:
    columns: list[Taken] = table.columns
    return columns
