"""Reads the rows of a batch: one take, what is decoded decoded, one conversion."""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np
import pyarrow as pa

from headrace.access.array_record.backend import ArrayRecordBackend
from headrace.access.arrow.backend import ArrowBackend
from headrace.access.arrow.rows import Taken
from headrace.access.backend import Backend, StorageBackend
from headrace.access.rows.batch import RowBatch
from headrace.access.rows.cells import CellBatches
from headrace.access.rows.decoding import make_decoders
from headrace.access.rows.form import RowForm
from headrace.access.taking import take_rows
from headrace.convert import Converter
from headrace.errors import ReadError
from headrace.formats.failures import may_be_skipped
from headrace.model import Int64Array

__all__ = ["RowReader"]


class RowReader:
    """A backend and a form, checked against each other once."""

    def __init__(self, backend: StorageBackend, form: RowForm) -> None:
        self.backend, self.form = backend, form
        form = form.fitting()
        self.columns = None if form.columns is None else list(form.columns)
        self.schema = _projected(backend, self.columns)
        self._decoders = make_decoders(form.decode, self.schema, form.output_format)
        decoded = {decoder.column for decoder in self._decoders}
        plain = [field for field in self.schema if field.name not in decoded]
        self._plain = [field.name for field in plain]
        self._converter = Converter(
            pa.schema(plain),
            form.output_format,
            nulls=form.nulls,
            ragged=form.ragged,
            kinds=backend.kinds if isinstance(backend, Backend) else None,
        )
        self._cells = self._converter.cell_columns
        is_plain = form.output_format in ("torch", "numpy") and not decoded and bool(plain)
        self._direct = backend if is_plain and _gives_columns(backend) else None
        self._straight = (
            None if self._direct is None else CellBatches.of(self._converter, form.nulls)
        )

    def read(self, rows: Int64Array, *, skip: bool) -> tuple[RowBatch, list[str]]:
        """These rows, and which of them were left out and why."""
        columns = self._columns(rows, skip)
        if columns is not None:
            block = self._converter.convert_columns(columns, len(rows))
            return RowBatch(block, {}, self.form.output_format, len(rows)), []
        table, unread = self._taken(rows, skip)
        if unread:
            rows = np.delete(rows, list(unread))
        decoded, broken = self._decoded(table, rows, skip)
        if broken:
            left = np.delete(np.arange(len(rows)), list(broken))
            table = take_rows(table.select(self._plain), left)
            decoded = {name: [values[i] for i in left] for name, values in decoded.items()}
        block = self._converter.convert(table.select(self._plain) if decoded else table)
        reasons = [*unread.values(), *broken.values()]
        num_rows = len(rows) - len(broken)
        return RowBatch(block, decoded, self.form.output_format, num_rows), reasons

    def batch(self, rows: Int64Array, *, skip: bool) -> dict[str, Any] | None:
        """The columns of these rows, where nothing needs to be known of the rows themselves.

        None if it does, or if some of them may have to be left out.
        """
        if self._straight is None:
            return None
        columns = self._columns(rows, skip)
        if columns is None:
            return None
        batch = self._straight.batch(columns)
        if batch is None:
            block = self._converter.convert_columns(columns, len(rows))
            batch = RowBatch(block, {}, self.form.output_format, len(rows)).columns
        return batch

    def _columns(self, rows: Int64Array, skip: bool) -> list[Taken] | None:
        """The rows without a table between what they are read from and what they become.

        None if there has to be one, or if not all rows can be read and some may be left out.
        """
        if self._direct is None or not len(rows):
            return None
        try:
            return self._direct.take_columns(rows, self.schema, as_cells=self._cells)
        except ReadError:
            if not skip:
                raise
            return None

    def _taken(self, rows: Int64Array, skip: bool) -> tuple[pa.Table, dict[int, str]]:
        """The rows that can be read, and why others cannot: found by reading halves."""
        try:
            return self.backend.take(rows, columns=self.columns), {}
        except ReadError as error:
            if not (skip and may_be_skipped(error)):
                raise
            if len(rows) == 1:
                return self.schema.empty_table(), {0: f"{self._named(int(rows[0]))}: {error}"}
        half = len(rows) // 2
        first, broken = self._taken(rows[:half], skip)
        second, more = self._taken(rows[half:], skip)
        broken.update((half + place, reason) for place, reason in more.items())
        return pa.concat_tables([first, second]), broken

    def _decoded(
        self, table: pa.Table, rows: Int64Array, skip: bool
    ) -> tuple[dict[str, list[Any]], dict[int, str]]:
        """What is decoded of these rows, by column, and which of them do not decode."""
        decoded: dict[str, list[Any]] = {}
        broken: dict[int, str] = {}
        for decoder in self._decoders:
            decoded[decoder.column], failed = decoder.decoded(table.column(decoder.column))
            for place, why in failed.items():
                reason = f"{self._named(int(rows[place]))}, column {decoder.column!r}: {why}"
                if not skip:
                    raise ReadError(reason) from why
                broken.setdefault(place, reason)
        return decoded, broken

    def _named(self, row: int) -> str:
        """A row of the backend, and where it lies."""
        if isinstance(self.backend, Backend):
            for shard, _, within in self.backend.located(np.array([row])):
                return f"row {row} (row {within[0]} of {self.backend.shard_names[shard]})"
        return f"row {row}"


def _gives_columns(backend: StorageBackend) -> TypeGuard[ArrowBackend | ArrayRecordBackend]:
    """Unless somebody has changed what is taken."""
    known = ArrowBackend if isinstance(backend, ArrowBackend) else ArrayRecordBackend
    if not isinstance(backend, known):
        return False
    kind = type(backend)
    return kind.take is known.take and kind._take is known._take


def _projected(backend: StorageBackend, columns: list[str] | None) -> pa.Schema:
    if columns is None:
        return backend.schema
    return backend.take([], columns=columns).schema
