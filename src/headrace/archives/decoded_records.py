"""Records that a user's function decodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from headrace.archives.decoded_values import Misfit, check_keys, column_of
from headrace.archives.packed_cells import BytesColumn, Where, bytes_column
from headrace.errors import ReadError, SchemaError

__all__ = ["DecodedRecords"]


class DecodedRecords:
    """Decodes records by a user's function, and puts what it returns into columns.

    A record has to have the columns of the schema, no fewer and no more, and values that their
    types hold exactly. A key may be missing only if the user gave the schema and the field is
    nullable there.
    """

    holds_bytes = False

    def __init__(
        self,
        decode: Callable[[bytes], Mapping[str, Any]],
        schema: pa.Schema,
        *,
        inferred: bool = False,
    ) -> None:
        self.schema = schema
        self._decode = decode
        self._inferred = inferred

    @classmethod
    def of_record(
        cls, decode: Callable[[bytes], Mapping[str, Any]], record: bytes, where: str
    ) -> DecodedRecords:
        """With the columns that a first record has."""
        row = cls(decode, pa.schema([]))._decoded(record, where)
        try:
            schema = pa.Table.from_pylist([dict(row)]).schema
        except pa.ArrowException as error:
            raise SchemaError(f"{where}: decode returns what is no column: {error}") from error
        for field in schema:
            if pt.is_null(field.type):
                raise SchemaError(
                    f"{where} has nothing in {field.name!r}, so that its type is not known: give "
                    "decode=(function, schema)"
                )
        return cls(decode, schema, inferred=True)

    def table(
        self,
        records: Sequence[bytes],
        schema: pa.Schema,
        where: Where,
        of_bytes: BytesColumn = bytes_column,
    ) -> pa.Table:
        """What is decoded is no longer part of a record: ``of_bytes`` has nothing to do."""
        rows = [self._decoded(record, where(place)) for place, record in enumerate(records)]
        try:
            return self._table(rows, schema)
        except Misfit as misfit:
            raise ReadError(self._refusal(rows, schema, where, misfit)) from misfit

    def row(self, record: bytes, schema: pa.Schema, where: Where) -> dict[str, Any]:
        row: dict[str, Any] = self.table([record], schema, where).to_pylist()[0]
        return row

    def _table(self, rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
        check_keys(rows, self.schema, "", self._inferred)
        columns = [
            column_of([row.get(field.name) for row in rows], field, inferred=self._inferred)
            for field in schema
        ]
        return pa.Table.from_arrays(columns, schema=schema)

    def _decoded(self, record: bytes, where: str) -> dict[str, Any]:
        try:
            row = self._decode(record)
        except Exception as error:  # a user's function may raise anything
            said = f"{type(error).__name__}: {error}"
            raise ReadError(f"{where} cannot be decoded: {said}") from error
        if not isinstance(row, Mapping):
            raise ReadError(f"{where}: decode returned a {type(row).__name__}, and not a dict")
        return dict(row)

    def _refusal(
        self, rows: list[dict[str, Any]], schema: pa.Schema, where: Where, misfit: Misfit
    ) -> str:
        """The message for the first record that does not fit: records are tried one by one."""
        if self._inferred:
            cure = (
                "the columns are those of the first record: give decode=(function, schema) with "
                "columns and types that hold all records, or change what decode returns"
            )
        else:
            cure = "change what decode returns, or give another schema"
        for place, row in enumerate(rows):
            try:
                self._table([row], schema)
            except Misfit as first:
                return f"{where(place)} does not fit the columns: {first}; {cure}"
        return f"{where(0)} and those after it do not fit the columns: {misfit}; {cure}"
