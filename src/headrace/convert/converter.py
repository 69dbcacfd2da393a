"""The converter: a schema and options, checked once, then applied to block after block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt
import torch

from headrace.convert.arrays import Dense, contiguous, decoded_type, dense_type, storage_type
from headrace.convert.blocks import ArrowBlock, Block, ColumnBlock
from headrace.convert.builders import (
    REFUSE,
    Builder,
    DenseBuilder,
    ObjectBuilder,
    RaggedBuilder,
    Remedies,
    Remedy,
    StructBuilder,
    dense_fill,
    object_fill,
    rebuild,
)
from headrace.convert.columns import RAGGED_FORMS, Column, StructColumn
from headrace.convert.decoded import DecodedBuilder, Kind, Kinds
from headrace.convert.lent import LentBuilder
from headrace.errors import OptionError, SchemaError

__all__ = ["Converter", "FieldPlanner", "field_paths"]

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


_OUTPUT_FORMATS = ("torch", "numpy", "arrow", "dict")
_OF_CELLS = (DenseBuilder, ObjectBuilder)


class Converter:
    """Turns Arrow tables of one schema into blocks of batches.

    What each column becomes is decided here from schema and options alone, so that keys and
    types are the same in every batch. Holds no data: it pickles, and any thread may use it.
    """

    def __init__(
        self,
        schema: pa.Schema,
        output_format: str = "torch",
        *,
        nulls: str | Mapping[str, Any] | None = None,
        ragged: str = "list",
        kinds: Kinds | None = None,
    ) -> None:
        """Decide what each column becomes.

        Args:
            schema: The columns of the tables that will be converted.
            output_format: One of "torch", "numpy", "arrow" and "dict".
            nulls: What stands for nulls, for all columns or by column.
            ragged: The form of columns of lists of different lengths.
            kinds: What columns hold that their source has decoded, by name. It comes from the
                source and the options of the user, never from what is read.
        """
        _check_options(output_format, nulls, ragged)
        self.schema = schema
        self.output_format = output_format
        self.kinds: Kinds = dict(kinds or {})
        self._builders: tuple[Builder, ...] = ()
        if output_format in ("torch", "numpy"):
            remedies = Remedies.parse(nulls, field_paths(list(schema)))
            planner = FieldPlanner(output_format == "torch", ragged, remedies, self.kinds)
            self._builders = planner.plan(list(schema))
        elif output_format == "dict" and len(set(schema.names)) < len(schema.names):
            raise SchemaError(
                "several columns have the same name, and a dict has one place for each; rename "
                f'them, or read with output_format="arrow" (columns: {", ".join(schema.names)})'
            )
        self._names = tuple(key for builder in self._builders for key in builder.keys)

    def convert(self, table: pa.Table) -> Block:
        """A block of all rows of a table that has exactly this schema."""
        self._check_schema(table)
        if self.output_format in ("arrow", "dict"):
            if table.num_columns:  # a table of no columns would forget its rows
                table = pa.Table.from_arrays(table.columns, schema=self.schema)
            return ArrowBlock(table, self.output_format == "dict", self.kinds)
        return self.convert_columns(table.columns, table.num_rows)

    @property
    def cell_columns(self) -> frozenset[int]:
        """The columns that ``convert_columns`` also takes as cells."""
        return frozenset(
            number
            for number, builder in enumerate(self._builders)
            if isinstance(builder, _OF_CELLS) and builder.takes_cells
        )

    def convert_columns(
        self, columns: Sequence[pa.ChunkedArray | pa.Array | npt.NDArray[Any]], num_rows: int
    ) -> Block:
        """The same of all columns of the schema, for torch and numpy.

        An array of numpy has the bytes of each row, equally many or as objects, where none is null.
        """
        made = [
            column
            for builder, values in zip(self._builders, columns, strict=True)
            for column in _columns(builder, values)
        ]
        return ColumnBlock(StructColumn(self._names, tuple(made), num_rows))

    def block(self, arrays: Sequence[npt.NDArray[Any]]) -> Block:
        """The block whose ``arrays()`` these are, over the same memory."""
        num_rows = len(arrays[0]) if arrays else 0
        columns = rebuild(self._builders, iter(arrays), num_rows)
        return ColumnBlock(StructColumn(self._names, tuple(columns), num_rows))

    def _check_schema(self, table: pa.Table) -> None:
        if table.schema.equals(self.schema):
            return
        if table.schema.names != self.schema.names or table.schema.types != self.schema.types:
            raise SchemaError(
                f"a table with the columns {table.schema.names} of the types "
                f"{list(map(str, table.schema.types))} does not have the schema of the data set: "
                f"{self.schema.names}, {list(map(str, self.schema.types))}"
            )


def _columns(
    builder: Builder, values: pa.ChunkedArray | pa.Array | npt.NDArray[Any]
) -> Iterable[Column]:
    if isinstance(values, np.ndarray):
        assert isinstance(builder, _OF_CELLS)
        return builder.of_cells(values)
    if isinstance(values, pa.Array):
        return builder.build(values)
    if values.num_chunks == 1:
        return builder.build(values.chunk(0))
    parts = [builder.build(array) for array in contiguous(values)]
    if len(parts) == 1:
        return parts[0]
    return [type(same[0]).concat(same) for same in zip(*parts, strict=True)]


def _check_options(output_format: object, nulls: object, ragged: object) -> None:
    if output_format not in _OUTPUT_FORMATS:
        raise OptionError(
            f"output_format must be one of {', '.join(_OUTPUT_FORMATS)}, not {output_format!r}"
        )
    if ragged not in RAGGED_FORMS:
        raise OptionError(f"ragged must be one of {', '.join(RAGGED_FORMS)}, not {ragged!r}")
    if output_format in ("arrow", "dict") and (nulls is not None or ragged != "list"):
        raise OptionError(
            f'nulls and ragged have no effect on output_format="{output_format}", which keeps '
            "nulls and lists as they are; leave them out"
        )
    if ragged == "nested" and output_format == "numpy":
        raise OptionError(
            'ragged="nested" is a form of torch tensors; numpy has list, pad, offsets'
        )
    if ragged == "nested" and not hasattr(torch.nested, "nested_tensor_from_jagged"):
        raise OptionError(
            f'ragged="nested" needs a torch with jagged tensors, which {torch.__version__} does '
            "not have; upgrade torch, or choose list, pad or offsets"
        )
