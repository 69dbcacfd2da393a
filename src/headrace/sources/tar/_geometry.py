"""Width and height of images, from the first bytes of JPEG, PNG, WebP, GIF, BMP and TIFF files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ImageSize = tuple[int, int]

HEADS = (512, 16 << 10, 256 << 10, 16 << 20)
"""Numbers of bytes of an image that are read, one after the other, until its size is found.

The first is enough for a JPEG without a profile or a thumbnail; the last is rarely needed.
"""
_FRAME_MARKERS = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_LONE_MARKERS = frozenset({0x01, *range(0xD0, 0xD9)})
_END_OF_IMAGE, _SCAN = 0xD9, 0xDA
_FRAME_BYTES = 9
_LARGEST = (1 << 31) - 1
_TIFF_ENTRY, _TIFF_WIDTH, _TIFF_HEIGHT = 12, 256, 257
_TIFF_SIZES = {3: 2, 4: 4}
"""bytes of a number, by its type"""
_TIFF_ORDERS = {b"II*\0": "little", b"MM\0*": "big"}
BEGINNINGS_OF_LARGE_HEADS = (b"\xff\xd8", *_TIFF_ORDERS)
"""First bytes of JPEG and TIFF, whose size may be far from the beginning."""


def image_size(data: bytes) -> ImageSize | None:
    """Return width and height as they are stored, or None if the bytes do not tell.

    Args:
        data: The file, or its beginning.
    """
    measure = _BY_BEGINNING.get(data[:2])
    return None if measure is None else measure(data)


def _jpeg(data: bytes) -> ImageSize | None:
    at, last = 2, len(data) - _FRAME_BYTES
    while at <= last and data[at] == 0xFF:
        marker = data[at + 1]
        if marker in _FRAME_MARKERS:
            return _size(data[at + 7] << 8 | data[at + 8], data[at + 5] << 8 | data[at + 6])
        if marker == 0xFF:
            at += 1
        elif marker in _LONE_MARKERS:
            at += 2
        else:
            length = data[at + 2] << 8 | data[at + 3]
            if marker in (_SCAN, _END_OF_IMAGE) or length < 2:
                return None
            at += 2 + length
    return None


def _png(head: bytes) -> ImageSize | None:
    if not head.startswith(b"\x89PNG\r\n\x1a\n") or head[12:16] != b"IHDR" or len(head) < 24:
        return None
    return _size(int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big"))


def _gif(head: bytes) -> ImageSize | None:
    if head[:6] not in (b"GIF87a", b"GIF89a") or len(head) < 10:
        return None
    return _size(_little(head, 6, 8), _little(head, 8, 10))


def _webp(head: bytes) -> ImageSize | None:
    if not head.startswith(b"RIFF") or head[8:12] != b"WEBP" or len(head) < 25:
        return None
    kind = head[12:16]
    if kind == b"VP8L" and head[20] == 0x2F:
        packed = _little(head, 21, 25)
        return (packed & 0x3FFF) + 1, (packed >> 14 & 0x3FFF) + 1
    if len(head) < 30:
        return None
    if kind == b"VP8 " and head[23:26] == b"\x9d\x01\x2a":
        return _size(_little(head, 26, 28) & 0x3FFF, _little(head, 28, 30) & 0x3FFF)
    if kind == b"VP8X":
        return _little(head, 24, 27) + 1, _little(head, 27, 30) + 1
    return None


def _bmp(head: bytes) -> ImageSize | None:
    if len(head) < 26:
        return None
    if _little(head, 14, 18) == 12:
        return _size(_little(head, 18, 20), _little(head, 20, 22))
    height = int.from_bytes(head[22:26], "little", signed=True)  # negative: from top to bottom
    return _size(_little(head, 18, 22), abs(height))


def _tiff(head: bytes) -> ImageSize | None:
    order: Any = _TIFF_ORDERS.get(head[:4])
    if order is None:
        return None
    start = int.from_bytes(head[4:8], order)
    count = int.from_bytes(head[start : start + 2], order)
    found: dict[int, int] = {}
    for at in range(start + 2, start + 2 + count * _TIFF_ENTRY, _TIFF_ENTRY):
        entry = head[at : at + _TIFF_ENTRY]
        tag, kind = (int.from_bytes(entry[place : place + 2], order) for place in (0, 2))
        if tag in (_TIFF_WIDTH, _TIFF_HEIGHT) and len(entry) == _TIFF_ENTRY:
            found[tag] = int.from_bytes(entry[8 : 8 + _TIFF_SIZES.get(kind, 0)], order)
    return _size(found.get(_TIFF_WIDTH, 0), found.get(_TIFF_HEIGHT, 0))


def _size(width: int, height: int) -> ImageSize | None:
    return (width, height) if 0 < width <= _LARGEST and 0 < height <= _LARGEST else None


def _little(data: bytes, start: int, stop: int) -> int:
    return int.from_bytes(data[start:stop], "little")


_BY_BEGINNING: dict[bytes, Callable[[bytes], ImageSize | None]] = {
    b"\xff\xd8": _jpeg,
    b"\x89P": _png,
    b"GI": _gif,
    b"RI": _webp,
    b"BM": _bmp,
    b"II": _tiff,
    b"MM": _tiff,
}
