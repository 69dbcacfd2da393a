"""What rows become: which columns are read, under which names, what is decoded, in which format.

A ``RowForm`` holds the options, a ``RowReader`` puts them to work on a backend: one take, what is
decoded decoded, one conversion.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt
import torch
from torch.utils.data import get_worker_info

from headrace.access.array_record.backend import ArrayRecordBackend
from headrace.access.arrow.backend import ArrowBackend
from headrace.access.arrow.rows import Taken
from headrace.access.backend import Backend, StorageBackend
from headrace.access.rows.batch import RowBatch
from headrace.access.taking import take_rows
from headrace.convert import Converter
from headrace.convert.arrays import Dense, dense_cells, dense_type
from headrace.convert.builders import Remedies, Remedy
from headrace.convert.columns import object_array
from headrace.convert.converter import field_paths
from headrace.convert.images import decode_image
from headrace.errors import HeadraceError, OptionError, ReadError, SchemaError
from headrace.formats.failures import may_be_skipped
from headrace.model import Int64Array

__all__ = ["DATA_ERRORS", "CellBatches", "RowForm", "RowReader", "in_threads", "named_decoders"]

_Cells: TypeAlias = npt.NDArray[Any]
_Maker: TypeAlias = Callable[[_Cells], Any]

_VALUES_A_THREAD = 4
"""with fewer the work of starting a thread is not worth it"""

DATA_ERRORS = (
    HeadraceError,
    ValueError,
    OSError,
    EOFError,
    LookupError,
    ArithmeticError,
    RuntimeError,
    struct.error,
)
"""what a function raises because of a value, and not because it is wrong itself"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowForm:
    """The options of rows that have to do with columns; they are checked against a schema later."""

    columns: tuple[str, ...] | None
    output_format: str
    nulls: str | Mapping[str, Any] | None
    ragged: str
    decode: Mapping[str, Any]
    """by the name of the column: "image", or a function"""
    reformatted: bool = False
    """whether the other options were chosen for another format"""

    def projected(self, columns: Sequence[str], known: Sequence[str]) -> RowForm:
        """For some of the known columns: what is said of others is forgotten."""
        return replace(self._named({name: name for name in columns}, known), columns=tuple(columns))

    def renamed(self, old: str, new: str, known: Sequence[str]) -> RowForm:
        """For data in which one of the known columns has another name."""
        return self._named({name: new if name == old else name for name in known}, known)

    def of_all(self, replaced: Sequence[str], known: Sequence[str]) -> RowForm:
        """For data that has these columns only, some of which are no longer what they were."""
        kept = {name: name for name in known if name not in replaced}
        return replace(self._named(kept, known), columns=None)

    def formatted(self, output_format: str) -> RowForm:
        """In another format; what that has no place for comes back with the next one."""
        return replace(self, output_format=output_format, reformatted=True)

    def fitting(self) -> RowForm:
        """Without options that were chosen for another format, and that this has no place for."""
        if not self.reformatted:
            return self
        if self.output_format in ("arrow", "dict"):
            decode = {} if self.output_format == "arrow" else self.decode
            return replace(self, nulls=None, ragged="list", decode=decode)
        is_nested = self.output_format == "numpy" and self.ragged == "nested"
        return replace(self, ragged="list") if is_nested else self

    def _named(self, names: Mapping[str, str], known: Sequence[str]) -> RowForm:
        """What is said of columns under the names they have now, if they have any."""
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
    """The column that a path is of: itself, or one with a field of that name."""
    if path in known:
        return path
    return max((name for name in known if path.startswith(f"{name}.")), key=len, default=path)


class RowReader:
    """A backend and a form, checked against each other once."""

    def __init__(self, backend: StorageBackend, form: RowForm) -> None:
        self.backend, self.form = backend, form
        form = form.fitting()
        self.columns = None if form.columns is None else list(form.columns)
        self.schema = _projected(backend, self.columns)
        self._decoders = make_decoders(form.decode, self.schema, form.output_format)
        decoded = {decoder.column for decoder in self._decoders}
        plain = [field for field in self.schema if field.name not in decoded]
        self._plain = [field.name for field in plain]
        self._converter = Converter(
            pa.schema(plain),
            form.output_format,
            nulls=form.nulls,
            ragged=form.ragged,
            kinds=backend.kinds if isinstance(backend, Backend) else None,
        )
        self._cells = self._converter.cell_columns
        is_plain = form.output_format in ("torch", "numpy") and not decoded and bool(plain)
        self._direct = backend if is_plain and _gives_columns(backend) else None
        self._straight = (
            None if self._direct is None else CellBatches.of(self._converter, form.nulls)
        )

    def read(self, rows: Int64Array, *, skip: bool) -> tuple[RowBatch, list[str]]:
        """These rows, and which of them were left out and why."""
        columns = self._columns(rows, skip)
        if columns is not None:
            block = self._converter.convert_columns(columns, len(rows))
            return RowBatch(block, {}, self.form.output_format, len(rows)), []
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
        num_rows = len(rows) - len(broken)
        return RowBatch(block, decoded, self.form.output_format, num_rows), reasons

    def batch(self, rows: Int64Array, *, skip: bool) -> dict[str, Any] | None:
        """The columns of these rows, where nothing needs to be known of the rows themselves.

        None if it does, or if some of them may have to be left out.
        """
        if self._straight is None:
            return None
        columns = self._columns(rows, skip)
        if columns is None:
            return None
        batch = self._straight.batch(columns)
        if batch is None:
            block = self._converter.convert_columns(columns, len(rows))
            batch = RowBatch(block, {}, self.form.output_format, len(rows)).columns
        return batch

    def _columns(self, rows: Int64Array, skip: bool) -> list[Taken] | None:
        """The rows without a table between what they are read from and what they become.

        None if there has to be one, or if not all rows can be read and some may be left out.
        """
        if self._direct is None or not len(rows):
            return None
        try:
            return self._direct.take_columns(rows, self.schema, as_cells=self._cells)
        except ReadError:
            if not skip:
                raise
            return None

    def _taken(self, rows: Int64Array, skip: bool) -> tuple[pa.Table, dict[int, str]]:
        """The rows that can be read, and why others cannot: found by reading halves."""
        try:
            return self.backend.take(rows, columns=self.columns), {}
        except ReadError as error:
            if not (skip and may_be_skipped(error)):
                raise
            if len(rows) == 1:
                return self.schema.empty_table(), {0: f"{self._named(int(rows[0]))}: {error}"}
        half = len(rows) // 2
        first, broken = self._taken(rows[:half], skip)
        second, more = self._taken(rows[half:], skip)
        broken.update((half + place, reason) for place, reason in more.items())
        return pa.concat_tables([first, second]), broken

    def _decoded(
        self, table: pa.Table, rows: Int64Array, skip: bool
    ) -> tuple[dict[str, list[Any]], dict[int, str]]:
        """What is decoded of these rows, by column, and which of them do not decode."""
        decoded: dict[str, list[Any]] = {}
        broken: dict[int, str] = {}
        for decoder in self._decoders:
            decoded[decoder.column], failed = decoder.decoded(table.column(decoder.column))
            for place, why in failed.items():
                reason = f"{self._named(int(rows[place]))}, column {decoder.column!r}: {why}"
                if not skip:
                    raise ReadError(reason) from why
                broken.setdefault(place, reason)
        return decoded, broken

    def _named(self, row: int) -> str:
        """A row of the backend, and where it lies."""
        if isinstance(self.backend, Backend):
            for shard, _, within in self.backend.located(np.array([row])):
                return f"row {row} (row {within[0]} of {self.backend.shard_names[shard]})"
        return f"row {row}"


def _gives_columns(backend: StorageBackend) -> TypeGuard[ArrowBackend | ArrayRecordBackend]:
    """Unless somebody has changed what is taken."""
    known = ArrowBackend if isinstance(backend, ArrowBackend) else ArrayRecordBackend
    if not isinstance(backend, known):
        return False
    kind = type(backend)
    return kind.take is known.take and kind._take is known._take


def _projected(backend: StorageBackend, columns: list[str] | None) -> pa.Schema:
    if columns is None:
        return backend.schema
    return backend.take([], columns=columns).schema


@dataclass(frozen=True, slots=True)
class Decoder:
    """Turns the stored values of one column into what rows have of it."""

    column: str
    function: Callable[[Any], Any] | None
    """None: they are images"""
    for_torch: bool

    def decoded(self, values: pa.ChunkedArray) -> tuple[list[Any], dict[int, Exception]]:
        """All values, and why some of them could not be decoded."""
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
    """The decoders of some columns of a schema, by their names."""
    if decode and output_format == "arrow":
        raise OptionError(
            'decode has no effect on output_format="arrow", which keeps what is stored'
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
    """The ``decode`` option by columns: names or fields of images, or functions by name."""
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
    """A struct of bytes and path is how image columns are stored elsewhere."""
    data = value["bytes"] if isinstance(value, dict) else value
    if data is None:
        raise ReadError("its bytes are null")
    return bytes(data)


def in_threads(function: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
    """What a function makes of values, on all cores where that pays."""
    threads = min(_threads(), len(values) // _VALUES_A_THREAD)
    if threads <= 1:
        return [function(value) for value in values]
    with ThreadPoolExecutor(threads, "headrace-decode") as pool:
        return list(pool.map(function, values))


def _threads() -> int:
    """Cores of this process, shared with the other workers of a loader."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    info = get_worker_info()
    return max(1, (cores or 1) // (info.num_workers if info else 1))


@dataclass(frozen=True, slots=True)
class CellBatches:
    """What a ``Converter`` makes of columns that come as cells, without the blocks between.

    For a few hundred rows these would take an eighth of the time.
    """

    makers: tuple[tuple[str, _Maker], ...]
    """by the name of the column"""

    @classmethod
    def of(cls, converter: Converter, nulls: object) -> CellBatches | None:
        """For a converter that was made with these ``nulls``.

        None if not all columns may come as cells, or if some of them get a mask.
        """
        schema = converter.schema
        remedies = Remedies.parse(nulls, field_paths(list(schema)))
        if any(remedies.of(field.name, field.nullable, Remedy()).mask for field in schema):
            return None
        if len(converter.cell_columns) < len(schema):
            return None
        for_torch = converter.output_format == "torch"
        return cls(tuple((field.name, _maker(field, for_torch)) for field in schema))

    def batch(self, columns: Sequence[Taken]) -> dict[str, Any] | None:
        """A batch of all rows; None if not all columns have come as cells."""
        batch = {}
        for (name, make), cells in zip(self.makers, columns, strict=True):
            if not isinstance(cells, np.ndarray):
                return None
            batch[name] = make(cells)
        return batch


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Makes a tensor or an array."""

    dense: Dense
    column: str
    row: np.dtype[Any] | None
    """what the bytes of a row are, where they stay as they are"""
    for_torch: bool

    def __call__(self, cells: _Cells) -> torch.Tensor | npt.NDArray[Any]:
        row = self.row
        values = dense_cells(cells, self.dense, self.column) if row is None else cells.view(row)
        return torch.from_numpy(values) if self.for_torch else values


def _maker(field: pa.Field, for_torch: bool) -> _Maker:
    dense = dense_type(field.type, for_torch)
    if dense is None:
        return _bytes if for_torch else _bytes_in_array
    stays = dense.stored == dense.dtype and dense.axes is None
    row = np.dtype((dense.dtype, dense.shape)) if stays else None
    return _Numbers(dense, field.name, row, for_torch)


def _bytes(cells: _Cells) -> list[bytes]:
    made: list[bytes] = cells.tolist()
    return made


def _bytes_in_array(cells: _Cells) -> npt.NDArray[np.object_]:
    return object_array(_bytes(cells))
