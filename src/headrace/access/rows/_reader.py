"""Read rows of a backend: their columns and names, decoded, in a format.

A `RowForm` holds the options. A `RowReader` applies them to a backend: one take, decoding, one
conversion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt
import torch

from headrace.access.rows._batch import RowBatch
from headrace.convert import Converter
from headrace.convert.arrays import dense_type
from headrace.convert.columns import Block, concat
from headrace.convert.images import decode_image
from headrace.errors import (
    DATA_ERRORS,
    OptionError,
    ReadError,
    SchemaError,
    may_be_skipped,
    near_names,
)
from headrace.model import Int64Array
from headrace.process import in_threads
from headrace.sources.backend import Backend, StorageBackend, ValueMaker

_Part: TypeAlias = tuple[Block, dict[str, list[Any]], int]
"""Converted columns, decoded columns, and the number of rows."""

_FORMATS = ("torch", "numpy", "arrow", "dict", "raw")
_STORED = ("arrow", "raw")
"""Formats that keep stored values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowForm:
    """The options for columns of rows; a ``RowReader`` checks them.

    Attributes:
        columns: The columns of rows, in order: a mapping from their names in rows to their names in
            the backend. None for all columns under their own names.
        output_format: "torch", "numpy", "arrow", "dict" or "raw".
        nulls: The treatment of nulls, for all columns or by column.
        ragged: The form of columns of lists of different lengths.
        decode: "image" or a function by column.
        reformatted: True if the other options were chosen for another format.
    """

    columns: Mapping[str, str] | None
    output_format: str
    nulls: str | Mapping[str, Any] | None
    ragged: str
    decode: Mapping[str, Any]
    reformatted: bool = False

    def named(self, names: Mapping[str, str], known: Sequence[str]) -> RowForm:
        """Return the form of some columns under other names, without the options of other columns.

        Args:
            names: The new name of each column that stays, by its current name.
            known: All current names.
        """
        stored = self.columns or {name: name for name in known}
        columns = {new: stored[old] for old, new in names.items()}
        return replace(self._with_options_of(names, known), columns=columns)

    def over(self, kept: Sequence[str], known: Sequence[str]) -> RowForm:
        """Return the form of all columns of other data, with the options of columns in ``kept``."""
        return replace(self._with_options_of({name: name for name in kept}, known), columns=None)

    def formatted(self, output_format: str) -> RowForm:
        """Return the form in another format; options that do not apply to it are kept for later."""
        return replace(self, output_format=output_format, reformatted=True)

    def fitting(self) -> RowForm:
        """Return the form without the options that do not apply to its format."""
        if not self.reformatted:
            return self
        if self.output_format in _STORED:
            return replace(self, nulls=None, ragged="list", decode={})
        if self.output_format == "dict":
            return replace(self, nulls=None, ragged="list")
        is_nested = self.output_format == "numpy" and self.ragged == "nested"
        return replace(self, ragged="list") if is_nested else self

    def _with_options_of(self, names: Mapping[str, str], known: Sequence[str]) -> RowForm:
        decode = {names[name]: how for name, how in self.decode.items() if name in names}
        if not isinstance(self.nulls, Mapping):
            return replace(self, decode=decode)
        nulls = {}
        for path, remedy in self.nulls.items():
            column = _column_of(path, known)
            if column in names:
                nulls[names[column] + path[len(column) :]] = remedy
        return replace(self, nulls=nulls, decode=decode)


def _column_of(path: str, known: Sequence[str]) -> str:
    """Return the column that a path belongs to: itself, or one with a field of that name."""
    if path in known:
        return path
    return max((name for name in known if path.startswith(f"{name}.")), key=len, default=path)


class RowReader:
    """Reads rows of a backend in a form; both are checked against each other once.

    Attributes:
        backend: The backend.
        form: The options.
        schema: The columns of rows, under their names in rows.
        kinds: The kinds of columns that the backend has decoded, by the same names.
        row: Function that returns one row without making a batch, or None if it has to be in one.
    """

    row: Callable[[int], dict[str, Any] | None]

    def __init__(self, backend: StorageBackend, form: RowForm) -> None:
        if form.output_format not in _FORMATS:
            formats = ", ".join(_FORMATS)
            raise OptionError(f"output_format must be one of {formats}, not {form.output_format!r}")
        self.backend, self.form = backend, form
        form = form.fitting()
        if form.columns is None:
            stored, names = backend.schema, backend.schema.names
        else:
            stored = backend.take([], columns=list(form.columns.values())).schema
            names = list(form.columns)
        self._stored = stored
        self._columns = None if form.columns is None else stored.names
        fields = [field.with_name(name) for name, field in zip(names, stored, strict=True)]
        self.schema = pa.schema(fields, stored.metadata)
        kinds = backend.kinds if isinstance(backend, Backend) else {}
        pairs = zip(names, stored.names, strict=True)
        self.kinds = {name: kinds[old] for name, old in pairs if old in kinds}
        self._decoders = _decoders(form.decode, self.schema, form.output_format)
        self._plain = [name for name in self.schema.names if name not in self._decoders]
        is_raw = form.output_format == "raw"
        self._converter = Converter(
            pa.schema([self.schema.field(name) for name in self._plain]),
            "dict" if is_raw else form.output_format,
            nulls=form.nulls,
            ragged=form.ragged,
            kinds=None if is_raw else self.kinds,
        )
        self._cells = self._converter.cell_columns
        is_plain = form.output_format in ("torch", "numpy") and not self._decoders
        self.row = _in_a_batch
        self._direct: Any = None
        if is_plain and self._plain and _has_own(backend, "take_columns"):
            self._direct = backend
        if is_raw and not self.kinds and _has_own(backend, "made_row"):
            self.row = self._stored_row
        elif hasattr(self._direct, "made_row"):
            numbers = [backend.schema.names.index(name) for name in stored.names]
            makers = _value_makers(self._converter, numbers)
            if makers is not None:
                self.row = partial(self._direct.made_row, makers)

    def table(self, rows: Int64Array) -> pa.Table:
        """Return rows as they are stored, in the columns of this form."""
        return self._renamed(self.backend.take(rows, columns=self._columns))

    def slice(self, start: int, length: int) -> pa.Table:
        """Return consecutive rows as they are stored."""
        return self._renamed(self.backend.slice(start, length, columns=self._columns))

    def _renamed(self, table: pa.Table) -> pa.Table:
        names = self.schema.names
        return table if table.schema.names == names else table.rename_columns(names)

    def _stored_row(self, row: int) -> dict[str, Any] | None:
        try:
            values = self.backend.get_row(row, columns=self._columns).values()
        except (ValueError, OverflowError):  # Python has no object for a value
            return None
        return dict(zip(self.schema.names, values, strict=True))

    def read(self, rows: Int64Array, *, skip: bool) -> tuple[RowBatch, list[str]]:
        """Return rows, and a message for each that was left out.

        Args:
            rows: The rows.
            skip: True to leave out rows that cannot be read or decoded.
        """
        output_format = self._converter.output_format
        if not skip:
            block, decoded, count = self._read(rows)
            return RowBatch(block, decoded, output_format, count), []
        parts, broken = self._readable(rows)
        blocks, several, counts = zip(*parts or [self._read(rows[:0])], strict=True)
        decoded = {
            name: [value for part in several for value in part[name]] for name in self._decoders
        }
        return RowBatch(concat(blocks), decoded, output_format, sum(counts)), broken

    def _readable(self, rows: Int64Array) -> tuple[list[_Part], list[str]]:
        """Return the readable rows and the errors of the others, found by reading halves."""
        try:
            return [self._read(rows)], []
        except ReadError as error:
            if not may_be_skipped(error):
                raise
            if len(rows) == 1:
                place, reason = self._place(int(rows[0])), str(error)
                return [], [reason if reason.startswith(place) else f"{place}: {reason}"]
        half = len(rows) // 2
        first, broken = self._readable(rows[:half])
        second, more = self._readable(rows[half:])
        return first + second, broken + more

    def _read(self, rows: Int64Array) -> _Part:
        if self._direct is not None and len(rows):
            # Without making a table between reading and conversion.
            with suppress(OverflowError):  # they are too many bytes for one array, not for a table
                columns = self._direct.take_columns(rows, self._stored, as_cells=self._cells)
                return self._converter.convert_columns(columns, len(rows)), {}, len(rows)
        table = self.table(rows)
        decoded = {name: self._decoded(table, name, rows) for name in self._decoders}
        plain = table.select(self._plain) if decoded else table
        return self._converter.convert(plain), decoded, len(rows)

    def _decoded(self, table: pa.Table, name: str, rows: Int64Array) -> list[Any]:
        """Return the decoded values of a column.

        Raises:
            ReadError: A value cannot be decoded.
        """
        values = in_threads(partial(_attempt, self._decoders[name]), table[name].to_pylist())
        for place, value in enumerate(values):
            if isinstance(value, _UndecodableValue):
                where = f"{self._place(int(rows[place]))}, column {name!r}"
                raise ReadError(f"{where}: {value.why}") from value.why
        return values

    def _place(self, row: int) -> str:
        """Return the name of a row of the backend in messages."""
        if isinstance(self.backend, Backend):
            for shard, _, within in self.backend.located(np.array([row])):
                return f"row {row} (row {within[0]} of {self.backend.shard_names[shard]})"
        return f"row {row}"


def _in_a_batch(row: int) -> None:
    """Return None: the row cannot be read without a batch."""


def _has_own(backend: object, method: str) -> bool:
    """Return True if a class has a method, and no subclass overrides how rows are read."""
    kind = type(backend)
    for base in kind.__mro__:
        if method in vars(base):
            return all(
                getattr(kind, name) is getattr(base, name, None) for name in ("take", "_take")
            )
    return False


# --- decoding


@dataclass(frozen=True, slots=True)
class _UndecodableValue:
    """The reason why a value cannot be decoded."""

    why: Exception


def _attempt(function: Callable[[Any], Any], value: Any) -> Any:
    try:
        if value is None:
            raise ReadError("it is null")
        return function(value)
    except DATA_ERRORS as error:
        return _UndecodableValue(error)


def _decoders(
    decode: Mapping[str, Any], schema: pa.Schema, output_format: str
) -> dict[str, Callable[[Any], Any]]:
    """Return the functions that decode columns, by column."""
    if decode and output_format in _STORED:
        raise OptionError(
            f'decode has no effect on output_format="{output_format}", which keeps what is stored'
        )
    made: dict[str, Callable[[Any], Any]] = {}
    for column, how in decode.items():
        if column not in schema.names:
            known = near_names(column, schema.names)
            raise SchemaError(f"decode names the column {column!r}, which is not read; {known}")
        if how != "image" and not callable(how):
            raise OptionError(f'decode={{{column!r}: {how!r}}}: it is "image" or a function')
        if how == "image":
            _check_images(column, schema.field(column).type)
            how = _decode_image
        made[column] = partial(_as_tensor, how) if output_format == "torch" else how
    return made


def _as_tensor(function: Callable[[Any], Any], value: Any) -> Any:
    made = function(value)
    return torch.from_numpy(made) if isinstance(made, np.ndarray) else made


def _decode_image(value: Any) -> npt.NDArray[np.uint8]:
    """Return the pixels of an image; Hugging Face stores its bytes in a struct with its path."""
    data = value["bytes"] if isinstance(value, dict) else value
    if data is None:
        raise ReadError("its bytes are null")
    return decode_image(bytes(data))


def _check_images(column: str, type_: pa.DataType) -> None:
    inner = type_
    if pt.is_struct(type_) and type_.get_field_index("bytes") >= 0:
        inner = type_.field("bytes").type
    kinds = (pt.is_binary, pt.is_large_binary, pt.is_binary_view, pt.is_fixed_size_binary)
    if not any(is_kind(inner) for is_kind in kinds):
        raise SchemaError(f"column {column!r} cannot hold images: it has the type {type_}")


def named_decoders(decode: object) -> Mapping[str, Any]:
    """Return the ``decode`` option by column: "image" or a function."""
    if decode is None or isinstance(decode, Mapping):
        return dict(decode or {})
    many = [decode] if isinstance(decode, str | pa.Field) else decode
    if isinstance(many, Iterable):
        named = [item.name if isinstance(item, pa.Field) else item for item in many]
        if all(isinstance(name, str) for name in named):
            return dict.fromkeys(named, "image")
    raise OptionError(
        "decode must be names or fields of columns of images, or a mapping of names to "
        f'"image" or a function, not {decode!r}'
    )


# --- one row, from bytes


def _value_makers(converter: Converter, numbers: Sequence[int]) -> list[ValueMaker] | None:
    """Return name, number and maker of each value of a row; None if bytes do not suffice.

    Args:
        converter: The columns, and their forms.
        numbers: The number of each column in the backend.
    """
    if converter.kinds or converter.has_companions:
        return None
    found: list[ValueMaker] = []
    for field, number in zip(converter.schema, numbers, strict=True):
        make = _row_maker(field.type, converter.output_format == "torch")
        if make is None:
            return None
        found.append((field.name, number, make))
    return found


def _row_maker(type_: pa.DataType, for_torch: bool) -> Callable[[bytes | memoryview], Any] | None:
    if pt.is_string(type_) or pt.is_large_string(type_):
        return _text
    if pt.is_binary(type_) or pt.is_large_binary(type_):
        return bytes
    is_list = pt.is_list(type_) or pt.is_large_list(type_)
    dense = dense_type(type_.value_type if is_list else type_, for_torch)
    if dense is None or dense.stored != dense.dtype or dense.axes is not None:
        return None
    if dense.cast is not None and not pt.is_boolean(type_):
        return None
    if is_list:
        return partial(_row_list, for_torch, dense.shape, dense.dtype)
    return partial(_row_tensor if for_torch else _row_array, dense.shape, dense.dtype)


def _row_list(
    for_torch: bool, shape: tuple[int, ...], dtype: np.dtype[Any], cell: bytes | memoryview
) -> Any:
    values: npt.NDArray[Any] = np.frombuffer(bytearray(cell), dtype).reshape(-1, *shape)
    return torch.from_numpy(values) if for_torch else values


def _row_tensor(
    shape: tuple[int, ...], dtype: np.dtype[Any], cell: bytes | memoryview
) -> torch.Tensor:
    return torch.from_numpy(np.ndarray(shape, dtype, bytearray(cell)))


def _row_array(shape: tuple[int, ...], dtype: np.dtype[Any], cell: bytes | memoryview) -> Any:
    made: npt.NDArray[Any] = np.ndarray(shape, dtype, bytearray(cell))
    return made if shape else made[()]


def _text(cell: bytes | memoryview) -> str:
    return str(cell, "utf-8")
