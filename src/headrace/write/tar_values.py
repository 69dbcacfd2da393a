"""Values of fields as the bytes of their members, by the extension of the field."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from headrace.errors import ConversionError, MissingExtraError

__all__ = ["Payload", "encoded"]

Payload = bytes | bytearray | memoryview

_JPEG_QUALITY = 95


def encoded(name: str, value: Any) -> Payload:
    """The payload of a member. Bytes are as they are; else the last part of its name decides."""
    if isinstance(value, bytes | bytearray):
        return value
    if isinstance(value, memoryview):
        return value.cast("B") if value.contiguous else value.tobytes()
    extension = name.rpartition(".")[2].lower()
    encoder = _ENCODERS.get(extension)
    if encoder is None:
        raise ConversionError(
            f"{name}: no encoder is known for {extension!r}; give bytes, not {_shown(value)}"
        )
    try:
        return encoder(value)
    except (TypeError, ValueError) as error:
        raise ConversionError(f"{name}: {error}, for {_shown(value)}; give bytes") from error


def _shown(value: Any) -> str:
    return f"a {type(value).__name__}"


def _text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError("a text is needed")
    return value.encode()


def _number(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError("a whole number is needed")
    return str(int(value)).encode()


def _json(value: Any) -> bytes:
    if isinstance(value, str):
        json.loads(value)  # or it would be found when it is read
        return value.encode()
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode()


def _array(value: Any) -> bytes:
    sink = io.BytesIO()
    np.lib.format.write_array(sink, np.asarray(value), allow_pickle=False)
    return sink.getvalue()


def _arrays(value: Any) -> bytes:
    if not isinstance(value, Mapping):
        raise TypeError("arrays by their names are needed")
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        for name, one in value.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), _array(one))
    return sink.getvalue()


def _image(form: str, **options: Any) -> Callable[[Any], bytes]:
    def encode(value: Any) -> bytes:
        try:
            from PIL import Image
        except ImportError as error:
            raise MissingExtraError.for_extra("images", "Pillow") from error
        picture = value if isinstance(value, Image.Image) else Image.fromarray(_pixels(value))
        sink = io.BytesIO()
        picture.save(sink, form, **options)
        return sink.getvalue()

    return encode


def _pixels(value: Any) -> Any:
    pixels = np.asarray(value)
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or pixels.shape[2:] not in _CHANNELS:
        raise TypeError("a picture of Pillow, or uint8 of height, width (and 3 or 4 channels)")
    return pixels


_CHANNELS = ((), (3,), (4,))
_ENCODERS: dict[str, Callable[[Any], bytes]] = {
    **dict.fromkeys(("txt", "text", "transcript"), _text),
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), _number),
    **dict.fromkeys(("json", "jsn"), _json),
    "npy": _array,
    "npz": _arrays,
    **dict.fromkeys(("jpg", "jpeg"), _image("JPEG", quality=_JPEG_QUALITY)),
    "png": _image("PNG"),
    "webp": _image("WEBP", lossless=True),
}
