"""Columns of packed rows: what their types are called, and how the cells of each are laid out."""

from __future__ import annotations

import base64
import json
from enum import Enum
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from headrace.errors import SchemaError

__all__ = ["Layout", "layout_of", "packable", "schema_of_text", "schema_text", "width_of"]

_SPELLED = (
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "bool", "date32", "date64"),
    *("timestamp[s]", "timestamp[ms]", "timestamp[us]", "timestamp[ns]"),
    *("string", "large_string", "binary", "large_binary"),
)
_TYPE_NAMED = {name: pa.type_for_alias(name) for name in _SPELLED}
_NAME_OF_TYPE = {type_: name for name, type_ in _TYPE_NAMED.items()}


class Layout(Enum):
    """Where a cell is."""

    FIXED = "in the fixed part, in as many bytes as the type has"
    BOOL = "in the fixed part, in a byte"
    BYTES = "behind it, as they are"
    LIST = "behind it, the items one after the other, in as many bytes as their type has each"
    MESSAGE = "behind it, an Arrow record batch of one row"


def layout_of(type_: pa.DataType) -> Layout:
    """How cells of a type are laid out, except that lists with nulls in them are messages."""
    if pt.is_boolean(type_):
        return Layout.BOOL
    if width_of(type_):
        return Layout.FIXED
    if pt.is_binary(type_) or pt.is_string(type_) or _is_large(type_):
        return Layout.BYTES
    if _is_list(type_) and width_of(type_.value_type):
        return Layout.LIST
    return Layout.MESSAGE


def width_of(type_: pa.DataType) -> int:
    """Bytes of a value of a type, where all have as many; 0 where not, or where they are bits."""
    fixed = pt.is_primitive(type_) or pt.is_decimal(type_) or pt.is_fixed_size_binary(type_)
    return type_.byte_width if fixed and not pt.is_boolean(type_) else 0


def packable(schema: pa.Schema) -> pa.Schema:
    """The columns as they come back: without metadata, and no value known by a number only."""
    names = [field.name for field in schema]
    if len(set(names)) < len(names):
        raise SchemaError(f"columns of packed rows need different names: {', '.join(names)}")
    for field in schema:
        if _holds_dictionaries(field.type):
            raise SchemaError(
                f"column {field.name!r} has dictionaries inside of {field.type}, which a record "
                "cannot hold; cast it to the type of their values"
            )
    return pa.schema([pa.field(field.name, _plain(field.type)) for field in schema])


def schema_text(schema: pa.Schema) -> bytes:
    """Names and types of columns as they are written into records."""
    columns = [[field.name, _spelled(field.type)] for field in schema]
    return json.dumps(columns, ensure_ascii=False, separators=(",", ":")).encode()


def schema_of_text(text: bytes) -> pa.Schema:
    """The columns that ``schema_text`` gave; ValueError for anything else."""
    try:
        columns = json.loads(text)
        return pa.schema([pa.field(name, _read(said)) for name, said in columns])
    except (KeyError, TypeError, UnicodeDecodeError, pa.ArrowException) as error:
        raise ValueError(f"{text!r} names no columns: {error}") from error


def _spelled(type_: pa.DataType) -> Any:
    if type_ in _NAME_OF_TYPE:
        return _NAME_OF_TYPE[type_]
    if pt.is_fixed_size_list(type_):
        return ["list", _spelled(type_.value_type), type_.list_size]
    if _is_list(type_):
        return ["large_list" if pt.is_large_list(type_) else "list", _spelled(type_.value_type)]
    serialized = pa.schema([pa.field("", type_)]).serialize().to_pybytes()
    return {"arrow": base64.b64encode(serialized).decode()}


def _read(said: Any) -> pa.DataType:
    if isinstance(said, str):
        return _TYPE_NAMED[said]
    if isinstance(said, dict):
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(said["arrow"]))).field(0).type
    kind, item, *size = said
    if size:
        return pa.list_(_read(item), size[0])
    return pa.large_list(_read(item)) if kind == "large_list" else pa.list_(_read(item))


def _plain(type_: pa.DataType) -> pa.DataType:
    if pt.is_dictionary(type_):
        return _plain(type_.value_type)
    if isinstance(type_, pa.BaseExtensionType):
        return _plain(type_.storage_type)
    if pt.is_string_view(type_):
        return pa.string()
    if pt.is_binary_view(type_):
        return pa.binary()
    return type_


def _holds_dictionaries(type_: pa.DataType) -> bool:
    inner = [type_.field(place).type for place in range(type_.num_fields)]
    return any(pt.is_dictionary(one) or _holds_dictionaries(one) for one in inner)


def _is_large(type_: pa.DataType) -> bool:
    return bool(pt.is_large_binary(type_) or pt.is_large_string(type_))


def _is_list(type_: pa.DataType) -> bool:
    return bool(pt.is_list(type_) or pt.is_large_list(type_) or pt.is_fixed_size_list(type_))
