"""Rows of columns as records, each of which says what its columns are.

mark       8 bytes   93 50 45 4E 52 4F 57 31
columns    4 bytes   length of what follows, little-endian as all numbers are
           JSON      [["label","int64"],["image","binary"],["box",["list","float32"]], ...]
states     1 byte    a column: 0 there is a value, 1 there is none, 2 it is an Arrow message
fixed      numbers and all else that has a fixed width, as Arrow has it in memory; truth values
           in a byte; for any other column 4 bytes, the length of its cell
cells      of those other columns, in order: bytes and UTF-8 as they are; the items of lists of
           fixed width one after the other; any other type, and lists that have nulls in them,
           as an Arrow IPC message of a record batch of one row
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.archives.packed_cells import (
    NULL,
    VALUE,
    BytesColumn,
    Where,
    bytes_column,
    cells_of,
    column_of_cells,
    fixed_column,
    fixed_values,
    nulls_of,
    opened_cells,
)
from headrace.archives.packed_row import SingleRow
from headrace.archives.pieces import in_pieces
from headrace.archives.row_types import (
    Layout,
    layout_of,
    packable,
    schema_of_text,
    schema_text,
    width_of,
)
from headrace.errors import ReadError, SchemaError, WriteError
from headrace.model import Int64Array, computed_once

__all__ = ["MARK", "PackedRows"]

MARK = b"\x93PENROW1"
_LONGEST_CELL = (1 << 32) - 1
_BATCH_ROWS = 1024


class PackedRows:
    """Packs rows of a schema into records, and unpacks them by columns."""

    holds_bytes = True

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = packable(schema)
        if not len(self.schema):
            raise SchemaError("rows without columns cannot be packed into records")

    @classmethod
    def of_record(cls, record: bytes) -> PackedRows | None:
        """What a record says of itself; None of a record that was not packed here."""
        if not record.startswith(MARK):
            return None
        start = len(MARK) + 4
        length = int.from_bytes(record[len(MARK) : start], "little")
        try:
            return cls(schema_of_text(record[start : start + length]))
        except ValueError:
            return None

    @computed_once
    def header(self) -> bytes:
        """What every record begins with."""
        text = schema_text(self.schema)
        return MARK + len(text).to_bytes(4, "little") + text

    @computed_once
    def _layouts(self) -> list[Layout]:
        return [layout_of(field.type) for field in self.schema]

    @computed_once
    def _single(self) -> SingleRow:
        return SingleRow(self.schema, self._layouts)

    @computed_once
    def _fixed(self) -> np.dtype[Any]:
        """The fixed part of a record: states, then a value or the length of a cell each."""
        parts: list[tuple[str, str]] = [("states", f"({len(self.schema)},)u1")]
        for place, (field, layout) in enumerate(zip(self.schema, self._layouts, strict=True)):
            if layout is Layout.FIXED:
                kind = f"V{width_of(field.type)}"
            else:
                kind = "u1" if layout is Layout.BOOL else "<u4"
            parts.append((str(place), kind))
        return np.dtype(parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedRows, (self.schema,)

    # --- rows to records

    def records(self, table: pa.Table) -> Iterator[bytes]:
        """The rows of a table, each packed."""
        missing = [name for name in self.schema.names if name not in table.schema.names]
        if missing:
            raise SchemaError(f"there is no column {missing[0]!r}, as there was in the rows before")
        columns = [_cast(table.column(field.name), field) for field in self.schema]
        plain = pa.Table.from_arrays(columns, schema=self.schema)
        for batch in plain.to_batches(max_chunksize=_BATCH_ROWS):
            if batch.num_rows:
                yield from self._packed(batch)

    def _packed(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        rows = np.zeros(batch.num_rows, self._fixed)
        behind: list[Sequence[Any]] = []
        for place, layout in enumerate(self._layouts):
            column = batch.column(place)
            states = np.where(nulls_of(column), NULL, VALUE).astype(np.uint8)
            if layout is Layout.FIXED:
                rows[str(place)] = fixed_values(column)
            elif layout is Layout.BOOL:
                rows[str(place)] = column.fill_null(False).cast(pa.uint8()).to_numpy()
            else:
                cells = cells_of(column, layout, states)
                lengths = [len(cell) for cell in cells]
                if max(lengths) > _LONGEST_CELL:
                    name = self.schema.names[place]
                    raise WriteError(f"column {name!r} has a value of {max(lengths)} bytes")
                rows[str(place)] = lengths
                behind.append(cells)
            rows["states"][:, place] = states
        size, fixed, header = self._fixed.itemsize, rows.tobytes(), self.header
        starts = range(0, len(fixed), size)
        following = zip(*behind, strict=True) if behind else repeat(())
        for start, one in zip(starts, following, strict=False):
            yield b"".join((header, fixed[start : start + size], *one))

    # --- records to rows

    def table(
        self,
        records: Sequence[bytes],
        schema: pa.Schema,
        where: Where,
        of_bytes: BytesColumn = bytes_column,
    ) -> pa.Table:
        """Some columns of records; ``where`` names the record at a place, if it is a wrong one."""
        return in_pieces(records, where, partial(self._unpacked, schema, of_bytes))

    def row(self, record: bytes, schema: pa.Schema, where: Where) -> dict[str, Any]:
        """Some columns of one record, as Python values."""
        values = self._single.values(record, self.header, schema.names)
        if values is not None:
            return values
        table = self.table([record], schema, where)
        return {name: table.column(name)[0].as_py() for name in schema.names}

    def _unpacked(
        self, schema: pa.Schema, of_bytes: BytesColumn, records: Sequence[bytes], where: Where
    ) -> pa.Table:
        rows, cells = self._parts(records, where)
        columns = []
        for field in schema:
            place = self.schema.get_field_index(field.name)
            states = rows["states"][:, place]
            layout = self._layouts[place]
            if layout in (Layout.FIXED, Layout.BOOL):
                column = fixed_column(rows[str(place)], layout, field.type, states)
            else:
                wanted: Sequence[Any] = _between(records, *cells[place])
                if layout is Layout.BYTES:
                    stored = self.schema.field(place).type
                    wanted, states = opened_cells(wanted, stored, states, where)
                    column = of_bytes(wanted, field.type, states)
                else:
                    column = column_of_cells(wanted, layout, field.type, states, where)
            columns.append(column)
        return pa.Table.from_arrays(columns, schema=schema)

    def _parts(
        self, records: Sequence[bytes], where: Where
    ) -> tuple[npt.NDArray[Any], dict[int, tuple[Int64Array, Int64Array]]]:
        """The fixed parts, and where in the records the cells of the other columns are."""
        header, size = self.header, self._fixed.itemsize
        begin = len(header)
        end = begin + size
        lengths = np.fromiter(map(len, records), np.int64, len(records))
        wrong = [i for i, record in enumerate(records) if not record.startswith(header)]
        if not wrong:
            wrong = np.flatnonzero(lengths < end).tolist()
        if wrong:
            raise ReadError(_foreign(records[wrong[0]], self.schema, where(wrong[0])))
        rows = np.frombuffer(b"".join([record[begin:end] for record in records]), self._fixed)
        cells: dict[int, tuple[Int64Array, Int64Array]] = {}
        at = np.full(len(records), end, np.int64)
        for place, layout in enumerate(self._layouts):
            if layout not in (Layout.FIXED, Layout.BOOL):
                cells[place] = at, at + rows[str(place)]
                at = cells[place][1]
        torn = np.flatnonzero(at != lengths)
        if len(torn):
            first = int(torn[0])
            raise ReadError(
                f"{where(first)} has {lengths[first]} bytes, and not {at[first]} as its lengths say"
            )
        return rows, cells


def _foreign(record: bytes, schema: pa.Schema, where: str) -> str:
    other = PackedRows.of_record(record)
    if other is None:
        return f"{where} is no packed row, as others are"
    if other.schema.names != schema.names:
        return f"{where} has the columns {other.schema.names} and not {schema.names}"
    types = [
        f"{mine.name} is {theirs.type} and not {mine.type}"
        for mine, theirs in zip(schema, other.schema, strict=True)
        if mine.type != theirs.type
    ]
    if not types:
        return f"{where} ends before its values do"
    return f"{where} has columns of other types than others have: {', '.join(types)}"


def _between(records: Sequence[bytes], starts: Int64Array, stops: Int64Array) -> list[memoryview]:
    places = zip(records, starts.tolist(), stops.tolist(), strict=True)
    return [memoryview(record)[start:stop] for record, start, stop in places]


def _cast(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if isinstance(column.type, pa.BaseExtensionType):
        chunks = [chunk.storage for chunk in column.chunks]
        column = pa.chunked_array(chunks, column.type.storage_type)
    try:
        return column if column.type == field.type else column.cast(field.type)
    except pa.ArrowException as error:
        raise SchemaError(
            f"column {field.name!r} is {column.type} and not {field.type} as in the rows before: "
            f"{error}"
        ) from error
