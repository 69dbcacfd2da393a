"""What records hold: rows of columns, a label and a payload, any bytes, or what a user knows.

``columns``
    A row as an Arrow IPC stream: the schema and one record batch. Any Arrow library reads it.
    ArrayRecord files have no place for a schema, so each record has its own: files can be cut and
    joined and need nothing beside them.
``label-payload``
    A uint32 label, a uint32 length, and so many bytes, little-endian: columns ``label`` and
    ``payload``. Nothing in such a record tells it from any other, so it has to be named.
``raw``
    Any bytes: one column ``record``.
A function
    Takes the bytes of a record and returns a value for each column; see ``decoded``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from pyarrow import ipc

from headrace.convert.decoded import Kinds
from headrace.errors import OptionError, ReadError, SchemaError
from headrace.model import computed_once
from headrace.sources.array_record.decoded import DecodedRecords, RecordFunction, RecordName
from headrace.sources.files.plain_types import plain_table, plain_type

__all__ = [
    "CODECS",
    "ArrowRows",
    "Decode",
    "LabelPayload",
    "RawRecords",
    "RecordCodec",
    "WritingCodec",
    "codec_for",
    "writing_codec",
]

CODECS = ("columns", "label-payload", "raw")
Decode = str | RecordFunction | tuple[RecordFunction, pa.Schema]
"""how records are read: the name of a codec; a function of bytes; a function and a schema"""
FirstRecord = Callable[[], tuple[bytes, str] | None]
"""reads the first record, and says what it is called; None if there is none"""

_NO_KINDS: Kinds = {}
_LABEL_AND_LENGTH = struct.Struct("<II")
_MOST_LABEL = (1 << 32) - 1
_MOST_OFFSET = (1 << 31) - 1
_BATCH_ROWS = 1024
_FAULTS = (pa.ArrowException, OSError, EOFError, TypeError, ValueError)
"""what Arrow raises for bytes that are wrong"""
_CONTINUATION = b"\xff\xff\xff\xff"
"""the first bytes of an Arrow message"""


class RecordCodec(Protocol):
    """Reads records. ``name`` names the record at a place of a list, if it is a wrong one."""

    @property
    def schema(self) -> pa.Schema:
        """All columns."""

    @property
    def kinds(self) -> Kinds:
        """What columns hold, where their types do not tell."""

    def table(self, records: Sequence[bytes], schema: pa.Schema, name: RecordName) -> pa.Table:
        """Return some columns (at least one) of records (at least one)."""

    def row(self, record: bytes, schema: pa.Schema, name: RecordName) -> dict[str, Any]:
        """Return some columns of one record, as Python values."""


class WritingCodec(Protocol):
    """Makes records."""

    def records(self, table: pa.Table) -> Iterator[bytes]:
        """Return a record for each row, in order."""


def codec_for(decode: Decode | None, first: FirstRecord) -> RecordCodec:
    """Return how records are read: as the user says, or as the first of them says of itself."""
    if decode is None:
        found = first()
        return (ArrowRows.of_record(found[0]) if found else None) or RawRecords()
    if decode == "columns":
        found = first()
        rows = ArrowRows.of_record(found[0]) if found else None
        if rows is None:
            which = f"{found[1]} is no row of columns" if found else "there is no record"
            raise SchemaError(f'decode="columns": {which}')
        return rows
    if isinstance(decode, str) and decode in CODECS:
        return RawRecords() if decode == "raw" else LabelPayload()
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


def writing_codec(name: str, schema: pa.Schema) -> WritingCodec:
    """Return the codec that makes records of rows of these columns."""
    if name == "columns":
        return ArrowRows.of_columns(schema)
    if name == "label-payload":
        return LabelPayload.of_columns(schema)
    if name == "raw":
        return RawRecords.of_columns(schema)
    raise OptionError(f"codec must be one of {', '.join(CODECS)}, not {name!r}")


class ArrowRows:
    """Rows of columns: each record is an Arrow IPC stream of one row."""

    kinds = _NO_KINDS

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    @classmethod
    def of_columns(cls, schema: pa.Schema) -> ArrowRows:
        """Return what packs rows of these columns, in types that a record holds by itself."""
        if not len(schema):
            raise SchemaError("rows without columns cannot be packed into records")
        if len(set(schema.names)) < len(schema):
            names = ", ".join(schema.names)
            raise SchemaError(f"columns of packed rows need different names: {names}")
        for field in schema:
            if _holds_dictionaries(_packed_type(field.type)):
                raise SchemaError(
                    f"column {field.name!r} has dictionaries inside of {field.type}, which a "
                    "record cannot hold; cast it to the type of their values"
                )
        return cls(pa.schema([pa.field(field.name, _packed_type(field.type)) for field in schema]))

    @classmethod
    def of_record(cls, record: bytes) -> ArrowRows | None:
        """Return what reads records like this one; None if it is not a row of columns."""
        try:
            batch = _read_stream(record)
        except _FAULTS:
            return None
        types = batch.schema.types
        if not types or any(_packed_type(one) != one or _holds_dictionaries(one) for one in types):
            return None
        return cls(batch.schema.remove_metadata())

    @computed_once
    def _header(self) -> bytes:
        """The message that every record begins with: its schema."""
        message: bytes = self.schema.serialize().to_pybytes()
        return message

    def records(self, table: pa.Table) -> Iterator[bytes]:
        """Return a record for each row, in order."""
        missing = [name for name in self.schema.names if name not in table.schema.names]
        if missing:
            raise SchemaError(f"there is no column {missing[0]!r}, as there was in the rows before")
        table = plain_table(table.select(self.schema.names))
        columns = [_packed(table.column(field.name), field) for field in self.schema]
        packed = pa.Table.from_arrays(columns, schema=self.schema)
        header = self._header
        for batch in packed.to_batches(max_chunksize=_BATCH_ROWS):
            for row in range(batch.num_rows):
                yield header + batch.slice(row, 1).serialize().to_pybytes()

    def table(self, records: Sequence[bytes], schema: pa.Schema, name: RecordName) -> pa.Table:
        """Return some columns of records. All bytes are checked: Arrow trusts what it reads."""
        try:
            table = self._table(records, schema)
        except _FAULTS as error:
            for place, record in enumerate(records):
                fault = self._fault(record, schema)
                if fault is not None:
                    raise ReadError(f"{name(place)} {fault}") from error
            raise ReadError(f"{name(0)} and those after it cannot be read: {error}") from error
        try:
            return table.combine_chunks()
        except pa.ArrowInvalid:  # there are more bytes than the offsets of one array can count
            return table

    def _table(self, records: Sequence[bytes], schema: pa.Schema) -> pa.Table:
        table = pa.Table.from_batches(self._batches(records), self.schema)
        if schema.names != self.schema.names:
            table = table.select(schema.names)
        table.validate(full=True)
        return table

    def _batches(self, records: Sequence[bytes]) -> list[pa.RecordBatch]:
        """Return the row of each record. Schemas of the same bytes are not parsed again."""
        header, schema = self._header, self.schema
        start, read = len(header), ipc.read_record_batch
        batches = [
            read(pa.py_buffer(record)[start:], schema)
            if record.startswith(header)
            else self._of_another_writer(record)
            for record in records
        ]
        if any(batch.num_rows != 1 for batch in batches):
            raise ValueError("a record has not one row")
        return batches

    def _of_another_writer(self, record: bytes) -> pa.RecordBatch:
        """Return the row of a record that spells the same schema in other bytes."""
        batch = _read_stream(record)
        if (batch.schema.names, batch.schema.types) != (self.schema.names, self.schema.types):
            raise ValueError("it has other columns")
        return pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)

    def _fault(self, record: bytes, schema: pa.Schema) -> str | None:
        """Return what is wrong with a record; None if nothing is."""
        try:
            found = _read_stream(record).schema
            if found.names != self.schema.names:
                return f"has the columns {found.names} and not {self.schema.names}"
            types = [
                f"{mine.name} is {theirs.type} and not {mine.type}"
                for mine, theirs in zip(self.schema, found, strict=True)
                if mine.type != theirs.type
            ]
            if types:
                return f"has columns of other types: {', '.join(types)}"
        except _FAULTS as error:
            return f"is no row of columns: {error}"
        try:
            self._table([record], schema)
        except _FAULTS as error:
            return f"is damaged: {error}"
        return None

    def row(self, record: bytes, schema: pa.Schema, name: RecordName) -> dict[str, Any]:
        """Return some columns of one record, as Python values."""
        try:
            [batch] = self._batches([record])
            batch.validate(full=True)
            return {column: batch.column(column)[0].as_py() for column in schema.names}
        except _FAULTS:
            row: dict[str, Any] = self.table([record], schema, name).to_pylist()[0]
            return row


def _read_stream(record: bytes) -> pa.RecordBatch:
    """Return the row of an Arrow stream; a ValueError or an Arrow error if it is not one."""
    if not record.startswith(_CONTINUATION):
        raise ValueError("it is no Arrow message")
    with ipc.open_stream(record) as stream:
        batches = [batch for batch in stream if batch.num_rows]
    rows = sum(batch.num_rows for batch in batches)
    if rows != 1:
        raise ValueError(f"it has {rows} rows")
    return batches[0]


def _packed_type(type_: pa.DataType) -> pa.DataType:
    """Return the type of a column in records: no dictionary, no extension, no views."""
    if pt.is_dictionary(type_):
        return _packed_type(type_.value_type)
    if isinstance(type_, pa.BaseExtensionType):
        return _packed_type(type_.storage_type)
    return plain_type(type_)


def _holds_dictionaries(type_: pa.DataType) -> bool:
    inner = [type_.field(place).type for place in range(type_.num_fields)]
    return pt.is_dictionary(type_) or any(map(_holds_dictionaries, inner))


def _packed(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
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


class RawRecords:
    """Bytes as they are."""

    schema = pa.schema([pa.field("record", pa.binary())])
    kinds = _NO_KINDS

    def __init__(self, column: str = "record") -> None:
        self._column = column

    @classmethod
    def of_columns(cls, schema: pa.Schema) -> RawRecords:
        if len(schema) != 1 or not _holds_bytes(schema.field(0).type):
            raise SchemaError(
                f"raw records are made of one column of bytes or text, not of {schema.names}"
            )
        return cls(schema.names[0])

    def table(self, records: Sequence[bytes], schema: pa.Schema, name: RecordName) -> pa.Table:
        return pa.Table.from_arrays([_bytes_column(records) for _ in schema], schema=schema)

    def row(self, record: bytes, schema: pa.Schema, name: RecordName) -> dict[str, Any]:
        return dict.fromkeys(schema.names, record)

    def records(self, table: pa.Table) -> Iterator[bytes]:
        yield from _bytes_of(table, self._column)


class LabelPayload:
    """A uint32 label, a uint32 length, and so many bytes."""

    schema = pa.schema([pa.field("label", pa.uint32()), pa.field("payload", pa.binary())])
    kinds = _NO_KINDS

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

    def table(self, records: Sequence[bytes], schema: pa.Schema, name: RecordName) -> pa.Table:
        parts = [_label_and_payload(record, name, place) for place, record in enumerate(records)]
        labels, payloads = zip(*parts, strict=True)
        columns = {
            "label": lambda: pa.array(labels, pa.uint32()),
            "payload": lambda: _bytes_column(payloads),
        }
        return pa.Table.from_arrays([columns[column]() for column in schema.names], schema=schema)

    def row(self, record: bytes, schema: pa.Schema, name: RecordName) -> dict[str, Any]:
        label, payload = _label_and_payload(record, name, 0)
        values = {"label": label, "payload": bytes(payload)}
        return {column: values[column] for column in schema.names}

    def records(self, table: pa.Table) -> Iterator[bytes]:
        labels = table.column(self._label)
        if labels.null_count:
            raise SchemaError(f"column {self._label!r} has nulls, which a label cannot be")
        payloads = _bytes_of(table, self._payload)
        for label, payload in zip(labels.to_pylist(), payloads, strict=True):
            if not 0 <= label <= _MOST_LABEL:
                raise SchemaError(f"{label} in column {self._label!r} is no uint32")
            yield _LABEL_AND_LENGTH.pack(label, len(payload)) + payload


def _label_and_payload(record: bytes, name: RecordName, place: int) -> tuple[int, memoryview]:
    size = _LABEL_AND_LENGTH.size
    if len(record) < size:
        raise ReadError(f"{name(place)} is no label and payload: it is too short")
    label, length = _LABEL_AND_LENGTH.unpack_from(record)
    if len(record) != size + length:
        raise ReadError(
            f"{name(place)} is no label and payload: {len(record) - size} bytes of payload, and "
            f"not {length} as it says"
        )
    return label, memoryview(record)[size:]


def _bytes_column(cells: Sequence[Any]) -> pa.Array | pa.ChunkedArray:
    """Return a column of bytes, joined in one go: a builder copies them twice."""
    ends = np.cumsum(np.fromiter(map(len, cells), np.int64, len(cells)))
    if ends[-1] > _MOST_OFFSET:
        return pa.chunked_array([pa.array([cell], pa.binary()) for cell in cells])
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(cells))]
    return pa.Array.from_buffers(pa.binary(), len(cells), buffers)


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
