"""Convert Arrow types that pyarrow can store but not take or filter to plain types.

These are views of text and bytes (`string_view`, `binary_view`, which polars writes) and run-end
encoded columns, also inside lists, structs and dictionaries.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt


def plain_type(type_: pa.DataType) -> pa.DataType:
    """Return the type as which values are read; for most types it is the same.

    >>> plain_type(pa.list_(pa.string_view()))
    ListType(list<item: large_string>)
    >>> plain_type(pa.run_end_encoded(pa.int32(), pa.int64()))
    DataType(int64)
    """
    if pt.is_string_view(type_):
        return pa.large_string()
    if pt.is_binary_view(type_):
        return pa.large_binary()
    if pt.is_run_end_encoded(type_):
        return plain_type(type_.value_type)
    if pt.is_dictionary(type_):
        return pa.dictionary(type_.index_type, plain_type(type_.value_type), type_.ordered)
    if pt.is_map(type_):
        key, item = plain_type(type_.key_type), plain_type(type_.item_type)
        return pa.map_(type_.key_field.with_type(key), type_.item_field.with_type(item))
    if pt.is_struct(type_):
        return pa.struct([_plain_field(field) for field in type_])
    if pt.is_fixed_size_list(type_):
        return pa.list_(_plain_field(type_.value_field), type_.list_size)
    if pt.is_list(type_):
        return pa.list_(_plain_field(type_.value_field))
    if pt.is_large_list(type_):
        return pa.large_list(_plain_field(type_.value_field))
    return type_


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema in which columns are read."""
    return pa.schema([_plain_field(field) for field in schema], schema.metadata)


def plain_table(table: pa.Table, schema: pa.Schema | None = None) -> pa.Table:
    """Return a table in plain types, which are those of ``schema``, if that is known."""
    if schema is None:
        schema = plain_schema(table.schema)
    if schema.equals(table.schema):
        return table
    columns = [
        pa.chunked_array([_plain(chunk) for chunk in column.chunks], field.type)
        for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _plain(array: pa.Array) -> pa.Array:
    wanted = plain_type(array.type)
    if array.type == wanted:
        return array
    if pt.is_run_end_encoded(array.type):
        whole = pa.RunEndEncodedArray.from_arrays(array.run_ends, _plain(array.values))
        return pc.run_end_decode(whole.slice(array.offset, len(array)))
    return array.cast(wanted)


def _plain_field(field: pa.Field) -> pa.Field:
    wanted = plain_type(field.type)
    return field if field.type == wanted else field.with_type(wanted)
