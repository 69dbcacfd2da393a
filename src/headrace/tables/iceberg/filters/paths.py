"""Which column of the table the names in an expression refer to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import BooleanType, NestedField, StructType, UUIDType

from headrace.tables.iceberg.filters.columns import TableColumn
from headrace.tables.iceberg.filters.constants import is_lossless, plain
from headrace.tables.iceberg.filters.domains import arrow_type_of, domain_of

__all__ = ["ColumnFinder"]


@dataclass(frozen=True, slots=True)
class ColumnFinder:
    """Finds what a path of names refers to in the table."""

    schema: pa.Schema
    """as the expression sees it"""
    table_schema: Schema
    by_plain_value: frozenset[int] | None
    """ids of the columns that the table is partitioned by as they are; None if not known"""
    _found: dict[tuple[str, ...], TableColumn | None] = field(default_factory=dict)

    def find(self, path: tuple[str, ...]) -> TableColumn | None:
        """The column, if it holds the same values in both schemas."""
        if path not in self._found:
            self._found[path] = self._sought(path)
        return self._found[path]

    def _sought(self, path: tuple[str, ...]) -> TableColumn | None:
        fields = _fields_on_path(path, self.table_schema)
        read_type = _type_on_path(path, self.schema)
        if not fields or read_type is None:
            return None
        leaf = fields[-1]
        own_type, arrow_type = arrow_type_of(leaf.field_type), plain(read_type)
        name = self.table_schema.find_column_name(leaf.field_id)
        if own_type is None or name is None or not is_lossless(own_type, arrow_type):
            return None
        return TableColumn(
            name,
            arrow_type,
            domain_of(leaf.field_type) if self._is_comparable(leaf) else None,
            isinstance(leaf.field_type, BooleanType),
            leaf.required and not all(outer.required for outer in fields),
            self.table_schema,
        )

    def _is_comparable(self, leaf: NestedField) -> bool:
        """pyiceberg compares the bytes of a UUID with the UUID of a partition, in vain."""
        if not isinstance(leaf.field_type, UUIDType):
            return True
        return self.by_plain_value is not None and leaf.field_id not in self.by_plain_value


def _fields_on_path(path: tuple[str, ...], table_schema: Schema) -> list[NestedField]:
    """The fields from the outermost inwards; none unless the path leads to one."""
    level: Sequence[NestedField] = table_schema.fields
    fields: list[NestedField] = []
    for name in path:
        found = next((one for one in level if one.name == name), None)
        if found is None:
            return []
        fields.append(found)
        level = found.field_type.fields if isinstance(found.field_type, StructType) else ()
    return fields


def _type_on_path(path: tuple[str, ...], schema: pa.Schema) -> pa.DataType | None:
    level: Sequence[pa.Field] = list(schema)
    found: pa.DataType | None = None
    for name in path:
        types = [one.type for one in level if one.name == name]
        if len(types) != 1:
            return None
        found = types[0]
        level = list(found) if pa.types.is_struct(found) else []
    return found
