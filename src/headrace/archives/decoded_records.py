"""Records that a user's function decodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from headrace.archives.packed_cells import BytesColumn, Where, bytes_column
from headrace.errors import ReadError, SchemaError

__all__ = ["DecodedRecords"]


class DecodedRecords:
    """What a user's function makes of records."""

    holds_bytes = False

    def __init__(self, decode: Callable[[bytes], Mapping[str, Any]], schema: pa.Schema) -> None:
        self.schema = schema
        self._decode = decode

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
        return cls(decode, schema)

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
            return pa.Table.from_pylist(rows, schema=schema)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise ReadError(self._misfit(rows, schema, where, error)) from error

    def row(self, record: bytes, schema: pa.Schema, where: Where) -> dict[str, Any]:
        row: dict[str, Any] = self.table([record], schema, where).to_pylist()[0]
        return row

    def _decoded(self, record: bytes, where: str) -> dict[str, Any]:
        try:
            row = self._decode(record)
        except Exception as error:  # a user's function may raise anything
            said = f"{type(error).__name__}: {error}"
            raise ReadError(f"{where} cannot be decoded: {said}") from error
        if not isinstance(row, Mapping):
            raise ReadError(f"{where}: decode returned a {type(row).__name__}, and not a dict")
        return dict(row)

    def _misfit(
        self, rows: list[dict[str, Any]], schema: pa.Schema, where: Where, error: Exception
    ) -> str:
        """Which record does not fit the columns: they are tried one by one."""
        for place, row in enumerate(rows):
            try:
                pa.Table.from_pylist([row], schema=schema)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as misfit:
                return (
                    f"{where(place)} does not fit the columns, of which the types are those of "
                    f"decode's schema or of the first record: {misfit}"
                )
        return f"{where(0)} and those after it do not fit the columns: {error}"
