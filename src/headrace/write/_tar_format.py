"""Members of tars: what they are called, their headers, and values as bytes.

The same sample makes the same bytes: owner, mode and time of members are always the same.
"""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from headrace.errors import ConversionError, MissingExtraError, OptionError
from headrace.sources.tar.grouping import WHOLE

TarPayload = bytes | bytearray | memoryview

KEY = "__key__"
BLOCK_BYTES = 512
RECORD_BYTES = 10240
"""The size of a tar is a multiple of this; it ends with at least two blocks of zeros."""
_MODE = 0o644
_JPEG_QUALITY = 95
_MOST_NAME_BYTES, _MOST_SIZE = 100, 8**11 - 1
"""The longest name and the largest size that a plain header holds."""


def header(name: str, size: int) -> bytes:
    """Return all blocks before a payload: a ustar header, after a PAX header if one is needed."""
    if _is_plain(name, size):
        text = name.encode().ljust(_MOST_NAME_BYTES, b"\0")
        # Numbers of a header are octal digits. The checksum is the sum of its bytes, where the
        # eight of the checksum itself count as blanks.
        block = b"%s%011o%s" % (text + _OWNER, size, _TIME)
        total = sum(block) + sum(_BEHIND) + 8 * ord(" ")
        return b"%s%06o\0 %s" % (block, total, _BEHIND)
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, _MODE
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def room(name: str, size: int) -> int:
    """Return the number of bytes that a member of ``size`` bytes takes in a tar."""
    blocks = BLOCK_BYTES if _is_plain(name, size) else len(header(name, size))
    return blocks + size + -size % BLOCK_BYTES  # payloads are filled up to whole blocks


def _is_plain(name: str, size: int) -> bool:
    return name.isascii() and len(name) <= _MOST_NAME_BYTES and size <= _MOST_SIZE


class KeyRefusedError(OptionError):
    """A key that cannot be in a tar, or is in it already."""


def checked_key(sample: Mapping[str, Any]) -> str:
    """Return the key of a sample; raise a KeyRefusedError if readers would get another key."""
    key = sample.get(KEY)
    if not isinstance(key, str) or not key:
        raise KeyRefusedError(f"a sample needs a {KEY} that is a string and not empty, not {key!r}")
    parts = key.split("/")
    if key.startswith("/") or ".." in parts:
        raise KeyRefusedError(f"the key {key!r} leads out of the archive; give a path below it")
    if "" in parts or "." in parts:
        raise KeyRefusedError(f"the key {key!r} has an empty part or a part '.'; leave that out")
    if "." in parts[-1]:
        raise KeyRefusedError(
            f"the key {key!r} has a dot in its last part: what follows it would be read as a part "
            "of the field; replace the dot, by _ say"
        )
    try:
        return checked_text("key", key)
    except OptionError as error:
        raise KeyRefusedError(str(error)) from None


def checked_fields(key: str, sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by the names of their members, without those that are None.

    Names like ``__url__`` describe a sample and are not fields.
    """
    found: dict[str, Any] = {}
    seen: dict[str, str] = {}
    for field, value in sample.items():
        if not isinstance(field, str):
            raise OptionError(f"{key}: names of fields must be strings, not {field!r}")
        if value is None or (field.startswith("__") and field.endswith("__") and field != WHOLE):
            continue
        other = seen.setdefault(field.lower(), field)
        if other != field:
            raise OptionError(f"{key}: {other!r} and {field!r} would be one field; rename one")
        found[_member_name(key, field)] = value
    if not found:
        raise OptionError(
            f"the sample {key!r} has no field, so nothing would be written; give it one"
        )
    return found


def _member_name(key: str, field: str) -> str:
    if field == WHOLE:
        return key
    if not field or field.startswith(".") or "/" in field:
        raise OptionError(
            f"{key}: a field must have the name of an extension, such as jpg or seg.png, not "
            f"{field!r}"
        )
    return f"{key}.{checked_text('field', field)}"


def checked_text(what: str, text: str) -> str:
    """Return a text that can be a part of a name; raise an OptionError if it cannot."""
    if "\0" in text:
        raise OptionError(
            f"the {what} {text!r} contains a NUL character, which would end a name "
            "in a tar; remove it"
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise OptionError(f"the {what} {text!r} cannot be encoded as UTF-8") from None
    return text


def encoded(name: str, value: Any) -> TarPayload:
    """Return the payload of a member; the end of its name decides how a value is encoded."""
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
        json.loads(value)  # or the error would come when it is read
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
_OWNER = b"%07o\0%07o\0%07o\0" % (_MODE, 0, 0)
_TIME = b"\0%011o\0" % 0
_BEHIND = (b"0".ljust(101, b"\0") + b"ustar\x0000").ljust(BLOCK_BYTES - 156, b"\0")
"""The bytes behind the checksum of a plain header: a regular file without link or prefix."""
