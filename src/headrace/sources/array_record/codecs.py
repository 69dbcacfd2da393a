"""The contents of records: rows of columns, a label and a payload, bytes, or the user's format.

``columns``
    A row as an Arrow IPC stream: the schema and one record batch. Any Arrow library reads it.
    ArrayRecord files have no place for a schema, so each record has its own: files can be cut and
    joined and need nothing beside them.
``label-payload``
    A uint32 label, a uint32 length, and that many bytes, little-endian: columns ``label`` and
    ``payload``. Nothing in such a record identifies the format, so it has to be named.
``raw``
    Any bytes: one column ``record``.
A function
    Takes the bytes of a record and returns a value for each column. The values reach their columns
    without loss; see ``sources/values.py``.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.types as pt
from pyarrow import ipc

from headrace.convert.kinds import STORED_TYPES, Kind, Kinds, python_values
from headrace.errors import OptionError, ReadError, SchemaError
from headrace.model import computed_once
from headrace.sources.arrow._format import has_dictionary
from headrace.sources.files.schemas import plain_table, plain_type
from headrace.sources.values import Misfit, is_numbers, plain_value, table_of, type_of

CODECS = ("columns", "label-payload", "raw")
RecordFunction = Callable[[bytes], Mapping[str, Any] | tuple[Any, ...]]
"""Function of the user that takes a record and returns its values by name, or as a tuple."""
RecordDecode = str | RecordFunction | tuple[RecordFunction, pa.Schema]
"""How records are read: the name of a codec; a function of bytes; or a function and a schema."""
FirstRecord = Callable[[], tuple[bytes, str] | None]
"""Function that returns the first record and its name for messages, or None without records."""
RecordName = Callable[[int], str]
"""Function that returns the name of the record at an index of a list, for messages."""

_NO_KINDS: Kinds = {}
_LABEL_AND_LENGTH = struct.Struct("<II")
_MOST_LABEL = (1 << 32) - 1
_BATCH_ROWS = 1024
_FAULTS = (pa.ArrowException, OSError, EOFError, TypeError, ValueError)
"""Errors that Arrow raises for wrong bytes."""
_CONTINUATION = b"\xff\xff\xff\xff"
"""First bytes of an Arrow message."""


class RecordCodec(ABC):
    """Reads records.

    Attributes:
        schema: All columns.
        kinds: The kinds of columns whose meaning does not follow from their types.
    """

    schema: pa.Schema
    kinds: Kinds = _NO_KINDS

    @abstractmethod
    def table(self, records: Sequence[bytes], schema: pa.Schema, name: RecordName) -> pa.Table:
        """Return some columns (at least one) of records (at least one).

        Raises:
            ReadError: A record does not have these columns; the message names it.
        """

    def row(self, record: bytes, schema: pa.Schema, name: RecordName) -> dict[str, Any]:
        """Return some columns of one record, as Python values and arrays."""
        table, kinds = self.table([record], schema, name), self.kinds
        if not kinds:
            row: dict[str, Any] = table.to_pylist()[0]
            return row
        return {
            key: (python_values(column, kinds[key]) if key in kinds else column.to_pylist())[0]
            for key, column in zip(table.column_names, table.columns, strict=True)
        }


class WritingCodec(Protocol):
    """Makes records of rows."""

    def records(self, table: pa.Table) -> Iterator[bytes]:
        """Return a record for each row, in order."""


def codec_for(decode: RecordDecode | None, first: FirstRecord) -> RecordCodec:
    """Return the codec that the user chose, or the one that fits the first record."""
    if decode is None or decode == "columns":
        found = first()
        rows = ArrowRows.of_record(found[0]) if found else None
        if rows is None and decode == "columns":
            which = f"{found[1]} is not a row of columns" if found else "there is no record"
            raise SchemaError(f'decode="columns": {which}')
        return rows or RawRecords()
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
        raise SchemaError(
            "there is no record from which columns could be derived: give decode=(function, schema)"
        )
    return DecodedRecords.of_record(decode, *found)


def writing_codec(name: str, schema: pa.Schema) -> WritingCodec:
    """Return the codec that makes records of rows with these columns."""
    if name == "columns":
        return ArrowRows.of_columns(schema)
    if name == "label-payload":
        return LabelPayload.of_columns(schema)
    if name == "raw":
        return RawRecords.of_columns(schema)
    raise OptionError(f"codec must be one of {', '.join(CODECS)}, not {name!r}")


class ArrowRows(RecordCodec):
    """Rows of columns: each record is an Arrow IPC stream of one row.

    Records begin with the message of their schema. It is compared with the expected one, and parsed
    only if it differs. All bytes of a row are validated, because Arrow trusts its input.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    @classmethod
    def of_columns(cls, schema: pa.Schema) -> ArrowRows:
        """Return a codec that packs rows of these columns, in types that a record can hold."""
        if not len(schema):
            raise SchemaError("rows without columns cannot be packed into records")
        if len(set(schema.names)) < len(schema):
            names = ", ".join(schema.names)
            raise SchemaError(f"columns of packed rows need different names: {names}")
        for field in schema:
            if has_dictionary(_packed_type(field.type)):
                raise SchemaError(
                    f"column {field.name!r} has dictionaries inside of {field.type}, which a "
                    "record cannot hold; cast it to the type of their values"
                )
        return cls(pa.schema([pa.field(field.name, _packed_type(field.type)) for field in schema]))

    @classmethod
    def of_record(cls, record: bytes) -> ArrowRows | None:
        """Return a codec for records like this one; None if it is not a row of columns."""
        try:
            batch = _read_stream(record)
        except _FAULTS:
            return None
        types = batch.schema.types
        if not types or any(_packed_type(one) != one or has_dictionary(one) for one in types):
            return None
        return cls(batch.schema.remove_metadata())

    @computed_once
    def _header(self) -> bytes:
        """The schema message with which every record begins."""
        message: bytes = self.schema.serialize().to_pybytes()
        return message

    def records(self, table: pa.Table) -> Iterator[bytes]:
        """Return a record for each row, in order."""
        missing = [name for name in self.schema.names if name not in table.schema.names]
        if missing:
            raise SchemaError(f"the column {missing[0]!r} is missing, and the rows before have it")
        table = plain_table(table.select(self.schema.names))
        columns = [_packed(table.column(field.name), field) for field in self.schema]
        packed = pa.Table.from_arrays(columns, schema=self.schema)
        header = self._header
        for batch in packed.to_batches(max_chunksize=_BATCH_ROWS):
            for row in range(batch.num_rows):
                yield header + batch.slice(row, 1).serialize().to_pybytes()

    def table(self, records: Sequence[bytes], schema: pa.Schema, name: RecordName) -> pa.Table:
        """Return some columns of records."""
        try:
            table = self._table(records, schema)
        except _FAULTS as error:
            for place, record in enumerate(records):
                try:
                    self._table([record], schema)
                except _FAULTS as fault:
                    known = isinstance(fault, _NotARowError)
                    reason = str(fault) if known else f"is damaged: {fault}"
                    raise ReadError(f"{name(place)} {reason}") from fault
            raise ReadError(f"{name(0)} and those after it cannot be read: {error}") from error
        try:
            return table.combine_chunks()
        except pa.ArrowInvalid:  # there are more bytes than the offsets of one array can count
            return table

    def _table(self, records: Sequence[bytes], schema: pa.Schema) -> pa.Table:
        table = pa.Table.from_batches(map(self._batch, records), self.schema)
        if schema.names != self.schema.names:
            table = table.select(schema.names)
        table.validate(full=True)
        return table

    def _batch(self, record: bytes) -> pa.RecordBatch:
        """Return the row of a record; another writer may encode the schema in other bytes."""
        header, schema = self._header, self.schema
        if record.startswith(header):
            try:
                batch = ipc.read_record_batch(pa.py_buffer(record)[len(header) :], schema)
                if batch.num_rows == 1:
                    return batch
            except _FAULTS:
                pass  # the reader of streams reports what is wrong
        batch = _read_stream(record)
        found = batch.schema
        if found.names != schema.names:
            raise _NotARowError(f"has the columns {found.names} instead of {schema.names}")
        if found.types != schema.types:
            types = [
                f"{mine.name} is {theirs.type} instead of {mine.type}"
                for mine, theirs in zip(schema, found, strict=True)
                if mine.type != theirs.type
            ]
            raise _NotARowError(f"has columns of other types: {', '.join(types)}")
        return pa.RecordBatch.from_arrays(batch.columns, schema=schema)


class _NotARowError(ValueError):
    """A record is not an Arrow stream of one row, or has other columns."""


def _read_stream(record: bytes) -> pa.RecordBatch:
    """Return the row of an Arrow stream.

    Raises:
        _NotARowError: The record is something else.
    """
    if not record.startswith(_CONTINUATION):
        raise _NotARowError("is not a row of columns: it is not an Arrow message")
    try:
        with ipc.open_stream(record) as stream:
            batches = [batch for batch in stream if batch.num_rows]
    except _FAULTS as error:
        raise _NotARowError(f"is not a row of columns: {error}") from error
    rows = sum(batch.num_rows for batch in batches)
    if rows != 1:
        raise _NotARowError(f"is not a row of columns: it has {rows} rows")
    return batches[0]


def _packed_type(type_: pa.DataType) -> pa.DataType:
    """Return the type of a column in records: no dictionary, no extension, no views."""
    if pt.is_dictionary(type_):
        return _packed_type(type_.value_type)
    if isinstance(type_, pa.BaseExtensionType):
        return _packed_type(type_.storage_type)
    return plain_type(type_)


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


class RawRecords(RecordCodec):
    """Bytes as they are."""

    schema = pa.schema([pa.field("record", pa.binary())])

    def __init__(self, column: str = "record") -> None:
        self._column = column

    @classmethod
    def of_columns(cls, schema: pa.Schema) -> RawRecords:
        """Return a codec that makes records of the one column of a schema."""
        if len(schema) != 1 or not _holds_bytes(schema.field(0).type):
            raise SchemaError(
                f"raw records are made of one column of bytes or text, not of {schema.names}"
            )
        return cls(schema.names[0])

    def table(self, records: Sequence[bytes], schema: pa.Schema, name: RecordName) -> pa.Table:
        """Return the records as a column."""
        return pa.Table.from_arrays([pa.array(records, pa.binary()) for _ in schema], schema=schema)

    def row(self, record: bytes, schema: pa.Schema, name: RecordName) -> dict[str, Any]:
        """Return a record as a row."""
        return dict.fromkeys(schema.names, record)

    def records(self, table: pa.Table) -> Iterator[bytes]:
        """Return a record for each row, in order."""
        yield from _bytes_of(table, self._column)


class LabelPayload(RecordCodec):
    """A uint32 label, a uint32 length, and that many bytes."""

    schema = pa.schema([pa.field("label", pa.uint32()), pa.field("payload", pa.binary())])

    def __init__(self, label: str = "label", payload: str = "payload") -> None:
        self._label, self._payload = label, payload

    @classmethod
    def of_columns(cls, schema: pa.Schema) -> LabelPayload:
        """Return a codec that makes records of a column of integers and one of bytes."""
        labels = [field.name for field in schema if pt.is_integer(field.type)]
        payloads = [field.name for field in schema if _holds_bytes(field.type)]
        if len(schema) != 2 or len(labels) != 1 or len(payloads) != 1:
            raise SchemaError(
                "records of a label and a payload are made of a column of integers and one of "
                f"bytes or text, not of {', '.join(f'{f.name} ({f.type})' for f in schema)}"
            )
        return cls(labels[0], payloads[0])

    def table(self, records: Sequence[bytes], schema: pa.Schema, name: RecordName) -> pa.Table:
        """Return labels and payloads."""
        parts = [_label_and_payload(record, name, place) for place, record in enumerate(records)]
        values = dict(zip(("label", "payload"), zip(*parts, strict=True), strict=True))
        columns = [pa.array(values[field.name], field.type) for field in schema]
        return pa.Table.from_arrays(columns, schema=schema)

    def records(self, table: pa.Table) -> Iterator[bytes]:
        """Return a record for each row, in order."""
        labels = table.column(self._label)
        if labels.null_count:
            raise SchemaError(
                f"column {self._label!r} has nulls, and a label cannot be null; replace them"
            )
        payloads = _bytes_of(table, self._payload)
        for label, payload in zip(labels.to_pylist(), payloads, strict=True):
            if not 0 <= label <= _MOST_LABEL:
                raise SchemaError(f"{label} in column {self._label!r} does not fit into uint32")
            yield _LABEL_AND_LENGTH.pack(label, len(payload)) + payload


def _label_and_payload(record: bytes, name: RecordName, place: int) -> tuple[int, memoryview]:
    size = _LABEL_AND_LENGTH.size
    if len(record) < size:
        raise ReadError(f"{name(place)} is not a label and payload: it is too short")
    label, length = _LABEL_AND_LENGTH.unpack_from(record)
    if len(record) != size + length:
        raise ReadError(
            f"{name(place)} is not a label and payload: its payload has {len(record) - size} "
            f"bytes, and its length field says {length}"
        )
    return label, memoryview(record)[size:]


def _holds_bytes(type_: pa.DataType) -> bool:
    text = pt.is_string(type_) or pt.is_large_string(type_) or pt.is_string_view(type_)
    return bool(
        text or pt.is_binary(type_) or pt.is_large_binary(type_) or pt.is_binary_view(type_)
    )


def _bytes_of(table: pa.Table, column: str) -> Iterator[bytes]:
    values = table.column(column)
    if values.null_count:
        raise SchemaError(f"column {column!r} has nulls, which a record cannot hold; replace them")
    for chunk in values.chunks:
        yield from chunk.cast(pa.large_binary()).to_pylist()


class DecodedRecords(RecordCodec):
    """Records that a user's function decodes.

    A record must have exactly the columns of the schema, and values that their types hold exactly.
    A key may be missing only if the user gave the schema and the field is nullable there. The items
    of a tuple are columns named by its field names, or by the schema, or ``0``, ``1`` and so on.

    Arrays, tensors and images may have another shape in every record. Arrow has no type for that,
    so such a column holds .npy files; batches hold the arrays, stacked if they are of one shape.

    Args:
        decode: The function.
        schema: The columns.
        kinds: Columns of arrays of any shape.
        inferred: True if the columns were inferred from a first record, and not given by the user.
    """

    def __init__(
        self,
        decode: RecordFunction,
        schema: pa.Schema,
        kinds: Kinds | None = None,
        inferred: bool = False,
    ) -> None:
        self.schema = schema
        self.kinds = kinds or {}
        self._decode = decode
        self._inferred = inferred

    @classmethod
    def of_record(cls, decode: RecordFunction, record: bytes, name: str) -> DecodedRecords:
        """Return a codec for records with the columns of this record."""
        row = cls(decode, pa.schema([]))._decoded(record, name)
        kinds = {key: Kind.NPY for key, value in row.items() if is_numbers(value)}
        fields = []
        for key, value in row.items():
            try:
                type_ = STORED_TYPES[kinds[key]] if key in kinds else type_of([value])
                fields.append(pa.field(key, type_))
            except (pa.ArrowException, TypeError, ValueError) as error:
                raise SchemaError(f"{name}: {key!r} cannot be a column: {error}") from error
            if pt.is_null(type_):
                raise SchemaError(
                    f"{name} has no value in {key!r}, so its type is unknown: give "
                    "decode=(function, schema)"
                )
        return cls(decode, pa.schema(fields), kinds, inferred=True)

    def table(self, records: Sequence[bytes], schema: pa.Schema, name: RecordName) -> pa.Table:
        """Return some columns of records."""
        rows = [self._decoded(record, name(place)) for place, record in enumerate(records)]
        try:
            return table_of(rows, self.schema, schema, self.kinds, inferred=self._inferred)
        except Misfit as misfit:
            cure = "change what decode returns, or give another schema"
            if self._inferred:
                cure = (
                    "columns and types follow from the first record: give decode=(function, "
                    "schema) with columns and types that hold all records, or change what "
                    "decode returns"
                )
            which = name(misfit.place)
            raise ReadError(f"{which} does not fit the columns: {misfit}; {cure}") from misfit

    def _decoded(self, record: bytes, name: str) -> dict[str, Any]:
        try:
            row = self._decode(record)
            if isinstance(row, tuple):
                row = dict(zip(self._names(row), row, strict=True))
            if isinstance(row, Mapping):
                return {key: plain_value(value) for key, value in row.items()}
        except Exception as error:  # a user's function may raise anything
            reason = f"{type(error).__name__}: {error}"
            raise ReadError(f"{name} cannot be decoded: {reason}") from error
        raise ReadError(
            f"{name}: decode returned a {type(row).__name__}; it must return a dict or tuple"
        )

    def _names(self, row: tuple[Any, ...]) -> Iterable[str]:
        named = getattr(row, "_fields", self.schema.names)
        return named if len(named) == len(row) else map(str, range(len(row)))
