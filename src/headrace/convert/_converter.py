"""The converter: a schema and options, checked once, then applied to block after block.

Every field of the schema has a builder, which makes its columns from Arrow arrays: one under the
name of the field, and companions beside it if the user wants masks or lengths.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headrace.convert._nulls import (
    REFUSE,
    Remedies,
    Remedy,
    dense_fill,
    field_paths,
    null_error,
    object_fill,
)
from headrace.convert._stacks import (
    Stack,
    exact_cast,
    parse_casts,
    parse_stacks,
    stacked,
)
from headrace.convert.arrays import (
    AnyArray,
    Dense,
    Mask,
    decoded_type,
    dense_cells,
    dense_type,
    dense_values,
    movable,
    null_mask,
    storage,
    storage_type,
)
from headrace.convert.columns import (
    RAGGED_FORMS,
    ArrowBlock,
    Block,
    Column,
    DenseColumn,
    ObjectColumn,
    RaggedColumn,
    StructColumn,
)
from headrace.convert.decoded import DecodedColumn, check_arrays
from headrace.convert.kinds import Kind, Kinds, python_values
from headrace.errors import OptionError, SchemaError, near_names
from headrace.options import check_together


class Converter:
    """Turns Arrow tables of one schema into blocks of batches.

    The form of each column is decided once, from schema and options alone, so that keys and types
    are the same in every batch. A converter holds no data: it pickles, and any thread may use it.
    """

    def __init__(
        self,
        schema: pa.Schema,
        output_format: str = "torch",
        *,
        nulls: str | Mapping[str, Any] | None = None,
        ragged: str = "list",
        kinds: Kinds | None = None,
        stack: object = None,
        cast: object = None,
    ) -> None:
        """Decide the form of each column.

        Args:
            schema: The columns of the tables that will be converted.
            output_format: One of "torch", "numpy", "arrow" and "dict".
            nulls: The treatment of nulls, for all columns or by column.
            ragged: The form of columns of lists of different lengths.
            kinds: The kind of each column that its source has decoded, by name. It comes from the
                source and the options of the user, never from the data.
            stack: Columns that become one array of shape [rows, columns], by its key.
            cast: The number type of all stacks, or number types by key.
        """
        if ragged not in RAGGED_FORMS:
            raise OptionError(f"ragged must be one of {', '.join(RAGGED_FORMS)}, not {ragged!r}")
        check_together(
            {
                "output_format": output_format,
                "nulls": nulls,
                "ragged": ragged,
                "stack": stack,
                "cast": cast,
            }
        )
        self.schema = schema
        self.output_format = output_format
        self.kinds: Kinds = dict(kinds or {})
        self._builders: tuple[_Builder, ...] = ()
        self._stacks: tuple[Stack, ...] = ()
        if output_format in ("torch", "numpy"):
            remedies = Remedies.parse(nulls, schema)
            stacks = {} if stack is None else parse_stacks(stack, schema)
            casts = {} if cast is None else parse_casts(cast, stacks, output_format == "torch")
            # A type under the key of a stack does not apply to a column of that name.
            of_columns = {key: dtype for key, dtype in casts.items() if key not in stacks}
            forms = _FieldForms(output_format == "torch", ragged, remedies, self.kinds, of_columns)
            self._builders = forms.builders(list(schema))
            if stacks or casts:
                self._stacks = _stacks_of(stacks, casts, self._builders)
        elif output_format == "dict" and len(set(schema.names)) < len(schema.names):
            raise SchemaError(
                "several columns have the same name, and a dict has one place for each; rename "
                f'them, or read with output_format="arrow" (columns: {", ".join(schema.names)})'
            )
        self._others_to_move: list[int] = []
        if self._builders:
            for number, type_ in enumerate(schema.types):
                if movable(pa.nulls(0, type_)).type != type_:
                    self._others_to_move.append(number)
        self._makers = {name: partial(python_values, kind=self.kinds[name]) for name in self.kinds}
        self._names = tuple([key for builder in self._builders for key in builder.keys])

    @property
    def has_companions(self) -> bool:
        """True if batches have keys beside the names of columns: masks, or lengths."""
        return len(self._names) > len(self._builders)

    @property
    def cell_columns(self) -> frozenset[int]:
        """The numbers of the columns that ``convert_columns`` also takes as cells."""
        return frozenset(n for n, builder in enumerate(self._builders) if builder.takes_cells)

    def movable(self, table: pa.Table) -> pa.Table:
        """Return a table for ``build`` whose rows pyarrow can take and join.

        Columns have other types than in the schema if pyarrow could not do this for all their
        values.
        """
        for number in self._others_to_move:
            name, column = table.schema.names[number], table.column(number)
            chunks = column.chunks or [pa.nulls(0, column.type)]
            moved = pa.chunked_array([movable(chunk) for chunk in chunks])
            table = table.set_column(number, name, moved)
        return table

    def convert(self, table: pa.Table) -> Block:
        """Return a block of all rows of a table that has exactly this schema."""
        schema = self.schema
        if not table.schema.equals(schema) and (
            table.schema.names != schema.names or table.schema.types != schema.types
        ):
            raise SchemaError(
                f"a table with the columns {table.schema.names} of the types "
                f"{list(map(str, table.schema.types))} does not have the schema of the data set: "
                f"{schema.names}, {list(map(str, schema.types))}"
            )
        return self.build(table)

    def build(self, table: pa.Table) -> Block:
        """Return a block of all rows of a table of the schema, or of one made by ``movable``."""
        if self.output_format in ("torch", "numpy"):
            return self.convert_columns(table.columns, table.num_rows)
        if table.num_columns:  # a table without columns would lose its number of rows
            table = pa.Table.from_arrays(table.columns, schema=self.schema)
        return ArrowBlock(table, self.output_format == "dict", self._makers)

    def convert_columns(
        self, columns: Sequence[pa.ChunkedArray | pa.Array | AnyArray], num_rows: int
    ) -> StructColumn:
        """Return a block of all columns of the schema, for torch and numpy.

        Args:
            columns: The values of each column. A numpy array holds cells: the bytes of each row,
                all of one length or as objects, and none of them null.
            num_rows: The number of rows.
        """
        made: list[Column] = []
        for builder, values in zip(self._builders, columns, strict=True):
            if isinstance(values, np.ndarray):
                made += builder.build_cells(values)
            elif isinstance(values, pa.Array) or values.num_chunks == 1:
                made += builder.build(values if isinstance(values, pa.Array) else values.chunk(0))
            else:
                made += _build_chunks(builder, values)
        block = StructColumn(self._names, tuple(made), num_rows)
        return stacked(block, self._stacks) if self._stacks else block


def _build_chunks(builder: _Builder, column: pa.ChunkedArray) -> Sequence[Column]:
    """Return the columns of several chunks.

    Chunks with dictionaries are joined only afterwards: joined dictionaries may outgrow the type of
    their codes.
    """
    chunks = [chunk for chunk in column.chunks if len(chunk)]
    if not chunks:
        return builder.build(pa.nulls(0, column.type))
    if decoded_type(column.type) == column.type:
        return builder.build(pa.concat_arrays(chunks) if len(chunks) > 1 else chunks[0])
    parts = [builder.build(chunk) for chunk in chunks]
    return [type(same[0]).concat(same) for same in zip(*parts, strict=True)]


# --- builders


@dataclass(frozen=True, slots=True)
class _Builder(ABC):
    """Makes the columns of one field; any thread may use it.

    Attributes:
        path: The dotted name of the field.
        keys: The keys of its columns: its name, and the names of companions.
        for_torch: True if numbers become tensors.
    """

    path: str
    keys: tuple[str, ...]
    for_torch: bool

    @abstractmethod
    def build(self, array: pa.Array) -> list[Column]:
        """Return a column for each key."""

    @property
    def takes_cells(self) -> bool:
        """True if columns can be built from the bytes of each row."""
        return False

    def build_cells(self, cells: AnyArray) -> list[Column]:
        """Return a column for each key, from the bytes of each row."""
        raise NotImplementedError

    def _with_mask(
        self, column: Column, nulls: Mask | None, shape: tuple[int, ...]
    ) -> list[Column]:
        """Return the column, and its mask if it has one."""
        if len(self.keys) == 1:
            return [column]
        mask = np.zeros(shape, np.bool_) if nulls is None else nulls
        return [column, DenseColumn.of(mask, self.for_torch)]


@dataclass(frozen=True, slots=True)
class _DenseBuilder(_Builder):
    """Numbers, or lists of numbers of one shape.

    Attributes:
        dense: How rows become an array.
        fill: The value of null rows.
        cast: The number type that the user wants; None for the one of ``dense``.
    """

    dense: Dense
    fill: Any
    cast: np.dtype[Any] | None = None

    def build(self, array: pa.Array) -> list[Column]:
        values, nulls = dense_values(array, self.dense, self.path)
        if nulls is not None:
            values = _filled(values, nulls, self.fill, self.path, self.dense, len(array))
        values = _cast(values, self.cast, self.path)
        return self._with_mask(DenseColumn.of(values, self.for_torch), nulls, values.shape)

    @property
    def takes_cells(self) -> bool:
        return self.dense.cast is None

    def build_cells(self, cells: AnyArray) -> list[Column]:
        values = _cast(dense_cells(cells, self.dense, self.path), self.cast, self.path)
        return self._with_mask(DenseColumn.of(values, self.for_torch), None, values.shape)


@dataclass(frozen=True, slots=True)
class _RaggedBuilder(_Builder):
    """Lists of any length of numbers, or of lists of numbers of one shape.

    Attributes:
        type_: The type of the field.
        dense: How elements become an array.
        fill: The value of null elements.
        empty_rows: True if null rows become empty ones.
        form: The option ``ragged``.
        cast: The number type that the user wants; None for the one of ``dense``.
    """

    type_: pa.DataType
    dense: Dense
    fill: Any
    empty_rows: bool
    form: str
    cast: np.dtype[Any] | None = None

    def build(self, array: pa.Array) -> list[Column]:
        array = storage(array)
        if array.null_count and not self.empty_rows:
            raise null_error(self.path, self.type_, array.null_count, len(array), [])
        lengths = pc.list_value_length(array).fill_null(0).cast(pa.int64()).to_numpy().copy()
        # Flattening leaves out elements that null rows hide.
        values, nulls = dense_values(array.flatten(), self.dense, self.path)
        if nulls is not None:
            values = _filled(values, nulls, self.fill, self.path, self.dense, len(array))
        elements = DenseColumn.of(_cast(values, self.cast, self.path), self.for_torch)
        made: list[Column] = [RaggedColumn.of(elements, lengths, self.form)]
        if self.form == "pad":
            made.append(DenseColumn.of(lengths, self.for_torch))
        if len(made) < len(self.keys):
            rows_null = null_mask(array)
            mask = np.zeros(len(array), np.bool_) if rows_null is None else rows_null
            made.append(DenseColumn.of(mask, self.for_torch))
        return made


@dataclass(frozen=True, slots=True)
class _ObjectBuilder(_Builder):
    """Python objects: strings, bytes, maps, lists of such, and values that a source has decoded.

    Attributes:
        type_: The type of the rows, without dictionaries at any depth.
        fill: The value of null rows.
        example: A fill value that would fit, for messages.
        kind: The meaning of the values, if the type does not tell it.
    """

    type_: pa.DataType
    fill: Any
    example: Any
    kind: Kind | None = None

    def build(self, array: pa.Array) -> list[Column]:
        array = storage(array)
        if array.null_count and self.fill is REFUSE:
            raise null_error(self.path, self.type_, array.null_count, len(array), self.example)
        fill = None if self.fill is REFUSE else self.fill
        made: Column
        if self.kind is Kind.NPY and self.for_torch:
            check_arrays(array, self.path)
        if self.kind is not None:
            made = DecodedColumn(array, self.kind, self.for_torch, self.path)
        else:
            plain = array if decoded_type(array.type) == array.type else array.cast(self.type_)
            made = ObjectColumn(movable(plain), fill, not self.for_torch)
        return self._with_mask(made, null_mask(array), (len(array),))

    @property
    def takes_cells(self) -> bool:
        bytes_types = (pt.is_binary, pt.is_large_binary, pt.is_fixed_size_binary)
        return self.kind is None and any(is_bytes(self.type_) for is_bytes in bytes_types)

    def build_cells(self, cells: AnyArray) -> list[Column]:
        column = ObjectColumn(cells, None, not self.for_torch)
        return self._with_mask(column, None, (len(cells),))


@dataclass(frozen=True, slots=True)
class _StructBuilder(_Builder):
    """A dict of the fields; a null struct makes its fields null."""

    fields: tuple[_Builder, ...]

    def build(self, array: pa.Array) -> list[Column]:
        array = storage(array)
        parts = zip(self.fields, _fields_of(array), strict=True)
        inner = [column for field, part in parts for column in field.build(part)]
        names = tuple([key for field in self.fields for key in field.keys])
        made = StructColumn(names, tuple(inner), len(array))
        return self._with_mask(made, null_mask(array), (len(array),))


def _fields_of(array: pa.StructArray) -> list[pa.Array]:
    """Return the fields, which are null where the struct is null.

    Run-ends cannot hold such nulls and are decoded before they come in. Dictionaries are decoded
    only afterwards, because the codes that a null struct hides may be out of bounds.
    """
    fields = [array.field(i) for i in range(array.type.num_fields)]
    if not fields or array.null_count == 0:
        return fields
    decoded = [storage(field) if pt.is_run_end_encoded(field.type) else field for field in fields]
    names = [str(i) for i in range(len(fields))]
    masked = pa.StructArray.from_arrays(decoded, names, mask=array.is_null())
    return list(masked.flatten())


def _cast(values: AnyArray, dtype: np.dtype[Any] | None, path: str) -> AnyArray:
    if dtype is None:
        return values
    with exact_cast(path, dtype):
        return values.astype(dtype, copy=False)


def _filled(
    values: AnyArray, nulls: Mask, fill: Any, path: str, dense: Dense, rows: int
) -> AnyArray:
    """Return the values with the fill value where they are null."""
    count = int(np.count_nonzero(nulls))
    if not count:
        return values
    if fill is REFUSE:
        example = False if dense.dtype.kind == "b" else 0
        raise null_error(path, dense.leaf, count, rows, example)
    filled = values.copy()  # Arrow's memory stays as it was read
    filled[nulls] = fill
    return filled


# --- from fields to builders


@dataclass(frozen=True, slots=True)
class _FieldForms:
    """The options that decide, together with its type, the form of a field.

    Attributes:
        for_torch: True if numbers become tensors.
        ragged: The form of lists of different lengths.
        remedies: The treatment of nulls.
        kinds: The kinds of columns; the fields of structs have none.
        casts: The number types that the user wants for columns, by their keys.
    """

    for_torch: bool
    ragged: str
    remedies: Remedies
    kinds: Kinds
    casts: Mapping[str, np.dtype[Any]]

    def builders(
        self, fields: Sequence[pa.Field], above: str = "", outer: Remedy | None = None
    ) -> tuple[_Builder, ...]:
        """Return a builder a field.

        Args:
            fields: The columns, or the fields of a struct.
            above: The dotted name of the struct, with a dot at its end.
            outer: The remedy of the struct.
        """
        made = tuple([self._builder(field, above, outer or Remedy()) for field in fields])
        names = Counter([field.name for field in fields])
        for name, count in names.items():
            if count > 1:
                raise SchemaError(
                    f"{count} columns are named {above + name!r}, and a batch has one place for "
                    'each name; rename them, or read with output_format="arrow"'
                )
        for builder in made:
            for companion in builder.keys[1:]:
                if names[companion]:
                    raise SchemaError(
                        f"column {builder.path!r} gets a companion {companion!r}, but the data "
                        "have a column of that name; leave one of them out of columns=, or choose "
                        "another form in nulls= or ragged="
                    )
        return made

    def _builder(self, field: pa.Field, above: str, outer: Remedy) -> _Builder:
        path = above + field.name
        _check_type(field.type, path)
        remedy = self.remedies.of(path, field.nullable, outer)
        keys = (field.name, f"{field.name}_mask") if remedy.mask else (field.name,)
        kind = None if above else self.kinds.get(field.name)
        type_ = storage_type(field.type)
        if kind is not None:
            return self._decoded(path, keys, type_, remedy, kind)
        dense = dense_type(field.type, self.for_torch)
        if dense is not None:
            if pt.is_null(dense.leaf) and not dense.shape and remedy == Remedy():
                raise SchemaError(
                    f"column {path!r} has the type null: no file says what it holds. Give its type "
                    f"in schema=, fill it: nulls={{{path!r}: 0.0}}, or leave it out of columns="
                )
            fill = dense_fill(remedy, dense, path)
            return _DenseBuilder(path, keys, self.for_torch, dense, fill, self.casts.get(path))
        if pt.is_struct(type_):
            return self._struct(path, keys, type_, remedy)
        if _is_variable_list(type_):
            elements = dense_type(type_.value_type, self.for_torch)
            if elements is not None:
                return self._ragged(path, keys, type_, remedy, elements)
        type_ = decoded_type(type_)
        empty = _empty_object(type_)
        fill = object_fill(remedy, empty, type_, path)
        example = empty if isinstance(empty, str | bytes) else None
        return _ObjectBuilder(path, keys, self.for_torch, type_, fill, example)

    def _decoded(
        self, path: str, keys: tuple[str, ...], type_: pa.DataType, remedy: Remedy, kind: Kind
    ) -> _ObjectBuilder:
        if remedy.fill is not REFUSE and remedy.fill is not None:
            raise OptionError(
                f"nulls={{{path!r}: {remedy.fill!r}}}: decoded values are filled with None only"
            )
        fill = REFUSE if remedy == Remedy() else None
        return _ObjectBuilder(path, keys, self.for_torch, type_, fill, None, kind)

    def _struct(
        self, path: str, keys: tuple[str, ...], type_: pa.DataType, remedy: Remedy
    ) -> _StructBuilder:
        if remedy.fill is not REFUSE:
            names = ", ".join(map(repr, field_paths(type_, path + ".")))
            raise OptionError(
                f"nulls={{{path!r}: {remedy.fill!r}}}: the column is a struct; fill its fields "
                f'by their dotted names ({names}) or choose "mask"'
            )
        fields = [field.with_nullable(True) for field in type_]  # null if the struct is null
        inner = self.builders(fields, path + ".", remedy)
        return _StructBuilder(path, keys, self.for_torch, inner)

    def _ragged(
        self, path: str, keys: tuple[str, ...], type_: pa.DataType, remedy: Remedy, elements: Dense
    ) -> _RaggedBuilder:
        rows_only = remedy.fill is None or (isinstance(remedy.fill, list) and not remedy.fill)
        for_elements = Remedy() if rows_only or remedy.mask else remedy
        fill = dense_fill(for_elements, elements, path)
        if self.ragged == "pad":
            keys = (keys[0], f"{keys[0]}_length", *keys[1:])
        empty_rows = remedy != Remedy()
        return _RaggedBuilder(
            path,
            keys,
            self.for_torch,
            type_,
            elements,
            fill,
            empty_rows,
            self.ragged,
            self.casts.get(path),
        )


def _stacks_of(
    stacks: Mapping[str, Sequence[str]],
    casts: Mapping[str, np.dtype[Any]],
    builders: Sequence[_Builder],
) -> tuple[Stack, ...]:
    """Return the stacks of columns that these builders make, and check all casts."""
    by_name = {builder.path: builder for builder in builders}
    made = tuple(
        [
            _stack(key, [by_name[name] for name in names], casts.get(key))
            for key, names in stacks.items()
        ]
    )
    inside = {name for names in stacks.values() for name in names}
    alone = [builder for builder in builders if builder.path not in inside]
    numeric = {*stacks, *_numeric_paths(alone)}
    for key in casts:
        if key not in numeric:
            hint = near_names(key, numeric)
            raise SchemaError(f"cast names {key!r}, which is no key of numbers in a batch; {hint}")
    keys = [key for builder in alone for key in builder.keys]
    for key, count in Counter([*keys, *[key for one in made for key in one.keys]]).items():
        if count > 1:
            raise SchemaError(
                f"a batch would have {count} values under {key!r}; choose other keys in stack="
            )
    return made


def _stack(key: str, members: Sequence[_Builder], dtype: np.dtype[Any] | None) -> Stack:
    types = []
    for builder in members:
        dense = builder.dense if isinstance(builder, _DenseBuilder) else None
        if dense is None or dense.shape or dense.dtype.kind not in "biuf":
            raise SchemaError(
                f"stack={{{key!r}: ...}}: column {builder.path!r} does not have one number in "
                "each row; leave it out of the stack"
            )
        types.append(dense.dtype)
    if dtype is None:
        try:
            dtype = np.result_type(*types)
        except TypeError as error:
            raise SchemaError(
                f"stack={{{key!r}: ...}}: the columns have no number type in common ({error}); "
                f'choose one: cast={{{key!r}: "float32"}}'
            ) from error
    masks = tuple([(*builder.keys, None)[1] for builder in members])
    return Stack(key, tuple([builder.path for builder in members]), masks, dtype)


def _numeric_paths(builders: Sequence[_Builder]) -> Iterator[str]:
    """Yield the dotted names of columns and fields of numbers."""
    for builder in builders:
        if isinstance(builder, _DenseBuilder | _RaggedBuilder):
            yield builder.path
        elif isinstance(builder, _StructBuilder):
            yield from _numeric_paths(builder.fields)


def _is_variable_list(type_: pa.DataType) -> bool:
    kinds = (pt.is_list, pt.is_large_list, pt.is_list_view, pt.is_large_list_view)
    return any(is_kind(type_) for is_kind in kinds)


def _empty_object(type_: pa.DataType) -> Any:
    if pt.is_string(type_) or pt.is_large_string(type_) or pt.is_string_view(type_):
        return ""
    nested = _is_variable_list(type_) or pt.is_fixed_size_list(type_) or pt.is_map(type_)
    return [] if nested else b""


def _check_type(type_: pa.DataType, path: str) -> None:
    """Raise an error for types that neither tensors nor lists of plain values can represent."""
    type_ = storage_type(type_)
    if pt.is_union(type_) or pt.is_interval(type_):
        raise SchemaError(
            f"column {path!r} has the type {type_}, which has no tensor or array form; leave it "
            'out of columns=, or read with output_format="arrow"'
        )
    if not pt.is_struct(type_):
        for i in range(type_.num_fields):
            _check_type(type_.field(i).type, path)
