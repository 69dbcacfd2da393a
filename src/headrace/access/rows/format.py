"""What rows become: which columns are read, under which names, what is decoded, in which format.

A ``RowForm`` holds the options, a ``RowReader`` puts them to work on a backend: one take, what is
decoded decoded, one conversion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt
import torch

from headrace.access.rows.batch import RowBatch
from headrace.convert import Converter
from headrace.convert.arrays import dense_type
from headrace.convert.images import decode_image
from headrace.errors import OptionError, ReadError, SchemaError
from headrace.model import Int64Array
from headrace.sources.array_record.backend import ArrayRecordBackend
from headrace.sources.arrow.backend import ArrowBackend
from headrace.sources.arrow.rows import Taken
from headrace.sources.backend import Backend, StorageBackend
from headrace.sources.crew import in_threads
from headrace.sources.files.failures import DATA_ERRORS, may_be_skipped
from headrace.sources.taking import take_rows

__all__ = ["RowForm", "RowReader", "named_decoders"]

_Maker: TypeAlias = Callable[[memoryview], Any]
"""from the bytes of a row to what it has of a column"""

_FORMATS = ("torch", "numpy", "arrow", "dict", "raw")
_STORED = ("arrow", "raw")
"""formats that keep what is stored"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowForm:
    """The options of rows that have to do with columns; a ``RowReader`` checks them.

    Attributes:
        columns: The columns of rows, in order: the name of each in the backend by its name in rows.
            None for all columns under their own names.
        output_format: "torch", "numpy", "arrow", "dict" or "raw".
        nulls: What stands for nulls, for all columns or by column.
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
        """Return the form of some columns under other names, without the options of the rest.

        Args:
            names: The new name of each column that stays, by its name now.
            known: All names now.
        """
        stored = self.columns or {name: name for name in known}
        columns = {new: stored[old] for old, new in names.items()}
        return replace(self._with_options_of(names, known), columns=columns)

    def over(self, kept: Sequence[str], known: Sequence[str]) -> RowForm:
        """Return the form of all columns of other data, with the options of those it has kept."""
        return replace(self._with_options_of({name: name for name in kept}, known), columns=None)

    def formatted(self, output_format: str) -> RowForm:
        """Return the form in another format; options it has no place for come back later."""
        return replace(self, output_format=output_format, reformatted=True)

    def fitting(self) -> RowForm:
        """Return the form without options that this format has no place for."""
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
    """Return the column that a path is of: itself, or one with a field of that name."""
    if path in known:
        return path
    return max((name for name in known if path.startswith(f"{name}.")), key=len, default=path)


class RowReader:
    """Reads rows of a backend in a form; both are checked against each other once.

    Attributes:
        backend: What is read from.
        form: The options.
        schema: The columns of rows, under their names there.
        kinds: What columns hold that the backend has decoded, by the same names.
    """

    def __init__(self, backend: StorageBackend, form: RowForm) -> None:
        if form.output_format not in _FORMATS:
            formats = ", ".join(_FORMATS)
            raise OptionError(f"output_format must be one of {formats}, not {form.output_format!r}")
        self.backend, self.form = backend, form
        form = form.fitting()
        stored = _projected(backend, form.columns)
        self._stored = None if form.columns is None else stored
        names = stored.names if form.columns is None else list(form.columns)
        fields = [field.with_name(name) for name, field in zip(names, stored, strict=True)]
        self.schema = pa.schema(fields, stored.metadata)
        kinds = backend.kinds if isinstance(backend, Backend) else {}
        pairs = zip(names, stored.names, strict=True)
        self.kinds = {name: kinds[old] for name, old in pairs if old in kinds}
        self._decoders = make_decoders(form.decode, self.schema, form.output_format)
        decoded = {decoder.column for decoder in self._decoders}
        plain = [field for field in self.schema if field.name not in decoded]
        self._plain = [field.name for field in plain]
        is_raw = form.output_format == "raw"
        self._converter = Converter(
            pa.schema(plain),
            "dict" if is_raw else form.output_format,
            nulls=form.nulls,
            ragged=form.ragged,
            kinds=None if is_raw else self.kinds,
        )
        self._format = self._converter.output_format
        self._cells = self._converter.cell_columns
        is_plain = form.output_format in ("torch", "numpy") and not decoded and bool(plain)
        self._direct = backend if is_plain and _gives_columns(backend) else None
        self._read_names = tuple(stored.names)
        self._row_makers: tuple[tuple[str, _Maker], ...] | None = None
        if isinstance(self._direct, ArrowBackend):
            self._row_makers = _row_makers(self._converter)

    def table(self, rows: Int64Array) -> pa.Table:
        """Return rows as they are stored, in the columns of this form."""
        columns = None if self._stored is None else self._stored.names
        return self._renamed(self.backend.take(rows, columns=columns))

    def slice(self, start: int, length: int) -> pa.Table:
        """Return rows that follow each other as they are stored."""
        columns = None if self._stored is None else self._stored.names
        return self._renamed(self.backend.slice(start, length, columns=columns))

    def _renamed(self, table: pa.Table) -> pa.Table:
        if self._stored is None or self._stored.names == self.schema.names:
            return table
        return table.rename_columns(self.schema.names)

    def read(self, rows: Int64Array, *, skip: bool) -> tuple[RowBatch, list[str]]:
        """Return rows, and which of them were left out and why."""
        columns = self._columns(rows, skip)
        if columns is not None:
            made = self._converter.convert_columns(columns, len(rows))
            return RowBatch(made, {}, self._format, len(rows)), []
        table, unread = self._taken(rows, skip)
        if unread:
            rows = np.delete(rows, list(unread))
        decoded, broken = self._decoded(table, rows, skip)
        if broken:
            left = np.delete(np.arange(len(rows)), list(broken))
            table = take_rows(table.select(self._plain), left)
            decoded = {name: [values[i] for i in left] for name, values in decoded.items()}
        block = self._converter.convert(table.select(self._plain) if decoded else table)
        reasons = [*unread.values(), *broken.values()]
        return RowBatch(block, decoded, self._format, len(rows) - len(broken)), reasons

    def row(self, row: int) -> dict[str, Any] | None:
        """Return a row that can be made straight of the bytes of its columns; None for others."""
        if self._row_makers is None:
            return None
        assert isinstance(self._direct, ArrowBackend)
        cells = self._direct.row_cells(row, self._read_names)
        if cells is None:
            return None
        try:
            made = zip(self._row_makers, cells, strict=True)
            return {name: make(cell) for (name, make), cell in made}
        except UnicodeDecodeError:
            return None

    def _columns(self, rows: Int64Array, skip: bool) -> list[Taken] | None:
        """Return rows without a table between what they are read from and what they become.

        None if there has to be one, or if not all rows can be read and some may be left out.
        """
        if self._direct is None or not len(rows):
            return None
        schema = self.schema if self._stored is None else self._stored
        try:
            return self._direct.take_columns(rows, schema, as_cells=self._cells)
        except ReadError:
            if not skip:
                raise
            return None

    def _taken(self, rows: Int64Array, skip: bool) -> tuple[pa.Table, dict[int, str]]:
        """Return the rows that can be read, and why others cannot: found by reading halves."""
        try:
            return self.table(rows), {}
        except ReadError as error:
            if not (skip and may_be_skipped(error)):
                raise
            if len(rows) == 1:
                return pa.Table.from_batches([], self.schema), {
                    0: f"{self._place(int(rows[0]))}: {error}"
                }
        half = len(rows) // 2
        first, broken = self._taken(rows[:half], skip)
        second, more = self._taken(rows[half:], skip)
        broken.update((half + place, reason) for place, reason in more.items())
        return pa.concat_tables([first, second]), broken

    def _decoded(
        self, table: pa.Table, rows: Int64Array, skip: bool
    ) -> tuple[dict[str, list[Any]], dict[int, str]]:
        """Return what is decoded of rows, by column, and which of them do not decode."""
        decoded: dict[str, list[Any]] = {}
        broken: dict[int, str] = {}
        for decoder in self._decoders:
            decoded[decoder.column], failed = decoder.decoded(table.column(decoder.column))
            for place, why in failed.items():
                reason = f"{self._place(int(rows[place]))}, column {decoder.column!r}: {why}"
                if not skip:
                    raise ReadError(reason) from why
                broken.setdefault(place, reason)
        return decoded, broken

    def _place(self, row: int) -> str:
        """Return how messages call a row of the backend."""
        if isinstance(self.backend, Backend):
            for shard, _, within in self.backend.located(np.array([row])):
                return f"row {row} (row {within[0]} of {self.backend.shard_names[shard]})"
        return f"row {row}"


def _gives_columns(backend: StorageBackend) -> TypeGuard[ArrowBackend | ArrayRecordBackend]:
    """Return True unless a subclass has changed what is taken."""
    known = ArrowBackend if isinstance(backend, ArrowBackend) else ArrayRecordBackend
    if not isinstance(backend, known):
        return False
    kind = type(backend)
    return kind.take is known.take and kind._take is known._take


def _projected(backend: StorageBackend, columns: Mapping[str, str] | None) -> pa.Schema:
    if columns is None:
        return backend.schema
    return backend.take([], columns=list(columns.values())).schema


@dataclass(frozen=True, slots=True)
class Decoder:
    """Turns the stored values of one column into what rows have of it."""

    column: str
    function: Callable[[Any], Any] | None
    """None: they are images"""
    for_torch: bool

    def decoded(self, values: pa.ChunkedArray) -> tuple[list[Any], dict[int, Exception]]:
        """Return all values, and why some of them could not be decoded."""
        results = in_threads(self._try, values.to_pylist())
        failed = {i: made for i, made in enumerate(results) if isinstance(made, _Failed)}
        return results, {i: made.why for i, made in failed.items()}

    def _try(self, value: Any) -> Any:
        try:
            return self._decode(value)
        except DATA_ERRORS as error:
            return _Failed(error)

    def _decode(self, value: Any) -> Any:
        if value is None:
            raise ReadError("it is null")
        made = self.function(value) if self.function else decode_image(_encoded(value))
        return torch.from_numpy(made) if self.for_torch and isinstance(made, np.ndarray) else made


@dataclass(frozen=True, slots=True)
class _Failed:
    why: Exception


def make_decoders(
    decode: Mapping[str, Any], schema: pa.Schema, output_format: str
) -> tuple[Decoder, ...]:
    """Return the decoders of some columns of a schema."""
    if decode and output_format in _STORED:
        raise OptionError(
            f'decode has no effect on output_format="{output_format}", which keeps what is stored'
        )
    made = []
    for column, how in decode.items():
        if column not in schema.names:
            known = ", ".join(schema.names)
            raise SchemaError(f"decode names the column {column!r}; the columns are {known}")
        if how != "image" and not callable(how):
            raise OptionError(f'decode={{{column!r}: {how!r}}}: it is "image" or a function')
        if how == "image":
            _check_images(column, schema.field(column).type)
        function: Any = None if how == "image" else how
        made.append(Decoder(column, function, output_format == "torch"))
    return tuple(made)


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


def _check_images(column: str, type_: pa.DataType) -> None:
    inner = type_.field("bytes").type if _holds_bytes(type_) else type_
    kinds = (pt.is_binary, pt.is_large_binary, pt.is_binary_view, pt.is_fixed_size_binary)
    if not any(is_kind(inner) for is_kind in kinds):
        raise SchemaError(f"column {column!r} cannot hold images: it has the type {type_}")


def _holds_bytes(type_: pa.DataType) -> bool:
    return bool(pt.is_struct(type_) and type_.get_field_index("bytes") >= 0)


def _encoded(value: Any) -> bytes:
    """Return the bytes of an image, which Hugging Face stores in a struct with its path."""
    data = value["bytes"] if isinstance(value, dict) else value
    if data is None:
        raise ReadError("its bytes are null")
    return bytes(data)


def _row_makers(converter: Converter) -> tuple[tuple[str, _Maker], ...] | None:
    """Return what makes the values of one row of their bytes; None if that takes more."""
    schema, for_torch = converter.schema, converter.output_format == "torch"
    if converter.kinds or converter.has_companions:
        return None
    makers = [(field.name, _row_maker(field.type, for_torch)) for field in schema]
    found = tuple((name, make) for name, make in makers if make is not None)
    return found if len(found) == len(makers) else None


def _row_maker(type_: pa.DataType, for_torch: bool) -> _Maker | None:
    dense = dense_type(type_, for_torch)
    if dense is None:
        if pt.is_string(type_) or pt.is_large_string(type_):
            return _text
        return bytes if pt.is_binary(type_) or pt.is_large_binary(type_) else None
    if dense.cast is not None or dense.stored != dense.dtype or dense.axes is not None:
        return None
    return partial(_row_tensor if for_torch else _row_array, dense.shape, dense.dtype)


def _row_tensor(shape: tuple[int, ...], dtype: np.dtype[Any], cell: memoryview) -> torch.Tensor:
    return torch.from_numpy(np.ndarray(shape, dtype, bytearray(cell)))


def _row_array(shape: tuple[int, ...], dtype: np.dtype[Any], cell: memoryview) -> Any:
    made: npt.NDArray[Any] = np.ndarray(shape, dtype, bytearray(cell))
    return made if shape else made[()]


def _text(cell: memoryview) -> str:
    return str(cell, "utf-8")
