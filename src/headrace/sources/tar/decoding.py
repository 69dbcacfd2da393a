"""Fields of tar samples: left as bytes, or decoded by what their extension says they are."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.convert.decoded import STORED_TYPES, Kind, npy_array, npy_header
from headrace.convert.images import image_pixels
from headrace.errors import MissingExtraError, OptionError, ReadError, SchemaError
from headrace.sources.files.failures import DATA_ERRORS

__all__ = ["Decode", "FieldForm", "Payload", "field_forms", "gathered"]

Decode = bool | str | Iterable[str] | Mapping[str, str | Callable[[bytes], Any]]
Payload = memoryview | None
"""the bytes of a member; None: the sample has no such field"""
Mapped = Callable[[Callable[[Payload], Any], Sequence[Payload]], Iterable[Any]]
"""``map``, or something that does the same in threads"""

_BY_EXTENSION = {
    **dict.fromkeys(["jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm"], "image"),
    **dict.fromkeys(["txt", "text", "caption"], "text"),
    "json": "json",
    "cls": "int",
    "npy": "npy",
}
_KINDS = {
    "image": Kind.NPY,
    "npy": Kind.NPY,
    "json": Kind.JSON,
    "function": Kind.PICKLE,
    "lent": Kind.LENT,
}
_IMAGE_GROWTH = 10
"""about how many bytes of pixels one of an encoded image makes"""


@dataclass(frozen=True, slots=True)
class FieldForm:
    """What a field of samples becomes: a column."""

    name: str
    how: str = "bytes"
    function: Callable[[bytes], Any] | None = None

    @property
    def field(self) -> pa.Field:
        """The column."""
        if self.kind is not None:
            return pa.field(self.name, STORED_TYPES[self.kind])
        types = {"bytes": pa.large_binary(), "text": pa.large_string(), "int": pa.int64()}
        return pa.field(self.name, types[self.how])

    @property
    def kind(self) -> Kind | None:
        """What the column holds, where its type does not tell."""
        return _KINDS.get(self.how)

    @property
    def growth(self) -> int:
        """About how many bytes one stored byte becomes."""
        return {"image": _IMAGE_GROWTH, "lent": 0}.get(self.how, 1)

    def column(
        self, payloads: Sequence[Payload], named: Callable[[int], str], each: Mapped = map
    ) -> pa.Array:
        """The values of some samples; ``named`` says which member a payload is.

        A ReadError names the first one that does not decode. What else a function raises has a
        note that names it.
        """
        if self.how == "bytes":
            return gathered(payloads, pa.large_binary())
        made = list(each(self._made, payloads))
        for place, value in enumerate(made):
            if isinstance(value, _Failed):
                if not isinstance(value.why, DATA_ERRORS):
                    value.why.add_note(f"in decode[{self.name!r}] of {named(place)}")
                    raise value.why
                raise ReadError(f"{named(place)}: {value.why}") from value.why
        if self.how == "image":
            return _npy_column(made)
        if self.how in ("npy", "function"):
            return gathered(made, pa.large_binary())
        return pa.array(made, self.field.type)

    def _made(self, payload: Payload) -> Any:
        if payload is None:
            return None
        try:
            return self._decoded(payload)
        except MissingExtraError:
            raise
        except DATA_ERRORS as error:
            return _Failed(error)
        except Exception as error:  # a user's function may raise anything
            if self.function is None:
                raise
            return _Failed(error)

    def _decoded(self, payload: memoryview) -> Any:
        if self.how == "image":
            return image_pixels(payload).transpose(2, 0, 1)
        if self.how == "npy":
            npy_array(np.frombuffer(payload, np.uint8))
            return payload
        data = bytes(payload)
        if self.how == "int":
            return _integer(data)
        if self.how == "function":
            assert self.function is not None
            return memoryview(pickle.dumps(self.function(data), protocol=5))
        text = data.decode("utf-8-sig")
        if self.how == "json":
            json.loads(text)
        return text


@dataclass(frozen=True, slots=True)
class _Failed:
    why: Exception


def field_forms(decode: Decode | None, names: Sequence[str]) -> dict[str, FieldForm]:
    """The form of each field, by what the user says of decoding."""
    chosen = _chosen(decode, names)
    unknown = [name for name in chosen if name not in names]
    if unknown:
        raise SchemaError(
            f"decode names the field {unknown[0]!r}; the fields of the samples are "
            f"{', '.join(names)}"
        )
    return {name: _form(name, chosen.get(name)) for name in names}


def _chosen(decode: Any, names: Sequence[str]) -> dict[str, Any]:
    if decode is None or decode is False:
        return {}
    if decode is True:
        return {name: how for name in names if (how := _by_extension(name)) is not None}
    if isinstance(decode, Mapping):
        return dict(decode)
    many = [decode] if isinstance(decode, str) else list(decode)
    for name in many:
        if not isinstance(name, str) or _by_extension(name) is None:
            raise OptionError(
                f"decode={decode!r}: what {name!r} holds does not follow from its extension; give "
                f"a mapping of fields to {', '.join(_hows())} or a function of bytes"
            )
    return {name: _by_extension(name) for name in many}


def _by_extension(name: str) -> str | None:
    return _BY_EXTENSION.get(name.rpartition(".")[2])


def _hows() -> list[str]:
    return sorted({*_BY_EXTENSION.values(), "bytes"})


def _form(name: str, how: Any) -> FieldForm:
    if how is None:
        return FieldForm(name)
    if callable(how):
        return FieldForm(name, "function", how)
    if how not in _hows():
        raise OptionError(
            f"decode={{{name!r}: {how!r}}}: it is one of {', '.join(_hows())}, or a function"
        )
    return FieldForm(name, how)


def gathered(payloads: Sequence[Payload], type_: pa.DataType) -> pa.Array:
    """Payloads laid end to end in memory of Arrow, which is the one copy that is made of them."""
    parts = [_EMPTY if one is None else np.frombuffer(one, np.uint8) for one in payloads]
    edges = np.concatenate([[0], np.cumsum([len(part) for part in parts], dtype=np.int64)])
    buffer, memory = _memory(int(edges[-1]))
    for start, part in zip(edges.tolist(), parts, strict=False):
        memory[start : start + len(part)] = part
    return _array(type_, edges, buffer, [one is not None for one in payloads])


def _npy_column(arrays: Sequence[npt.NDArray[Any] | None]) -> pa.Array:
    """Arrays as .npy files, each copied once, whatever the order of its axes in memory."""
    heads = [b"" if one is None else _header(one.shape, one.dtype) for one in arrays]
    sizes = [
        len(head) + (0 if one is None else one.nbytes)
        for head, one in zip(heads, arrays, strict=True)
    ]
    edges = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    buffer, memory = _memory(int(edges[-1]))
    for start, stop, head, one in zip(
        edges[:-1].tolist(), edges[1:].tolist(), heads, arrays, strict=True
    ):
        if one is not None:
            memory[start : start + len(head)] = np.frombuffer(head, np.uint8)
            memory[start + len(head) : stop].view(one.dtype).reshape(one.shape)[...] = one
    return _array(pa.large_binary(), edges, buffer, [one is not None for one in arrays])


@lru_cache(maxsize=256)
def _header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    return npy_header(shape, dtype)


_EMPTY = np.empty(0, np.uint8)


def _memory(size: int) -> tuple[pa.Buffer, npt.NDArray[np.uint8]]:
    buffer = pa.allocate_buffer(size)
    return buffer, np.frombuffer(buffer, np.uint8) if size else np.empty(0, np.uint8)


def _array(
    type_: pa.DataType, edges: npt.NDArray[np.int64], buffer: pa.Buffer, there: list[bool]
) -> pa.Array:
    valid = None if all(there) else pa.array(there).buffers()[1]
    return pa.Array.from_buffers(type_, len(there), [valid, pa.py_buffer(edges), buffer])


def _integer(data: bytes) -> int:
    number = int(data)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{number} does not fit into 64 bits")
    return number
