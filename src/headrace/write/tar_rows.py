"""Rows as samples: columns that are fields become members, and all others together JSON."""

from __future__ import annotations

import datetime
import decimal
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import ConversionError, OptionError
from headrace.model import computed_once
from headrace.write.source import FileRows, SourceRows, read_in_order
from headrace.write.tar_members import KEY
from headrace.write.tar_samples import Arriving, Place, Sample, numbered_key

__all__ = ["Fields", "RowSamples"]

_BLOCK_BYTES, _AHEAD_BYTES = 16 << 20, 64 << 20
_REST = "json"
_BY_NAME = ("cls", "json", "npy", "txt")
"""columns that are fields by their names though they hold no bytes"""


@dataclass(frozen=True, slots=True)
class Fields:
    """What becomes of columns."""

    key: str | None
    """the column that holds keys; None: rows are numbered"""
    members: Mapping[str, str]
    """the field that a column is"""
    rest: Sequence[str]
    """columns that go together into the field ``json``"""

    @classmethod
    def of(
        cls, schema: pa.Schema, chosen: Mapping[str, str], key: str | None, numbered: bool
    ) -> Fields:
        """Those of a schema. Bytes, and what is named txt, cls, npy or json, are fields by name.

        Columns such as ``__url__`` tell of a sample and are no fields.
        """
        unknown = [name for name in (*chosen, *([key] if key else ())) if name not in schema.names]
        if unknown:
            raise OptionError(
                f"there is no column {unknown[0]!r}; the columns are {', '.join(schema.names)}"
            )
        if key is None and not numbered and KEY in schema.names:
            key = KEY
        members = {
            field.name: chosen.get(field.name, field.name)
            for field in schema
            if field.name in chosen or _is_field(field)
        }
        members.pop(key or "", None)
        rest = [
            name
            for name in schema.names
            if name not in members and name != key and not _is_told(name)
        ]
        cls._check(members, rest)
        return cls(None if numbered else key, members, rest)

    @staticmethod
    def _check(members: Mapping[str, str], rest: Sequence[str]) -> None:
        for column, field in members.items():
            if "/" in field or not field.strip("."):
                raise OptionError(
                    f"the column {column!r} cannot be a field of that name; name the field that it "
                    f'is, as by fields={{"{column}": "jpg"}}'
                )
        taken = [*members.values(), *([_REST] if rest else ())]
        twice = next((field for field in taken if taken.count(field) > 1), None)
        if twice == _REST and rest:
            raise OptionError(
                f"there is a field {_REST} already, which {', '.join(rest)} would go into; name "
                "the fields that these are (fields=), or choose columns without them"
            )
        if twice is not None:
            raise OptionError(f"two columns would be the field {twice!r}; name them apart")
        if not taken:
            raise OptionError("there is no column that could be a field")


@dataclass(frozen=True)
class RowSamples:
    """The rows of files, tables and backends."""

    rows: SourceRows
    named: Sequence[str]
    fields: Fields

    @property
    def facts(self) -> Mapping[str, str]:
        return self.rows.facts

    @property
    def paths(self) -> Sequence[str]:
        return self.rows.files.paths if isinstance(self.rows, FileRows) else ()

    def read(self, place: Place, number: int) -> Arriving:
        following = read_in_order(
            self.rows, place[0], block_bytes=_BLOCK_BYTES, ahead_bytes=_AHEAD_BYTES
        )
        with closing(following):
            yield from self._counted(following, place, number)

    def _counted(
        self, following: Iterable[tuple[int, pa.Table]], place: Place, number: int
    ) -> Arriving:
        begun, done = place
        chunk, row = begun, 0
        for part, table in following:
            if part != chunk:
                chunk, row = part, 0
            skipped = min(done - row, table.num_rows) if chunk == begun and row < done else 0
            row += skipped
            for sample in self._samples(table.slice(skipped), number):
                row += 1
                number += 1
                yield (chunk, row), sample

    def share(self, place: Place) -> float:
        return float(self._bytes_before[place[0]] / max(self._bytes_before[-1], 1))

    @computed_once
    def _bytes_before(self) -> Any:
        return np.concatenate([[0], np.cumsum(self.rows.weights)])

    def _samples(self, table: pa.Table, number: int) -> Iterator[Sample]:
        columns = [
            (field, _values(table.column(name), field))
            for name, field in self.fields.members.items()
        ]
        keys = self._keys(table, number)
        rest = _told(table.select(list(self.fields.rest))) if self.fields.rest else None
        for row, key in enumerate(keys):
            sample: dict[str, Any] = {KEY: key}
            for field, values in columns:
                sample[field] = values[row]
            if rest is not None:
                sample[_REST] = _object(rest[row], key)
            yield sample

    def _keys(self, table: pa.Table, number: int) -> list[str]:
        if self.fields.key is None:
            return [numbered_key(number + row) for row in range(table.num_rows)]
        keys = table.column(self.fields.key).to_pylist()
        if None in keys:
            raise ConversionError(
                f"row {number + keys.index(None)} has no key: {self.fields.key} is null there"
            )
        return [key if isinstance(key, str) else str(key) for key in keys]


def _told(table: pa.Table) -> list[dict[str, Any]]:
    """Rows as Python values; nanoseconds, which Python does not count, as text."""
    fine = [pa.types.is_timestamp(field.type) and field.type.unit == "ns" for field in table.schema]
    columns = [
        column.cast(pa.string()) if as_text else column
        for column, as_text in zip(table.columns, fine, strict=True)
    ]
    rows: list[dict[str, Any]] = pa.table(columns, table.column_names).to_pylist()
    return rows


def _is_field(field: pa.Field) -> bool:
    return not _is_told(field.name) and (
        field.name.rpartition(".")[2] in _BY_NAME or _holds_bytes(field.type)
    )


def _is_told(name: str) -> bool:
    return name.startswith("__") and name.endswith("__") and name != "__data__"


def _holds_bytes(type_: pa.DataType) -> bool:
    """Whether cells are bytes, or bytes beside what they were called, as pictures often are."""
    if pa.types.is_struct(type_):
        names = {field.name: field.type for field in type_}
        return "bytes" in names and _holds_bytes(names["bytes"])
    return bool(
        pa.types.is_binary(type_)
        or pa.types.is_large_binary(type_)
        or pa.types.is_binary_view(type_)
        or pa.types.is_fixed_size_binary(type_)
    )


def _values(column: pa.ChunkedArray, field: str) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if pa.types.is_struct(column.type) and _holds_bytes(column.type):
        return [None if value is None else value["bytes"] for value in values]
    if field.rpartition(".")[2].lower() == "npy" and not _holds_bytes(column.type):
        dtype = _dtype(column.type)
        return [None if value is None else np.asarray(value, dtype) for value in values]
    return values


def _dtype(type_: pa.DataType) -> Any:
    while pa.types.is_nested(type_) and hasattr(type_, "value_type"):
        type_ = type_.value_type
    return type_.to_pandas_dtype() if pa.types.is_primitive(type_) else None


def _object(row: Mapping[str, Any], key: str) -> bytes:
    """The JSON of a row; NaN and infinities, which JSON has not, are null."""
    try:
        text = json.dumps(_plain(row), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise ConversionError(
            f"the row of {key!r} is no JSON: {error}; name the field that the column is (fields=), "
            "or leave it out (columns=)"
        ) from error
    return text.encode()


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return str(value) if isinstance(value, decimal.Decimal) else value
