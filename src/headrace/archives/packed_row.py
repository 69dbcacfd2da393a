"""One packed row as Python values, without the detour by an Arrow table."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.archives.packed_cells import MESSAGE, NULL
from headrace.archives.row_types import Layout, width_of

__all__ = ["SingleRow"]

_NUMBERS = {
    **{pa.int8(): "b", pa.int16(): "h", pa.int32(): "i", pa.int64(): "q"},
    **{pa.uint8(): "B", pa.uint16(): "H", pa.uint32(): "I", pa.uint64(): "Q"},
    **{pa.float32(): "f", pa.float64(): "d", pa.bool_(): "?"},
}
_TEXT = (pa.string(), pa.large_string())


class SingleRow:
    """Columns of numbers, bytes and text are read here; a row with others is not."""

    def __init__(self, schema: pa.Schema, layouts: Sequence[Layout]) -> None:
        self._columns = [
            (field.name, layout, field.type in _TEXT)
            for field, layout in zip(schema, layouts, strict=True)
        ]
        self._unread = {
            field.name
            for field, layout in zip(schema, layouts, strict=True)
            if layout is not Layout.BYTES and field.type not in _NUMBERS
        }
        kinds = [_kind(field.type, layout) for field, layout in zip(schema, layouts, strict=True)]
        self._struct = struct.Struct(f"<{len(kinds)}B{''.join(kinds)}")

    def values(self, record: bytes, header: bytes, names: Sequence[str]) -> dict[str, Any] | None:
        """Some columns of a record; None if they, or it, are not as they are read here."""
        at = len(header) + self._struct.size
        if not (record.startswith(header) and len(record) >= at and self._unread.isdisjoint(names)):
            return None
        found = self._struct.unpack_from(record, len(header))
        values: dict[str, Any] = {}
        for (name, layout, is_text), state, value in zip(
            self._columns, found, found[len(self._columns) :], strict=False
        ):
            if state == NULL:
                values[name] = None
            elif state == MESSAGE:
                return None
            elif layout is Layout.BYTES:
                cell = record[at : at + value]
                values[name] = cell.decode() if is_text else cell
            else:
                values[name] = value
            if layout not in (Layout.FIXED, Layout.BOOL):
                at += value
        if at != len(record):
            return None
        return values if len(names) == len(values) else {name: values[name] for name in names}


def _kind(type_: pa.DataType, layout: Layout) -> str:
    if type_ in _NUMBERS:
        return _NUMBERS[type_]
    return f"{width_of(type_)}s" if layout is Layout.FIXED else "I"
