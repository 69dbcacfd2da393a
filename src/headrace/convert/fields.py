"""Chooses the builder for each field of a schema, and refuses what has no representation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from headrace.convert.builders import (
    Builder,
    DenseBuilder,
    ObjectBuilder,
    RaggedBuilder,
    StructBuilder,
)
from headrace.convert.decoded import DecodedBuilder, Kind, Kinds
from headrace.convert.dense import Dense, dense_type
from headrace.convert.lent import LentBuilder
from headrace.convert.memory import decoded_type, storage_type
from headrace.convert.nulls import REFUSE, Remedies, Remedy, dense_fill, object_fill
from headrace.errors import OptionError, SchemaError

__all__ = ["FieldPlanner", "field_paths"]

_WITHOUT_REPRESENTATION = (pt.is_union, pt.is_interval)


def field_paths(fields: Sequence[pa.Field], above: str = "") -> Iterator[str]:
    """The dotted names of all columns and of the fields of structs."""
    for field in fields:
        path = above + field.name
        yield path
        type_ = storage_type(field.type)
        if pt.is_struct(type_):
            yield from field_paths(list(type_), path + ".")


@dataclass(frozen=True, slots=True)
class FieldPlanner:
    """The options that decide, with its type, what a field becomes."""

    for_torch: bool
    ragged: str
    remedies: Remedies
    kinds: Kinds
    """of columns; the fields of structs have none"""

    def plan(
        self, fields: Sequence[pa.Field], above: str = "", outer: Remedy | None = None
    ) -> tuple[Builder, ...]:
        """A builder a field; ``outer`` is the remedy of the struct that holds the fields."""
        builders = tuple(self._builder(field, above, outer or Remedy()) for field in fields)
        _check_keys(fields, builders, above)
        return builders

    def _builder(self, field: pa.Field, above: str, outer: Remedy) -> Builder:
        path = above + field.name
        _check_type(field.type, path)
        remedy = self.remedies.of(path, field.nullable, outer)
        keys = (field.name, f"{field.name}_mask") if remedy.mask else (field.name,)
        kind = None if above else self.kinds.get(field.name)
        if kind is Kind.LENT:
            fill = object_fill(remedy, b"", pa.large_binary(), path)
            return LentBuilder(path, keys, fill, self.for_torch)
        if kind is not None:
            return DecodedBuilder.of(path, keys, kind, remedy, self.for_torch)
        type_ = storage_type(field.type)
        dense = dense_type(field.type, self.for_torch)
        if dense is not None:
            return self._dense(path, keys, dense, remedy)
        if pt.is_struct(type_):
            return self._struct(path, keys, type_, remedy)
        if _is_variable_list(type_):
            elements = dense_type(type_.value_type, self.for_torch)
            if elements is not None:
                return self._ragged(path, keys, type_, elements, remedy)
        type_ = decoded_type(type_)
        empty = _empty_object(type_)
        fill = object_fill(remedy, empty, type_, path)
        example = empty if isinstance(empty, str | bytes) else None
        return ObjectBuilder(path, keys, type_, fill, example, self.for_torch)

    def _dense(
        self, path: str, keys: tuple[str, ...], dense: Dense, remedy: Remedy
    ) -> DenseBuilder:
        if pt.is_null(dense.leaf) and not dense.shape and remedy == Remedy():
            raise SchemaError(
                f"column {path!r} has the type null: no file says what it holds. Give its type in "
                f"schema=, fill it: nulls={{{path!r}: 0.0}}, or leave it out of columns="
            )
        return DenseBuilder(path, keys, dense, dense_fill(remedy, dense, path), self.for_torch)

    def _struct(
        self, path: str, keys: tuple[str, ...], type_: pa.DataType, remedy: Remedy
    ) -> StructBuilder:
        if remedy.fill is not REFUSE:
            names = ", ".join(map(repr, field_paths(list(type_), path + ".")))
            raise OptionError(
                f"nulls={{{path!r}: {remedy.fill!r}}}: the column is a struct; fill its fields "
                f'by their dotted names ({names}) or choose "mask"'
            )
        fields = [field.with_nullable(True) for field in type_]  # null wherever the struct is
        return StructBuilder(keys, self.plan(fields, path + ".", remedy), self.for_torch)

    def _ragged(
        self, path: str, keys: tuple[str, ...], type_: pa.DataType, elements: Dense, remedy: Remedy
    ) -> RaggedBuilder:
        rows_only = remedy.fill is None or (isinstance(remedy.fill, list) and not remedy.fill)
        for_elements = Remedy() if rows_only or remedy.mask else remedy
        fill = dense_fill(for_elements, elements, path)
        if self.ragged == "pad":
            keys = (keys[0], f"{keys[0]}_length", *keys[1:])
        empty_rows = remedy != Remedy()
        return RaggedBuilder(
            path, keys, type_, elements, fill, empty_rows, self.ragged, self.for_torch
        )


def _is_variable_list(type_: pa.DataType) -> bool:
    return bool(
        pt.is_list(type_)
        or pt.is_large_list(type_)
        or pt.is_list_view(type_)
        or pt.is_large_list_view(type_)
    )


def _empty_object(type_: pa.DataType) -> Any:
    if pt.is_string(type_) or pt.is_large_string(type_) or pt.is_string_view(type_):
        return ""
    nested = _is_variable_list(type_) or pt.is_fixed_size_list(type_) or pt.is_map(type_)
    return [] if nested else b""


def _check_type(type_: pa.DataType, path: str) -> None:
    """Refuse types that neither tensors nor lists of plain values can stand for."""
    type_ = storage_type(type_)
    if any(refused(type_) for refused in _WITHOUT_REPRESENTATION):
        raise SchemaError(
            f"column {path!r} has the type {type_}, which has no tensor or array form; leave it "
            'out of columns=, or read with output_format="arrow"'
        )
    if not pt.is_struct(type_):
        for i in range(type_.num_fields):
            _check_type(type_.field(i).type, path)


def _check_keys(fields: Sequence[pa.Field], builders: Sequence[Builder], above: str) -> None:
    names = Counter(field.name for field in fields)
    for name, count in names.items():
        if count > 1:
            raise SchemaError(
                f"{count} columns are named {above + name!r}, and a batch has one place for each "
                'name; rename them, or read with output_format="arrow"'
            )
    for builder in builders:
        for companion in builder.keys[1:]:
            if names[companion]:
                raise SchemaError(
                    f"column {above + builder.keys[0]!r} gets a companion {companion!r}, but the "
                    "data have a column of that name; leave one of them out of columns=, or "
                    "choose another form in nulls= or ragged="
                )
