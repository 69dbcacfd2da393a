"""Columns that are decoded when rows are taken: images, or what a user's function makes of them."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
import torch
from torch.utils.data import get_worker_info

from headrace.convert.images import decode_image
from headrace.errors import HeadraceError, OptionError, ReadError, SchemaError

__all__ = ["DATA_ERRORS", "Decoder", "in_threads", "make_decoders", "named_decoders"]

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
