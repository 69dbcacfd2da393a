"""What records hold: rows of columns, a label and a payload, anything, or what a user knows.

``columns``
    Rows packed by this library. Every record says which columns it has, so that files of them can
    be cut, joined and read without anything beside them; see ``packed_rows``.
``label-payload``
    A uint32 label, a uint32 length, and so many bytes, little-endian: columns ``label`` and
    ``payload``. Nothing in such a record tells it from any other, so it has to be named.
``raw``
    Any bytes: one column ``record``.
A function
    Takes the bytes of a record and returns a dict, a value for each column.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from headrace.archives.decoded_records import DecodedRecords
from headrace.archives.packed_cells import BytesColumn, Where, bytes_column
from headrace.archives.packed_rows import PackedRows
from headrace.archives.pieces import in_pieces
from headrace.errors import OptionError, ReadError, SchemaError

__all__ = ["CODECS", "Decode", "RecordCodec", "WritingCodec", "codec_for", "writing_codec"]

CODECS = ("columns", "label-payload", "raw")
Decode = str | Callable[[bytes], Mapping[str, Any]] | tuple[Callable[..., Any], pa.Schema]
"""how records are read: the name of a codec; a function from bytes to a dict; it and a schema"""

FirstRecord = Callable[[], tuple[bytes, str] | None]
"""reads the first record, and says what to call it; None if there is none"""

_LABEL_AND_LENGTH = struct.Struct("<II")
_MOST_LABEL = (1 << 32) - 1


class RecordCodec(Protocol):
    """Reads records. ``where`` names the record at a place of a list, if it is a wrong one."""

    @property
    def schema(self) -> pa.Schema: ...
    @property
    def holds_bytes(self) -> bool:
        """Whether columns of bytes are parts of records, and made by ``of_bytes``."""
        ...

    def table(
        self,
        records: Sequence[bytes],
        schema: pa.Schema,
        where: Where,
        of_bytes: BytesColumn = bytes_column,
    ) -> pa.Table:
        """Some columns of records (at least one)."""
        ...

    def row(self, record: bytes, schema: pa.Schema, where: Where) -> dict[str, Any]:
        """Some columns of one record, as Python values."""
        ...


class WritingCodec(Protocol):
    """Makes records."""

    def records(self, table: pa.Table) -> Iterator[bytes]:
        """A record for each row, in order."""
        ...


def codec_for(decode: Decode | None, first: FirstRecord) -> RecordCodec:
    """How records are read: as they are told to be, or as the first of them says of itself."""
    if decode is None:
        found = first()
        packed = PackedRows.of_record(found[0]) if found else None
        return RawRecords() if packed is None else packed
    if isinstance(decode, str):
        return _named(decode, first)
    schema = getattr(decode, "schema", None)
    if isinstance(decode, tuple) and len(decode) == 2:
        decode, schema = decode
    if not callable(decode) or not isinstance(schema, pa.Schema | None):
        raise OptionError(
            f"decode must be one of {', '.join(CODECS)}, a function that takes bytes and returns "
            f"a dict, or such a function and a schema, not {decode!r}"
        )
    if schema is not None:
        return DecodedRecords(decode, schema)
    found = first()
    if found is None:
        raise SchemaError("there is no record to tell columns by: give decode=(function, schema)")
    return DecodedRecords.of_record(decode, *found)


def _named(name: str, first: FirstRecord) -> RecordCodec:
    if name == "columns":
        found = first()
        packed = PackedRows.of_record(found[0]) if found else None
        if packed is None:
            which = f"{found[1]} is no packed row" if found else "there is no record"
            raise SchemaError(f'decode="columns": {which}')
        return packed
    if name not in CODECS:
        raise OptionError(f"decode must be one of {', '.join(CODECS)}, not {name!r}")
    return RawRecords() if name == "raw" else LabelPayload()


def writing_codec(name: str, schema: pa.Schema) -> WritingCodec:
    """The codec that packs rows of these columns."""
    if name == "columns":
        return PackedRows(schema)
    if name == "label-payload":
        return LabelPayload.of_columns(schema)
    if name == "raw":
        return RawRecords.of_columns(schema)
    raise OptionError(f"codec must be one of {', '.join(CODECS)}, not {name!r}")


class RawRecords:
    """Bytes as they are."""

    schema = pa.schema([pa.field("record", pa.binary())])
    holds_bytes = True

    def __init__(self, column: str = "record") -> None:
        self._column = column

    @classmethod
    def of_columns(cls, schema: pa.Schema) -> RawRecords:
        if len(schema) != 1 or not _holds_bytes(schema.field(0).type):
            raise SchemaError(
                f"raw records are made of one column of bytes or text, not of {schema.names}"
            )
        return cls(schema.names[0])

    def table(
        self,
        records: Sequence[bytes],
        schema: pa.Schema,
        where: Where,
        of_bytes: BytesColumn = bytes_column,
    ) -> pa.Table:
        return in_pieces(records, where, partial(self._table, schema, of_bytes))

    def _table(
        self, schema: pa.Schema, of_bytes: BytesColumn, records: Sequence[bytes], where: Where
    ) -> pa.Table:
        columns = [of_bytes(records, field.type, None) for field in schema]
        return pa.Table.from_arrays(columns, schema=schema)

    def row(self, record: bytes, schema: pa.Schema, where: Where) -> dict[str, Any]:
        return dict.fromkeys(schema.names, record)

    def records(self, table: pa.Table) -> Iterator[bytes]:
        yield from _bytes_of(table, self._column)


class LabelPayload:
    """A uint32 label, a uint32 length, and so many bytes."""

    schema = pa.schema([pa.field("label", pa.uint32()), pa.field("payload", pa.binary())])
    holds_bytes = True

    def __init__(self, label: str = "label", payload: str = "payload") -> None:
        self._label, self._payload = label, payload

    @classmethod
    def of_columns(cls, schema: pa.Schema) -> LabelPayload:
        labels = [field.name for field in schema if pt.is_integer(field.type)]
        payloads = [field.name for field in schema if _holds_bytes(field.type)]
        if len(schema) != 2 or len(labels) != 1 or len(payloads) != 1:
            raise SchemaError(
                "records of a label and a payload are made of a column of integers and one of "
                f"bytes or text, not of {', '.join(f'{f.name} ({f.type})' for f in schema)}"
            )
        return cls(labels[0], payloads[0])

    def table(
        self,
        records: Sequence[bytes],
        schema: pa.Schema,
        where: Where,
        of_bytes: BytesColumn = bytes_column,
    ) -> pa.Table:
        return in_pieces(records, where, partial(self._table, schema, of_bytes))

    def _table(
        self, schema: pa.Schema, of_bytes: BytesColumn, records: Sequence[bytes], where: Where
    ) -> pa.Table:
        heads = b"".join([record[: _LABEL_AND_LENGTH.size] for record in records])
        lengths = np.fromiter(map(len, records), np.int64, len(records))
        short = np.flatnonzero(lengths < _LABEL_AND_LENGTH.size)
        if len(short):
            raise ReadError(f"{where(int(short[0]))} is no label and payload: it is too short")
        labels, said = np.frombuffer(heads, "<u4").reshape(-1, 2).T
        torn = np.flatnonzero(lengths != said.astype(np.int64) + _LABEL_AND_LENGTH.size)
        if len(torn):
            first = int(torn[0])
            there = lengths[first] - _LABEL_AND_LENGTH.size
            raise ReadError(
                f"{where(first)} is no label and payload: {there} bytes of payload, "
                f"and not {said[first]} as it says"
            )
        made = {
            "label": lambda: pa.array(np.ascontiguousarray(labels)),
            "payload": lambda: of_bytes(
                [memoryview(record)[_LABEL_AND_LENGTH.size :] for record in records],
                schema.field("payload").type,
                None,
            ),
        }
        return pa.Table.from_arrays([made[name]() for name in schema.names], schema=schema)

    def row(self, record: bytes, schema: pa.Schema, where: Where) -> dict[str, Any]:
        size = _LABEL_AND_LENGTH.size
        label, length = _LABEL_AND_LENGTH.unpack_from(record.ljust(size))
        if len(record) != size + length:
            self.table([record], schema, where)  # which says what is wrong
        values = {"label": label, "payload": record[size:]}
        return {name: values[name] for name in schema.names}

    def records(self, table: pa.Table) -> Iterator[bytes]:
        labels = table.column(self._label)
        if labels.null_count:
            raise SchemaError(f"column {self._label!r} has nulls, which a label cannot be")
        payloads = _bytes_of(table, self._payload)
        for label, payload in zip(labels.to_pylist(), payloads, strict=True):
            if not 0 <= label <= _MOST_LABEL:
                raise SchemaError(f"{label} in column {self._label!r} is no uint32")
            yield _LABEL_AND_LENGTH.pack(label, len(payload)) + payload


def _holds_bytes(type_: pa.DataType) -> bool:
    text = pt.is_string(type_) or pt.is_large_string(type_) or pt.is_string_view(type_)
    return bool(
        text or pt.is_binary(type_) or pt.is_large_binary(type_) or pt.is_binary_view(type_)
    )


def _bytes_of(table: pa.Table, column: str) -> Iterator[bytes]:
    values = table.column(column)
    if values.null_count:
        raise SchemaError(f"column {column!r} has nulls, which a record cannot say")
    for chunk in values.chunks:
        yield from chunk.cast(pa.large_binary()).to_pylist()
