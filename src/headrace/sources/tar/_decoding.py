"""Fields of samples: left as bytes, or decoded by what their extensions say they are.

A decoder makes a value of the payload of a member. The values of a field become a column: of
Arrow's own type for bytes, text and integers, and of bytes with a kind beside the schema for all
else (see ``convert/decoded.py``). Nothing in a tar is unpickled unless the user names the decoder
that does.
"""

from __future__ import annotations

import gzip
import json
import pickle
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.convert.images import image_pixels, stored_pixels
from headrace.convert.kinds import STORED_TYPES, Kind, npy_array, npy_header
from headrace.errors import DATA_ERRORS, MissingExtraError, OptionError, ReadError, SchemaError
from headrace.sources.tar.index import IMAGES

Decode = bool | str | Iterable[str] | Mapping[str, str | Callable[[bytes], Any]]
Payload = memoryview | None
"""The bytes of a member; None if the sample has no such field."""
Mapped = Callable[[Callable[[int], Any], Sequence[int]], Iterable[Any]]
"""``map``, or a function that does the same in threads."""


# --- what payloads become


def _image(payload: memoryview) -> npt.NDArray[Any]:
    return image_pixels(payload).transpose(2, 0, 1)


def _pixels(payload: memoryview) -> npt.NDArray[Any]:
    return stored_pixels(payload).transpose(2, 0, 1)


def _npy(payload: memoryview) -> memoryview:
    npy_array(np.frombuffer(payload, np.uint8))
    return payload


def _integer(payload: memoryview) -> int:
    number = int(bytes(payload))
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{number} does not fit into 64 bits")
    return number


def _text(payload: memoryview) -> str:
    return bytes(payload).decode("utf-8-sig")


def _json(payload: memoryview) -> str:
    text = _text(payload)
    json.loads(text)
    return text


def _npz(payload: memoryview) -> dict[str, npt.NDArray[Any]]:
    with np.load(BytesIO(payload), allow_pickle=False) as arrays:
        return dict(arrays)


def _msgpack(payload: memoryview) -> Any:
    return _package("msgpack", "msgpack").unpackb(bytes(payload))


def _cbor(payload: memoryview) -> Any:
    return _package("cbor2", "cbor").loads(bytes(payload))


def _pth(payload: memoryview) -> Any:
    import torch

    return torch.load(BytesIO(payload), map_location="cpu", weights_only=True)


def _package(name: str, field: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtraError(
            f"{field} fields need {name}, which is not installed; run: pip install {name}"
        ) from error


@dataclass(frozen=True, slots=True)
class _Decoder:
    """Describes how a payload is decoded, and the type that holds its values.

    ``function`` is None for what is not decoded, and ``kind`` where the Arrow type tells all.
    """

    function: Callable[[memoryview], Any] | None
    kind: Kind | None = None
    type: pa.DataType | None = None
    growth: int = 1
    """About how many bytes one stored byte becomes."""


_DECODERS = {
    "bytes": _Decoder(None, type=pa.large_binary()),
    "gzip": _Decoder(None, type=pa.large_binary(), growth=4),
    "text": _Decoder(_text, type=pa.large_string()),
    "int": _Decoder(_integer, type=pa.int64()),
    "integer": _Decoder(_integer, Kind.PICKLE),
    "json": _Decoder(_json, Kind.JSON),
    "image": _Decoder(_image, Kind.NPY, growth=10),
    "pixels": _Decoder(_pixels, Kind.NPY, growth=10),
    "nvjpeg": _Decoder(None, Kind.JPEG),
    "npy": _Decoder(_npy, Kind.NPY),
    "npz": _Decoder(_npz, Kind.PICKLE),
    "msgpack": _Decoder(_msgpack, Kind.PICKLE),
    "cbor": _Decoder(_cbor, Kind.PICKLE),
    "pth": _Decoder(_pth, Kind.PICKLE),
    "pkl": _Decoder(pickle.loads, Kind.PICKLE),
    "function": _Decoder(None, Kind.PICKLE),
}
_ARRAYS = ("image", "pixels")
"""Decoders that return numpy arrays."""
_STORED = ("bytes", "nvjpeg")
"""Decoders that leave payloads as they are."""
_INTERNAL = ("function", "integer")
_BY_EXTENSION = {
    **dict.fromkeys(IMAGES, "image"),
    **dict.fromkeys(["txt", "text", "caption"], "text"),
    **{name: name for name in ("json", "npy", "npz", "msgpack", "cbor", "pth", "pkl")},
    **{"cls": "int", "mp": "msgpack", "pickle": "pkl", "pt": "pth"},
}
_ONLY_BY_NAME = ("pth", "pkl")
"""Decoders that must be named; ``decode=True`` never chooses them."""
_GZIP, _GZIP_MAGIC = ".gz", b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class FieldForm:
    """The form of a field of samples as a column.

    Attributes:
        name: The column.
        extensions: The extensions that its members may have.
        how: The name of the decoder.
        function: A decoder of the user.
        gzipped: True if payloads are decompressed before they are decoded.
        some_plain: True if only some payloads are compressed; those begin as gzip files do.
    """

    name: str
    extensions: tuple[str, ...]
    how: str = "bytes"
    function: Callable[[bytes], Any] | None = None
    gzipped: bool = False
    some_plain: bool = False

    @property
    def field(self) -> pa.Field:
        """The column."""
        decoder = _DECODERS[self.how]
        stored = decoder.type if decoder.kind is None else STORED_TYPES[decoder.kind]
        return pa.field(self.name, stored)

    @property
    def kind(self) -> Kind | None:
        """The meaning of the column, if its type does not tell it."""
        return _DECODERS[self.how].kind

    @property
    def growth(self) -> int:
        """About how many bytes one stored byte becomes."""
        return _DECODERS[self.how].growth

    def column(
        self, payloads: pa.LargeBinaryArray, named: Callable[[int], str], each: Mapped = map
    ) -> pa.Array:
        """Return the column of some samples.

        Args:
            payloads: The payload of each sample; null if it has none.
            named: Returns the name of a member in messages, by its place among the payloads.
            each: Applies a function to the numbers of all samples.

        Raises:
            ReadError: A payload does not decode. Other errors of a user's function are raised
                with a note that names the member.
        """
        if self.how in _STORED and not self.gzipped:
            return payloads
        views = _views(payloads)

        def decoded(row: int) -> Any:
            payload = views[row]
            try:
                return None if payload is None else self._decoded(payload)
            except MissingExtraError:
                raise
            except Exception as error:
                if self.kind is Kind.PICKLE and self.function is None:
                    # Libraries raise what they like for damaged data, and so does pickle.
                    why = f"it does not decode as {self.how}: {error}"
                    raise ReadError(f"{named(row)}: {why}") from error
                if isinstance(error, DATA_ERRORS):
                    raise ReadError(f"{named(row)}: {error}") from error
                error.add_note(f"in decode[{self.name!r}] of {named(row)}")
                raise

        made = list(each(decoded, range(len(views))))
        return _npy_column(made) if self.how in _ARRAYS else pa.array(made, self.field.type)

    def _decoded(self, payload: memoryview) -> Any:
        if self.gzipped and not (self.some_plain and bytes(payload[:2]) != _GZIP_MAGIC):
            try:
                payload = memoryview(gzip.decompress(payload))
            except (EOFError, OSError, zlib.error) as error:
                raise ValueError(f"it is not a complete gzip file: {error}") from error
        if self.function is not None:
            return memoryview(pickle.dumps(self.function(bytes(payload)), protocol=5))
        decoder = _DECODERS[self.how]
        if decoder.function is None:
            return payload
        value = decoder.function(payload)
        return pickle.dumps(value, protocol=5) if decoder.kind is Kind.PICKLE else value


# --- what the user chooses


def field_forms(
    decode: Decode | None, fields: Mapping[str, tuple[str, ...]]
) -> dict[str, FieldForm]:
    """Return the form of each field.

    Args:
        decode: The option of the user.
        fields: The extensions that members of each field may have.

    Raises:
        SchemaError: ``decode`` names a field that samples do not have.
        OptionError: ``decode`` names an unknown decoder, or an extension has no decoder.
    """
    chosen = _chosen(decode, fields)
    unknown = [name for name in chosen if name not in fields]
    if unknown:
        raise SchemaError(
            f"decode names the field {unknown[0]!r}; the fields of the samples are "
            f"{', '.join(fields)}"
        )
    return {name: _form(name, chosen.get(name), fields[name]) for name in fields}


def _chosen(decode: Any, fields: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    if decode is None or decode is False:
        return {}
    if decode is True:
        found = {name: decoder_of(fields[name]) for name in fields}
        return {name: how for name, how in found.items() if how and how not in _ONLY_BY_NAME}
    if isinstance(decode, Mapping):
        return dict(decode)
    many = [decode] if isinstance(decode, str) else list(decode)
    chosen = {name: decoder_of(fields.get(name, [name])) for name in many if isinstance(name, str)}
    for name in many:
        if not isinstance(name, str) or chosen[name] is None:
            raise OptionError(
                f"decode={decode!r}: the extension of {name!r} does not say how to decode it; give "
                f"a mapping of fields to {', '.join(_names())} or a function of bytes"
            )
    return chosen


def decoder_of(extensions: Sequence[str]) -> str | None:
    """Return the decoder that all of some extensions have; None if there is no such decoder."""
    found = {_by_extension(extension) for extension in extensions}
    return found.pop() if len(found) == 1 else None


def _by_extension(extension: str) -> str | None:
    if extension.endswith(_GZIP) or extension == _GZIP[1:]:
        inner = extension.removesuffix(_GZIP[1:]).removesuffix(".")
        return _by_extension(inner) or "gzip"
    return _BY_EXTENSION.get(extension.rpartition(".")[2])


def _names() -> list[str]:
    return sorted(_DECODERS.keys() - set(_INTERNAL))


def _form(name: str, how: Any, extensions: tuple[str, ...]) -> FieldForm:
    if how is None:
        return FieldForm(name, extensions)
    if callable(how):
        return FieldForm(name, extensions, "function", how)
    if how not in _names():
        raise OptionError(
            f"decode={{{name!r}: {how!r}}}: a decoder must be one of {', '.join(_names())}, or a "
            "function"
        )
    if how == "gzip":
        return FieldForm(name, extensions, how, gzipped=True)
    compressed = [how != "bytes" and extension.endswith(_GZIP) for extension in extensions]
    some_plain = not all(compressed)
    return FieldForm(name, extensions, how, gzipped=any(compressed), some_plain=some_plain)


# --- columns


def _views(payloads: pa.LargeBinaryArray) -> list[Payload]:
    """Return the bytes of a column without a copy."""
    _, offsets, data = payloads.buffers()
    edges = np.frombuffer(offsets, np.int64, len(payloads) + 1, 8 * payloads.offset).tolist()
    memory = memoryview(data)
    valid = payloads.is_valid().to_pylist()
    return [
        memory[edges[row] : edges[row + 1]] if valid[row] else None for row in range(len(payloads))
    ]


def _npy_column(arrays: Sequence[npt.NDArray[Any] | None]) -> pa.Array:
    """Return arrays as .npy files, each copied once, whatever the order of its axes in memory."""
    heads = [b"" if one is None else _header(one.shape, one.dtype) for one in arrays]
    sizes = [
        len(head) + (0 if one is None else one.nbytes)
        for head, one in zip(heads, arrays, strict=True)
    ]
    edges = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    buffer = pa.allocate_buffer(int(edges[-1]))
    memory = np.frombuffer(buffer, np.uint8)
    for start, stop, head, one in zip(
        edges[:-1].tolist(), edges[1:].tolist(), heads, arrays, strict=True
    ):
        if one is not None:
            memory[start : start + len(head)] = np.frombuffer(head, np.uint8)
            memory[start + len(head) : stop].view(one.dtype).reshape(one.shape)[...] = one
    valid = pa.array([one is not None for one in arrays]).buffers()[1]
    buffers = [valid, pa.py_buffer(edges), buffer]
    return pa.Array.from_buffers(pa.large_binary(), len(arrays), buffers)


@lru_cache(maxsize=256)
def _header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    return npy_header(shape, dtype)
