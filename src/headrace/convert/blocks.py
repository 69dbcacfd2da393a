"""Blocks: many rows in their output form, from which batches are cut."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.convert.columns import Column, Rows, StructColumn
from headrace.convert.decoded import Kinds, python_values
from headrace.errors import ConversionError
from headrace.matrices import rows_at

__all__ = ["ArrowBlock", "Block", "ColumnBlock", "Permuted"]

_VIEWS_AT_ONCE = 500


class Block(ABC):
    """Rows that were converted together. Blocks are not changed; their batches may be views."""

    __slots__ = ()

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """Rows in the block."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the values of these rows."""

    @abstractmethod
    def slice(self, start: int, length: int) -> Self:
        """Some consecutive rows, as views."""

    @abstractmethod
    def take(self, rows: npt.NDArray[np.int64]) -> Self:
        """These rows, in this order."""

    @abstractmethod
    def batches(self, batch_size: int) -> Iterator[Any]:
        """Consecutive batches of ``batch_size`` rows, the last one maybe shorter, none empty."""

    @abstractmethod
    def arrays(self) -> list[npt.NDArray[Any]] | None:
        """All columns as arrays with a row in the first dimension; None if some are not such.

        ``Converter.block`` makes the block from them again.
        """

    @abstractmethod
    def to_send(self) -> Self | None:
        """The same in memory of its own, if batches are cheaper to cut in another process."""

    @abstractmethod
    def pin(self) -> Self:
        """The same with its tensors in pinned memory."""

    @classmethod
    @abstractmethod
    def joined(cls, blocks: Sequence[Self]) -> Self:
        """What ``concat`` does, for blocks of this class."""

    @classmethod
    def gathered(cls, blocks: Sequence[Self], rows: Rows) -> Self:
        """Do what ``gather`` does, for blocks of this class."""
        return cls.joined(blocks).take(rows)

    @staticmethod
    def gather(blocks: Sequence[Block], rows: Rows) -> Block:
        """Return rows, in this order, of one or more blocks laid end to end."""
        return type(blocks[0]).gathered(blocks, rows)

    @staticmethod
    def concat(blocks: Sequence[Block]) -> Block:
        """The rows of one or more blocks of the same converter, in order."""
        return blocks[0] if len(blocks) == 1 else type(blocks[0]).joined(blocks)


@dataclass(frozen=True, slots=True)
class ColumnBlock(Block):
    """Columns by key, as in a struct; batches are dicts."""

    fields: StructColumn

    @property
    def num_rows(self) -> int:
        return self.fields.num_rows

    @property
    def nbytes(self) -> int:
        return self.fields.nbytes

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns in the order of their keys."""
        return self.fields.columns

    def slice(self, start: int, length: int) -> ColumnBlock:
        return ColumnBlock(self.fields.slice(start, length))

    def take(self, rows: npt.NDArray[np.int64]) -> ColumnBlock:
        return ColumnBlock(self.fields.take(np.require(rows, np.int64, ["C", "W"])))

    def batches(self, batch_size: int) -> Iterator[dict[str, Any]]:
        # A few batches at a time: thousands of views made at once would set off the garbage
        # collector again and again, and in the end a full collection.
        together = max(_VIEWS_AT_ONCE // max(len(self.columns), 1), 1)
        return self.fields.batches(batch_size, at_once=together * batch_size)

    def arrays(self) -> list[npt.NDArray[Any]] | None:
        return self.fields.arrays()

    def to_send(self) -> ColumnBlock | None:
        fields = self.fields.to_send()
        return None if fields is None else ColumnBlock(fields)

    def pin(self) -> ColumnBlock:
        return ColumnBlock(self.fields.pin())

    @classmethod
    def joined(cls, blocks: Sequence[ColumnBlock]) -> ColumnBlock:
        return cls(StructColumn.concat([block.fields for block in blocks]))

    @classmethod
    def gathered(cls, blocks: Sequence[ColumnBlock], rows: Rows) -> ColumnBlock:
        # Column by column, while what was joined is still in the processor's cache.
        parts = zip(*[block.columns for block in blocks], strict=True)
        columns = tuple(type(same[0]).concat(same).take(rows) for same in parts)
        return cls(StructColumn(blocks[0].fields.names, columns, len(rows)))


@dataclass(frozen=True, slots=True)
class ArrowBlock(Block):
    """An Arrow table; batches are record batches, or dicts of lists of Python values."""

    table: pa.Table
    as_python: bool
    kinds: Kinds = field(default_factory=dict)
    """of columns whose Python values are not those of their Arrow types"""

    @property
    def num_rows(self) -> int:
        return int(self.table.num_rows)

    @property
    def nbytes(self) -> int:
        return int(self.table.nbytes)

    def slice(self, start: int, length: int) -> ArrowBlock:
        return replace(self, table=self.table.slice(start, length))

    def take(self, rows: npt.NDArray[np.int64]) -> ArrowBlock:
        if self.table.num_columns == 0:
            return self.slice(0, len(rows))
        return replace(self, table=rows_at(self.table, rows))

    def batches(self, batch_size: int) -> Iterator[Any]:
        starts = range(0, self.num_rows, batch_size)
        if self.as_python:
            for start in starts:
                yield _python_values(self.table.slice(start, batch_size), self.kinds)
            return
        whole = _whole_batch(self.table)
        for start in starts:
            if whole is not None:
                yield whole.slice(start, batch_size)
            else:
                yield _one_batch(self.table.slice(start, batch_size))

    def arrays(self) -> list[npt.NDArray[Any]] | None:
        return None

    def to_send(self) -> ArrowBlock | None:
        return None if self.as_python else self

    def pin(self) -> ArrowBlock:
        return self

    @classmethod
    def joined(cls, blocks: Sequence[ArrowBlock]) -> ArrowBlock:
        return replace(blocks[0], table=pa.concat_tables([block.table for block in blocks]))


class Permuted:
    """The rows of many blocks in one order.

    A processor's cache holds few of the rows of a large window, and to take them at random from all
    of it takes several times as long. So the rows come out in parts. When a block arrives, its rows
    are grouped by the part that they belong to; a part is then made of one run of rows of each
    block. Both steps move rows within what the cache holds.

    >>> from headrace.convert import Converter
    >>> converter = Converter(pa.schema([("x", pa.int64())]), "numpy")
    >>> rows = Permuted(lambda: np.array([2, 0, 1, 3]), part_rows=2)
    >>> rows.put(0, converter.convert(pa.table({"x": [10, 11, 12]})))
    >>> rows.put(3, converter.convert(pa.table({"x": [13]})))
    >>> [rows.part(index).arrays()[0].tolist() for index in range(rows.parts)]
    [[12, 10], [11, 13]]
    """

    def __init__(self, make_order: Callable[[], Rows], *, part_rows: int) -> None:
        """Prepare for blocks.

        Args:
            make_order: Returns the row that stands at each place, counted from the first row of the
                first block. It is called once, by the first thread that needs the order.
            part_rows: Number of rows in a part.
        """
        self._make_order = make_order
        self._part_rows = part_rows
        self._lock = threading.Lock()
        self._order: Rows | None = None
        self._places: Rows = np.empty(0, np.int64)
        self._grouped: dict[int, tuple[Block, Rows, Rows]] = {}

    def order(self) -> Rows:
        """Make the order, unless that is done, and return it."""
        with self._lock:
            if self._order is None:
                order = self._make_order()
                if len(order) > self._part_rows:
                    self._places = np.empty_like(order)
                    self._places[order] = np.arange(len(order))
                self._order = order
            return self._order

    @property
    def parts(self) -> int:
        """Number of parts."""
        return -(-len(self.order()) // self._part_rows)

    def put(self, first_row: int, block: Block) -> None:
        """Group the rows of a block by parts. Threads may call it at the same time.

        Args:
            first_row: Number of rows of all blocks before this one.
            block: A block of the same converter as all others.
        """
        parts = self.parts
        places = self._places[first_row : first_row + block.num_rows]
        part = places // self._part_rows
        if parts > 1:
            # numpy sorts numbers of 16 bits by radix.
            rows = np.argsort(part.astype(np.uint16) if parts <= 1 << 16 else part, kind="stable")
            block, places = block.take(rows), places[rows]
        self._grouped[first_row] = block, places, np.cumsum(np.bincount(part, minlength=parts))

    def part(self, index: int) -> Block:
        """Return the rows of one part in their order, once all blocks are there."""
        grouped = [self._grouped[first_row] for first_row in sorted(self._grouped)]
        order = self.order()
        if len(order) <= self._part_rows:
            return Block.gather([block for block, _, _ in grouped], order)
        blocks, joined = [], [np.empty(0, np.int64)]
        for block, places, ends in grouped:
            start, stop = int(ends[index - 1]) if index else 0, int(ends[index])
            if start < stop:
                blocks.append(block.slice(start, stop - start))
                joined.append(places[start:stop])
        first = index * self._part_rows
        within = np.concatenate(joined) - first
        order = np.empty_like(within)
        order[within] = np.arange(len(within))
        return Block.gather(blocks, order)


def _whole_batch(table: pa.Table) -> pa.RecordBatch | None:
    """All rows in one piece, if they can be: strings beyond 2 GiB and dictionaries may not."""
    try:
        batches = table.combine_chunks().to_batches()
    except pa.ArrowInvalid:
        return None
    return batches[0] if len(batches) == 1 else None


def _combined(table: pa.Table) -> pa.Table:
    try:
        return table.combine_chunks()
    except pa.ArrowInvalid as error:
        raise ConversionError(
            f"{table.num_rows} rows cannot be brought together in one piece: {error} Columns of "
            "dictionaries need a wider index type, or the type of their values, in schema="
        ) from error


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    """A record batch of rows whose strings may lie in several chunks of 2 GiB."""
    batches = _combined(table).to_batches()
    if len(batches) > 1:
        raise ConversionError(
            f"a batch of {table.num_rows} rows holds more than 2 GiB in one string or binary "
            "column; choose a smaller batch_size, or the type large_string or large_binary"
        )
    return batches[0]


def _python_values(rows: pa.Table, kinds: Kinds) -> dict[str, list[Any]]:
    return {
        name: python_values(column, kinds[name]) if name in kinds else _to_pylist(name, column)
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
    }


def _to_pylist(name: str, column: pa.ChunkedArray) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError) as error:  # nanoseconds, or a year beyond 9999
        raise ConversionError(
            f"column {name!r} ({column.type}) holds a value that Python has no object for: "
            f"{error}; "
            'give it another type in schema=, or read with output_format="arrow"'
        ) from error
    return values
